"""What the docs site takes from elsewhere, as hooks of mkdocs.

Pages at the root of the repository and beside the code get a place in the site; links follow. The page of a method
gets what the code and the last measurements say about it, so that neither is written twice.
"""

from __future__ import annotations

import csv
import inspect
import os
import re
from pathlib import Path
from typing import Any

from frontier_picture import frontier_picture
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from fedsparq.methods.registry import METHODS

ROOT = Path(__file__).resolve().parents[1]
ELSEWHERE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "SECURITY.md": "SECURITY.md",
    "src/fedsparq/wire/FORMAT.md": "FORMAT.md",
}
"""Pages outside docs/, and where they are in the site."""
FRONTIERS = {
    "MNIST": (
        "mnist-mini-dirichlet-0.5",
        "10,000 images, MLP, three clients, Dirichlet(0.5), 25 rounds, seeds 0 to 2",
    ),
    "Fashion-MNIST": (
        "fmnist-dirichlet-0.5",
        "4,000 images, LeNet-5, three clients, Dirichlet(0.5), 20 rounds, seeds 0 and 1",
    ),
    "Shakespeare": (
        "shakespeare-natural",
        "five speakers, an LSTM of 64, 25 rounds of 30 steps, seeds 0 and 1; accuracy is of the next character",
    ),
}
"""Where docs/FRONTIER.md was measured: the file that `fedsparq report` wrote, and the setting in words."""
NO_BYTES = "sobaa"
"""Its unit is channel uses: the bytes of its simulation stand beside nobody's."""

