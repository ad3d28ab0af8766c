"""The table `privacy` of a run: what it promises, the noise that this needs, and what was spent of it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import BaseModel, Field, model_validator

from fedsparq.aggregate import CommonMean, PrivateMean
from fedsparq.errors import OptionError
from fedsparq.lab.settings import Integer, Number
from fedsparq.layout import Layout
from fedsparq.method import Method
from fedsparq.methods.fedsparq import CommonLattice
from fedsparq.privacy import epsilon_of, noise_for, poisson_epsilon, poisson_noise
from fedsparq.privacy.skellam import bits_for, skellam_epsilon, skellam_variance
from fedsparq.secure import Terms

Positive = Annotated[Number, Field(gt=0, allow_inf_nan=False)]

_DELTA, _CLIP = 1e-5, 0.3


class PrivacySpec(BaseModel, extra="forbid", frozen=True):
    """Taking one client away, with all its examples and in all rounds, changes what is likely by little.

    With `example_clip` the promise is another one, of single examples: see docs/PRIVACY.md.
    """

    epsilon: Positive | None = None
    """What a run may spend: it finds the noise that it needs, or stops before it would spend more."""
    delta: Annotated[Number, Field(gt=0, lt=1)] = _DELTA
    clip: Positive = _CLIP
    """The largest norm of what a client sends in a round; what is longer waits, or is let go."""
    noise: Positive | None = None
    """Its standard deviation as a multiple of the clip; if not given, what epsilon needs."""
    sampling: Literal["fixed", "poisson"] = "fixed"
    """How the clients of a round are chosen. `fixed`: so many, by the seed; each pays for the rounds that it is in.
    `poisson`: each by a coin from the system's random source; all pay for all rounds, and much less for each."""
    example_clip: Positive | None = None
    """The largest norm of one example's gradient. Clients then add noise to their own gradients, and the promise is of
    single records, against the server too."""

    secure_sums: bool = False
    """Whether the server sees sums alone; with epsilon, clients then add the noise themselves."""
    survivors: Annotated[Integer, Field(ge=0)] = 0
    """The fewest clients of a sum; 0: as few as two stories about who is alive allow, with these colluders."""
    colluders: Annotated[Integer, Field(ge=0)] | None = None
    """So many clients may work together, or with the server, against the others of a sum; if not given, a third of
    those asked."""

    @model_validator(mode="after")
    def _whole(self) -> PrivacySpec:
        usual = (_DELTA, _CLIP, "fixed", None)
        if not self.wanted and (self.delta, self.clip, self.sampling, self.example_clip) != usual:
            raise OptionError("privacy wants epsilon, or noise: without either nothing is private")
        if self.of_records and self.clip != _CLIP:
            raise OptionError("clip bounds a client's update, example_clip an example's gradient: give one of them")
        return self

    @property
    def wanted(self) -> bool:
        return self.epsilon is not None or self.noise is not None

    @property
    def of_records(self) -> bool:
        """Whether the promise is of single examples, kept by each client on its own."""
        return self.example_clip is not None

    @property
    def central(self) -> bool:
        """Whether the server adds the noise."""
        return self.wanted and not self.of_records and not self.secure_sums

    @property
    def promise(self) -> str:
        """In words: whose privacy, and against whom."""
        if self.of_records:
            return "of each record, against the server and all others (local)"
        others = "the server, clients that collude and " if self.secure_sums else ""
        return f"of each client, against {others}whoever sees the models"

    def noise_of(self, rounds: int, rate: float = 1.0) -> float:
        """The noise multiplier of a run in which a client takes part so many times; with Poisson sampling, of so many
        rounds in all, each with this probability."""
        if self.noise is not None:
            return self.noise
        if self.epsilon is None:
            raise OptionError("privacy wants epsilon, or noise")
        if self.sampling == "poisson":
            return poisson_noise(self.epsilon, self.delta, rate, rounds)
        return noise_for(self.epsilon, self.delta, rounds)

    def private(self, method: Method, clients: int, rate: float, divisor: float, rounds: int) -> Method:
        """A method with a private mean in the place of its own. Momentum after it costs nothing."""
        own = method.aggregator
        support = own.support if isinstance(own, CommonMean) else None
        mean = PrivateMean(self.clip, self.noise_of(rounds, rate), divisor, clients, rounds, support)
        return method.with_server(aggregator=mean)

    def with_own_noise(self, method: Method, layout: Layout, terms: Terms) -> Method:
        """A private method whose clients add the noise to their levels, before these are masked.

        It is enough when no more of them stay than the fewest of a sum, and nobody counts on noise that it knows: its
        own, if it is a client, and that of the colluders.
        """
        mean = private_mean(method)
        if self.epsilon is None:
            raise OptionError("secure sums with noise find it from epsilon: give epsilon in the place of noise")
        total = skellam_variance(self.epsilon, self.delta, *_sensitivity(mean, layout), mean.rounds)
        return method.with_server(aggregator=replace(mean, variance=total / self.unknown(terms)))

    def colluding(self, clients: int) -> int:
        """How many of so many clients may collude."""
        return clients // 3 if self.colluders is None else self.colluders

    def unknown(self, terms: Terms) -> int:
        """Of how many clients of a sum at least the noise is unknown to a client and those colluding with it."""
        colluders = self.colluding(terms.clients)
        if (unknown := terms.survivors - colluders - 1) < 1:
            raise OptionError(
                f"of {terms.survivors} clients, {colluders} colluding and one looking on, none is left whose noise is "
                "unknown: ask more clients a round, or give fewer colluders"
            )
        return unknown

    def spent(self, noise: float, rounds: int, rate: float) -> float:
        """Epsilon of so many rounds with this noise multiplier, counted as for `noise_of`."""
        if self.sampling == "poisson":
            return poisson_epsilon(self.delta, noise, rate, rounds)
        return epsilon_of(self.delta, noise, rounds)

    def spent_under_masks(
        self, rounds: int, method: Method, layout: Layout, terms: Terms, outside: bool = False
    ) -> float:
        """Epsilon, when some client's own noise was in so many sums: against clients that collude, or only against
        those `outside`, who know nobody's noise."""
        mean = private_mean(method)
        noisy = terms.survivors if outside else self.unknown(terms)
        return skellam_epsilon(self.delta, mean.variance * noisy, *_sensitivity(mean, layout), rounds)

    def terms(self, method: Method, layout: Layout, federation: str, number: int, clients: int) -> Terms:
        """Of the secure sum of a round."""
        plan, lattice = method.plan(layout), method.compressor
        if plan is None or plan.support is None or not isinstance(lattice, CommonLattice):
            raise OptionError(f"{method.name!r} has no levels on a common support: use 'fedsparq-private'")
        length = plan.support.count + plan.support.num_listed
        bits = bits_for(clients, plan.top or lattice.top, plan.variance * clients)
        return Terms.usual(federation, number, length, bits, clients, self.colluding(clients), self.survivors)


def private_mean(method: Method) -> PrivateMean:
    if not isinstance(method.aggregator, PrivateMean):
        raise OptionError(f"{method.label!r} has no private mean")
    return method.aggregator


def _sensitivity(mean: PrivateMean, layout: Layout) -> tuple[float, float]:
    """By how much one client can move the sum of levels: its L2 and its L1 norm."""
    if mean.support is None:
        raise OptionError("only levels on a common support can be summed under masks: use 'fedsparq-private'")
    l2 = mean.clip / mean.step(layout)
    return l2, min(math.sqrt(mean.support.count(layout)) * l2, l2**2)
