"""The command `fedsparq`."""

from __future__ import annotations

import inspect
import os
import shlex
import sys
import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from fedsparq.errors import FedSparQError, MissingExtraError, OptionError

app = typer.Typer(
    name="fedsparq",
    help="Federated learning with small updates: run experiments, compare methods, look into messages.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
console = Console()
F = TypeVar("F", bound=Callable[..., Any])

Out = Annotated[Path, typer.Option(help="Folder for the results.")]
Workers = Annotated[int, typer.Option(min=0, help="Processes that train clients; 0 for one per core.")]


def _option(help: str, *names: str) -> Any:
    return typer.Option(*names, help=help, show_default=False)


_OVERRIDES: dict[str, tuple[type, Any]] = {
    "dataset": (str, _option("mnist-mini, mnist, fashion-mnist, cifar10, or a hub id.")),
    "model": (str, _option("mlp, lenet5, resnet18, or package.module:function.")),
    "method": (str, _option("A method by name; `fedsparq methods` lists them.")),
    "partition": (str, _option("iid, dirichlet or shards.")),
    "alpha": (float, _option("Dirichlet concentration: smaller is more skewed.")),
    "clients": (int, _option("How many clients there are.")),
    "fraction": (float, _option("Share of the clients that take part in a round.")),
    "rounds": (int, _option("How many rounds.")),
    "epochs": (int, _option("Local epochs in a round.")),
    "lr": (float, _option("Learning rate of the clients.")),
    "batch_size": (int, _option("Batch size of the clients.")),
    "seed": (int, _option("Everything random follows from it.")),
    "downlink": (str, _option("Compress the broadcast too, by this method.")),
    "budget": (str, _option('What each client may send: "20 kB" a round, or "5 MB/run".')),
    "engine": (str, _option("local or flower-simulation.")),
}
_IN_TRAINING = ("epochs", "lr", "batch_size")


def accepts_overrides(command: F) -> F:
    """Give a command the options that override a spec; it gets those that were set as `overrides`."""

    def wrapped(**arguments: Any) -> Any:
        given = {key: arguments.pop(key) for key in _OVERRIDES}
        overrides: dict[str, Any] = {k: v for k, v in given.items() if v is not None and k not in _IN_TRAINING}
        training = {k: given[k] for k in _IN_TRAINING if given[k] is not None}
        if training:
            overrides["training"] = training
        options = dict(_parse_option(text) for text in arguments.pop("option") or ())
        if options:
            overrides["options"] = options
        return command(**arguments, overrides=overrides)

    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "overrides"]
    extra = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, info])
        for name, (kind, info) in _OVERRIDES.items()
    ]
    option = Annotated[list[str] | None, typer.Option("-o", "--option", help="An option of the method: key=value.")]
    extra.append(inspect.Parameter("option", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option))
    wrapped.__signature__ = inspect.Signature(own + extra)  # type: ignore[attr-defined]
    wrapped.__name__, wrapped.__doc__ = command.__name__, command.__doc__
    return wrapped  # type: ignore[return-value]


def _parse_option(text: str) -> tuple[str, Any]:
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise OptionError(f"-o {text}: write it as key=value, such as -o multiplier=2")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value


@app.command()
@accepts_overrides
def run(
    spec: Annotated[Path | None, typer.Argument(help="A TOML file; without one, the options say all.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the results; by default under runs/.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an unfinished run.")] = False,
    workers: Workers = 1,
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Rounds between two checkpoints.")] = 1,
    *,
    overrides: dict[str, Any],
) -> None:
    """Train with one method."""
    _need_torch()
    from fedsparq.experiments.compare import print_tables
    from fedsparq.experiments.progress import following
    from fedsparq.experiments.run import run as play
    from fedsparq.experiments.spec import load_run

    chosen = load_run(spec, overrides)
    folder = out or Path("runs") / chosen.folder_name
    with following(console) as follow:
        watch = follow(chosen)
        count = _workers(workers)
        play(chosen, folder, resume=resume, workers=count, checkpoint_every=checkpoint_every, watch=watch)
    print_tables([folder], console)
    _say(f"Results are in {folder}")


@app.command()
@accepts_overrides
def compare(
    spec: Annotated[str, typer.Argument(help="A TOML file, or the name of a bundled spec such as quickstart.")],
    out: Annotated[Path | None, typer.Option(help="Folder for the results; by default under runs/.")] = None,
    workers: Workers = 1,
    resume: Annotated[bool, typer.Option("--resume", help="Always on: finished runs are skipped.")] = True,
    *,
    overrides: dict[str, Any],
) -> None:
    """Run methods x partitions x seeds and show what each costs. Can be interrupted: call it again to go on."""
    _need_torch()
    from fedsparq.experiments.compare import compare as play
    from fedsparq.experiments.reproduce import locate
    from fedsparq.experiments.spec import load_compare

    path = locate(spec)
    folder = out or Path("runs") / path.stem
    specs = load_compare(path, overrides).runs()
    play(specs, folder, console, _workers(workers))
    _conclude([folder], folder / "report.html", paper=False, command=f"fedsparq compare {spec}")


