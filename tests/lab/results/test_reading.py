import json
import math
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from fedsparq.errors import RunError
from fedsparq.lab.records import Round
from fedsparq.lab.results import Results
from made_runs import make_run


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in folder.joinpath("rounds.jsonl").read_text().splitlines()]


def test_a_run_is_read_back_to_the_last_digit(tmp_path):
    folder = make_run(tmp_path, seed=7, options={"multiplier": 2})
    (run,) = Results.read([tmp_path]).runs
    written = lines(folder)
    assert (run.method, run.label, run.seed) == ("fedsparq", "fedsparq multiplier=2", 7)
    assert [r.accuracy for r in run.rounds] == [line["accuracy"] for line in written]
    assert [r.kept_layers for r in run.rounds] == [line["kept_layers"] for line in written]
    assert run.accuracy == written[-1]["accuracy"]
    assert run.loss == written[-1]["loss"]
    assert run.upload_bytes == math.fsum(line["upload_bytes"] for line in written)
    assert run.class_counts is not None
    assert run.class_counts.counts == json.loads(folder.joinpath("partition.json").read_text())["counts"]
    assert run.spec["training"]["batch_size"] == 32


def test_runs_are_found_at_any_depth_and_not_inside_each_other(tmp_path):
    make_run(tmp_path / "a" / "b", seed=0)
    outer = make_run(tmp_path, seed=1)
    make_run(outer / "state", seed=2)
    found = Results.read([tmp_path])
    assert sorted(run.seed for run in found.runs) == [0, 1]
    assert not found.skipped


def test_optional_parts_may_be_absent(tmp_path):
    folder = make_run(tmp_path, "fedavg")
    folder.joinpath("partition.json").unlink()
    folder.joinpath("spec.toml").unlink()
    (run,) = Results.read([tmp_path]).runs
    assert run.class_counts is None
    assert run.spec == {}


def rewrite(path: Path, **changes: object) -> None:
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | changes))


def cut(path: Path) -> None:
    path.write_text(path.read_text()[:-40])


def drop_line(path: Path, number: int) -> None:
    kept = path.read_text().splitlines(keepends=True)
    path.write_text("".join(kept[:number] + kept[number + 1 :]))


BREAKAGES = {
    "unfinished: no summary.json yet, 25 rounds": lambda f: f.joinpath("summary.json").unlink(),
    "summary.json is not JSON": lambda f: cut(f / "summary.json"),
    "summary.json: Input should be an object": lambda f: f.joinpath("summary.json").write_text("[1]"),
    "summary.json: method": lambda f: rewrite(f / "summary.json", method=None),
    "summary.json: accuracy is 'high'": lambda f: rewrite(f / "summary.json", accuracy="high"),
    "summary.json says accuracy": lambda f: rewrite(f / "summary.json", accuracy=12.5),
    "summary.json says upload_bytes": lambda f: rewrite(f / "summary.json", upload_bytes=1.0),
    "rounds.jsonl line 25 is not JSON": lambda f: cut(f / "rounds.jsonl"),
    "rounds.jsonl is missing": lambda f: f.joinpath("rounds.jsonl").unlink(),
    "rounds.jsonl is empty": lambda f: f.joinpath("rounds.jsonl").write_text(""),
    "line 4 is round 5; round 4 was expected": lambda f: drop_line(f / "rounds.jsonl", 3),
    "says 25 rounds, rounds.jsonl has 24": lambda f: drop_line(f / "rounds.jsonl", 24),
    "rounds.jsonl cannot be read": lambda f: f.joinpath("rounds.jsonl").write_bytes(b"\xff\xfe\x00"),
    "line 1: accuracy is nan": lambda f: f.joinpath("rounds.jsonl").write_text(
        f.joinpath("rounds.jsonl").read_text().replace('"accuracy": ', '"accuracy": NaN, "was": ', 1)
    ),
    "line 1: upload_bytes: Field required": lambda f: f.joinpath("rounds.jsonl").write_text(
        f.joinpath("rounds.jsonl").read_text().replace('"upload_bytes"', '"upload"', 1)
    ),
    "partition.json: one count for each class": lambda f: rewrite(f / "partition.json", classes=["0"]),
    "spec.toml is not TOML": lambda f: f.joinpath("spec.toml").write_text("[run"),
}


@pytest.mark.parametrize("reason", BREAKAGES)
def test_a_broken_run_is_named_with_its_reason_and_left_out(tmp_path, reason):
    make_run(tmp_path, "fedavg")
    broken = make_run(tmp_path, "fedsparq")
    BREAKAGES[reason](broken)
    found = Results.read([tmp_path])
    assert [run.method for run in found.runs] == ["fedavg"]
    ((folder, stated),) = found.skipped
    assert folder == broken
    assert reason in stated


