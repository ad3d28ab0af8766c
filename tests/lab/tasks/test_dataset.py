"""Arrays as a data set: what is taken, what becomes of it, and what is refused with which words."""

import subprocess
import sys

import numpy as np
import pytest

import fedsparq
from fedsparq.errors import DataError, OptionError
from fedsparq.lab.tasks import load as data
from fedsparq.lab.tasks.dataset import Dataset, strata

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(12, 5)), np.arange(12) % 3
PIXELS = RNG.integers(0, 256, (12, 24, 20), dtype=np.uint8)


def test_a_table_of_floats_with_classes():
    made = fedsparq.Dataset(train=(X, Y), test=(X[:4], Y[:4]))
    assert (made.inputs, made.outputs, made.positions) == ((5,), 3, ())
    assert made.classification
    assert made.classes == ("0", "1", "2")
    assert made.train[0].dtype == np.float32
    assert made.train[1].dtype == np.int64
    np.testing.assert_allclose(made.train[0], X, rtol=1e-6)


def test_floats_to_predict_make_a_regression():
    for y, outputs in ((X[:, 0], 1), (X[:, :2], 2), (X.astype(np.float16), 5)):
        made = Dataset((X, y), (X[:4], y[:4]))
        assert not made.classification
        assert (made.outputs, made.classes) == (outputs, ())
        assert made.train[1].shape == (12, outputs)


def test_bytes_with_a_height_and_a_width_are_pixels():
    made = Dataset((PIXELS, Y), (PIXELS[:4], Y[:4]))
    assert made.pixels
    assert made.inputs == (1, 24, 20)
    assert made.mean == pytest.approx(((PIXELS / 255).mean(),))
    assert made.std == pytest.approx(((PIXELS / 255).std(),))
    flat = PIXELS.reshape(12, -1)
    assert not Dataset((flat, Y), (flat, Y)).pixels


def test_other_integers_stay_integers_and_truth_values_are_classes():
    made = Dataset((np.arange(24, dtype=np.int16).reshape(12, 2), Y > 0), (np.zeros((1, 2), np.int16), Y[:1] > 0))
    assert made.train[0].dtype == np.int64
    assert made.classes == ("0", "1")


def test_owners_may_have_any_names():
    made = Dataset((X, Y), (X, Y), owners=np.array(["b", "a", "b"] * 4))
    assert made.owners.tolist() == [1, 0, 1] * 4


def test_only_single_classes_are_strata():
    assert strata(Y).tolist() == Y.tolist()
    assert strata(X[:, 0].astype(np.float32)).tolist() == [0] * 12
    assert strata(np.stack([Y, Y], 1)).tolist() == [0] * 12


BAD = [
    ({"train": X}, r"train must be a pair of arrays \(x, y\), got ndarray"),
    ({"train": (X, Y[:5])}, r"train has 12 examples x, but y is int64\[5\]"),
    ({"train": (X[:, 0], Y)}, r"x of train is float64\[12\]; it needs a row for each example"),
    ({"test": (X[:0], Y[:0])}, "test is empty"),
    ({"test": (X[:, :4], Y)}, r"x is float32\[12, 5\] in train and float32\[12, 4\] in test"),
    ({"test": (X, X[:, 0])}, r"y is int64\[12\] in train and float32\[12, 1\] in test"),
    ({"train": (X, Y - 1)}, "has the class -1; classes are whole numbers from 0"),
    ({"train": (np.where(X > 1, np.nan, X), Y)}, "x of train has [0-9]+ values that are not finite"),
    ({"train": (X.astype(str), Y)}, "it must be an array of floats or integers"),
    ({"classes": ("a", "b")}, "y has the class 2, but classes names only 2"),
    ({"owners": np.arange(3)}, "owners must name one for each of the 12 train examples"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_arrays_that_do_not_fit_are_refused(change, message):
    with pytest.raises(DataError, match=message):
        Dataset(**{"train": (X, Y), "test": (X, Y)} | change)


MINE = """
import numpy as np
import fedsparq

def table(rows: int = 40):
    x = np.random.default_rng(0).normal(size=(rows, 4))
    return fedsparq.Dataset(train=(x, x @ [1.0, 2.0, 0.0, -1.0]), test=(x[:10], x[:10] @ [1.0, 2.0, 0.0, -1.0]))

def pair():
    return np.ones(3), np.ones(3)

def raises():
    raise KeyError("no such file")
"""


@pytest.fixture
def own(tmp_path, monkeypatch) -> str:
    (tmp_path / "own_arrays.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    yield "own_arrays"
    sys.modules.pop("own_arrays", None)


def test_a_users_function_is_a_data_set(own):
    assert len(data.load(f"{own}:table").train[0]) == 40
    small = data.load(f"{own}:table", options={"rows": 30}, train_limit=20, test_limit=5)
    assert (len(small.train[0]), len(small.test[0])) == (20, 5)
    assert small.name == "own_arrays:table"


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        ("pair", {}, r"gave a tuple; it must return fedsparq\.Dataset"),
        ("raises", {}, r"failed: KeyError: 'no such file': .*own_arrays\.py, line 13"),
        ("missing", {}, "no function 'missing'"),
        ("table", {"columns": 3}, "columns.*options are: rows"),
    ],
)
def test_a_function_that_gives_no_data_set_gets_one_sentence(own, function, options, message):
    with pytest.raises(OptionError, match=message):
        data.load(f"{own}:{function}", options=options)


def test_options_are_for_functions(own):
    with pytest.raises(OptionError, match="'mnist-mini' is none"):
        data.load("mnist-mini", options={"rows": 3})


def test_it_is_exported_without_torch():
    code = "import sys, fedsparq; fedsparq.Dataset; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"
