"""What would void a promise of privacy, refused with the reason before anything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedsparq.errors import OptionError
from fedsparq.lab.specs.parts import FaultSpec
from fedsparq.lab.tasks import Training
from fedsparq.lab.tasks.task import SUPERVISED
from fedsparq.method import Method
from fedsparq.methods.fedsparq import CommonLattice

if TYPE_CHECKING:
    from fedsparq.lab.specs.run import RunSpec


def check_promises(spec: RunSpec, method: Method) -> None:
    """Refuse a run that could not keep what its table `privacy` promises."""
    privacy = spec.privacy
    if privacy.of_records:
        _check_records(spec, method)
    elif privacy.wanted:
        _check_clients(spec, method)
    if privacy.secure_sums:
        _check_secure(spec, method)


def _check_clients(spec: RunSpec, method: Method) -> None:
    if method.name == "soteriafl":
        raise OptionError(
            "'soteriafl' protects single records, by noise on each client's own gradient: say so with example_clip, "
            "the largest norm of one example's gradient; to protect whole clients use 'fedsparq-private'"
        )
    if not method.traits.has_common_support:
        raise OptionError(
            f"{method.name!r} lets each client choose its own coordinates, and the choice is not private: "
            "use method = 'fedsparq-private', or a dense one such as 'fedavg'"
        )
    if spec.aggregator:
        raise OptionError(
            f"aggregator = {spec.aggregator!r} cannot be private; leave it out: privacy brings a mean of its own"
        )
    for name, limit in _limits(spec).items():
        if "median" in limit:
            raise OptionError(f"{name} = {limit!r} depends on all clients' data, so no noise covers it: turn it off")
    if spec.server.min_replies > 1:
        raise OptionError(
            f"min_replies = {spec.server.min_replies}: whether a round counts would then tell who came, and no noise "
            "covers that: leave it at 1; rounds to which nobody comes have noise too"
        )


def _check_records(spec: RunSpec, method: Method) -> None:
    if spec.task != SUPERVISED:
        raise OptionError(f"example_clip needs the gradient of each example, which the task {spec.task!r} cannot give")
    if method.rules:
        raise OptionError(f"{method.label!r} has client rules, which a client's one noisy gradient a round passes by")
    training = spec.training
    if training != Training(lr=training.lr, batch_size=training.batch_size) or spec.augment != "off":
        raise OptionError(
            "with example_clip a client takes one step a round, along the noisy mean of all its examples' gradients: "
            "of training only lr can be set, and augment must be off"
        )
    if spec.privacy.secure_sums or spec.privacy.sampling != "fixed":
        raise OptionError("example_clip is a promise of each client's own: secure_sums and sampling do not go with it")
    if "label-flip" in spec.faults.hostile_kinds or "backdoor" in spec.faults.hostile_kinds:
        raise OptionError("example_clip does not go with faults that tamper with the data")


def _check_secure(spec: RunSpec, method: Method) -> None:
    """What cannot be done, or means nothing, where the server sees sums alone."""
    if not isinstance(method.compressor, CommonLattice):
        raise OptionError(
            f"{method.name!r} has no levels on a common support, so it cannot be summed under masks: "
            "use method = 'fedsparq-private'"
        )
    for name, limit in _limits(spec).items():
        if limit != "off":
            raise OptionError(f"{name} = {limit!r} needs to see single replies, which secure sums hide: turn it off")
    if spec.downlink == "lattice":
        raise OptionError("a compressed downlink does not go with secure sums yet: leave downlink out")
    if spec.clients_a_round < 3:
        raise OptionError(f"a sum of {spec.clients_a_round} clients hides nothing: secure sums need at least 3 a round")
    if spec.privacy.sampling == "poisson":
        raise OptionError(
            "sampling = 'poisson' is worth something only against those who do not see who takes part; under secure "
            "sums the promise is against the server, which asks the clients: leave sampling out"
        )
    if spec.faults != FaultSpec(drop=spec.faults.drop):
        raise OptionError("secure sums can be tried with faults.drop, but with no other fault")


def _limits(spec: RunSpec) -> dict[str, str]:
    return {"norm_limit": spec.server.norm_limit, "examples_limit": spec.server.examples_limit}
