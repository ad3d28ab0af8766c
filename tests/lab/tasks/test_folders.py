"""Folders of every kind: CSV, parquet, save_to_disk, images by class, text."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from fedsparq.errors import DataError
from fedsparq.lab.tasks import load as data
from fedsparq.lab.tasks.load import Columns

datasets = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSPARQ_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDSPARQ_DATASETS", raising=False)
    monkeypatch.chdir(tmp_path)


def flowers(rows: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    kinds = rng.integers(0, 3, rows)
    return pd.DataFrame(
        {
            "length": 100 + 10 * kinds + rng.normal(size=rows),
            "petals": rng.integers(3, 9, rows),
            "client": rng.choice(["ann", "bob", "eve"], rows),
            "price": 1000.0 * kinds + rng.normal(size=rows),
            "label": np.array(["iris", "rose", "tulip"])[kinds],
        }
    )


def write(folder: Path, kind: str = "csv", **splits: pd.DataFrame) -> str:
    folder.mkdir(exist_ok=True)
    for name, table in splits.items():
        path = folder / f"{name}.{kind}"
        table.to_csv(path, index=False) if kind == "csv" else table.to_parquet(path)
    return f"./{folder.name}"


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_table_is_its_numbers_standardised_and_its_labels(tmp_path, kind):
    train, test = flowers(60), flowers(20, seed=1)
    loaded = data.load(write(tmp_path / "flowers", kind, train=train, test=test))
    assert loaded.classes == ("iris", "rose", "tulip")
    assert [loaded.classes[code] for code in loaded.test[1]] == test["label"].tolist()
    columns = ["length", "petals", "price"]
    expected = (test[columns] - train[columns].mean()) / train[columns].std(ddof=0)
    np.testing.assert_allclose(loaded.test[0], expected, rtol=1e-4, atol=1e-5)
    assert [["ann", "bob", "eve"][owner] for owner in loaded.owners] == train["client"].tolist()
    assert loaded.remark == ""


def test_the_label_may_be_any_column_and_floats_make_a_regression(tmp_path):
    train, test = (flowers(60, seed).drop(columns="label") for seed in (0, 1))
    name = write(tmp_path / "flowers", train=train, test=test)
    loaded = data.load(name, columns=Columns(label="price"))
    assert loaded.inputs == (2,)
    assert not loaded.classification
    price = train["price"]
    assert loaded.target_std == pytest.approx((price.std(ddof=0),))
    np.testing.assert_allclose(loaded.train[1][:, 0], (price - price.mean()) / price.std(ddof=0), rtol=1e-4, atol=1e-5)
    assert data.load(name, columns=Columns(label="petals")).classes == ("3", "4", "5", "6", "7", "8")
    write(tmp_path / "others", train=train.drop(columns="client"), test=test.drop(columns="client"))
    others = data.load("./others", columns=Columns(label="price", client="petals"))
    assert others.inputs == (1,)
    assert (others.owners + 3).tolist() == train["petals"].tolist()


def test_without_a_test_split_a_fixed_fifth_is_set_aside(tmp_path):
    whole = flowers(103)
    whole["petals"] = np.arange(103)
    name = write(tmp_path / "flowers", all=whole)
    loaded, again = data.load(name), data.load(name)
    assert (len(loaded.train[0]), len(loaded.test[0])) == (83, 20)
    assert "no test split" in loaded.remark
    assert "a fifth" in loaded.remark
    seen = {float(x[1]) for split in (loaded.train, loaded.test) for x in split[0]}
    assert len(seen) == 103, "each row is in exactly one of both"
    assert np.array_equal(loaded.test[0], again.test[0])
    share = np.bincount(loaded.test[1]) / 20 - np.bincount(loaded.train[1]) / 83
    assert np.abs(share).max() < 0.06


def test_a_single_file_is_taken_too(tmp_path):
    write(tmp_path / "flowers", all=flowers(50))
    assert len(data.load("flowers/all.csv").train[0]) == 40


def test_what_save_to_disk_wrote(tmp_path):
    both = {name: datasets.Dataset.from_pandas(flowers(30, seed)) for seed, name in enumerate(("train", "test"))}
    datasets.DatasetDict(both).save_to_disk(tmp_path / "both")
    both["train"].shuffle(seed=1).save_to_disk(tmp_path / "one")
    loaded = data.load("./both")
    assert (len(loaded.train[0]), len(loaded.test[0]), loaded.remark) == (30, 30, "")
    assert len(data.load("./one").train[0]) == 24


def test_images_by_class_that_are_not_square(tmp_path):
    rng = np.random.default_rng(0)
    for label in ("cat", "dog"):
        (tmp_path / "pets" / label).mkdir(parents=True)
        for number in range(10):
            pixels = rng.integers(0, 256, (24, 20), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pets" / label / f"{number}.png")
    loaded = data.load("./pets")
    assert loaded.classes == ("cat", "dog")
    assert loaded.inputs == (1, 24, 20)
    assert np.bincount(loaded.train[1]).tolist() == [8, 8]
    assert np.bincount(loaded.test[1]).tolist() == [2, 2]


def test_a_folder_of_text_is_characters(tmp_path):
    said = pd.DataFrame({"speaker": ["A", "B", "A"], "text": ["abcab", "bbb", "cab"]})
    name = write(tmp_path / "play", "parquet", train=said, test=said[:1])
    loaded = data.load(name, columns=Columns(window=4))
    assert loaded.text
    assert loaded.classes == ("a", "b", "c")
    assert loaded.train[0].tolist() == [[0, 1, 2, 0], [1, 2, 0, 0], [1, 1, 0, 0]], "abcabcab and bbb"
    assert loaded.train[1].tolist() == [[1, 2, 0, 1], [2, 0, 1, -100], [1, 1, -100, -100]]
    assert loaded.owners.tolist() == [0, 0, 1]


def test_text_without_a_test_split_keeps_the_end_of_each(tmp_path):
    said = pd.DataFrame({"client": ["A", "B"], "text": ["a" * 15 + "b" * 5, "c" * 10]})
    loaded = data.load(write(tmp_path / "play", "parquet", train=said), columns=Columns(window=10))
    assert "last fifth" in loaded.remark
    assert loaded.test[0].tolist() == [[1, 1, 1] + [0] * 7, [2] + [0] * 9]
    assert loaded.train[1].max() == 2


def without(table: pd.DataFrame, **values: object) -> pd.DataFrame:
    table = table.copy()
    for column, value in values.items():
        table.loc[:1, column] = value
    return table


@pytest.mark.parametrize(
    ("table", "columns", "message"),
    [
        (
            flowers(30).drop(columns="label"),
            {},
            r"no label column: none of its columns \(length, petals, client, price\)",
        ),
        (flowers(30), {"label": "colour"}, "no column 'colour', which label_column names; it has length, petals"),
        (flowers(30), {"client": "who"}, "no column 'who', which client_column names"),
        (flowers(30), {"label": "price", "client": "client"}, "column 'label' of .* does not hold numbers"),
        (without(flowers(30), length=None), {}, "column 'length' of .* has 2 rows without a value"),
        (without(flowers(30), label=None), {}, "2 examples without a label in column 'label'"),
        (flowers(3), {}, "3 examples are too few to set some aside"),
        (flowers(30)[["label"]], {}, "no columns besides its label"),
        (flowers(300).assign(label=np.arange(300)), {}, "300 different integers in 300 rows.*floats"),
    ],
)
def test_tables_that_cannot_be_used_are_refused(tmp_path, table, columns, message):
    name = write(tmp_path / "flowers", all=table)
    with pytest.raises(DataError, match=message):
        data.load(name, columns=Columns(**columns))


def test_a_folder_in_the_working_folder_may_look_like_a_hub_id(tmp_path):
    (tmp_path / "my").mkdir()
    write(tmp_path / "my" / "flowers", all=flowers(50))
    assert len(data.load("my/flowers").train[0]) == 40
