"""The commands, in the order of `fedsparq --help`. What is slow to import is imported by the command that needs it."""

from __future__ import annotations

import inspect
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table

from fedsparq.cli.app import app, conclude, console, need_torch, say, say_skipped, worker_count, write
from fedsparq.cli.overrides import accepts_overrides
from fedsparq.errors import FedSparQError, OptionError, RunError

if TYPE_CHECKING:
    from fedsparq.lab.specs import RunSpec

_BUNDLED = sorted(path.stem for path in (Path(__file__).parents[1] / "lab" / "specs" / "bundled").glob("*.toml"))

Spec = Annotated[Path | None, typer.Argument(help="A TOML file; without one, the options say all.")]
Results = Annotated[Path | None, typer.Option(help="Folder for the results; by default under runs/.")]
Workers = Annotated[int, typer.Option(min=0, help="Processes that train clients; 0 for one per core.")]
Jobs = Annotated[int, typer.Option(min=0, help="Runs side by side; 0 for one per core.")]
Track = Annotated[list[str] | None, typer.Option(help="Tell a tracker of each round: tensorboard, mlflow or wandb.")]


@app.command(epilog=f"SPEC is a TOML file, or one of those that come with the package: {', '.join(_BUNDLED)}.")
@accepts_overrides
def compare(
    spec: Annotated[str, typer.Argument(help="A TOML file, or the name of a bundled spec.")],
    out: Results = None,
    workers: Workers = 1,
    jobs: Jobs = 1,
    track: Track = None,
    resume: Annotated[bool, typer.Option("--resume", help="Always on: finished runs are skipped.")] = True,
    *,
    overrides: dict[str, Any],
) -> None:
    """Run methods x partitions x seeds and show what each costs. Can be interrupted: call it again to go on."""
    need_torch()
    from fedsparq.lab.specs import load_compare, locate

    path = locate(spec)
    folder = out or Path("runs") / path.stem
    runs = load_compare(path, overrides).runs()
    _play_all(runs, folder, workers, jobs, track, paper=False, command=f"fedsparq compare {spec}")


@app.command()
def datasets() -> None:
    """The data sets known by name, and where each would be read from."""
    need_torch()
    from fedsparq.lab.tasks.load import catalogue

    table = Table("name", "hub id", "classes", "train", "test", "found")
    for row in catalogue():
        table.add_row(row.name, row.hub_id, str(row.classes), f"{row.train:,}", f"{row.test:,}", row.where)
    console.print(table)


@app.command()
@accepts_overrides
def deploy(
    folder: Annotated[Path, typer.Argument(help="Where to write the Flower app.")],
    spec: Spec = None,
    out: Annotated[str, typer.Option(help="Folder on the server for the results.")] = "",
    submit: Annotated[str | None, typer.Option(help="Run it on this Flower connection, once written.")] = None,
    *,
    overrides: dict[str, Any],
) -> None:
    """Write an experiment as an app that `flwr run` takes; docs/FLOWER.md brings up the servers it runs on."""
    need_torch()
    from fedsparq.lab.experiments.deploy import submit as hand_in
    from fedsparq.lab.experiments.deploy import write_app
    from fedsparq.lab.specs import load_run

    app_folder = write_app(load_run(spec, overrides), folder, out=out)
    say(f"Flower app written: flwr run {app_folder}")
    if submit is not None and hand_in(app_folder, submit):
        raise FedSparQError(f"flwr run {app_folder} {submit} failed; its words are above")


@app.command("inspect")
def inspect_message(
    file: Annotated[Path, typer.Argument(help="A message as bytes.")],
    layout: Annotated[Path | None, typer.Option(help="The model's tensors as JSON: {name: shape}.")] = None,
) -> None:
    """What a message holds, layer by layer, beside the entropy bound and the paper's 6 bytes a coordinate."""
    from fedsparq.cli.inspection import inspect_file

    inspect_file(file, layout)


@app.command()
def methods() -> None:
    """The methods, and the options of each with their defaults."""
    from fedsparq.methods.registry import known_methods

    table = Table("method", "what it sends", "options", show_lines=True)
    for name, recipe in known_methods().items():
        options = (f"{key}={p.default}" for key, p in inspect.signature(recipe).parameters.items())
        table.add_row(name, (recipe.__doc__ or "").split("\n")[0], "\n".join(options))
    console.print(table)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders with runs, at any depth, or .csv files.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="An .html page, or a .csv with a row per run.")] = Path(
        "report.html"
    ),
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    paper: Annotated[bool, typer.Option(help="Judge the paper's claims by these runs.")] = False,
    figures: Annotated[str | None, typer.Option(help="Also draw files for a paper: svg,pdf,png.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Follow runs while they go, until Ctrl-C.")] = False,
) -> None:
    """Write one page about any runs, finished or not; figures and tables for a paper with --figures."""
    need_torch()
    if watch:
        _watch(runs, out, title)
        return
    words = ["report", *map(str, runs), "-o", str(out), *(["--paper"] if paper else [])]
    command = shlex.join(["fedsparq", *words, *(["--title", title] if title else [])])
    report = write(runs, out, title=title, paper=paper, command=command)
    say_skipped(report)
    say(f"Report on {len(report.results.frame())} runs: {out}")
    if figures is not None:
        from fedsparq.lab.report.figures import write_figures

        folder = out.with_name(f"{out.stem}-files")
        written = write_figures(report, folder, [kind.strip() for kind in figures.split(",")])
        say(f"{len(written)} figures and tables: {folder}")