def test_a_round_is_one_line_and_reads_back():
    record = Round(
        round=1,
        accuracy=0.1 + 0.2,
        loss=1 / 3,
        upload_bytes=1,
        download_bytes=2,
        upload_bytes_paper=3,
        kept=1,
        events=[{"client": 1, "reason": "late"}],
    )
    assert "metrics" not in json.loads(record.to_json())
    assert Round.from_json(record.to_json()) == record
    other = replace(record, accuracy=math.nan, loss=math.inf, metrics={"perplexity": 31.5, "r2": math.nan})
    strict = json.loads(other.to_json(), parse_constant=pytest.fail)
    assert (strict["accuracy"], strict["loss"], strict["metrics"]) == (None, None, {"perplexity": 31.5, "r2": None})
    read = Round.from_json(other.to_json())
    assert math.isnan(read.accuracy)
    assert math.isnan(read.loss)
    assert math.isnan(read.metrics["r2"])
    assert replace(read, accuracy=0, loss=0, metrics={}) == replace(other, accuracy=0, loss=0, metrics={})
    with pytest.raises(ValueError, match="Invalid JSON"):
        Round.from_json(record.to_json()[:-3])


def test_a_run_of_a_task_without_accuracy_is_left_out_and_says_so(tmp_path):
    folder = make_run(tmp_path)
    rounds = [json.dumps(line | {"accuracy": None, "metrics": {"perplexity": 31.5}}) for line in lines(folder)]
    folder.joinpath("rounds.jsonl").write_text("\n".join(rounds))
    rewrite(folder / "summary.json", accuracy=None)
    found = Results.read([tmp_path])
    assert not found.runs
    assert [run.folder for run in found.unscored] == [folder]
    assert [reason for _, reason in found.skipped] == ["its task reports no accuracy"]


def test_paths_without_runs_are_named(tmp_path):
    (tmp_path / "empty").mkdir()
    found = Results.read([tmp_path / "empty", tmp_path / "nowhere"])
    assert [reason.split(";")[0] for _, reason in found.skipped] == ["no run folder in here", "no such folder"]


def test_the_same_run_counts_once(tmp_path):
    first = make_run(tmp_path / "a")
    copy = make_run(tmp_path / "b")
    found = Results.read([tmp_path, tmp_path, first])
    assert [run.folder for run in found.runs] == [first]
    assert [folder for folder, _ in found.skipped] == [copy]


def test_a_diverged_loss_is_a_result_not_a_defect(tmp_path):
    folder = make_run(tmp_path, "fedavg", rounds=2)
    last = folder.joinpath("rounds.jsonl").read_text().splitlines()[-1]
    changed = json.loads(last) | {"loss": math.nan}
    text = folder.joinpath("rounds.jsonl").read_text().replace(last, json.dumps(changed))
    folder.joinpath("rounds.jsonl").write_text(text)
    rewrite(folder / "summary.json", loss=math.nan)
    (run,) = Results.read([tmp_path]).runs
    assert math.isnan(run.loss)


def test_a_csv_of_the_rows_says_the_same_to_the_last_digit(tmp_path):
    for seed in range(2):
        for method in ("fedavg", "fedsparq"):
            make_run(tmp_path / "runs", method, seed=seed, rounds=4)
    results = Results.read([tmp_path / "runs"])
    results.frame().to_csv(tmp_path / "rows.csv", index=False)
    again = Results.read([tmp_path / "rows.csv"])
    pd.testing.assert_frame_equal(again.frame(), results.frame(), check_exact=True)
    (one,), (other,) = results.comparisons(), again.comparisons()
    assert one.setting == other.setting
    measures = ["accuracy", "loss", "upload_bytes", "both_bytes", "times_less", "kept"]
    pd.testing.assert_frame_equal(one.methods[measures], other.methods[measures])
    assert other.curve("fedavg", "accuracy") == []
    rounds = results.rounds()
    assert len(rounds) == 16
    for run in results.runs:
        own = rounds[(rounds["label"] == run.label) & (rounds["seed"] == run.seed)]
        assert list(own["accuracy"]) == [record.accuracy for record in run.rounds]
        assert list(own["sent"])[-1] == pytest.approx(run.upload_bytes)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("accuracy", "high"),
        ("upload_bytes", 0),
        ("seed", None),
        ("rounds", "x"),
        ("accuracy", math.inf),
        ("label", ...),
    ],
)
def test_a_damaged_csv_is_refused(tmp_path, column, value):
    make_run(tmp_path / "runs", rounds=2)
    rows = Results.read([tmp_path / "runs"]).frame()
    rows = rows.drop(columns=column) if value is ... else rows.assign(**{column: value})
    rows.to_csv(tmp_path / "rows.csv", index=False)
    with pytest.raises(RunError, match=column):
        Results.read([tmp_path / "rows.csv"])


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b'a,"b\n1,2'])
def test_what_is_no_csv_is_refused(tmp_path, content):
    (tmp_path / "rows.csv").write_bytes(content)
    with pytest.raises(RunError):
        Results.read([tmp_path / "rows.csv"])


def test_a_foreign_spec_of_odd_types_does_no_harm(tmp_path):
    folder = make_run(tmp_path, rounds=2)
    folder.joinpath("spec.toml").write_text("faults = 3\naggregator = ['a']\ntraining = 7\nvariant = 1\n")
    (row,) = Results.read([tmp_path]).frame().to_dict("records")
    assert (row["aggregator"], row["attack"]) == ("['a']", "")
