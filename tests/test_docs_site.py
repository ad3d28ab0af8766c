"""The docs site: built with every warning an error; its links lead somewhere, and nothing in it is loaded from afar."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from fedsparq.lab.results import Results
from fedsparq.methods import METHODS
from pages import PAGES, ROOT

pytest.importorskip("mkdocs")


class Found(HTMLParser):
    """What a page links to, what it loads, and the places in it that can be linked to."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value}
        self.anchors.update(given[name] for name in ("id", "name") if name in given)
        self.links += [given["href"]] if tag == "a" and "href" in given else []
        fetches = tag in ("img", "script", "iframe", "source") or given.get("rel") in ("stylesheet", "icon")
        self.loaded += [given[name] for name in ("src", "href") if fetches and name in given]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(out)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return out


def test_every_link_leads_somewhere_and_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = {page: Found(page) for page in site.rglob("*.html") if page.name != "404.html"}
    assert len(pages) > len(METHODS) + 15
    wrong = []
    for page, found in pages.items():
        for link in (*found.links, *found.loaded):
            parts = urlsplit(link)
            if parts.scheme in ("http", "https", "mailto") and link not in found.loaded:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            target = target / "index.html" if target.is_dir() else target
            anchors = pages[target].anchors if target in pages else {parts.fragment}
            if parts.scheme or not target.is_file() or (parts.fragment and parts.fragment not in anchors):
                wrong.append(f"{page.relative_to(site)}: {link}")
    assert not wrong


@pytest.mark.parametrize("page", PAGES)
def test_links_between_files_lead_somewhere_in_the_repository_too(page: str) -> None:
    text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"", text):
        path = "".join(link).partition("#")[0]
        assert not path or ":" in path or ((ROOT / page).parent / path).exists(), link


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_page_of_the_same_form(name: str, site: Path) -> None:
    text = (ROOT / "docs" / "methods" / f"{name}.md").read_text()
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    assert [each for each in headings if each not in ("What differs here", "What to know")] == [
        *(name, "The rule", "The paper", "What it costs" if name == "sobaa" else "Bytes")
    ]
    assert f">{name}</a>" in (site / "methods" / "index.html").read_text()
    built = (site / "methods" / f"{name}.html").read_text()
    assert "On our frontier" in built
    assert "fedsparq compare frontier" in built


@pytest.mark.parametrize("name", METHODS)
def test_what_the_code_says_of_a_method_is_told_whole(name: str, site: Path) -> None:
    recipe = METHODS[name]
    assert (recipe.__doc__ or "").split("\n")[0].endswith(".")
    built = (site / "methods" / f"{name}.html").read_text().partition('id="options"')[2].partition("<h2")[0]
    told = re.findall(r"<tr>\s*<td><code>(\w+)</code></td>\s*<td>.*?</td>\s*<td>(.*?)</td>", built, re.DOTALL)
    assert [option for option, _ in told] == list(inspect.signature(recipe).parameters)
    assert all(text.endswith(".") for _, text in told)


def test_no_item_of_a_list_got_into_the_one_before(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = re.sub(r"<pre.*?</pre>|<script.*?</script>", "", page.read_text(), flags=re.DOTALL)
        assert not re.search(r"^[*-] |[.:] [*-] <", text, re.MULTILINE), page.name


def test_the_readme_has_the_numbers_of_the_runs_that_are_kept() -> None:
    runs = {run.label: run for run in Results.read([ROOT / "results" / "quickstart"]).runs}
    whole, row = runs["fedavg"], r"^\| \**([\w-]+)\** \|" + r" (.*) \|" * 8 + "$"
    rows = [found for found in re.findall(row, readme(), re.MULTILINE) if found[0] != "method"]
    assert {found[0] for found in rows} == set(runs)
    for name, accuracy, loss, up, down, both, less_up, less, kept in rows:
        run = runs[name]
        traffic = run.upload_bytes + run.download_bytes
        assert float(accuracy.rstrip(" %")) == pytest.approx(run.accuracy, abs=0.005)
        assert float(loss) == pytest.approx(run.loss, abs=0.0005)
        for text, exact in ((up, run.upload_bytes), (down, run.download_bytes), (both, traffic)):
            size, unit = text.split()
            assert float(size) * {"kB": 1e3, "MB": 1e6}[unit] == pytest.approx(exact, rel=0.006)
        assert float(less_up[2:] or 1) == pytest.approx(whole.upload_bytes / run.upload_bytes, abs=0.05)
        assert float(less[2:] or 1) == pytest.approx((whole.upload_bytes + whole.download_bytes) / traffic, abs=0.051)
        assert float(kept.rstrip(" %")) == pytest.approx(100 * run.kept, abs=0.05)


def test_the_picture_is_drawn_from_the_runs_that_are_kept(tmp_path: Path) -> None:
    script, drawn = ROOT / "scripts" / "savings_picture.py", tmp_path / "savings.svg"
    subprocess.run([sys.executable, script, ROOT / "results" / "quickstart", "--out", drawn], check=True)
    words = [re.findall(r"<text[^>]*>(.*?)</text>", path.read_text()) for path in (drawn, ROOT / PICTURE)]
    assert words[0] == words[1]
    assert PICTURE in readme()


PICTURE = "docs/figures/savings.svg"


def readme() -> str:
    return (ROOT / "README.md").read_text()