@app.command()
def reproduce(
    only: Annotated[Literal["mnist", "fmnist", "cifar10"] | None, typer.Option(help="One data set alone.")] = None,
    scale: Annotated[Literal["small", "full"], typer.Option(help="small: two cores, about two hours.")] = "small",
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds of each run; by default 3, 2 and 1.")] = None,
    out: Out = Path("runs/paper"),
    workers: Workers = 1,
) -> None:
    """The paper's tables and figures, on real data, beside the paper's own numbers."""
    _need_torch()
    from fedsparq.experiments.compare import compare as play
    from fedsparq.experiments.reproduce import plan

    play(plan(only, scale, seeds), out, console, _workers(workers))
    words = ["fedsparq reproduce", f"--only {only}" if only else "", f"--scale {scale}"]
    words.append(f"--seeds {seeds}" if seeds else "")
    _conclude([out], out / "report.html", paper=True, command=" ".join(filter(None, words)))


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="Folders with runs, at any depth.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="An .html page or an .md file.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    paper: Annotated[bool, typer.Option(help="Judge the paper's claims by these runs.")] = False,
) -> None:
    """One page about any set of runs: figures, tables, the partition; all of them also as files."""
    _need_torch()
    from fedsparq.experiments.report import write_markdown, write_report

    words = ["report", *map(str, folders), "-o", str(out), *(["--paper"] if paper else [])]
    command = shlex.join(["fedsparq", *words, *(["--title", title] if title else [])])
    write = write_markdown if out.suffix == ".md" else write_report
    written = write(folders, out, title=title, paper=paper, command=command)
    for left in written.left_out:
        _say(f"left out: {left}")
    _say(f"Report on {len(written.runs)} runs: {written.page}; figures and tables: {written.files}")


@app.command()
def methods() -> None:
    """The methods, and the options of each with their defaults."""
    from fedsparq.compress.method import METHODS

    table = Table("method", "what it sends", "options", show_lines=True)
    for name, recipe in METHODS.items():
        options = (f"{key}={p.default}" for key, p in inspect.signature(recipe).parameters.items())
        table.add_row(name, (recipe.__doc__ or "").split("\n")[0], "\n".join(options))
    console.print(table)


@app.command()
def datasets() -> None:
    """The data sets known by name, and where each would be read from."""
    _need_torch()
    from fedsparq.learn.data import catalogue

    table = Table("name", "hub id", "classes", "train", "test", "found")
    for row in catalogue():
        table.add_row(row.name, row.hub_id, str(row.classes), f"{row.train:,}", f"{row.test:,}", row.where)
    console.print(table)


@app.command("inspect")
def inspect_message(
    file: Annotated[Path, typer.Argument(help="A message as bytes.")],
    layout: Annotated[Path | None, typer.Option(help="The model's tensors as JSON: {name: shape}.")] = None,
) -> None:
    """What a message holds, layer by layer, beside the entropy bound and the paper's 6 bytes a coordinate."""
    from fedsparq.wire.inspect import inspect_file

    inspect_file(file, layout)


@app.command()
@accepts_overrides
def deploy(
    folder: Annotated[Path, typer.Argument(help="Where to write the Flower app.")],
    spec: Annotated[Path | None, typer.Argument(help="A TOML file; without one, the options say all.")] = None,
    out: Annotated[str, typer.Option(help="Folder on the server for the results.")] = "",
    submit: Annotated[str | None, typer.Option(help="Run it on this Flower connection, once written.")] = None,
    *,
    overrides: dict[str, Any],
) -> None:
    """Write an experiment as an app that `flwr run` takes; docs/FLOWER.md brings up the servers it runs on."""
    _need_torch()
    from fedsparq.experiments.spec import load_run
    from fedsparq.flower.deploy import submit as hand_in
    from fedsparq.flower.deploy import write_app

    app_folder = write_app(load_run(spec, overrides), folder, out=out)
    _say(f"Flower app written: flwr run {app_folder}")
    if submit is not None and hand_in(app_folder, submit):
        raise FedSparQError(f"flwr run {app_folder} {submit} failed; its words are above")


def _conclude(folders: list[Path], page: Path, paper: bool, command: str) -> None:
    from fedsparq.experiments.compare import print_tables
    from fedsparq.experiments.report import write_report

    print_tables(folders, console)
    written = write_report(folders, page, paper=paper, command=command)
    for left in written.left_out:
        _say(f"left out: {left}")
    _say(f"Results are in {folders[0]}; report: {written.page}")


def _workers(count: int) -> int:
    return count or os.cpu_count() or 1


def _say(text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False, markup=False)


def _need_torch() -> None:
    for name in ("torch", "flwr_datasets", "matplotlib"):
        try:
            import_module(name)
        except ImportError:
            raise MissingExtraError(f"this command needs {name}: pip install 'fedsparq[torch]'") from None


def main() -> None:
    """Entry point: errors that we foresee are one sentence on stderr, not a traceback."""
    try:
        app()
    except FedSparQError as error:
        print(f"fedsparq: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("fedsparq: interrupted; the same command with --resume goes on", file=sys.stderr)
        sys.exit(130)
