"""Methods by name. `fedsparq methods` lists them in the order of these imports."""

# ruff: noqa: F401
# isort: off
from fedsparq.methods.registry import METHODS, method, register, resolver
from fedsparq.methods import basic, fedsparq, signs, drive, bit_allocation, powersgd, fetchsgd, demo, sobaa, shifted

__all__ = ["METHODS", "method", "register", "resolver"]
