"""One page from any set of runs, with every figure and table beside it as files for a paper."""

import shlex
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedsparq.archive import write_safely
from fedsparq.errors import OptionError, RunError
from fedsparq.lab.paper.claims import Claim, judge
from fedsparq.lab.report import pdf, render, tables
from fedsparq.lab.report.attacks import attack_table
from fedsparq.lab.report.document import Document, Section, Shown
from fedsparq.lab.report.figures import Drawing, draw_bench, draw_overview
from fedsparq.lab.report.live import bench_data
from fedsparq.lab.report.looks import Looks, looks
from fedsparq.lab.report.svg import save
from fedsparq.lab.results.grouping import Bench, benches
from fedsparq.lab.results.reading import load_runs
from fedsparq.lab.results.records import LeftOut, Run, Runs

_TITLE = "What the bytes buy"
_PAPER_TITLE = "FedSparQ, reproduced"
_FORMATS: dict[str, tuple[str, ...]] = {".html": ("svg", "png", "pdf"), ".pdf": ("svg", "png", "pdf"), ".md": ("svg",)}
"""What a report may be, and in which formats its figures can lie beside it."""


@dataclass(frozen=True)
class Report:
    """What was written, from which runs."""

    page: Path
    files: Path
    runs: Sequence[Run]
    left_out: Sequence[LeftOut]
    claims: Sequence[Claim]


def write_report(
    paths: Sequence[Path],
    out: Path,
    title: str | None = None,
    paper: bool = False,
    command: str | None = None,
    formats: Sequence[str] | None = None,
) -> Report:
    """Write `out` and `<stem>-files/` with its figures and tables. The ending of `out` says what it is:

    .html is one self-contained page with interactive figures, .pdf that page printed by a browser, .md a page of
    reading with the whole tables in `<stem>-files/appendix.md`. With `paper`, the paper's claims are judged.
    `command` is shown as the way to make it again. `formats` are those of the figures' files, by default all that there
    are: PDF takes longer than all else. Raises RunError when not one run could be read.
    """
    kind = out.suffix.lower()
    if kind not in _FORMATS:
        raise OptionError(f"cannot write a report as {out.name}: it must end in {', '.join(_FORMATS)}")
    browser = pdf.find_browser() if kind == ".pdf" else None
    found = load_runs(paths)
    files = out.parent / f"{out.stem}-files"
    document = make_document(
        found, files, title, paper, command or _command(paths, out), formats or _FORMATS[kind], few=kind == ".md"
    )
    if kind == ".md":
        (files / "appendix.md").write_text(render.appendix(document, out.name), encoding="utf-8")
        out.write_text(render.markdown(document), encoding="utf-8")
    elif browser is None:
        out.write_text(render.page(document), encoding="utf-8")
    else:
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / "report.html"
            page.write_text(render.page(document), encoding="utf-8")
            pdf.print_page(browser, page, out)
    return Report(out, files, found.runs, found.left_out, document.claims)


def write_snapshot(paths: Sequence[Path], out: Path, title: str | None, again: float) -> Document:
    """The page alone, on runs as far as they are; it loads itself anew every `again` seconds, if that is not 0."""
    found = load_runs(paths, going=True)
    document = make_document(found, out.parent / f"{out.stem}-files", title, False, _command(paths, out), ())
    write_safely(out, render.page(document, again).encode())
    return document


def make_document(
    found: Runs, files: Path, title: str | None, paper: bool, command: str, formats: Sequence[str], few: bool = False
) -> Document:
    """Everything a report says about some runs; figures, all or a few, and tables are written to `files`."""
    if not found.runs:
        reasons = "\n".join(f"  {left}" for left in found.left_out) or "  no path was given"
        raise RunError(f"no finished run to report on; `fedsparq run` and `fedsparq compare` write them\n{reasons}")
    groups = benches(found.runs)
    look = looks(arm.label for bench in groups for arm in bench.all_arms)
    overview = _save(draw_overview(groups, look), files, formats)
    return Document(
        title=title or (_PAPER_TITLE if paper else _TITLE),
        command=command,
        files=files.name,
        formats=formats,
        overview=overview,
        sections=[_section(bench, look, files, formats, few) for bench in groups],
        claims=judge(groups) if paper else [],
        left_out=found.left_out,
    )


def _section(bench: Bench, look: Looks, files: Path, formats: Sequence[str], few: bool) -> Section:
    results, variants = tables.result_table(bench), tables.variant_table(bench) if bench.variants else None
    attacks = attack_table(bench)
    if formats:
        for table in filter(None, [results, variants, attacks]):
            _write(files / f"{table.name}.csv", tables.to_csv(table))
            _write(files / f"{table.name}.tex", tables.to_latex(table))
        _write(files / f"{bench.slug}-rounds.csv", tables.rounds_csv(bench))
    drawn = draw_bench(bench, look, few)
    return Section(bench, _save(drawn, files, formats), bench_data(bench, look), results, variants, attacks)


def _save(drawings: Iterable[Drawing], files: Path, formats: Sequence[str]) -> list[Shown]:
    if not formats:
        return []
    return [Shown(d.name, d.caption, save(d.figure, files, d.name, formats)) for d in drawings]


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _command(paths: Sequence[Path], out: Path) -> str:
    return shlex.join(["fedsparq", "report", *map(str, paths), "-o", str(out)])
