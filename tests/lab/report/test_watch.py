from fedsparq.lab.report.page import watch, write_snapshot
from fedsparq.lab.results import Results
from made_runs import make_run

SPEC = """
method = "{method}"
dataset = "mnist"
model = "mlp"
partition = "iid"
clients = 3
rounds = 6
seed = {seed}
"""


def going(root, method="fedsparq", seed=0, done=2):
    """A run that has played some of its six rounds and is writing the next."""
    folder = make_run(root, method, seed=seed, rounds=6)
    folder.joinpath("summary.json").rename(folder / "facts.json")
    folder.joinpath("spec.toml").write_text(SPEC.format(method=method, seed=seed))
    lines = folder.joinpath("rounds.jsonl").read_text().splitlines(keepends=True)
    folder.joinpath("rounds.jsonl").write_text("".join(lines[:done]) + lines[done][:20])
    return folder, lines


def test_runs_that_go_on_stand_beside_finished_ones(tmp_path):
    make_run(tmp_path, "fedavg", rounds=6)
    make_run(tmp_path, "fedsparq", seed=1, rounds=6)
    going(tmp_path)
    (bench,) = Results.read([tmp_path], unfinished=True).comparisons()
    assert bench.setting.rounds == 6
    assert [len(run.rounds) for run in bench.runs_of("fedsparq")] == [2, 6]
    assert bench.progress("fedsparq") == "8 of 12 rounds"
    assert bench.progress("fedavg") == ""
    assert [spread.n for spread in bench.curve("fedsparq", "accuracy")] == [2, 2, 1, 1, 1, 1]
    assert len(Results.read([tmp_path]).runs) == 2


def test_a_snapshot_says_how_far_it_is_and_loads_itself_anew(tmp_path):
    going(tmp_path / "runs")
    page = tmp_path / "live.html"
    assert write_snapshot([tmp_path / "runs"], page, None, 5).progress == "2 of 6 rounds"
    text = page.read_text()
    assert "2 of 6 rounds so far" in text
    assert "location.reload()" in text
    assert not (tmp_path / "live-files").exists()
    write_snapshot([tmp_path / "runs"], page, None, 0)
    assert "location.reload()" not in page.read_text()


def test_watching_waits_follows_and_stands_still_after_an_interrupt(tmp_path):
    page, said = tmp_path / "live.html", []

    def tell(text):
        said.append(text)
        if len(said) == 1:
            assert not page.exists()
            nonlocal folder, lines
            folder, lines = going(tmp_path / "runs")
        elif len(said) == 2:
            assert "location.reload()" in page.read_text()
            folder.joinpath("rounds.jsonl").write_text("".join(lines[:4]))
        else:
            raise KeyboardInterrupt

    folder, lines = None, []
    watch([tmp_path / "runs"], page, every=0.01, tell=tell)
    assert said[0].startswith("waiting for the first round")
    assert said[1:] == ["2 of 6 rounds", "4 of 6 rounds"]
    assert "location.reload()" not in page.read_text()
