"""The report as Markdown, for a repository."""

from collections.abc import Sequence
from urllib.parse import quote

from fedsparq.experiments import paper, tables
from fedsparq.experiments.content import QUESTION, READING, Content, Section, Shown, caveats, departures, finding


def render(content: Content) -> str:
    """The document as text."""
    parts = [
        f"# {content.title}\n",
        f"**{QUESTION}**\n",
        f"Made by `{content.command}`, not typed.\n",
        _answer(content),
    ]
    if content.claims:
        parts.append(_claims(content))
    parts += [_bench(section, content.files) for section in content.sections]
    parts += [_variants(section, content.files) for section in content.sections if section.variants]
    parts.append(_reading(content))
    return "\n".join(parts)


def _answer(content: Content) -> str:
    lines = ["## The answer\n", "Fewest bytes per client within one point of the best accuracy:\n"]
    lines += ["| Setting | Method | Accuracy | Upload, as sent | |", "|---|---|---:|---:|---|"]
    for section in content.sections:
        f = finding(section.bench)
        lines.append(f"| {f.where} | **{f.method}** | {f.accuracy} | {f.sent} | {f.compared} |")
    lines += ["", _images([section.answer for section in content.sections], content.files)]
    return "\n".join(lines)


def _claims(content: Content) -> str:
    lines = [
        "## The paper's claims\n",
        f"The paper is arXiv {paper.ARXIV}.\n",
        *(f"Not the paper's own set-up: {said}\n" for said in departures(content)),
        "| Claim | Verdict | The paper | Here | Command |",
        "|---|---|---|---|---|",
    ]
    for claim in content.claims:
        here = claim.measured
        if claim.figure in content.figure_names:
            here += f" [figure]({quote(content.files)}/{quote(claim.figure)}.svg)"
        cells = (claim.claim, f"**{claim.verdict}**", claim.paper, here, f"`{claim.command}`")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _bench(section: Section, files: str) -> str:
    lines = [f"## {section.bench.setting.heading}\n"]
    if section.bench.setting.note:
        lines.append(f"**{section.bench.setting.note}**\n")
    lines += [" · ".join(section.facts) + "\n", tables.to_markdown(section.results)]
    lines += [f"{said}\n" for said in caveats(section)]
    name = quote(f"{section.bench.slug}-rounds.csv")
    lines.append(f"[Every round as CSV]({quote(files)}/{name}), {_downloads(section.results.name, files)}\n")
    lines.append(_images([shown for shown in section.figures if not shown.name.endswith("-variants")], files))
    return "\n".join(lines)


def _variants(section: Section, files: str) -> str:
    if section.variants is None:
        return ""
    drawn = [shown for shown in section.figures if shown.name.endswith("-variants")]
    table = tables.to_markdown(section.variants)
    return "\n".join(
        [
            f"## FedSparQ's variants, {section.bench.setting.heading}\n",
            table,
            _downloads(section.variants.name, files),
            "",
        ]
        + ([_images(drawn, files)] if drawn else [])
    )


def _downloads(name: str, files: str) -> str:
    return f"the table as [CSV]({quote(files)}/{quote(name)}.csv) and [LaTeX]({quote(files)}/{quote(name)}.tex)"


def _images(figures: Sequence[Shown], files: str) -> str:
    return (
        "\n".join(f'<img src="{quote(files)}/{quote(f.name)}.svg" alt="{f.caption}" width="48%">' for f in figures)
        + "\n"
    )


def _reading(content: Content) -> str:
    lines = ["## How to read this\n", *(f"- **{term}**: {text}" for term, text in READING)]
    if content.left_out:
        lines += ["\nLeft out:\n", *(f"- `{left.folder}`: {left.reason}" for left in content.left_out)]
    return "\n".join(lines) + "\n"
