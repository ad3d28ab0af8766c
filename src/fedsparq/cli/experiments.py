"""The commands for experiments. What is slow to import is imported by the command that needs it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from fedsparq.cli.app import command, console, need_lab, option, say
from fedsparq.cli.settings import setting_options, to_overrides
from fedsparq.errors import FedSparQError, OptionError, RunError

if TYPE_CHECKING:
    from fedsparq.lab.report.document import Report
    from fedsparq.lab.specs import RunSpec

FILE = click.Path(path_type=Path)
_BUNDLED = sorted(path.stem for path in (Path(__file__).parents[1] / "lab" / "specs" / "bundled").glob("*.toml"))
_KEYS = "Each option is a key of the TOML file and of fedsparq.run()."

_spec = click.argument("spec", required=False, type=FILE, metavar="[SPEC.toml]")
_workers = option(
    *("--workers",),
    heading="Run",
    metavar="N",
    type=click.IntRange(0),
    default=1,
    help="processes that train; 0: one per core",
)
_jobs = option(
    "--jobs", heading="Run", metavar="N", type=click.IntRange(0), default=1, help="runs in parallel; 0: one per core"
)
_track = option("--track", heading="Run", metavar="NAME", multiple=True, help="tensorboard, mlflow, wandb; repeatable")


def _out(usual: str) -> Callable[[Any], Any]:
    return option("--out", heading="Run", metavar="DIR", type=FILE, show_default=usual, help="folder of the results")


@command(params=setting_options(), epilog=f"{_KEYS}\n\nSeveral methods or seeds: fedsparq compare.")
@_spec
@_out("runs/NAME")
@option("--resume", heading="Run", is_flag=True, help="continue an unfinished run")
@_workers
@option(
    "--checkpoint-every",
    heading="Run",
    rare=True,
    metavar="N",
    type=click.IntRange(1),
    default=1,
    help="rounds per checkpoint",
)
@_track
def run(
    spec: Path | None,
    out: Path | None,
    resume: bool,
    workers: int,
    checkpoint_every: int,
    track: tuple[str, ...],
    **settings: Any,
) -> None:
    """Train with one method. A finished run is shown, not run again."""
    need_lab()
    from fedsparq.cli.progress import following
    from fedsparq.lab.experiments.trackers import trackers
    from fedsparq.lab.folder import run_folder
    from fedsparq.lab.specs import check_names_early, load_run

    chosen = load_run(spec, to_overrides(settings))
    check_names_early(chosen)
    folder, tracking = out or run_folder(Path("runs"), chosen), trackers(track)
    with following(console) as follow:
        from fedsparq.lab.experiments.run import run as play

        told = [follow(chosen), *tracking]
        many = _count(workers)
        summary = play(chosen, folder, resume=resume, workers=many, checkpoint_every=checkpoint_every, callbacks=told)
    from fedsparq.lab.report.tables import print_tables
    from fedsparq.lab.results import Results

    print_tables(Results.read([folder]), console)
    for lost in summary.get("lost_states", ()):
        say(f"not as undisturbed: state lost of {lost}")
    say(f"Results are in {folder}")


@command(
    params=setting_options(),
    epilog=f"SPEC is a TOML file, or one of those that come with the package: {', '.join(_BUNDLED)}. {_KEYS}",
)
@click.argument("spec")
@_out("runs/SPEC")
@_workers
@_jobs
@_track
@option("--resume", heading="Run", rare=True, is_flag=True, help="always on: finished runs are skipped")
def compare(
    spec: str,
    out: Path | None,
    workers: int,
    jobs: int,
    track: tuple[str, ...],
    resume: bool,
    **settings: Any,
) -> None:
    """Run methods x partitions x seeds; tables and a report.

    It can be interrupted: the same command goes on.
    """
    need_lab()
    from fedsparq.lab.specs import load_compare, locate

    path = locate(spec)
    folder = out or Path("runs") / path.stem
    runs = load_compare(path, to_overrides(settings)).runs()
    _run_all(runs, folder, workers, jobs, track, paper=False, command=f"fedsparq compare {spec}")


@command(epilog="RUNS are folders with runs, at any depth, or .csv files.")
@click.argument("runs", nargs=-1, required=True, type=FILE)
@option(
    "-o", "--out", metavar="FILE", type=FILE, default=Path("report.html"), help="page (.html) or a row per run (.csv)"
)
@option("--title", metavar="TEXT", help="title of the page")
@option("--paper", is_flag=True, help="judge the paper's claims by these runs")
@option("--figures", metavar="KINDS", help="also draw files for a paper: svg,pdf,png")
@option("--watch", is_flag=True, help="follow runs while they go, until Ctrl-C")
def report(runs: tuple[Path, ...], out: Path, title: str | None, paper: bool, figures: str | None, watch: bool) -> None:
    """Write one page about any runs, finished or not."""
    need_lab()
    folders = [*runs]
    if watch:
        _watch(folders, out, title)
        return
    words = ["report", *map(str, runs), "-o", str(out), *(["--paper"] if paper else [])]
    command = shlex.join(["fedsparq", *words, *(["--title", title] if title else [])])
    report = _write(folders, out, title=title, paper=paper, command=command)
    say(f"Report on {len(report.results.frame())} runs: {out}")
    if figures is not None:
        from fedsparq.lab.report.figures import write_figures

        folder = out.with_name(f"{out.stem}-files")
        written = write_figures(report, folder, [kind.strip() for kind in figures.split(",")])
        say(f"{len(written)} figures and tables: {folder}")


@command()
@option(
    "--only", metavar="DATA", type=click.Choice(["mnist", "fmnist", "cifar10"]), help="mnist, fmnist or cifar10 alone"
)
@option(
    "--scale",
    metavar="SCALE",
    type=click.Choice(["small", "full"]),
    default="small",
    help="small (two hours on two cores) or full",
)
@option("--seeds", metavar="N", type=click.IntRange(1), show_default="3, 2 and 1", help="seeds of each run")
@option("--out", metavar="DIR", type=FILE, default=Path("runs/paper"), help="folder of the results")
@_workers
@_jobs
def reproduce(
    only: Literal["mnist", "fmnist", "cifar10"] | None,
    scale: Literal["small", "full"],
    seeds: int | None,
    out: Path,
    workers: int,
    jobs: int,
) -> None:
    """Run the paper's experiments and check its claims."""
    need_lab()
    from fedsparq.lab.paper import plan

    words = ["fedsparq reproduce", f"--only {only}" if only else "", f"--scale {scale}"]
    words.append(f"--seeds {seeds}" if seeds else "")
    _run_all(plan(only, scale, seeds), out, workers, jobs, (), paper=True, command=" ".join(filter(None, words)))


