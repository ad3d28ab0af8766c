"""A document set by its templates: as one HTML page, everything inline and nothing fetched, or as Markdown."""

from importlib.resources import files
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape

from fedsparq.lab.paper.claims import Verdict
from fedsparq.lab.report.document import Document
from fedsparq.lab.report.live import embed
from fedsparq.lab.report.style import PALETTE
from fedsparq.lab.report.svg import inline


def _breakable(name: str) -> Markup:
    """A method's name that may go on in another line after each option's name."""
    return escape(name).replace("=", Markup("=<wbr>"))


TEMPLATES = Environment(
    loader=PackageLoader("fedsparq.lab.report"),
    autoescape=select_autoescape(["html.j2"]),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
TEMPLATES.filters |= {"quote": quote, "inline": inline, "embed": embed, "breakable": _breakable}
_MARKS = {
    Verdict.MEASURED: ("yes", "✓"),
    Verdict.NOT_REACHED: ("no", "✗"),
    Verdict.CONTRADICTS: ("odd", "≠"),
    Verdict.NOT_TESTED: ("open", "–"),
}


def page(document: Document, again: float = 0) -> str:
    """The HTML page; with `again`, it loads itself anew after so many seconds."""
    plotly = Markup((files("fedsparq.lab.report") / "vendor" / "plotly-basic.min.js").read_text("utf-8"))
    template = TEMPLATES.get_template("page.html.j2")
    return template.render(document=document, palette=PALETTE, marks=_MARKS, plotly=plotly, refresh=again)


def markdown(document: Document) -> str:
    """The page of reading as Markdown."""
    return TEMPLATES.get_template("markdown.md.j2").render(document=document)


def appendix(document: Document, page: str) -> str:
    """What lies behind it: every table and figure."""
    return TEMPLATES.get_template("appendix.md.j2").render(document=document, page=page)
