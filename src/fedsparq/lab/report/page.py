"""A report as files: one HTML page with everything inline and nothing fetched, or the runs as CSV."""

import json
import time
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from shlex import join as shell_join

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape

from fedsparq.archive import write_safely
from fedsparq.errors import OptionError, RunError
from fedsparq.lab.paper import Verdict
from fedsparq.lab.report.document import Report, build_report
from fedsparq.lab.report.palette import PALETTE
from fedsparq.lab.results import Results

_MARKS = {
    Verdict.MEASURED: ("yes", "✓"),
    Verdict.NOT_REACHED: ("no", "✗"),
    Verdict.CONTRADICTS: ("odd", "≠"),
    Verdict.NOT_TESTED: ("open", "–"),
}
KINDS = (".html", ".csv")


def _breakable(name: str) -> Markup:
    """Return a method's name that may continue in another line after each option's name."""
    return escape(name).replace("=", Markup("=<wbr>"))


def _embed(data: object) -> Markup:
    """Return JSON that is safe inside a script element."""
    return Markup(json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"))


TEMPLATES = Environment(
    loader=PackageLoader("fedsparq.lab.report"),
    autoescape=select_autoescape(["html.j2"]),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
TEMPLATES.filters |= {"breakable": _breakable, "embed": _embed}


def write_report(
    paths: Sequence[Path], out: Path, title: str | None = None, paper: bool = False, command: str | None = None
) -> Report:
    """Write a report about run folders or CSV files: a page, or the runs as rows where `out` ends in .csv.

    With `paper`, the paper's claims are judged. RunError if not one run could be read.
    """
    if out.suffix.lower() not in KINDS:
        raise OptionError(f"cannot write a report as {out.name}: it must end in {' or '.join(KINDS)}")
    report = build_report(Results.read(paths), title=title, paper=paper, command=command or _command(paths, out))
    if out.suffix.lower() == ".csv":
        write_safely(out, report.results.frame().to_csv(index=False).encode())
    else:
        write_page(report, out)
    return report


def write_page(report: Report, out: Path, refresh: float = 0) -> Path:
    """Write the page; with `refresh`, it reloads itself every so many seconds."""
    plotly = Markup((files("fedsparq.lab.report") / "vendor" / "plotly-basic.min.js").read_text("utf-8"))
    template = TEMPLATES.get_template("page.html.j2")
    page = template.render(report=report, palette=PALETTE, marks=_MARKS, plotly=plotly, refresh=refresh)
    write_safely(out, page.encode())
    return out


def write_snapshot(paths: Sequence[Path], out: Path, title: str | None, refresh: float) -> Report:
    """Write the page about runs as far as they are."""
    results = Results.read(paths, unfinished=True)
    report = build_report(results, title=title, command=_command(paths, out))
    write_page(report, out, refresh)
    return report


def watch(
    paths: Sequence[Path], out: Path, title: str | None = None, every: float = 5.0, tell: Callable[[str], None] = print
) -> None:
    """Write the page again and again while runs are under way, until Ctrl-C; an open browser follows.

    Every version of the page is complete. The last one does not reload itself.
    """
    before = ""
    try:
        while True:
            try:
                now = write_snapshot(paths, out, title, every).progress
            except RunError as error:
                now = f"waiting for the first round; {str(error).splitlines()[-1].strip()}"
            if now != before:
                tell(now)
            before = now
            time.sleep(every)
    except KeyboardInterrupt:
        write_snapshot(paths, out, title, 0)


def _command(paths: Sequence[Path], out: Path) -> str:
    return shell_join(["fedsparq", "report", *map(str, paths), "-o", str(out)])
