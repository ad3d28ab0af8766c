"""One page from any set of runs, with every figure and table beside it as files for a paper."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedsparq.errors import RunError
from fedsparq.experiments import markdown, page, tables
from fedsparq.experiments.claims import Claim, judge
from fedsparq.experiments.content import Content, Section, Shown
from fedsparq.experiments.figures import answer, answers, draw_bench
from fedsparq.experiments.frontier import crowded
from fedsparq.experiments.grouping import Bench, benches
from fedsparq.experiments.results import LeftOut, Run, load_runs
from fedsparq.experiments.style import Look, looks, save

_TITLE = "What the bytes buy"
_PAPER_TITLE = "FedSparQ, reproduced"


@dataclass(frozen=True)
class Report:
    """What was written, from which runs."""

    page: Path
    files: Path
    runs: Sequence[Run]
    left_out: Sequence[LeftOut]
    claims: Sequence[Claim]


def write_report(
    paths: Sequence[Path], out: Path, title: str | None = None, paper: bool = False, command: str | None = None
) -> Report:
    """Write `out`, one self-contained HTML page, and `<stem>-files/` with its figures and tables.

    With `paper`, the paper's claims are judged by these runs. `command` is shown as the way to make the page again.
    Raises RunError when not one run could be read.
    """
    content, report = _gather(paths, out, title, paper, command, ("svg", "png", "pdf"))
    _write(out, page.render(content))
    return report


def write_markdown(
    paths: Sequence[Path], out: Path, title: str | None = None, paper: bool = True, command: str | None = None
) -> Report:
    """The same as Markdown, for a repository: figures as SVG files in `<stem>-files/`, tables also as CSV and LaTeX."""
    content, report = _gather(paths, out, title, paper, command, ("svg",))
    _write(out, markdown.render(content))
    return report


def _gather(
    paths: Sequence[Path], out: Path, title: str | None, paper: bool, command: str | None, formats: Sequence[str]
) -> tuple[Content, Report]:
    found = load_runs(paths)
    if not found.runs:
        reasons = "\n".join(f"  {left}" for left in found.left_out) or "  no path was given"
        raise RunError(f"no finished run to report on; `fedsparq run` and `fedsparq compare` write them\n{reasons}")
    groups = benches(found.runs)
    files = out.parent / f"{out.stem}-files"
    claims = judge(groups) if paper else []
    content = Content(
        title=title or (_PAPER_TITLE if paper else _TITLE),
        command=command or " ".join(["fedsparq report", *map(str, paths), "-o", str(out)]),
        files=files.name,
        sections=_sections(groups, files, formats),
        claims=claims,
        left_out=found.left_out,
    )
    return content, Report(out, files, found.runs, found.left_out, claims)


def _sections(groups: Sequence[Bench], files: Path, formats: Sequence[str]) -> list[Section]:
    look = looks(arm.label for bench in groups for arm in bench.all_arms)
    if sum(not crowded(bench) for bench in groups) > 1:
        save(answers(groups, look), files, "answer", formats)
    return [_section(bench, look, files, formats) for bench in groups]


def _section(bench: Bench, look: Mapping[str, Look], files: Path, formats: Sequence[str]) -> Section:
    hero = f"{bench.slug}-answer"
    caption = f"Test accuracy against upload per client, {bench.setting.heading}"
    first = Shown(hero, caption, save(answer(bench, look), files, hero, formats))
    drawn = [Shown(d.name, d.caption, save(d.figure, files, d.name, formats)) for d in draw_bench(bench, look)]
    made = [tables.result_table(bench), *([tables.variant_table(bench)] if bench.variants else [])]
    for table in made:
        _write(files / f"{table.name}.csv", tables.to_csv(table))
        _write(files / f"{table.name}.tex", tables.to_latex(table))
    _write(files / f"{bench.slug}-rounds.csv", tables.rounds_csv(bench))
    return Section(bench, first, drawn, made[0], made[1] if bench.variants else None, _facts(bench))


def _facts(bench: Bench) -> list[str]:
    """How the runs of a bench were made, as far as they all agree."""
    runs = [run for arm in bench.all_arms for run in arm.runs]
    setting = bench.setting
    facts = [f"model {setting.model}", f"{setting.clients} clients", f"{setting.rounds} rounds"]
    if runs[0].parameters:
        facts.append(f"{runs[0].parameters:,} parameters")
    if setting.train_examples:
        facts.append(f"{setting.train_examples:,} training examples")
    training = [run.spec.get("training", {}) for run in runs]
    for name, value in training[0].items():
        if all(other.get(name) == value for other in training):
            facts.append(f"{name.replace('_', ' ')} {value}")
    events = sum(len(r.events) for run in runs for r in run.rounds)
    if events:
        facts.append(f"{events} replies lost or refused")
    if any(not math.isfinite(run.loss) for run in runs):
        facts.append("some runs ended with a loss that is not finite")
    return facts


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
