"""The options by which a command line overrides a spec."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer

from fedsparq.errors import OptionError

F = TypeVar("F", bound=Callable[..., Any])

_OVERRIDES: dict[str, tuple[type, str]] = {
    "dataset": (
        str,
        "mnist-mini, mnist, fashion-mnist, cifar10, shakespeare, a hub id, a folder, or package.module:function.",
    ),
    "label_column": (str, "Of a table: its target; else a column called label, target or y."),
    "client_column": (str, "Of a table: whose each example is, for --partition natural."),
    "window": (int, "How many characters of a text are one example."),
    "augment": (str, "off, or crop-flip: random crops and flips of images."),
    "train_limit": (int, "So many training examples, and no more."),
    "test_limit": (int, "So many test examples, and no more."),
    "model": (str, "mlp, lenet5, resnet18, char-lstm, char-transformer, or package.module:function."),
    "task": (str, "supervised, or package.module:function."),
    "method": (str, "A method by name (`fedsparq methods` lists them), or package.module:function."),
    "aggregator": (str, "In place of the method's own: robust, mean, centered-clipping, ... (docs/HOSTILE.md)."),
    "optimizer": (str, "In place of the method's own: step, momentum, adam, yogi, or package.module:function."),
    "partition": (str, "iid, dirichlet, shards or natural."),
    "alpha": (float, "Dirichlet concentration: smaller is more skewed."),
    "clients": (int, "How many clients there are."),
    "fraction": (float, "Share of the clients that take part in a round."),
    "rounds": (int, "How many rounds; more than a run in --out has: they are added to it."),
    "epochs": (int, "Local epochs in a round."),
    "steps": (int, "Local steps in a round, a batch each, in place of epochs."),
    "lr": (float, "Learning rate of the clients."),
    "batch_size": (int, "Batch size of the clients."),
    "seed": (int, "Everything random follows from it."),
    "downlink": (str, "auto: as the method does; lattice: broadcasts are compressed; none."),
    "first_model": (str, "With a compressed downlink: one-bit or 8-bit."),
    "budget": (str, 'What each client may send: "20 kB" a round, or "5 MB/run".'),
    "epsilon": (float, "Differential privacy for each client: what the run may spend; with --delta."),
    "delta": (float, "The chance with which that promise may fail; 1e-5 if not given."),
    "clip": (float, "The largest norm of what a client sends in a round of a private run."),
    "sampling": (str, "Of a private run's clients: fixed, or poisson, which is worth a smaller epsilon."),
    "example_clip": (float, "The largest norm of one example's gradient: epsilon is then of single records."),
    "secure_sums": (bool, "Sum the updates under masks: the server sees no single one."),
    "engine": (str, "local or flower-simulation."),
    "device": (str, "auto, cpu, cuda or mps."),
}
_OPTIONS = ("method", "dataset", "model", "task", "aggregator", "optimizer")
"""What may have options of its own: `--dataset-option rows=900`; those of the method are also `-o`."""


def accepts_overrides(command: F) -> F:
    """Give a command the options that override a spec; it gets those that were set as `overrides`, a spec's table."""

    def wrapped(**arguments: Any) -> Any:
        from fedsparq.lab.specs.run import to_spec_table

        given = {key: value for key in _OVERRIDES if (value := arguments.pop(key)) is not None}
        for name in _OPTIONS:
            if options := dict(parse_option(text) for text in arguments.pop(f"{name}_option") or ()):
                given["options" if name == "method" else f"{name}_options"] = options
        return command(**arguments, overrides=to_spec_table(given))

    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "overrides"]
    extra = []
    for name, (kind, text) in _OVERRIDES.items():
        annotation: Any = Annotated[kind | None, typer.Option(help=text, show_default=False)]
        extra.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation))
    for name in _OPTIONS:
        flags = ("-o", "--option") if name == "method" else (f"--{name}-option",)
        annotation = Annotated[list[str] | None, typer.Option(*flags, help=f"Of the {name}: key=value.")]
        parameter = inspect.Parameter(
            f"{name}_option", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
        )
        extra.append(parameter)
    wrapped.__signature__ = inspect.Signature(own + extra)  # type: ignore[attr-defined]
    wrapped.__name__, wrapped.__doc__ = command.__name__, command.__doc__
    return wrapped  # type: ignore[return-value]


def parse_option(text: str) -> tuple[str, Any]:
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise OptionError(f"-o {text}: write it as key=value, such as -o multiplier=2")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value