def _watch(folders: list[Path], out: Path, title: str | None) -> None:
    from fedsparq.lab.report.page import watch

    if out.suffix.lower() != ".html":
        raise OptionError(f"--watch writes a page: -o must end in .html, not {out.name}")
    say(f"Open {out.resolve().as_uri()}; it follows the runs until Ctrl-C here")
    watch(folders, out, title, tell=say)


@app.command()
def reproduce(
    only: Annotated[Literal["mnist", "fmnist", "cifar10"] | None, typer.Option(help="One data set alone.")] = None,
    scale: Annotated[Literal["small", "full"], typer.Option(help="small: two cores, about two hours.")] = "small",
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds of each run; by default 3, 2 and 1.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("runs/paper"),
    workers: Workers = 1,
    jobs: Jobs = 1,
) -> None:
    """The paper's tables and figures, on real data, beside the paper's own numbers."""
    need_torch()
    from fedsparq.lab.paper import plan

    words = ["fedsparq reproduce", f"--only {only}" if only else "", f"--scale {scale}"]
    words.append(f"--seeds {seeds}" if seeds else "")
    command = " ".join(filter(None, words))
    _play_all(plan(only, scale, seeds), out, workers, jobs, None, paper=True, command=command)


@app.command()
@accepts_overrides
def run(
    spec: Spec = None,
    out: Results = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an unfinished run.")] = False,
    workers: Workers = 1,
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Rounds between two checkpoints.")] = 1,
    track: Track = None,
    *,
    overrides: dict[str, Any],
) -> None:
    """Train with one method."""
    need_torch()
    from fedsparq.cli.progress import following
    from fedsparq.lab.experiments.trackers import trackers
    from fedsparq.lab.folder import run_folder
    from fedsparq.lab.specs import load_run
    from fedsparq.lab.specs.files import check_names_early

    chosen = load_run(spec, overrides)
    check_names_early(chosen)
    folder, tracking = out or run_folder(Path("runs"), chosen), trackers(track or ())
    with following(console) as follow:
        from fedsparq.lab.experiments.run import run as play

        told = [follow(chosen), *tracking]
        many = worker_count(workers)
        summary = play(chosen, folder, resume=resume, workers=many, checkpoint_every=checkpoint_every, callbacks=told)
    from fedsparq.lab.report.tables import print_tables
    from fedsparq.lab.results import Results

    print_tables(Results.read([folder]), console)
    for lost in summary.get("lost_states", ()):
        say(f"not as undisturbed: state lost of {lost}")
    say(f"Results are in {folder}")


def _play_all(
    runs: list[RunSpec], out: Path, workers: int, jobs: int, track: list[Any] | None, *, paper: bool, command: str
) -> None:
    """Play many runs, show and report what there is, and end with an error that lists those that failed."""
    from fedsparq.cli.progress import describe, following
    from fedsparq.lab.experiments.callbacks import Callbacks
    from fedsparq.lab.experiments.sweep import sweep
    from fedsparq.lab.experiments.trackers import trackers
    from fedsparq.lab.specs.files import check_names_early

    trackers(track or ())
    for chosen in runs:
        check_names_early(chosen)
    with following(console, len(runs), sum(chosen.rounds for chosen in runs)) as follow:
        each = lambda spec: Callbacks([follow(spec), *trackers(track or ())])  # noqa: E731
        outcomes = sweep(runs, out, workers=worker_count(workers), jobs=worker_count(jobs), callbacks=each)
    for outcome in outcomes:
        for lost in (outcome.summary or {}).get("lost_states", ()):
            say(f"{outcome.folder}, not as undisturbed: state lost of {lost}")
    failed = [outcome for outcome in outcomes if outcome.failed]
    if len(failed) < len(outcomes):
        conclude([out], out / "report.html", paper=paper, command=command)
    if failed:
        listed = "\n".join(f"  {describe(outcome.spec)}: {outcome.error}" for outcome in failed)
        again = "the same command tries them again"
        raise RunError(f"{len(failed)} of {len(outcomes)} runs failed; {again}:\n{listed}")
