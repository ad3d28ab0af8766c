import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from browser import CHROMIUM

import fedsparq.lab.report
from fedsparq.errors import OptionError, RunError
from fedsparq.lab.report.write import write_report
from made_runs import METHODS, make_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    for method in METHODS:
        for seed in range(2):
            make_run(root, method, "mnist", "iid", seed)
    for method in ("fedavg", "fedpaq", "fedsparq"):
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
    style = "".join(re.findall(r"<style.*?</style>", text, re.DOTALL))
    assert "@import" not in style
    assert not re.search(r"url\((?!#)", style)
    assert len(found.ids) == len(set(found.ids))


def test_the_file_is_small_enough_to_send(report):
    assert report.page.stat().st_size < 5_000_000


def test_the_drawing_library_keeps_its_licence_and_is_in_the_package():
    folder = Path(fedsparq.lab.report.__file__).parent / "vendor"
    library = (folder / "plotly-basic.min.js").read_text()
    version = re.search(r"plotly\.js \(basic - minified\) v(\S+)", library[:200]).group(1)
    assert f"plotly.js {version}" in (folder / "README.md").read_text()
    assert "MIT License" in (folder / "plotly-LICENSE.txt").read_text()
    assert "</script" not in library


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


def test_markdown_is_a_page_of_reading_with_three_figures_and_an_appendix(runs, tmp_path):
    report = write_report([runs], tmp_path / "RESULTS.md", paper=True, command="fedsparq reproduce --scale small")
    text, appendix = report.page.read_text(), (report.files / "appendix.md").read_text()
    assert len(text.split()) < 900
    assert len(re.findall(r"!\[", text)) == 3
    assert len(re.findall(r"^\|---", text, re.MULTILINE)) == 1
    assert "Made by `fedsparq reproduce --scale small`" in text
    assert "| 90 % fewer bytes than FedAvg | **not reached** |" in text
    for folder, written in ((tmp_path, text), (report.files, appendix)):
        for image, link in re.findall(r'src="([^"]+)"|\]\(([^)]+)\)', written):
            assert (folder / (image or link)).is_file()
    rows = [line for line in appendix.splitlines() if line.startswith("| FedSparQ |")]
    assert len(rows) == 2
    drawn = {file.name for file in report.files.glob("*.svg")}
    assert all(name in text + appendix for name in drawn)


def test_markdown_without_the_paper_puts_settings_side_by_side(runs, tmp_path):
    text = write_report([runs], tmp_path / "MINE.md").page.read_text()
    head, _, *rows = [line for line in text.splitlines() if line.startswith("|")]
    assert head.startswith("| Setting | FedAvg | FedPAQ | FedSparQ |")
    assert len(rows) == 2
    assert all(re.search(r", \d+\.\dx \|", row) for row in rows)


@pytest.mark.parametrize("name", ["report.docx", "report", "report.htm"])
def test_another_ending_is_refused_before_anything_is_read(tmp_path, name):
    with pytest.raises(OptionError, match=r"must end in \.html, \.pdf, \.md"):
        write_report([tmp_path / "nowhere"], tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_pdf_without_a_browser_is_a_clear_error_and_no_file(runs, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RunError, match=r"needs Chromium, Google Chrome or Microsoft Edge.*apt install chromium"):
        write_report([runs], tmp_path / "r.pdf")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_a_pdf_is_a_pdf(tmp_path):
    make_run(tmp_path / "runs", rounds=3)
    written = write_report([tmp_path / "runs"], tmp_path / "r.pdf").page.read_bytes()
    assert written.startswith(b"%PDF-")
    assert written.rstrip().endswith(b"%%EOF")


def test_a_winner_inside_the_spread_is_not_named(tmp_path):
    for seed, reach in enumerate((0.6, 0.9, 1.0)):
        make_run(tmp_path / "runs", "fedavg", seed=seed, reach=reach, rounds=2)
        make_run(tmp_path / "runs", "top-10", seed=seed, reach=reach - 0.03, rounds=2)
    text = write_report([tmp_path / "runs"], tmp_path / "r.md").page.read_text()
    assert "In accuracy these are equal, as the seeds spread wider than they differ: Top 10 % and FedAvg." in text


def test_equal_bytes_are_called_equal(tmp_path):
    for method in ("one", "two"):
        make_run(tmp_path / "runs", method, rounds=2, reach=0.9, kept=0.05)
    text = write_report([tmp_path / "runs"], tmp_path / "r.md").page.read_text()
    assert re.search(r"\*\*These are equal: (one and two|two and one)\*\*", text)


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    from fedsparq.errors import MissingExtraError

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "fedsparq.lab.report.style")
    with pytest.raises(MissingExtraError, match=r"fedsparq\[torch\]"):
        __import__("fedsparq.lab.report.style")
