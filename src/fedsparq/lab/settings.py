"""The settings of a run, one field each: its default, its bounds, and its text in the help of the command line; and
tables of settings: read from TOML, merged, and checked with one sentence for what is wrong.

The first words of a class's docstring, up to the colon, are the heading of its settings in that help. Nothing slow is
imported here.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, Field, Strict, ValidationError

from fedsparq.errors import OptionError, did_you_mean
from fedsparq.options import Count, Decay, NonNegative, Positive, component

Spec = TypeVar("Spec", bound=BaseModel)

Integer = Annotated[int, Strict()]
Number = Annotated[float, Strict()]
"""Numbers of a spec: true, false and text are not taken for one."""


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


def check(kind: type[Spec], data: Mapping[str, Any], where: str = "", context: object = None) -> Spec:
    """A spec from a table, or one sentence that says what is wrong with it."""
    try:
        return kind.model_validate(data, context=context)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            message = no_such_key(str(first["loc"][-1]), _keys_beside(kind, first["loc"]))
        elif first["type"] == "missing":
            message = "it is needed"
        elif key and first["type"] != "value_error":
            message = f"{message[0].lower()}{message[1:]}, got {first['input']!r}"
        raise OptionError(": ".join(part for part in (where, key, message) if part)) from None


def slug(text: str) -> str:
    """A name that is safe as a folder's."""
    return re.sub(r"[^A-Za-z0-9.=]+", "-", text).strip("-")


def no_such_key(key: str, known: Sequence[str]) -> str:
    """That a key is wrong, and which are right; first the one that was meant."""
    return f"there is no such key; {did_you_mean(key, known)}there is {', '.join(known)}"


def _keys_beside(kind: type[BaseModel], where: tuple[int | str, ...]) -> list[str]:
    """The keys that could have stood there."""
    for part in where[:-1]:
        if part in kind.model_fields:
            inner = type_parts(kind.model_fields[str(part)].annotation)
            kind = next((each for each in inner if isinstance(each, type) and issubclass(each, BaseModel)), kind)
    return list(kind.model_fields)


def type_parts(annotation: Any) -> list[Any]:
    """Return what a type is made of: of ``Annotated[int, ...] | None``, among others int."""
    return [annotation, *(part for inner in get_args(annotation) for part in type_parts(inner))]


class DataSpec(BaseModel, extra="forbid", frozen=True):
    """Data and model: what a task is offered, besides `training`."""

    dataset: str = Field(
        "mnist-mini",
        description="mnist-mini, cifar10, ... (`fedsparq datasets`), owner/name, a folder, module:function",
    )
    dataset_options: dict[str, Any] = Field(default_factory=dict)
    label_column: str = Field("", description="target of a table; else a column called label, target or y")
    client_column: str = Field("", description="owner of each example; else a column such as client or user")
    window: Integer = Field(80, ge=1, description="characters of a text per example")
    augment: Literal["off", "crop-flip"] = Field("off", description="random crops and flips of images")
    train_limit: Integer | None = Field(None, ge=1, description="number of training examples that are used")
    test_limit: Integer | None = Field(None, ge=1, description="number of test examples that are used")
    model: str = Field("mlp", description="mlp, lenet5, resnet18, char-lstm, char-transformer, module:function")
    model_options: dict[str, Any] = Field(default_factory=dict)
    partition: Literal["iid", "dirichlet", "shards", "natural"] = Field("iid", description="how data are split")
    alpha: Number = Field(0.5, gt=0, description="dirichlet: smaller is more skewed")
    shards_per_client: Integer = Field(2, ge=1, description="shards: number of shards per client")
    clients: Integer = Field(3, ge=1, le=100_000, description="number of clients")
    seed: Integer = Field(0, ge=0, lt=2**64, description="seed of all randomness")
    device: Literal["auto", "cpu", "cuda", "mps"] = Field("cpu", description="where models are trained")


SUPERVISED = "supervised"
"""The name of the task that comes with the package."""


class MethodSpec(BaseModel, extra="forbid", frozen=True):
    """Method: its options, and the parts that replace its own."""

    options: dict[str, Any] = Field(default_factory=dict)
    aggregator: str = Field("", description="in place of the method's own: robust, mean, ... (docs/HOSTILE.md)")
    aggregator_options: dict[str, Any] = Field(default_factory=dict)
    optimizer: str = Field("", description="in place of the method's own: step, momentum, adam, yogi, module:function")
    optimizer_options: dict[str, Any] = Field(default_factory=dict)
    downlink: str = Field("auto", description="broadcasts: lattice (compressed), none, or auto, as the method has it")
    first_model: Literal["one-bit", "8-bit"] = Field(
        "one-bit", description="with a compressed downlink: one-bit, 8-bit"
    )
    acknowledge: bool = True
    """Whether clients learn which replies counted. If not, this is plain error feedback: what is dropped is lost."""
    variant: str = ""
    """What is special about this run beside method and options, for its label."""


class RoundSpec(BaseModel, extra="forbid", frozen=True):
    """Rounds: what they train, how many there are, and who takes part."""

    method: str = Field("fedsparq", description="`fedsparq methods`, module:function")
    task: str = Field(SUPERVISED, description="supervised, module:function")
    task_options: dict[str, Any] = Field(default_factory=dict)
    fraction: Number = Field(1.0, gt=0, le=1, description="share of the clients in each round")
    rounds: Integer = Field(10, ge=1, description="rounds; a shorter run in DIR is extended")
    budget: str = Field("", description='bytes that a client may send: "20 kB" a round, or "5 MB/run"')
    client_budgets: dict[int, str] = Field(default_factory=dict)
    """Other budgets for single clients, by their numbers."""
    engine: Literal["local", "flower-simulation"] = Field("local", description="what runs the clients")


@component
class Training:
    """Training: SGD on a client. ``steps``, where given, counts batches and overrides ``epochs``.

    ``clip_norm`` bounds the norm of the gradient after the client rules have seen it; weight decay comes after it.
    """

    lr: Positive = Field(0.1, description="learning rate of the clients")
    momentum: Decay = Field(0.0, description="momentum of the clients")
    weight_decay: NonNegative = Field(0.0, description="weight decay of the clients")
    epochs: Count = Field(1, description="local epochs in a round")
    steps: Count | None = Field(None, description="local steps in a round, a batch each, in place of epochs")
    batch_size: Count = Field(32, description="batch size of the clients")
    clip_norm: Positive | None = Field(None, description="largest norm of a client's gradient")

    def reach(self, steps: int) -> float:
        """Return how far `steps` steps would move a weight against a gradient of 1: lr * steps, more with momentum."""
        momentum = self.momentum
        trailing = momentum * (1 - momentum**steps) / (1 - momentum)
        return self.lr * (steps - trailing) / (1 - momentum)


@component
class PerExample:
    """Record-level privacy: each example's gradient is clipped to the norm ``clip``, and noise of ``noise`` times that
    is added to their sum before anything else is done with it."""

    clip: Positive
    noise: NonNegative
