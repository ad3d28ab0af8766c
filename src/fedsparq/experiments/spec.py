"""What an experiment is, read from TOML and the command line. Everything is checked before anything runs."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from fedsparq.compress.budget import parse_bytes
from fedsparq.compress.method import broadcast_method, method
from fedsparq.compress.pipeline import Method
from fedsparq.errors import OptionError
from fedsparq.federate.messages import REPLY_OVERHEAD
from fedsparq.federate.rules import Limit, Rules

PartitionKind = Literal["iid", "dirichlet", "shards"]
EngineKind = Literal["local", "flower-simulation"]
Spec = TypeVar("Spec", bound=BaseModel)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TrainingSpec(_Strict):
    """How each client trains in a round."""

    lr: float = Field(0.1, gt=0)
    momentum: float = Field(0.0, ge=0, lt=1)
    weight_decay: float = Field(0.0, ge=0)
    epochs: int = Field(1, ge=1)
    steps: int | None = Field(None, ge=1)
    batch_size: int = Field(32, ge=1)
    clip_norm: float | None = Field(None, gt=0)


class ServerSpec(_Strict):
    """Which replies count."""

    min_replies: int = Field(1, ge=1)
    deadline: float | None = Field(None, gt=0)
    norm_limit: str = "off"
    examples_limit: str = "off"

    @field_validator("norm_limit", "examples_limit")
    @classmethod
    def _readable(cls, value: str, info: ValidationInfo) -> str:
        Limit.parse(str(info.field_name), value)
        return value

    def rules(self, acknowledge: bool) -> Rules:
        return Rules(self.min_replies, self.deadline, self.norm_limit, acknowledge, self.examples_limit)


Chance = Field(0.0, ge=0, le=1)


class FaultSpec(_Strict):
    """What goes wrong, as chances per client and round (`server_crash`: per round; `hostile`: share of the clients)."""

    drop: float = Chance
    late: float = Chance
    duplicate: float = Chance
    flip: float = Chance
    crash_before: float = Chance
    """The client dies when it has trained, before its state is saved."""
    crash_after: float = Chance
    """The client dies when its state is saved, before the reply is sent."""
    server_crash: float = Chance
    hostile: float = Chance
    hostile_kinds: tuple[Literal["random", "nan", "scale", "replay"], ...] = Field(
        ("random", "nan", "scale", "replay"), min_length=1
    )
    hostile_scale: float = 100.0

    @property
    def any(self) -> bool:
        return self != FaultSpec()


class RunSpec(_Strict):
    """One run: one method on one data set, partition and seed."""

    method: str = "fedsparq"
    options: dict[str, Any] = {}
    dataset: str = "mnist-mini"
    model: str = "mlp"
    model_options: dict[str, Any] = {}
    partition: PartitionKind = "iid"
    alpha: float = Field(0.5, gt=0)
    shards_per_client: int = Field(2, ge=1)
    clients: int = Field(3, ge=1, le=100_000)
    fraction: float = Field(1.0, gt=0, le=1)
    rounds: int = Field(10, ge=1)
    seed: int = Field(0, ge=0)
    train_limit: int | None = Field(None, ge=1)
    test_limit: int | None = Field(None, ge=1)
    downlink: str | None = None
    downlink_options: dict[str, Any] = {}
    budget: str = ""
    """What each client may send: "20 kB" a round, or "5 MB/run". For methods with a budget option."""
    client_budgets: dict[int, str] = {}
    """Other budgets for single clients, by their numbers."""
    acknowledge: bool = True
    """Whether clients learn which replies counted. If not, this is plain error feedback: what is dropped is lost."""
    engine: EngineKind = "local"
    note: str = ""
    variant: str = ""
    """What is special about this run beside method and options, for its label."""
    training: TrainingSpec = TrainingSpec()
    server: ServerSpec = ServerSpec()
    faults: FaultSpec = FaultSpec()

    @model_validator(mode="after")
    def _can_be_run(self) -> RunSpec:
        self.chosen_method()
        self.chosen_downlink()
        if self.server.min_replies > self.clients_a_round:
            needed, asked = self.server.min_replies, self.clients_a_round
            raise OptionError(f"min_replies={needed}, but {asked} clients are asked in a round: none would ever count")
        self.client_methods(lambda client: self.rounds)
        unknown = sorted(client for client in self.client_budgets if not 0 <= client < self.clients)
        if unknown:
            raise OptionError(f"client_budgets names client {unknown[0]}; there are 0 to {self.clients - 1}")
        return self

    @property
    def clients_a_round(self) -> int:
        return max(1, round(self.fraction * self.clients))

    def chosen_method(self) -> Method:
        return method(self.method, **self.options)

    def client_methods(self, rounds: Callable[[int], int]) -> dict[int, Method]:
        """The methods of clients with a byte budget; `rounds` tells in how many rounds a client takes part."""
        amounts = dict.fromkeys(range(self.clients), self.budget) if self.budget else {}
        budgets = amounts | self.client_budgets
        return {
            client: method(self.method, **self.options | {"budget": f"{_share(text, rounds, client)} B"})
            for client, text in budgets.items()
        }

    def chosen_downlink(self) -> Method | None:
        return broadcast_method(self.downlink, **self.downlink_options) if self.downlink else None

    @property
    def label(self) -> str:
        """The method with its unusual options, as tables and figures name it."""
        down = self.chosen_downlink()
        special = ", ".join(filter(None, [self.variant, "" if self.acknowledge else "not acknowledged"]))
        label = self.chosen_method().label + (f" / down: {down.label}" if down else "")
        return f"{label} ({special})" if special else label

    @property
    def partition_label(self) -> str:
        match self.partition:
            case "dirichlet":
                return f"dirichlet({self.alpha:g})"
            case "shards":
                return f"shards({self.shards_per_client})"
            case _:
                return "iid"

    @property
    def folder_name(self) -> str:
        return slug(f"{self.dataset}-{self.model}-{self.partition_label}-{self.label}-seed{self.seed}")

    def to_toml(self) -> str:
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))


class MethodChoice(_Strict):
    """One row of a comparison: a method, its options and, where it has one, its downlink.

    A row may also differ in what goes wrong and in the server's rules; `variant` then names it.
    """

    name: str
    options: dict[str, Any] = {}
    downlink: str | None = None
    downlink_options: dict[str, Any] = {}
    acknowledge: bool = True
    variant: str = ""
    faults: dict[str, Any] = {}
    server: dict[str, Any] = {}

    def changes(self) -> dict[str, Any]:
        """What the row says, as keys of a run."""
        said = self.model_dump(exclude_defaults=True, exclude={"name", "options"})
        return said | {"method": self.name, "options": self.options}


class CompareSpec(_Strict):
    """Methods x partitions x seeds, all else alike. A list entry may be a name or a table with options."""

    name: str = ""
    methods: tuple[MethodChoice, ...] = Field(min_length=1)
    partitions: tuple[PartitionKind, ...] = Field(("iid",), min_length=1)
    seeds: tuple[int, ...] = Field((0,), min_length=1)
    run: dict[str, Any] = {}
    """All other keys: those of a single run."""

    @field_validator("methods", mode="before")
    @classmethod
    def _names_are_tables(cls, value: Any) -> Any:
        return (
            [{"name": item} if isinstance(item, str) else item for item in value] if isinstance(value, list) else value
        )

    def runs(self) -> list[RunSpec]:
        """Every run of the comparison, in the order in which they are run."""
        return [
            check(RunSpec, merge(self.run, row.changes()) | {"partition": partition, "seed": seed})
            for partition in self.partitions
            for seed in self.seeds
            for row in self.methods
        ]


def load_compare(path: Path, overrides: Mapping[str, Any]) -> CompareSpec:
    """A comparison from its TOML file; `overrides` from the command line win."""
    table = read_toml(path)
    known: dict[str, Any] = {key: table.pop(key) for key in ("name", "methods", "partitions", "seeds") if key in table}
    run: dict[str, Any] = dict(table)
    given = dict(overrides)
    if "method" in given:
        known["methods"] = [{"name": given.pop("method"), "options": given.pop("options", {})}]
    for one, many in (("partition", "partitions"), ("seed", "seeds")):
        if one in given:
            known[many] = [given.pop(one)]
        if one in run:
            known.setdefault(many, [run.pop(one)])
    spec = check(CompareSpec, known | {"run": merge(run, given)}, str(path))
    spec.runs()
    return spec


def load_run(path: Path | None, overrides: Mapping[str, Any]) -> RunSpec:
    """A single run from a TOML file, if given, and the command line."""
    return check(RunSpec, merge(read_toml(path) if path else {}, dict(overrides)), str(path or ""))


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise OptionError(f"the spec {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionError(f"the spec {path} is not TOML: {error}") from None


def merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """`above` over `below`, tables key by key."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def check(kind: type[Spec], data: Mapping[str, Any], where: str = "") -> Spec:
    """A spec from a table, or one sentence that says what is wrong with it."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            message = f"there is no such key; there is {', '.join(_keys_beside(kind, first['loc']))}"
        elif key:
            message = f"{message[0].lower()}{message[1:]}, got {first['input']!r}"
        raise OptionError(": ".join(part for part in (where, key, message) if part)) from None


def _keys_beside(kind: type[BaseModel], place: tuple[int | str, ...]) -> list[str]:
    """The keys that could have stood at a place of a spec."""
    for part in place[:-1]:
        inner = kind.model_fields[part].annotation if part in kind.model_fields else None
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            kind = inner
    return list(kind.model_fields)


def _share(budget: str, rounds: Callable[[int], int], client: int) -> int:
    """The bytes that are left for an update in a round when the reply around it is paid for."""
    amount, whole_run, _ = budget.partition("/run")
    left = parse_bytes(amount) // (max(1, rounds(client)) if whole_run else 1) - REPLY_OVERHEAD
    if left < 1:
        raise OptionError(f"budget={budget!r} is too small: a reply takes {REPLY_OVERHEAD} bytes around its update")
    return left


def slug(text: str) -> str:
    """A name that is safe as a folder's."""
    return re.sub(r"[^A-Za-z0-9.=]+", "-", text).strip("-")