@command(params=setting_options(), epilog=f"{_KEYS} docs/FLOWER.md brings up the servers that the app runs on.")
@click.argument("folder", type=FILE)
@_spec
@option("--out", heading="App", metavar="DIR", default="", help="folder on the server for the results")
@option("--submit", heading="App", metavar="NAME", help="run it on this Flower connection, once written")
def deploy(folder: Path, spec: Path | None, out: str, submit: str | None, **settings: Any) -> None:
    """Write an experiment as a Flower app for `flwr run`."""
    need_lab()
    from fedsparq.lab.experiments.deploy import submit as hand_in
    from fedsparq.lab.experiments.deploy import write_app
    from fedsparq.lab.specs import load_run

    app_folder = write_app(load_run(spec, to_overrides(settings)), folder, out=out)
    say(f"Flower app written: flwr run {app_folder}")
    if submit is not None and hand_in(app_folder, submit):
        raise FedSparQError(f"flwr run {app_folder} {submit} failed; its words are above")


def _run_all(
    runs: list[RunSpec], out: Path, workers: int, jobs: int, track: tuple[str, ...], *, paper: bool, command: str
) -> None:
    """Run many specs, show and report what there is, and end with an error that lists those that failed."""
    from fedsparq.cli.progress import describe, following
    from fedsparq.lab.experiments.callbacks import Callbacks
    from fedsparq.lab.experiments.sweep import sweep
    from fedsparq.lab.experiments.trackers import trackers
    from fedsparq.lab.specs import check_names_early

    trackers(track)
    for chosen in runs:
        check_names_early(chosen)
    with following(console, len(runs), sum(chosen.rounds for chosen in runs)) as follow:
        each = lambda spec: Callbacks([follow(spec), *trackers(track)])  # noqa: E731
        outcomes = sweep(runs, out, workers=_count(workers), jobs=_count(jobs), callbacks=each)
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


def conclude(folders: list[Path], page: Path, paper: bool, command: str) -> None:
    """Print the tables of some runs, and write their report and, next to it, the runs as CSV."""
    from fedsparq.lab.report.tables import print_tables
    from fedsparq.lab.results import Results

    results = Results.read(folders)
    print_tables(results, console)
    if not results.runs:
        say(f"Results are in {folders[0]}; there is no report, as the task has no accuracy")
        return
    _write(folders, page, paper=paper, command=command)
    _write(folders, page.with_suffix(".csv"), quiet=True)
    say(f"Results are in {folders[0]}; report: {page}")


def _write(folders: list[Path], out: Path, quiet: bool = False, **about: Any) -> Report:
    """Write a report, as a page or as CSV, and say which runs it leaves out."""
    from fedsparq.lab.report.page import write_report

    report = write_report(folders, out, **about)
    for path, reason in () if quiet else report.skipped:
        say(f"left out: {path}: {reason}")
    return report


def _watch(folders: list[Path], out: Path, title: str | None) -> None:
    from fedsparq.lab.report.page import watch

    if out.suffix.lower() != ".html":
        raise OptionError(f"--watch writes a page: -o must end in .html, not {out.name}")
    say(f"Open {out.resolve().as_uri()}; it follows the runs until Ctrl-C here")
    watch(folders, out, title, tell=say)


def _count(count: int) -> int:
    return count or os.cpu_count() or 1
