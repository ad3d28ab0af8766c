"""The report as one HTML page: everything inline, no script, nothing fetched."""

from collections.abc import Sequence
from html import escape
from importlib import resources
from urllib.parse import quote

from fedsparq.experiments import paper, tables
from fedsparq.experiments.claims import Claim, Verdict
from fedsparq.experiments.content import QUESTION, READING, Content, Section, Shown, caveats, departures, finding
from fedsparq.experiments.style import css_variables, inline
from fedsparq.experiments.tables import Table

_MARKS = {
    Verdict.MEASURED: ("yes", "✓"),
    Verdict.NOT_REACHED: ("no", "✗"),
    Verdict.CONTRADICTS: ("odd", "≠"),
    Verdict.NOT_TESTED: ("open", "–"),
}


def render(content: Content) -> str:
    """The page as text."""
    parts = [_header(content), _answer(content)]
    if content.claims:
        parts.append(_claims(content))
    parts += [_bench(section, content.files) for section in content.sections]
    varied = [section for section in content.sections if section.variants]
    if varied:
        parts.append(_variants(varied, content.files))
    parts.append(_reading(content))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{escape(content.title)}</title>\n<style>\n{_style()}\n</style>\n</head>\n<body>\n"
        f"{_navigation(content)}\n<main>\n" + "\n".join(parts) + "\n</main>\n</body>\n</html>\n"
    )


def _style() -> str:
    light, dark = css_variables(dark=False), css_variables(dark=True)
    sheet = resources.files("fedsparq.experiments").joinpath("page.css").read_text(encoding="utf-8")
    return (
        f":root {{ {light} }}\n@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n{sheet.strip()}"
    )


def _navigation(content: Content) -> str:
    links = [("answer", "Answer")]
    links += [("claims", "Claims")] if content.claims else []
    links += [(section.bench.slug, section.bench.setting.heading) for section in content.sections]
    links += [("variants", "Variants")] if any(section.variants for section in content.sections) else []
    links += [("reading", "How to read this")]
    items = "".join(f'<a href="#{escape(target)}">{escape(text)}</a>' for target, text in links)
    return f'<nav aria-label="Sections"><div>{items}</div></nav>'