_LINK = re.compile(r"\[(?P<text>[^\]\n]*)\]\((?P<link>[^)\s]+)\)|(?P<before>\b(?:src|href)=\")(?P<raw>[^\"]+)\"")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Every page of docs/methods is in the navigation, in the registry's order."""
    names = [name for name in METHODS if (ROOT / f"docs/methods/{name}.md").exists()]
    pages = ["methods/index.md", *(f"methods/{name}.md" for name in names)]
    config.nav = [{"Methods": pages} if entry == {"Methods": "methods/"} else entry for entry in config.nav or []]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for origin, place in ELSEWHERE.items():
        if (ROOT / origin).exists():
            files.append(File.generated(config, place, content=(ROOT / origin).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    place = page.file.src_uri
    origin = {there: here for here, there in ELSEWHERE.items()}.get(place, f"docs/{place}")
    markdown = re.sub(r"^( *```\w+) ([\w.-]+)$", r'\1 title="\2"', markdown, flags=re.MULTILINE)
    markdown = nested(markdown)
    text = _LINK.sub(lambda match: _follow(match, Path(origin), place), markdown)
    folder, _, name = place.rpartition("/")
    if name == "appendix.md":  # wide tables, and in no navigation
        page.meta["hide"] = ["navigation"]
    if folder != "methods":
        return text
    return text + overview() if name == "index.md" else described(text, name.removesuffix(".md"))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Code in a sentence is not broken, except where it is too long for a phone (site.css)."""
    return re.sub(r"<code>([^<]{31,})</code>", r'<code class="long">\1</code>', html)


def nested(markdown: str) -> str:
    """What stands inside a list by two spaces, as on GitHub, with the four that mkdocs asks for.

    After an item of several blocks, the next one is set off by an empty line.
    """
    lines, inside, blocks = [], False, False
    for line in markdown.split("\n"):
        item = line.startswith(("- ", "* "))
        lines += [""] if item and blocks else []
        inside = item or (inside and (not line or line.startswith("  ")))
        blocks = inside and not item and (blocks or not line)
        lines.append(f"  {line}" if inside and line.startswith("  ") else line)
    return "\n".join(lines)


def _follow(match: re.Match[str], origin: Path, place: str) -> str:
    """A link in a file of the repository as a link in the site; to what the site does not have, only its text."""
    link = match["link"] or match["raw"]
    path, _, anchor = link.partition("#")
    target = os.path.normpath(origin.parent / path)
    if not path or ":" in path or not (ROOT / target).exists():
        return match[0]
    there = ELSEWHERE.get(target, target.removeprefix("docs/") if target.startswith("docs/") else None)
    if there is None or (ROOT / target).is_dir():
        return match["text"] or match[0]
    moved = os.path.relpath(there, os.path.dirname(place)) + (f"#{anchor}" if anchor else "")
    if not match["link"]:
        return f'{match["before"]}{moved}"'
    return f"[{_title(target) if match['text'].endswith('.md') else match['text']}]({moved})"


def _title(target: str) -> str:
    """The heading of a page of the repository."""
    return (ROOT / target).read_text().partition("\n")[0].removeprefix("# ")


def described(text: str, name: str) -> str:
    """A method's page, with its docstring on top and its options and measurements at the end."""
    recipe = METHODS[name]
    title, rest = text.split("\n", 1)
    return "\n".join([title, "", _summary(recipe), rest.strip(), "", *_options(recipe), "", *_measured(name), ""])


def overview() -> str:
    """All methods in a table, with what each costs and keeps at its defaults."""
    found = [{row["method"]: row for row in measurements(stem)} for stem, _ in FRONTIERS.values()]
    head = "".join(f" {data} % | of FedAvg |" for data in FRONTIERS)
    lines = ["", f"| method | what it sends |{head}", "|---|---|" + "---:|---:|" * len(found)]
    for name, recipe in METHODS.items():
        cells = [_cells(rows[name], rows["fedavg"]) if name in rows else [""] * 4 for rows in found]
        measured = " | ".join(f"{accuracy.partition(' ')[0]} | {ratio}" for accuracy, _, _, ratio, *_ in cells)
        lines.append(f"| [{name}]({name}.md) | {_summary(recipe)} | {measured} |")
    settings = [f"{data}: {setting}." for data, (_, setting) in FRONTIERS.items()]
    return "\n".join([*lines, "", " ".join(settings), _SOURCE, ""])


_SOURCE = (
    "Made by `fedsparq compare frontier`; upload per client over the run, as sent; ± is the standard deviation over "
    "seeds. [The frontier](../FRONTIER.md) has the commands, and all methods side by side."
)


def _summary(recipe: Any) -> str:
    """The first line of a recipe's docstring; the page that it names, as a link."""
    first = (inspect.getdoc(recipe) or "").partition("\n")[0]
    return re.sub(r"docs/(\w+\.md)", lambda page: f"[{_title(page[0])}](../{page[1]})", first)


def _options(recipe: Any) -> list[str]:
    described = (inspect.getdoc(recipe) or "").partition("Args:")[2]
    told = dict(re.findall(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", described, re.MULTILINE))
    parameters = inspect.signature(recipe).parameters.values()
    rows = [f"| `{p.name}` | `{p.default!r}` | {' '.join(told.get(p.name, '').split())} |" for p in parameters]
    if not rows:
        return ["## Options", "", "None."]
    return ["## Options", "", "| option | default | |", "|---|---|---|", *rows]


def _measured(name: str) -> list[str]:
    """A method's settings on each data set, as a picture among all others and as a table."""
    parts: list[str] = []
    for data, (stem, setting) in FRONTIERS.items():
        rows = measurements(stem)
        ours = [row for row in rows if row["method"].split(" ")[0] == name]
        if not ours:
            continue
        ours.sort(key=lambda row: (row["method"] != name, -float(row["upload_bytes_mean"])))
        (fedavg,) = [row for row in rows if row["method"] == "fedavg"]
        parts += [f"### {data}", ""]
        if name != NO_BYTES:
            others = [_point(row) for row in rows if row["method"] != NO_BYTES]
            picture, least = frontier_picture(others, [*map(_point, ours)], name)
            parts += [picture, "", f"Coloured: {name}; grey: the other settings above {least} %."]
        parts += [f"{setting[:1].upper()}{setting[1:]}.", "", *_HEAD]
        parts += [*(f"| {row['method']} | {' | '.join(_cells(row, fedavg))} |" for row in ours), ""]
    alone = "It trains models of the clients' own, so `fedsparq compare frontier` leaves it out."
    return ["## On our frontier", "", *(parts or [alone, ""]), _SOURCE]


_HEAD = ("| setting | accuracy % | loss | upload | of FedAvg | coordinates sent |", "|---|---:|---:|---:|---:|---:|")


def measurements(stem: str) -> list[dict[str, str]]:
    """The rows of the report on one frontier."""
    with (ROOT / f"docs/FRONTIER-files/{stem}-results.csv").open() as lines:
        return list(csv.DictReader(lines))


def _point(row: dict[str, str]) -> tuple[float, float]:
    return float(row["upload_bytes_mean"]), float(row["accuracy_mean"])


def _cells(row: dict[str, str], fedavg: dict[str, str]) -> list[str]:
    keys = ("accuracy_mean", "loss_mean", "upload_bytes_mean", "kept_mean")
    accuracy, loss, upload, kept = (float(row[key]) for key in keys)
    spread = f" ± {float(row['accuracy_std']):.2f}" if row["accuracy_std"] else ""
    ratio = float(fedavg["upload_bytes_mean"]) / upload
    size = f"{upload / 1e6:.3g} MB" if upload >= 1e6 else f"{upload / 1e3:.3g} kB"
    bytes_sent = ["—", "—"] if row["method"] == NO_BYTES else [size, f"1/{ratio:.1f}" if ratio >= 1.05 else "1"]
    return [f"{accuracy:.2f}{spread}", f"{loss:.3f}", *bytes_sent, f"{100 * kept:.1f} %"]
