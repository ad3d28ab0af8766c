"""Settings of data, model and local training."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from fedsparq.options import Count, Decay, NonNegative, Positive, component


class DataSpec(BaseModel, extra="forbid", frozen=True):
    """Data and model: what a task is offered, besides `training`."""

    dataset: str = Field(
        "mnist-mini",
        description="mnist-mini, cifar10, ... (`fedsparq datasets`), owner/name, a folder, module:function",
    )
    dataset_options: dict[str, Any] = Field(default_factory=dict)
    label_column: str = Field("", description="target of a table; else a column called label, target or y")
    client_column: str = Field("", description="owner of each example; else a column such as client or user")
    window: int = Field(80, ge=1, description="characters of a text per example")
    augment: Literal["off", "crop-flip"] = Field("off", description="crop-flip: random crops and flips of images")
    train_limit: int | None = Field(None, ge=1, description="number of training examples that are used")
    test_limit: int | None = Field(None, ge=1, description="number of test examples that are used")
    model: str = Field("mlp", description="mlp, lenet5, resnet18, char-lstm, char-transformer, module:function")
    model_options: dict[str, Any] = Field(default_factory=dict)
    partition: Literal["iid", "dirichlet", "shards", "natural"] = Field("iid", description="how data are split")
    alpha: float = Field(0.5, gt=0, description="dirichlet: smaller is more skewed")
    shards_per_client: int = Field(2, ge=1, description="shards: number of shards per client")
    clients: int = Field(3, ge=1, le=100_000, description="number of clients")
    seed: int = Field(0, ge=0, lt=2**64, description="seed of all randomness")
    device: Literal["auto", "cpu", "cuda", "mps"] = Field("cpu", description="where models are trained")


@component
class Training:
    """SGD on a client. ``steps``, where given, counts batches and overrides ``epochs``.

    ``clip_norm`` bounds the norm of the gradient after the client rules have seen it; weight decay comes after it.
    """

    lr: Positive = 0.1
    momentum: Decay = 0.0
    weight_decay: NonNegative = 0.0
    epochs: Count = 1
    steps: Count | None = None
    batch_size: Count = 32
    clip_norm: Positive | None = None

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
