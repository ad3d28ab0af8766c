"""The page in a real browser: what is drawn, hovered, toggled, zoomed, sorted; in light and dark, wide and narrow."""

import re
import shutil
import subprocess
from pathlib import Path
from statistics import fmean, stdev

import pytest
from browser import CHROMIUM, Browser

from fedsparq.lab.names import human_bytes, method_name
from fedsparq.lab.report.page import write_report, write_snapshot
from fedsparq.lab.results import Results
from made_runs import METHODS, make_run

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
SLUG = "mnist-dirichlet-0.5"
SEVEN = [*METHODS, "fedsparq-adaptive"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    for method in SEVEN:
        for seed in range(3):
            make_run(root, method, "mnist", "dirichlet(0.5)", seed, rounds=5)
    return root


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> Path:
    """31 settings of four methods."""
    root = tmp_path_factory.mktemp("many")
    make_run(root, "fedavg", rounds=2)
    for method in ("stc", "qsgd", "eden"):
        for share in range(1, 11):
            options, reach = {"fraction": 0.01 * share}, 0.89 + 0.01 * share
            make_run(root, method, rounds=2, options=options, reach=reach, kept=0.01 * share)
    return root


@pytest.fixture(scope="module")
def bench(runs):
    (found,) = Results.read([runs]).comparisons()
    return found


@pytest.fixture(scope="module")
def page(runs, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("out") / "report.html"
    write_snapshot([runs], path, None, 0)
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture
def opened(browser, page):
    """The page on a laptop, everything drawn."""
    browser.requests.clear()
    browser.complaints.clear()
    browser.open(page, 1280)
    browser.evaluate("sessionStorage.clear(); localStorage.clear()")
    browser.open(page, 1280)
    browser.evaluate("plots.forEach(draw)")
    return browser


def at(figure):
    return f'[id="{SLUG}-{figure}"]'


def spot(browser, figure, x, y):
    """Where a point of a figure's data is in the window, after scrolling to it."""
    element = f"document.getElementById('{SLUG}-{figure}')"
    browser.evaluate(f"{element}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
    return browser.evaluate(f"""(() => {{
        const plot = {element}.querySelector('.plot'), area = plot._fullLayout, box = plot.getBoundingClientRect();
        const [x, y] = [area.xaxis, area.yaxis];
        return [box.left + x._offset + x.d2p({x}), box.top + y._offset + y.d2p({y})];
    }})()""")


def hovered(browser, figure, x, y):
    """The words that show up when the mouse is there."""
    browser.move(*spot(browser, figure, x, y))
    words = f"[...document.querySelectorAll('{at(figure)} .hoverlayer text')].map(t => t.textContent).join(' | ')"
    browser.settle(f"{words}.length > 0")
    return browser.evaluate(words)


def press(browser, selector):
    browser.evaluate(f"document.querySelector(`{selector}`).click()")


def shown_in(browser, figure):
    return set(
        browser.evaluate(f"""[...new Set(document.querySelector('{at(figure)} .plot').data
        .filter(t => t.hoverinfo !== 'skip').flatMap(t => t.type === 'bar' ? t.y : [t.name]))]""")
    )


def test_hovering_a_round_reads_method_round_accuracy_and_bytes(opened, bench):
    own = bench.runs_of("fedsparq")
    third = [run.rounds[2].accuracy for run in own]
    sent = fmean(sum(r.upload_bytes for r in run.rounds[:3]) for run in own)
    words = hovered(opened, "accuracy", 3, fmean(third))
    assert "round 3" in words
    assert f"FedSparQ {fmean(third):.2f} ± {stdev(third):.2f} %, {human_bytes(sent)}" in words
    assert all(method_name(label) in words for label in bench.main)


def test_hovering_the_end_reads_accuracy_bytes_and_the_saving(opened, bench):
    sent, accuracy = bench.spread("top-10", "upload_bytes"), bench.spread("top-10", "accuracy")
    words = hovered(opened, "answer", sent.mean, accuracy.mean)
    assert "Top 10 %" in words
    assert "round 5" in words
    assert f"{accuracy.mean:.2f} ± {accuracy.std:.2f} %" in words
    whole = bench.mean("fedavg", "upload_bytes")
    assert f"{human_bytes(sent.mean)} sent, {whole / sent.mean:.1f}x less than FedAvg" in words


def test_a_method_is_hidden_and_shown_in_every_figure_at_once(opened, bench):
    names = {method_name(label) for label in bench.main}
    assert shown_in(opened, "loss") == names
    press(opened, ".legend button:nth-child(2)")
    hidden = bench.main[1]
    for figure in ("answer", "accuracy", "loss", "kept"):
        assert shown_in(opened, figure) == names - {method_name(hidden)}
    assert hidden not in shown_in(opened, "bytes")
    assert (
        opened.evaluate("document.querySelector('.legend button:nth-child(2)').getAttribute('aria-pressed')") == "false"
    )
    press(opened, ".legend .all")
    assert shown_in(opened, "loss") == names


def test_curves_run_against_bytes_sent(opened, bench):
    press(opened, ".switch button[value=sent]")
    drawn = opened.evaluate(f"""document.querySelector('{at("accuracy")} .plot').data
        .filter(t => t.hoverinfo !== 'skip').map(t => [t.name, t.x, t.y])""")
    for name, x, y in drawn:
        label = next(label for label in bench.main if method_name(label) == name)
        assert x == pytest.approx([s.mean for s in bench.curve(label, "sent")], rel=1e-6)
        assert y == pytest.approx([s.mean for s in bench.curve(label, "accuracy")], rel=1e-6)
    assert opened.evaluate(f"document.querySelector('{at('accuracy')} .plot')._fullLayout.xaxis.type") == "log"
    sent, loss = (bench.curve("fedsparq-adaptive", measure)[3].mean for measure in ("sent", "loss"))
    words = hovered(opened, "loss", sent, loss)
    assert "FedSparQ-adaptive" in words
    assert "round 4" in words


def test_bars_are_linear_and_each_has_its_number(opened, bench):
    kind, lengths, texts = opened.evaluate(f"""(() => {{
        const plot = document.querySelector('{at("bytes")} .plot'), bars = plot.data[0];
        const drawn = [...plot.querySelectorAll('.bars .point path')].map(p => p.getBoundingClientRect().width);
        return [plot._fullLayout.xaxis.type, Object.fromEntries(bars.y.map((l, i) => [l, drawn[i]])), bars.text];
    }})()""")
    assert kind == "linear"
    for label in bench.main:
        sent, times = (bench.mean(label, measure) for measure in ("upload_bytes", "times_less"))
        assert lengths[label] / lengths["fedavg"] == pytest.approx(times, rel=0.25, abs=0.2)
        assert any(text.endswith(f", {human_bytes(sent)}") for text in texts)


def test_dragging_zooms_and_reset_goes_back(opened):
    limits = f"document.querySelector('{at('accuracy')} .plot')._fullLayout.xaxis.range"
    before = opened.evaluate(limits)
    opened.drag(spot(opened, "accuracy", 2, 80), spot(opened, "accuracy", 4, 90))
    opened.settle(f"{limits}[0] > 1.5")
    assert opened.evaluate(limits) == pytest.approx([2, 4], abs=0.1)
    press(opened, ".tools button:last-child")
    assert opened.evaluate(limits) == before


def test_the_table_sorts_by_any_column(opened, bench):
    press(opened, "thead th:nth-child(3) button")
    names = "[...document.querySelectorAll('tbody th')].map(t => t.textContent.trim())"
    expected = [method_name(label) for label in sorted(bench.main, key=lambda label: bench.mean(label, "upload_bytes"))]
    assert opened.evaluate(names) == expected
    press(opened, "thead th:nth-child(3) button")
    assert opened.evaluate(names) == expected[::-1]
    assert opened.evaluate("document.querySelector('thead th:nth-child(3)').getAttribute('aria-sort')") == "descending"


def test_light_and_dark_by_the_system_and_by_the_button(opened):
    brightness = "getComputedStyle(document.body).backgroundColor"
    first = opened.evaluate(f"document.querySelector('{at('loss')} .plot').data.at(-1).line.color")
    assert sum(map(int, re.findall(r"\d+", opened.evaluate(brightness)))) > 600
    press(opened, "#theme")
    assert sum(map(int, re.findall(r"\d+", opened.evaluate(brightness)))) < 300
    assert opened.evaluate(f"document.querySelector('{at('loss')} .plot').data.at(-1).line.color") != first


VISIBLE = """
[...document.querySelectorAll('table tr')].flatMap(row => [...row.cells].slice(0, 3)).filter(cell => {
  const box = cell.getBoundingClientRect(), frame = cell.closest('.scroll').getBoundingClientRect();
  const right = Math.min(frame.right, document.documentElement.clientWidth);
  return !(box.width > 20 && box.left >= frame.left - 1 && box.right <= right + 1);
}).map(cell => cell.textContent)
"""
CLIPPED = """
[...document.querySelectorAll('.plot')].flatMap(plot => {
  const frame = plot.getBoundingClientRect();
  return [...plot.querySelectorAll('.main-svg text')].filter(text => {
    const box = text.getBoundingClientRect();
    return box.width > 0 && (box.left < frame.left - 1 || box.right > frame.right + 1 || box.bottom > frame.bottom + 1);
  }).map(text => text.textContent);
})
"""


NAMED = """
(() => {
  return [...document.querySelectorAll('.plot[data-plot=answer] .scatterlayer .text text')].map(text => {
    const box = text.getBoundingClientRect();
    return [text.textContent, box.left, box.top, box.right, box.bottom];
  });
})()
"""


@pytest.mark.parametrize("width", [390, 1280])
def test_names_stand_beside_their_marks_and_meet_no_other(browser, page, bench, width):
    browser.open(page, width)
    browser.evaluate("sessionStorage.clear()")
    browser.open(page, width)
    browser.evaluate("plots.forEach(draw)")
    names = browser.evaluate(NAMED)
    assert {method_name(label) for label in bench.pareto()} <= {name for name, *_ in names}
    for number, (_, left, top, right, bottom) in enumerate(names):
        assert all(right <= a or c <= left or bottom <= b or d <= top for _, a, b, c, d in names[number + 1 :])
    labels = f"[...document.querySelectorAll('{at('answer')} .xtick text')].map(t => t.textContent)"
    numbers = [text for text in browser.evaluate(labels) if text]
    assert len(numbers) >= 2
    assert all(re.fullmatch(r"\d+ [kMG]?B", text) for text in numbers)


@pytest.mark.parametrize("paper", [False, True], ids=["results", "paper"])
def test_a_table_is_not_cut_off_on_a_laptop(browser, runs, tmp_path, paper):
    write_report([runs], tmp_path / "report.html", paper=paper)
    browser.open(tmp_path / "report.html", 1280)
    cut = "[...document.querySelectorAll('.scroll')].filter(s => s.scrollWidth > s.clientWidth).length"
    assert browser.evaluate(cut) == 0


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 800, 1280, 1400, 1600])
def test_method_accuracy_and_upload_are_seen_at_every_width(browser, page, width, dark):
    browser.requests.clear()
    browser.complaints.clear()
    browser.open(page, width, dark=dark)
    browser.evaluate("sessionStorage.clear(); localStorage.clear()")
    browser.requests.clear()
    browser.open(page, width, dark=dark)
    browser.evaluate("plots.forEach(draw)")
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    for scrolled in (0, 10_000):
        browser.evaluate(f"document.querySelectorAll('.scroll').forEach(s => {{ s.scrollLeft = {scrolled}; }})")
        assert browser.evaluate(VISIBLE) == []
    assert browser.evaluate(CLIPPED) == []
    background = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", background))) < 300) == dark
    assert [url for url in browser.requests if not url.startswith("data:")] == [page.resolve().as_uri()]
    assert browser.complaints == []


def test_many_settings_are_small_multiples(browser, many, tmp_path):
    write_snapshot([many], tmp_path / "out.html", None, 0)
    browser.open(tmp_path / "out.html", 1280)
    browser.evaluate("plots.forEach(draw)")
    titles = browser.evaluate("[...document.querySelectorAll('.multiples h4')].map(t => t.textContent)")
    assert sorted(titles) == ["EDEN", "FedAvg", "QSGD", "STC"]
    assert browser.evaluate("document.querySelectorAll('.multiples .main-svg').length") >= 4
    assert browser.evaluate("document.querySelectorAll('.legend [aria-pressed=true]').length") <= 8
    assert browser.evaluate("document.querySelector('.legend .all').textContent") == "Show all 31"


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 800, 1400])
@pytest.mark.parametrize("kind", ["one", "some", "many", "paper"])
def test_axe_finds_no_serious_fault(browser, runs, many, tmp_path, tmp_path_factory, kind, width, dark):
    folder = {"one": runs / "mnist-dirichlet(0.5)-fedavg-seed0", "some": runs, "many": many, "paper": runs}[kind]
    assert folder.is_dir()
    page = tmp_path / "report.html"
    write_report([folder], page, paper=kind == "paper")
    library = fetched_axe(tmp_path_factory.getbasetemp())
    browser.open(page, width, dark=dark)
    browser.evaluate("plots.forEach(draw); document.querySelectorAll('details').forEach(d => { d.open = true; })")
    browser.evaluate(library)
    browser.evaluate("axe.run(document).then(found => { window.found = found.violations; })")
    browser.settle("window.found !== undefined")
    faults = browser.evaluate("""found.filter(v => ['serious', 'critical'].includes(v.impact))
        .map(v => v.id + ': ' + v.nodes.map(n => n.target + ' ' + n.failureSummary).slice(0, 3).join(' / '))""")
    assert faults == []


def fetched_axe(folder: Path) -> str:
    """axe-core from npm, fetched once; the test is skipped where that is not possible."""
    found = folder / "package" / "axe.min.js"
    if not found.exists():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("needs npm")
        done = subprocess.run([npm, "pack", "axe-core@4"], cwd=folder, capture_output=True, text=True, timeout=120)
        if done.returncode:
            pytest.skip(f"axe-core cannot be fetched: {done.stderr[-200:]}")
        shutil.unpack_archive(folder / done.stdout.split()[-1], folder)
    return found.read_text()
