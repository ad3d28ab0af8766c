import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedsparq.errors import DataError, OptionError
from fedsparq.lab.tasks import load as data

datasets = pytest.importorskip("datasets")
parquet = pytest.importorskip("pyarrow.parquet")

SHARED = Path(os.environ.get("FEDSPARQ_DATASETS") or Path(__file__).resolve().parents[4] / "shared" / "datasets")


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """An empty place for data sets, and an empty cache."""
    monkeypatch.setenv("FEDSPARQ_DATASETS", str(tmp_path / "sets"))
    monkeypatch.setenv("FEDSPARQ_CACHE", str(tmp_path / "cache"))
    return tmp_path / "sets"


def encode(pixels: np.ndarray) -> dict[str, object]:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return {"bytes": stream.getvalue(), "path": None}


def store(folder: Path, splits: dict[str, tuple[list[np.ndarray], list[int]]], classes=("cat", "dog")) -> None:
    """A set in the hub's layout; its columns have names nobody would guess."""
    features = datasets.Features(
        {"note": datasets.Value("string"), "kind": datasets.ClassLabel(names=list(classes)), "photo": datasets.Image()}
    )
    (folder / "data").mkdir(parents=True, exist_ok=True)
    for name, (images, labels) in splits.items():
        columns = {"note": ["x"] * len(labels), "kind": labels, "photo": [encode(image) for image in images]}
        table = datasets.Dataset.from_dict(columns, features=features)
        table.to_parquet(folder / "data" / f"{name}-00000-of-00001.parquet")


def pictures(count: int, shape: tuple[int, ...] = (5, 7), seed: int = 0) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8))


def two_splits(seed: int = 0, shape: tuple[int, ...] = (5, 7)):
    return {
        "train": (pictures(12, shape, seed), [0, 1] * 6),
        "test": (pictures(4, shape, seed + 1), [1, 1, 0, 0]),
    }


def test_columns_are_found_by_their_type(here):
    splits = two_splits()
    store(here / "some" / "set", splits)
    loaded = data.load("some/set")
    assert loaded.classes == ("cat", "dog")
    assert loaded.train[0].dtype == np.uint8
    assert loaded.train[1].dtype == np.int64
    assert np.array_equal(loaded.train[0][:, 0], np.stack(splits["train"][0]))
    assert np.array_equal(loaded.test[0][:, 0], np.stack(splits["test"][0]))
    assert loaded.test[1].tolist() == [1, 1, 0, 0]
    whole = np.stack(splits["train"][0]) / 255
    assert loaded.mean == pytest.approx((whole.mean(),))
    assert loaded.std == pytest.approx((whole.std(),))


def test_colour_images_come_channels_first_with_statistics_of_each(here):
    splits = two_splits(shape=(4, 6, 3))
    store(here / "some" / "set", splits)
    loaded = data.load("some/set")
    assert loaded.train[0].shape == (12, 3, 4, 6)
    assert np.array_equal(loaded.train[0].transpose(0, 2, 3, 1), np.stack(splits["train"][0]))
    whole = np.stack(splits["train"][0]) / 255
    assert loaded.mean == pytest.approx(tuple(whole.mean((0, 1, 2))))
    assert loaded.std == pytest.approx(tuple(whole.std((0, 1, 2))))


def test_one_colour_image_makes_the_set_a_colour_set(here):
    images = [*pictures(3), pictures(1, (5, 7, 3))[0]]
    store(here / "some" / "set", {"train": (images, [0, 1, 0, 1]), "test": (pictures(2), [0, 1])})
    loaded = data.load("some/set")
    assert loaded.train[0].shape == (4, 3, 5, 7)
    assert np.array_equal(loaded.train[0][0, 2], images[0])
    assert np.array_equal(loaded.train[0][3], images[3].transpose(2, 0, 1))


def test_a_folder_of_image_files_works_too(here):
    for split, seed in (("train", 0), ("test", 1)):
        for label, image in zip(("cat", "dog"), pictures(2, seed=seed), strict=True):
            folder = here / "some" / "set" / split / label
            folder.mkdir(parents=True)
            Image.fromarray(image).save(folder / "1.png")
    loaded = data.load("some/set")
    assert loaded.classes == ("cat", "dog")
    assert np.array_equal(loaded.test[0][:, 0], np.stack(pictures(2, seed=1)))


