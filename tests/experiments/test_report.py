import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser
from made_runs import METHODS, make_run

from fedsparq.errors import RunError
from fedsparq.experiments.report import write_markdown, write_report


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    for method in METHODS:
        for seed in range(2):
            make_run(root, method, "mnist", "iid", seed)
        make_run(root, method, "cifar10", "dirichlet(0.5)", rounds=6, note="12,000 of 50,000 images, 6 rounds")
    for residual in ("kept-only", "off", "none"):
        make_run(root, "fedsparq", "mnist", "iid", options={"residual": residual}, reach=0.95)
    broken = make_run(root, "stc", "mnist", "iid")
    broken.joinpath("summary.json").unlink()
    return root


@pytest.fixture(scope="module")
def report(runs, tmp_path_factory):
    return write_report([runs], tmp_path_factory.mktemp("out") / "report.html", paper=True)


class References(HTMLParser):
    """Everything a page could fetch, every place it links to, every id it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            elif tag == "a" and name == "href":
                self.links.append(value or "")
            elif name in ("src", "href", "xlink:href", "srcset", "data", "action"):
                self.fetched.append(value or "")


def test_the_page_is_self_contained(report):
    text = report.page.read_text()
    found = References(text)
    assert all(url.startswith(("#", "data:")) for url in found.fetched)
    assert "script" not in found.tags
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)
    assert len(found.ids) == len(set(found.ids))


def test_every_link_leads_somewhere(report):
    found = References(report.page.read_text())
    for link in found.links:
        if link.startswith("#"):
            assert link[1:] in found.ids
        else:
            assert (report.page.parent / link).is_file(), link


def test_each_figure_and_table_also_as_files(report):
    kinds = {kind: {p.stem for p in report.files.glob(f"*.{kind}")} for kind in ("svg", "png", "pdf", "csv", "tex")}
    assert kinds["svg"] == kinds["png"] == kinds["pdf"]
    assert "answer" in kinds["svg"]
    assert "mnist-iid-variants" in kinds["svg"]
    assert kinds["tex"] == {"mnist-iid-results", "mnist-iid-variants", "cifar10-dirichlet-0.5-results"}
    assert kinds["csv"] == kinds["tex"] | {"mnist-iid-rounds", "cifar10-dirichlet-0.5-rounds"}


def test_the_page_names_what_it_left_out_and_what_is_shortened(report):
    text = report.page.read_text()
    (left,) = report.left_out
    assert "no summary.json yet" in text
    assert left.folder.name in text
    assert "12,000 of 50,000 images, 6 rounds" in text
    assert "6 rounds here, 100 in the paper" in text


def test_claims_only_when_asked(report, runs, tmp_path):
    assert len(report.claims) == 10
    assert "not reached" in report.page.read_text()
    plain = write_report([runs / "mnist-iid-fedavg-seed0"], tmp_path / "plain.html", title="My runs")
    assert not plain.claims
    assert 'id="claims"' not in plain.page.read_text()
    assert "<title>My runs</title>" in plain.page.read_text()


def test_one_strange_run_is_enough(tmp_path):
    make_run(tmp_path, "<my> method/1", "letters", "shards(2)", rounds=1, clients=40)
    report = write_report([tmp_path], tmp_path / "out" / "one.html")
    text = report.page.read_text()
    assert "&lt;my&gt; method/1" in text
    assert "<my>" not in text


def test_no_run_at_all_is_one_clear_error(tmp_path):
    with pytest.raises(RunError, match="no finished run to report on") as error:
        write_report([tmp_path / "nowhere"], tmp_path / "report.html")
    assert "no such folder" in str(error.value)
    assert not (tmp_path / "report.html").exists()


def test_markdown_refers_to_figures_that_exist(runs, tmp_path):
    report = write_markdown([runs], tmp_path / "RESULTS.md", command="fedsparq reproduce --scale small")
    text = report.page.read_text()
    targets = re.findall(r'src="([^"]+)"|\]\(([^)]+)\)', text)
    assert len(targets) > 10
    for image, link in targets:
        assert (tmp_path / (image or link)).is_file()
    assert "Made by `fedsparq reproduce --scale small`" in text
    assert "| 90 % fewer bytes than FedAvg | **not reached** |" in text


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    from fedsparq.errors import MissingExtraError

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "fedsparq.experiments.style")
    with pytest.raises(MissingExtraError, match=r"fedsparq\[torch\]"):
        __import__("fedsparq.experiments.style")


DRAWN = """
[...document.querySelectorAll('figure svg, figure svg image, figure svg text')]
  .filter(e => { const b = e.getBoundingClientRect(); return !(b.width > 0 && b.height > 0); })
  .map(e => e.closest('figure').id + ' ' + e.tagName + ' ' + e.textContent.slice(0, 40))
"""
OUTSIDE = """
[...document.querySelectorAll('figure')].flatMap(f => {
  const page = document.documentElement.clientWidth;
  return [...f.querySelectorAll('svg text')].filter(t => {
    const b = t.getBoundingClientRect(); return b.left < -1 || b.right > page + 1;
  }).map(t => f.id + ' ' + t.textContent);
})
"""


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_in_a_real_browser(report, tmp_path, width, dark):
    with Browser(tmp_path / "profile") as browser:
        browser.open(report.page, width, dark=dark)
        figures = browser.evaluate("document.querySelectorAll('figure svg').length")
        assert figures == report.page.read_text().count("<figure")
        assert browser.evaluate(DRAWN) == []
        assert browser.evaluate(OUTSIDE) == []
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        background = browser.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", background))) < 300) == dark
        shown = [url for url in browser.requests if not url.startswith("data:image/png")]
        assert shown == [report.page.resolve().as_uri()]
        assert browser.complaints == []
