import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import fedsparq.lab.report
from fedsparq.errors import OptionError, RunError
from fedsparq.lab.report.document import build_report
from fedsparq.lab.report.figures import write_figures
from fedsparq.lab.report.page import write_report
from fedsparq.lab.results import Results
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
    return write_report([runs], tmp_path_factory.getbasetemp() / "report.html", paper=True)


@pytest.fixture(scope="module")
def page(report, tmp_path_factory) -> Path:
    return tmp_path_factory.getbasetemp() / "report.html"


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


def test_the_page_is_self_contained(page):
    text = page.read_text()
    found = References(text)
    assert all(url.startswith(("#", "data:")) for url in found.fetched)
    style = "".join(re.findall(r"<style.*?</style>", text, re.DOTALL))
    assert "@import" not in style
    assert not re.search(r"url\((?!#)", style)
    assert len(found.ids) == len(set(found.ids))


def test_the_file_is_small_enough_to_send(page):
    assert page.stat().st_size < 5_000_000


def test_the_drawing_library_keeps_its_licence_and_is_in_the_package():
    folder = Path(fedsparq.lab.report.__file__).parent / "vendor"
    library = (folder / "plotly-basic.min.js").read_text()
    version = re.search(r"plotly\.js \(basic - minified\) v(\S+)", library[:200]).group(1)
    assert f"plotly.js {version}" in (folder / "README.md").read_text()
    assert "MIT License" in (folder / "plotly-LICENSE.txt").read_text()
    assert "</script" not in library


def test_every_link_leads_somewhere(page):
    found = References(page.read_text())
    for link in found.links:
        if link.startswith("#"):
            assert link[1:] in found.ids
        else:
            assert (page.parent / link).is_file(), link


def test_figures_and_tables_for_a_paper(report, tmp_path):
    written = write_figures(report, tmp_path, ["svg"])
    names = {path.name for path in written}
    kinds = ("answer", "savings", "accuracy", "loss", "accuracy-over-bytes")
    assert names == {path.name for path in tmp_path.iterdir()}
    assert {name for name in names if name.endswith(".svg")} == {f"{kind}.svg" for kind in kinds}
    assert {name for name in names if name.endswith(".tex")} == {
        "mnist-iid-results.tex", "mnist-iid-variants.tex", "cifar10-dirichlet-0.5-results.tex"
    }  # fmt: skip
    drawn = (tmp_path / "answer.svg").read_text()
    assert all(word in drawn for word in ("FedSparQ", "MNIST · IID", "CIFAR-10 · Dirichlet(0.5)"))
    before = (tmp_path / "savings.svg").read_bytes()
    write_figures(report, tmp_path, ["svg"])
    assert (tmp_path / "savings.svg").read_bytes() == before


@pytest.mark.parametrize("formats", [["docx"], [], ["svg", "../x"]])
def test_other_formats_are_refused(report, tmp_path, formats):
    with pytest.raises(OptionError):
        write_figures(report, tmp_path / "new", formats)
    assert not (tmp_path / "new").exists()


def test_the_page_is_drawn_without_matplotlib(runs, tmp_path):
    code = (
        "import sys; sys.modules['matplotlib'] = None; from pathlib import Path\n"
        "from fedsparq.lab.report.page import write_report\n"
        f"write_report([Path({str(runs / 'mnist-iid-fedavg-seed0')!r})], Path('page.html'))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    assert (tmp_path / "page.html").stat().st_size > 1_000_000


def test_a_page_from_a_csv_has_tables_and_no_curves(runs, tmp_path):
    write_report([runs], tmp_path / "rows.csv")
    write_report([tmp_path / "rows.csv"], tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert 'id="mnist-iid-answer"' in text
    assert 'id="mnist-iid-accuracy"' not in text


def test_the_page_names_what_it_left_out_and_what_is_shortened(report, page):
    text = page.read_text()
    ((folder, _),) = report.skipped
    assert "no summary.json yet" in text
    assert folder.name in text
    assert "12,000 of 50,000 images, 6 rounds" in text
    assert "6 rounds here, 100 in the paper" in text


def test_claims_only_when_asked(report, page, runs, tmp_path):
    assert len(report.claims) == 10
    assert "not reached" in page.read_text()
    plain = write_report([runs / "mnist-iid-fedavg-seed0"], tmp_path / "plain.html", title="My runs")
    text = (tmp_path / "plain.html").read_text()
    assert not plain.claims
    assert 'id="claims"' not in text
    assert "<title>My runs</title>" in text


def test_one_strange_run_is_enough(tmp_path):
    make_run(tmp_path, "<my> method/1", "letters", "shards(2)", rounds=1, clients=40)
    write_report([tmp_path], tmp_path / "one.html")
    text = (tmp_path / "one.html").read_text()
    assert "&lt;my&gt; method/1" in text
    assert "<my>" not in text


def test_no_run_at_all_is_one_clear_error(tmp_path):
    with pytest.raises(RunError, match="no finished run to report on") as error:
        write_report([tmp_path / "nowhere"], tmp_path / "report.html")
    assert "no such folder" in str(error.value)
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("name", ["report.docx", "report", "report.htm", "report.pdf", "report.md"])
def test_another_ending_is_refused_before_anything_is_read(tmp_path, name):
    with pytest.raises(OptionError, match=r"\.html"):
        write_report([tmp_path / "nowhere"], tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_winner_inside_the_spread_is_not_named(tmp_path):
    for seed, reach in enumerate((0.6, 0.9, 1.0)):
        make_run(tmp_path / "runs", "fedavg", seed=seed, reach=reach, rounds=2)
        make_run(tmp_path / "runs", "top-10", seed=seed, reach=reach - 0.03, rounds=2)
    (section,) = build_report(Results.read([tmp_path / "runs"])).sections
    assert any("Top 10 % and FedAvg" in remark for remark in section.finding.remarks)


def test_equal_bytes_are_called_equal(tmp_path):
    for method in ("one", "two"):
        make_run(tmp_path / "runs", method, rounds=2, reach=0.9, kept=0.05)
    (section,) = build_report(Results.read([tmp_path / "runs"])).sections
    assert re.fullmatch(r"These are equal: (one and two|two and one)", section.finding.method)
