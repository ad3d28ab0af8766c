"""Tables inside a run's spec: which replies count, and what goes wrong."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field, model_validator

from fedsparq.federate.validation import Validation
from fedsparq.lab.settings import Integer, Number

Chance = Annotated[Number, Field(ge=0, le=1)]


HostileKind = Literal[
    "random",
    "nan",
    "scale",
    "replay",
    "garbled",
    "under-limits",
    "slow",
    "sign-flip",
    "gaussian",
    "label-flip",
    "alie",
    "ipm",
    "backdoor",
    "free-rider",
    "sybil",
]


class ServerSpec(BaseModel, extra="forbid", frozen=True):
    """Which replies count."""

    min_replies: Integer = 1
    deadline: Number | None = None
    norm_limit: str = "off"
    examples_limit: str = "off"

    @model_validator(mode="after")
    def _possible(self) -> ServerSpec:
        self.validation(acknowledge=True)
        return self

    def validation(self, acknowledge: bool) -> Validation:
        return Validation(**self.model_dump(), acknowledge=acknowledge)


class FaultSpec(BaseModel, extra="forbid", frozen=True):
    """What goes wrong, as chances per client and round (`server_crash`: per round; `hostile`: share of the clients)."""

    drop: Chance = 0.0
    late: Chance = 0.0
    duplicate: Chance = 0.0
    flip: Chance = 0.0
    crash_before: Chance = 0.0
    """The client dies when it has trained, before its state is saved."""
    crash_after: Chance = 0.0
    """The client dies when its state is saved, before the reply is sent."""
    server_crash: Chance = 0.0
    hostile: Chance = 0.0
    hostile_kinds: tuple[HostileKind, ...] = Field(("random", "nan", "scale", "replay"), min_length=1)
    """What hostile clients do, each round one of these: see `fedsparq.lab.engines.attacks`."""
    hostile_scale: Number = 100.0
    """By which `scale` multiplies."""
    hostile_from: Integer = Field(1, ge=1)
    """The first round in which they are hostile; a `sybil` is not there before."""

    @property
    def any(self) -> bool:
        return self != FaultSpec()