def test_a_set_is_decoded_once_and_mapped_from_the_cache(here, monkeypatch):
    store(here / "some" / "set", two_splits())
    first = data.load("some/set")
    monkeypatch.setattr("fedsparq.lab.tasks.load._decode", None)
    second = data.load("some/set")
    assert np.array_equal(first.train[0], second.train[0])
    assert second.mean == first.mean
    assert isinstance(second.train[0].base, np.memmap)
    assert not second.train[0].flags.writeable
    assert list((here.parent / "cache").iterdir()) == [cached(here)]


def cached(here: Path) -> Path:
    return data.cache_folder("some/set", (here / "some" / "set").resolve(), data.Columns())


def test_a_changed_source_is_decoded_anew(here):
    store(here / "some" / "set", two_splits(seed=0))
    old = data.load("some/set")
    store(here / "some" / "set", two_splits(seed=5))
    new = data.load("some/set")
    assert np.array_equal(new.train[0][:, 0], np.stack(two_splits(seed=5)["train"][0]))
    assert not np.array_equal(old.train[0], new.train[0])


@pytest.mark.parametrize("damage", ["truncate", "empty", "delete", "facts", "no-facts"])
def test_a_damaged_cache_is_rebuilt(here, damage):
    store(here / "some" / "set", two_splits())
    data.load("some/set")
    folder = cached(here)
    images, facts = folder / "train_x.npy", folder / "facts.json"
    content = images.read_bytes()
    if damage == "truncate":
        images.write_bytes(content[:-3])
    elif damage == "empty":
        images.write_bytes(b"")
    elif damage == "delete":
        images.unlink()
    elif damage == "facts":
        facts.write_text(json.dumps({"checksums": []}))
    else:
        facts.unlink()
    loaded = data.load("some/set")
    assert np.array_equal(loaded.train[0][:, 0], np.stack(two_splits()["train"][0]))
    assert np.array_equal(np.load(folder / "train_x.npy"), loaded.train[0])
    assert len(list((here.parent / "cache").iterdir())) == 1, "no scraps are left behind"


def test_a_failed_decode_leaves_nothing_behind(here):
    images = [*pictures(3), pictures(1, (6, 6))[0]]
    store(here / "some" / "set", {"train": (images, [0, 1, 0, 1]), "test": (pictures(2), [0, 1])})
    with pytest.raises(DataError, match=r"differ in size \(7x5, 6x6\)"):
        data.load("some/set")
    assert list((here.parent / "cache").iterdir()) == []


def test_an_unwritable_cache_is_a_clear_error(here, monkeypatch):
    store(here / "some" / "set", two_splits())
    (here.parent / "file").write_text("")
    monkeypatch.setenv("FEDSPARQ_CACHE", str(here.parent / "file" / "cache"))
    with pytest.raises(DataError, match="FEDSPARQ_CACHE"):
        data.load("some/set")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": None}, "has the splits test"),
        ({"train": (pictures(2), [0, None])}, "without a label"),
    ],
)
def test_sets_that_cannot_be_used_are_refused(here, change, message):
    splits = {name: value for name, value in (two_splits() | change).items() if value}
    store(here / "some" / "set", splits)
    with pytest.raises(DataError, match=message):
        data.load("some/set")


def test_a_set_without_labels_names_its_columns(here):
    (here / "some" / "set").mkdir(parents=True)
    for split in ("train", "test"):
        table = datasets.Dataset.from_dict({"words": ["a", "b"], "size": [1, 2]})
        table.to_parquet(here / "some" / "set" / f"{split}.parquet")
    with pytest.raises(DataError, match=r"no label column: none of its columns \(words, size\) is called label"):
        data.load("some/set")


def test_an_empty_folder_is_refused(here):
    (here / "some" / "set").mkdir(parents=True)
    with pytest.raises(DataError, match="cannot read a data set from"):
        data.load("some/set")


def test_the_hub_is_asked_last_and_its_silence_explained(here, monkeypatch):
    def silent(*_args, **_options):
        raise ConnectionError("no network")

    monkeypatch.setattr("huggingface_hub.HfApi", silent)
    monkeypatch.setattr("datasets.load_dataset", silent)
    with pytest.raises(DataError, match=r"'ylecun/mnist' is not in \$FEDSPARQ_DATASETS.*no network.*hf download"):
        data.load("mnist")


def test_what_the_hub_gave_is_kept(here, monkeypatch):
    store(here.parent / "hub", two_splits())
    opened = datasets.load_dataset(str(here.parent / "hub"), cache_dir=str(here.parent / "hf"))
    asked = []
    monkeypatch.setattr("fedsparq.lab.tasks.load.load_from_hub", lambda hub_id: asked.append(hub_id) or opened)
    for _ in range(2):
        assert data.load("ylecun/mnist").classes == ("cat", "dog")
    assert asked == ["ylecun/mnist"]
    assert "ylecun-mnist" in {row.name: row for row in data.catalogue()}["mnist"].where