def _header(content: Content) -> str:
    arms = [arm for section in content.sections for arm in section.bench.all_arms]
    runs = sum(len(arm.runs) for arm in arms)
    methods = len({arm.label for section in content.sections for arm in section.bench.arms})
    counts = f"{_count(runs, 'run')}, {_count(methods, 'method')}, {_count(len(content.sections), 'setting')}"
    return (
        f'<header><p class="kicker">{escape(content.title)}</p><h1>{escape(QUESTION)}</h1>'
        f'<p class="facts">{counts}. Made by <code>{escape(content.command)}</code></p></header>'
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _answer(content: Content) -> str:
    lines = []
    for section in content.sections:
        found = finding(section.bench)
        compared = f", {escape(found.compared)}" if found.compared else ""
        lines.append(
            f'<li><a href="#{escape(section.bench.slug)}">{escape(found.where)}</a> '
            f"<span><strong>{escape(found.method)}</strong>: "
            f"{escape(found.accuracy)} for {escape(found.sent)}{compared}.</span></li>"
        )
    figures = "".join(_figure(section.answer, content.files) for section in content.sections)
    return (
        '<section id="answer"><h2>The answer</h2>'
        "<p>Fewest bytes per client within one point of the best accuracy:</p>"
        f'<ul class="findings">{"".join(lines)}</ul><div class="figures">{figures}</div></section>'
    )


def _claims(content: Content) -> str:
    rows = "".join(_claim(claim, content.figure_names) for claim in content.claims)
    counted = [(verdict, sum(claim.verdict == verdict for claim in content.claims)) for verdict in Verdict]
    tally = ", ".join(f"{verdict} {number}" for verdict, number in counted if number)
    scale = "".join(f'<p class="aside">Not the paper’s own set-up: {escape(said)}</p>' for said in departures(content))
    return (
        f'<section id="claims"><h2>The paper’s claims</h2><p>{len(content.claims)} claims of arXiv {paper.ARXIV}: '
        f'{tally}.</p>{scale}<ol class="claims">{rows}</ol></section>'
    )


def _claim(claim: Claim, figures: set[str]) -> str:
    kind, mark = _MARKS[claim.verdict]
    link = f' <a href="#{escape(claim.figure)}">figure</a>' if claim.figure in figures else ""
    return (
        f'<li><div><h3>{escape(claim.claim)}</h3><p class="verdict {kind}"><span aria-hidden="true">{mark}</span> '
        f"{escape(claim.verdict)}</p><code>{escape(claim.command)}</code></div><dl>"
        f"<div><dt>The paper</dt><dd>{escape(claim.paper)}</dd></div>"
        f"<div><dt>Here</dt><dd>{escape(claim.measured)}{link}</dd></div></dl></li>"
    )


def _bench(section: Section, files: str) -> str:
    bench = section.bench
    note = f'<p class="note">{escape(bench.setting.note)}</p>' if bench.setting.note else ""
    beside = "".join(f'<p class="aside">{escape(said)}</p>' for said in caveats(section))
    figures = "".join(_figure(shown, files) for shown in section.figures if not shown.name.endswith("-variants"))
    data = f'<a href="{_link(files, f"{bench.slug}-rounds.csv")}">every round as CSV</a>'
    return (
        f'<section id="{escape(bench.slug)}"><h2>{escape(bench.setting.heading)}</h2>{note}'
        f'<p class="facts">{escape(" · ".join(section.facts))} · {data}</p>'
        f'{_table(section.results, files)}{beside}<div class="figures">{figures}</div></section>'
    )


def _variants(sections: Sequence[Section], files: str) -> str:
    parts = []
    for section in sections:
        if section.variants is None:
            continue
        drawn = [shown for shown in section.figures if shown.name.endswith("-variants")]
        figures = "".join(_figure(shown, files) for shown in drawn)
        parts.append(
            f"<h3>{escape(section.bench.setting.subtitle)}</h3>{_table(section.variants, files)}"
            f'<div class="figures">{figures}</div>'
        )
    return (
        '<section id="variants"><h2>FedSparQ’s variants</h2><p>The default first, then the method with other '
        f"options: what each part of it contributes.</p>{''.join(parts)}</section>"
    )


def _table(table: Table, files: str) -> str:
    links = _links(files, table.name, ("csv", "tex"))
    return f'{tables.to_html(table)}<p class="files">{links}</p>'


def _figure(shown: Shown, files: str) -> str:
    links = _links(files, shown.name, ("svg", "png", "pdf"))
    return (
        f'<figure id="{escape(shown.name)}">{inline(shown.svg, shown.caption)}'
        f'<figcaption class="files"><span>{escape(shown.caption)}</span> {links}</figcaption></figure>'
    )


def _links(files: str, name: str, kinds: Sequence[str]) -> str:
    return " ".join(f'<a href="{_link(files, f"{name}.{kind}")}">{kind.upper()}</a>' for kind in kinds)


def _link(files: str, name: str) -> str:
    return escape(f"{quote(files)}/{quote(name)}")


def _reading(content: Content) -> str:
    terms = "".join(f"<div><dt>{escape(term)}</dt><dd>{escape(text)}</dd></div>" for term, text in READING)
    left = ""
    if content.left_out:
        items = "".join(f"<li><code>{escape(str(o.folder))}</code> {escape(o.reason)}</li>" for o in content.left_out)
        left = f'<h3>Left out</h3><ul class="left-out">{items}</ul>'
    return f'<section id="reading"><h2>How to read this</h2><dl class="terms">{terms}</dl>{left}</section>'
