"""The settings of a spec as options of a command, each made from its field."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

import click

from fedsparq.cli.app import Option
from fedsparq.errors import OptionError
from fedsparq.lab.settings import DataSpec, MethodSpec, RoundSpec, Training, type_parts

_SHORT = {
    "Data and model": ("dataset", "model", "partition", "alpha", "clients", "fraction"),
    "Method": ("method", "method_option", "downlink"),
    "Training": ("rounds", "epochs", "lr", "batch_size", "seed"),
}
"""The settings that ``--help`` shows, under their headings there; ``--help-all`` shows all."""
_PRIVACY = {
    "epsilon": (float, "differential privacy per client: what the run may spend"),
    "delta": (float, "probability with which that guarantee may fail"),
    "clip": (float, "largest norm of what a client sends in a round"),
    "sampling": (str, "fixed, or poisson, which spends a smaller epsilon"),
    "example_clip": (float, "largest norm of one example's gradient: epsilon per record"),
    "secure_sums": (bool, "mask the updates: the server sees their sum alone"),
}
PARTS = ("method", "dataset", "model", "task", "aggregator", "optimizer")
"""What may have options of its own: `--dataset-option rows=900`; those of the method are also `-o`."""
_METAVARS = {bool: None, int: "N", float: "FLOAT", str: "NAME"}


def setting_options() -> list[click.Parameter]:
    """Return an option for each setting that has a description, and one for the options of each part."""
    models: tuple[tuple[type, Mapping[str, Any]], ...] = (
        *((model, model.model_fields) for model in (DataSpec, MethodSpec, RoundSpec)),
        (Training, Training.__pydantic_fields__),  # type: ignore[attr-defined]
    )
    made = {}
    for model, fields in models:
        heading = (model.__doc__ or "").partition(":")[0]
        for key, field in fields.items():
            if field.description:
                made[key] = _option(key, heading, field.annotation, field.description, field.default)
    made |= {key: _option(key, "Privacy", kind, text, None) for key, (kind, text) in _PRIVACY.items()}
    for part in PARTS:
        flags = ["-o", "--option"] if part == "method" else [f"--{part}-option"]
        text = f"option of the {part}, repeatable" + (": -o beta=0.9" if part == "method" else "")
        key, shown = f"{part}_option", {"metavar": "KEY=VALUE", "help": text}
        made[key] = Option([*flags, key], heading="Options of parts", rare=part != "method", multiple=True, **shown)
    for heading, keys in _SHORT.items():
        for key in keys:
            made[key].heading, made[key].rare = heading, False
    return [*(made.pop(key) for keys in _SHORT.values() for key in keys), *made.values()]


def to_overrides(given: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that a command line gave, as a spec's table."""
    from fedsparq.lab.specs.run import to_spec_table

    for part in PARTS:
        options = dict(parse_option(text) for text in given.pop(f"{part}_option"))
        given["options" if part == "method" else f"{part}_options"] = options or None
    return to_spec_table({key: value for key, value in given.items() if value is not None})


def parse_option(text: str) -> tuple[str, Any]:
    """Split ``key=value``; the value is read as TOML where it is TOML, else as text."""
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise OptionError(f"-o {text}: write it as key=value, such as -o multiplier=2")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value


def _option(key: str, heading: str, annotation: Any, text: str, default: Any) -> Option:
    choices = get_args(annotation) if get_origin(annotation) is Literal else ()
    kinds = type_parts(annotation)
    kind = next((kind for kind in _METAVARS if kind in kinds), str)
    flag = f"--{key.replace('_', '-')}"
    return Option(
        [f"{flag}/--no{flag[1:]}" if kind is bool else flag],
        heading=heading,
        rare=True,
        help=f"{', '.join(choices)}: {text}" if choices else text,
        metavar="KIND" if choices else _METAVARS[kind],
        show_default=False if default in (None, "") else str(default),
        default=None,
        type=kind,
    )
