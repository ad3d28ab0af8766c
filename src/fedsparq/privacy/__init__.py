"""Differential privacy: how much noise a promise needs, and what a run has spent of it."""

from fedsparq.privacy.gaussian import delta_of, epsilon_of, noise_for
from fedsparq.privacy.poisson import poisson_epsilon, poisson_noise

__all__ = ["delta_of", "epsilon_of", "noise_for", "poisson_epsilon", "poisson_noise"]
