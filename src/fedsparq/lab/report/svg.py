"""Figures as files, byte for byte the same each time, and as part of a page."""

import re
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path

from markupsafe import Markup
from matplotlib.figure import Figure

from fedsparq.lab.report.style import PALETTE, styled


def save(figure: Figure, folder: Path, name: str, formats: Iterable[str] = ("svg", "png", "pdf")) -> str:
    """Write the figure in every format asked for; returns the SVG."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = svg(figure, name)
    for kind in formats:
        path = folder / f"{name}.{kind}"
        if kind == "svg":
            path.write_text(drawn, encoding="utf-8")
        else:
            metadata = {"CreationDate": None} if kind == "pdf" else {"Software": None}
            with styled():
                figure.savefig(path, format=kind, dpi=220, metadata=metadata)
    return drawn


def svg(figure: Figure, name: str) -> str:
    """The figure as an SVG document whose ids are its own, so that many fit in one page."""
    buffer = BytesIO()
    with styled(name):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue().decode("utf-8")
    text = re.sub(r"""(\bid="|url\(#|href="#)""", rf"\g<1>{name}_", text)
    return text.replace("'DejaVu Sans'", "'DejaVu Sans', Verdana, sans-serif")


def inline(document: str, label: str) -> Markup:
    """An SVG document made part of a page: themed by CSS variables, named for screen readers, no fixed size."""
    body = re.sub(r"<metadata>.*?</metadata>", "", document[document.index("<svg") :], flags=re.DOTALL)
    opening, _, rest = body.partition(">")
    view_box = re.search(r'viewBox="[^"]+"', opening)
    for name, shade in PALETTE.items():
        rest = rest.replace(shade.light, f"var(--{name})")
    start = Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" role="img" '
        'aria-label="{}" {}>'
    )
    return start.format(label, Markup(view_box.group(0) if view_box else "")) + Markup(rest)