@pytest.mark.parametrize("name", ["imagenet", "a/b/c", "../../no-such", "a/..", "", "/no/such/folder"])
def test_unknown_names_list_the_choices(here, name):
    with pytest.raises(
        OptionError, match="choose from mnist-mini, mnist, fashion-mnist, cifar10, shakespeare, or give a folder"
    ):
        data.load(name)


def test_the_embedded_set_needs_nothing(here, monkeypatch):
    monkeypatch.delenv("FEDSPARQ_DATASETS")
    mini = data.load("mnist-mini")
    assert mini.train[0].shape == (10_000, 1, 28, 28)
    assert mini.test[0].shape == (2_000, 1, 28, 28)
    assert np.bincount(mini.train[1]).tolist() == [1_000] * 10
    assert np.bincount(mini.test[1]).tolist() == [200] * 10
    assert mini.mean == pytest.approx(((mini.train[0] / 255).mean(),))
    assert mini.train[1].dtype == np.int64
    assert not here.parent.joinpath("cache").exists()


def test_limits_are_nested_stratified_and_repeatable():
    small, large = (data.load("mnist-mini", train_limit=n, test_limit=100) for n in (95, 500))
    assert np.array_equal(small.train[0], large.train[0][:95])
    assert set(np.bincount(small.train[1])) <= {9, 10}
    assert np.bincount(large.train[1]).tolist() == [50] * 10
    assert np.array_equal(small.test[1], large.test[1])
    assert small.mean == data.load("mnist-mini").mean
    for limit in (0, 10_001):
        with pytest.raises(OptionError, match="train_limit must be from 1 to 10000"):
            data.load("mnist-mini", train_limit=limit)


def test_the_catalogue_says_where_each_set_is(here):
    (here / "ylecun" / "mnist").mkdir(parents=True)
    rows = {row.name: row for row in data.catalogue()}
    assert list(rows) == ["mnist-mini", "mnist", "fashion-mnist", "cifar10", "shakespeare"]
    assert rows["mnist-mini"].where == "embedded"
    assert rows["mnist"].where == str((here / "ylecun" / "mnist").resolve())
    assert rows["cifar10"].where == "not here"
    assert (rows["cifar10"].train, rows["cifar10"].test) == (50_000, 10_000)


@pytest.fixture
def kept_cache(request, monkeypatch):
    """The full sets take ten seconds each to decode: kept from one test run to the next."""
    if not SHARED.is_dir():
        pytest.skip("the full data sets are not here")
    monkeypatch.setenv("FEDSPARQ_DATASETS", str(SHARED))
    monkeypatch.setenv("FEDSPARQ_CACHE", str(request.config.cache.mkdir("fedsparq-datasets")))


@pytest.mark.parametrize(
    ("name", "hub_id"),
    [
        ("mnist", "ylecun/mnist"),
        pytest.param("fashion-mnist", "zalando-datasets/fashion_mnist", marks=pytest.mark.slow),
        pytest.param("cifar10", "uoft-cs/cifar10", marks=pytest.mark.slow),
    ],
)
def test_images_are_bit_for_bit_those_of_the_parquet_files(kept_cache, name, hub_id):
    loaded = data.load(name)
    row = next(row for row in data.catalogue() if row.name == name)
    assert (len(loaded.classes), len(loaded.train[1]), len(loaded.test[1])) == (10, row.train, row.test)
    for split, (images, labels) in (("train", loaded.train), ("test", loaded.test)):
        table = parquet.read_table(next((SHARED / hub_id).rglob(f"{split}-*.parquet")))
        assert labels.tolist() == table["label"].to_pylist()
        encoded = table["image" if "image" in table.column_names else "img"]
        for position in range(0, len(labels), 29):
            picture = np.asarray(Image.open(io.BytesIO(encoded[position]["bytes"].as_py())))
            pixels = images[position].transpose(1, 2, 0)
            assert np.array_equal(pixels[..., 0] if picture.ndim == 2 else pixels, picture)


def test_the_embedded_images_are_mnist_images(kept_cache):
    full, mini = data.load("mnist"), data.load("mnist-mini")
    for whole, part in ((full.train, mini.train), (full.test, mini.test)):
        labels = {image.tobytes(): label for image, label in zip(*whole, strict=True)}
        assert [labels[image.tobytes()] for image in part[0]] == part[1].tolist()
        assert len({image.tobytes() for image in part[0]}) == len(part[1])
