"""Methods by name."""

from fedsparq.methods import recipes
from fedsparq.methods.registry import METHODS, method, register, resolver

__all__ = ["METHODS", "method", "recipes", "register", "resolver"]
