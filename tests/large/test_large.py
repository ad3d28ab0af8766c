"""Models in pieces: the same as in memory, nothing lost, and nothing half-done."""

from __future__ import annotations

import io
import json
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

import fedsparq
from fedsparq import Layout
from fedsparq.errors import OptionError, RunError, UpdateError, WireError
from fedsparq.large import Message, MessageReader, MessageWriter, SafetensorsFile, apply, compress, restore
from fedsparq.large.pieces import cut
from made_updates import FILLS

SHAPES = {"a.weight": (40, 30), "a.bias": (40,), "empty": (0, 3), "b.weight": (7, 5, 3, 3), "scalar": (), "c": (700,)}
SMALL = {"group": 900, "cut": 1300}
"""Several pieces: of several layers, of one, and no layer cut."""


def made(seed: int, scale: float = 1e-3, shapes: dict[str, tuple[int, ...]] = SHAPES) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: np.asarray(rng.laplace(scale=scale, size=shape), np.float32) for name, shape in shapes.items()}


def joined(arrays: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([arrays[name].reshape(-1) for name in SHAPES])


def received(path: Path, shapes: dict[str, tuple[int, ...]] = SHAPES) -> dict[str, np.ndarray]:
    total = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    Message(path).add_to(total)
    return total


def residual_of(path: Path) -> dict[str, np.ndarray]:
    return load_file(path)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("fedsparq", {}),
        ("fedsparq", {"multiplier": 3, "residual": "kept-only"}),
        ("percentile", {}),
        ("float16", {}),
        ("stc", {"scope": "layer", "fraction": 0.1}),
        ("uniform", {"scope": "layer"}),
        ("adacomp", {}),
        ("fedsparq-adaptive", {"rounding": "nearest", "bits": 2.0}),
    ],
)
def test_the_same_as_in_memory_over_rounds(method: str, options: dict, tmp_path: Path) -> None:
    """Piece by piece, in one pass or two, messages carry what the method sends of the whole vector."""
    layout, chosen = Layout.of(SHAPES), fedsparq.method(method, **options)
    state = chosen.init(layout)
    if method == "fedsparq-adaptive":  # in memory, small messages are measured; pieces are not, so neither is this
        whole = {"bytes": np.array([int(2.0 * layout.size / 8)]), "rounds": np.array([3.0])}
        state = fedsparq.State(layout, state.compressor | whole, state.feedback)
    assert len([*cut(SHAPES, SMALL["group"], SMALL["cut"])]) == 3
    for number in range(3):
        update, path = made(number), tmp_path / f"{number}.fsq"
        if method == "fedsparq-adaptive":
            state.compressor["rounds"] = np.array([3.0])
            state.compressor["efficiency"] = np.array([1.03])
        payload, state = chosen.compress(joined(update), state, np.random.default_rng(0))
        sent = compress(update, tmp_path / "r.safetensors", path, method=method, options=options, **SMALL)
        np.testing.assert_array_equal(joined(received(path)), payload.dense())
        assert (sent.kept, sent.coordinates, sent.round) == (payload.kept, layout.size, number + 1)
        assert sent.bytes == path.stat().st_size
        if state.residual is not None:
            np.testing.assert_array_equal(joined(residual_of(tmp_path / "r.safetensors")), state.residual)


def test_the_unbiased_method_takes_the_steps_that_it_takes_in_memory(tmp_path: Path) -> None:
    layout, chosen = Layout.of(SHAPES), fedsparq.method("fedsparq-adaptive", bits=2.0)
    state = chosen.init(layout)
    state.compressor.update(bytes=np.array([int(2.0 * layout.size / 8)]), rounds=np.array([3.0]))
    state.compressor.update(efficiency=np.array([1.03]))
    update = made(0)
    payload, after = chosen.compress(joined(update), state, np.random.default_rng(0))
    options = {"bits": 2.0}
    compress(update, tmp_path / "r", tmp_path / "m", method="fedsparq-adaptive", options=options, **SMALL)
    steps = [v.step for _, found in Message(tmp_path / "m").payloads() for v in found.values if len(v)]
    assert steps == [values.step for values in payload.values if len(values)]
    np.testing.assert_array_equal(joined(residual_of(tmp_path / "r")), after.residual)


def test_a_layer_that_is_cut_is_compressed_as_several(tmp_path: Path) -> None:
    shapes = {"small": (50,), "large": (30, 100)}
    update = made(1, shapes=shapes)
    parts = {"small": (50,), "x": (1300,), "y": (1300,), "z": (400,)}
    layout, chosen = Layout.of(parts), fedsparq.method("fedsparq")
    vector = np.concatenate([update["small"], update["large"].reshape(-1)])
    payload, state = chosen.compress(vector, chosen.init(layout), np.random.default_rng(0))
    compress(update, tmp_path / "r", tmp_path / "m", **SMALL)
    found = received(tmp_path / "m", shapes)
    np.testing.assert_array_equal(np.concatenate([found["small"], found["large"].reshape(-1)]), payload.dense())
    np.testing.assert_array_equal(residual_of(tmp_path / "r")["large"].reshape(-1), state.residual[50:])


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.sampled_from(sorted(FILLS)), min_size=6, max_size=6), st.integers(1, 4000), st.integers(0, 9))
def test_nothing_is_lost_whatever_the_pieces(tmp_path_factory, fills: list[str], group: int, seed: int) -> None:
    """update + residual before = message + residual after, in float64, to the rounding of one float32 sum."""
    folder, rng = tmp_path_factory.mktemp("large"), np.random.default_rng(seed)
    before = np.zeros(Layout.of(SHAPES).size)
    for number in range(2):
        update = {
            name: np.asarray(FILLS[fill](rng, int(np.prod(shape))), np.float32).reshape(shape)
            for (name, shape), fill in zip(SHAPES.items(), fills, strict=True)
        }
        path = folder / f"{number}.fsq"
        compress(update, folder / "r", path, group=group, cut=max(group, 900), threads=2)
        after = joined(residual_of(folder / "r")).astype(np.float64)
        owed = joined(update).astype(np.float64) + before
        error = np.abs(owed - joined(received(path)).astype(np.float64) - after)
        assert (error <= 2.0**-23 * np.maximum(np.abs(owed), 2.0**-126)).all()
        before = after


def test_every_way_to_give_an_update_makes_the_same_message(tmp_path: Path) -> None:
    update = made(2)
    save_file(update, tmp_path / "u.safetensors")
    order = SafetensorsFile(tmp_path / "u.safetensors").shapes
    update = {name: update[name] for name in order}

    def begin():  # one buffer for all arrays, as a loop over a device's layers would have
        buffer = np.empty(5000, np.float32)
        for name, array in update.items():
            own = buffer[: array.size].reshape(array.shape)
            own[...] = array
            yield name, own

    blobs = []
    for number, given_as in enumerate((tmp_path / "u.safetensors", update, begin)):
        path = tmp_path / f"{number}.fsq"
        compress(given_as, tmp_path / f"r{number}", path, threads=2, **SMALL)
        blobs.append([blob for _, blob in MessageReader(path.open("rb")).blobs()])
    assert blobs[0] == blobs[1] == blobs[2]


def test_threads_make_the_same_message(tmp_path: Path) -> None:
    for threads in (1, 3):
        folder = tmp_path / str(threads)
        compress(made(3), folder / "r", folder / "m", threads=threads, **SMALL)
    one, three = ([blob for _, blob in MessageReader((tmp_path / t / "m").open("rb")).blobs()] for t in "13")
    assert one == three


def test_restored_messages_are_owed_again(tmp_path: Path) -> None:
    update, residual, message = made(4), tmp_path / "r", tmp_path / "m"
    compress(made(3), residual, tmp_path / "counted", **SMALL)
    before = joined(residual_of(residual))
    compress(update, residual, message, **SMALL)
    sent, left = joined(received(message)), joined(residual_of(residual))
    kept_copy = message.read_bytes()
    assert restore(message, residual) == 2
    assert not message.exists()
    np.testing.assert_array_equal(joined(residual_of(residual)), left + sent)
    np.testing.assert_allclose(left + sent, before + joined(update), rtol=1e-6, atol=1e-12)
    message.write_bytes(kept_copy)  # a second time changes nothing
    restore(message, residual)
    np.testing.assert_array_equal(joined(residual_of(residual)), left + sent)
    assert not message.exists()


def test_what_cannot_be_put_back_is_refused(tmp_path: Path) -> None:
    compress(made(0), tmp_path / "r", tmp_path / "m", **SMALL)
    compress(made(0), tmp_path / "other", tmp_path / "n", **SMALL)
    with pytest.raises(RunError, match="was not made from the residual"):
        restore(tmp_path / "n", tmp_path / "r")
    assert (tmp_path / "n").exists()
    compress(made(0), tmp_path / "q", tmp_path / "p", method="fedsparq-adaptive", **SMALL)
    with pytest.raises(RunError, match="is not put back"):
        restore(tmp_path / "p", tmp_path / "q")


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        ("top-10", {}, "compares the coordinates of the whole model"),
        ("fedsparq", {"scope": "global"}, "compares the coordinates of the whole model"),
        ("fedsparq-adaptive", {"budget": "20 kB"}, "say instead how many bits"),
        ("scaled-feedback", {}, "compares the coordinates"),
        ("dgc", {}, "more than one vector"),
        ("ef21", {}, "own client and server"),
        ("demo", {}, "own client and server"),
        ("sa-pef", {}, "own client and server"),
    ],
)
def test_methods_that_cannot_be_cut_say_so(method: str, options: dict, words: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=words):
        compress(made(0), tmp_path / "r", tmp_path / "m", method=method, options=options, **SMALL)
    assert [p.name for p in tmp_path.iterdir()] == [".r.lock"]


def test_a_small_model_is_one_piece_for_any_method_that_stands_alone(tmp_path: Path) -> None:
    compress(made(0), tmp_path / "r", tmp_path / "m", method="top-10")
    layout, chosen = Layout.of(SHAPES), fedsparq.method("top-10")
    payload, _ = chosen.compress(joined(made(0)), chosen.init(layout), np.random.default_rng(0))
    np.testing.assert_array_equal(joined(received(tmp_path / "m")), payload.dense())


def test_a_message_is_never_overwritten(tmp_path: Path) -> None:
    compress(made(0), tmp_path / "r", tmp_path / "m")
    old = (tmp_path / "r").read_bytes(), (tmp_path / "m").read_bytes()
    with pytest.raises(RunError, match="fedsparq restore"):
        compress(made(1), tmp_path / "r", tmp_path / "m")
    assert old == ((tmp_path / "r").read_bytes(), (tmp_path / "m").read_bytes())


def test_bad_updates_leave_everything_as_it_was(tmp_path: Path) -> None:
    compress(made(0), tmp_path / "r", tmp_path / "m", **SMALL)
    old = (tmp_path / "r").read_bytes()
    bad = made(1)
    bad["c"][77] = np.nan
    for update, words in (
        (bad, r"'c' of the update holds nan at index 77"),
        ({**made(1), "c": np.zeros(5, np.float32)}, "another model"),
        ({**made(1), "more": np.zeros(5, np.float32)}, "a tensor 'more'"),
        ({**made(1), "c": np.zeros(700, np.int64)}, "only floats"),
        (tmp_path / "absent", "cannot read"),
    ):
        with pytest.raises(UpdateError, match=words):
            compress(update, tmp_path / "r", tmp_path / "n", threads=2, **SMALL)
    with pytest.raises(OptionError, match="made by another method"):
        compress(made(1), tmp_path / "r", tmp_path / "n", method="percentile", **SMALL)
    assert (tmp_path / "r").read_bytes() == old
    assert sorted(p.name for p in tmp_path.iterdir()) == [".r.lock", "m", "r"]


def test_a_damaged_residual_is_noticed_and_left(tmp_path: Path) -> None:
    compress(made(0), tmp_path / "r", tmp_path / "m", **SMALL)
    data = bytearray((tmp_path / "r").read_bytes())
    for at, words in ((len(data) - 100, "damaged after it was written"), (20, "cannot be read")):
        broken = bytearray(data)
        broken[at] ^= 0x10
        (tmp_path / "r").write_bytes(broken)
        with pytest.raises(RunError, match=words):
            compress(made(1), tmp_path / "r", tmp_path / "n", **SMALL)
        assert (tmp_path / "r").read_bytes() == broken
        assert not (tmp_path / "n").exists()


def test_messages_are_added_to_a_model_in_its_own_types(tmp_path: Path) -> None:
    """The mean by default, weights on demand; other tensors stay; a bfloat16 is rounded to the nearest."""
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file as load
    from safetensors.torch import save_file as save

    model = {name: torch.from_numpy(array) for name, array in made(9, scale=1.0).items()}
    model |= {"steps": torch.tensor([3, 4]), "a.bias": model["a.bias"].bfloat16(), "c": model["c"].half()}
    save(model, tmp_path / "model.safetensors", metadata={"format": "pt"})
    for number in range(2):
        compress(made(number, 0.1), tmp_path / f"r{number}", tmp_path / f"m{number}", **SMALL)
    messages = [tmp_path / "m0", tmp_path / "m1"]
    updates = [received(path) for path in messages]
    for weights, shares in ((None, (0.5, 0.5)), ((1.0, -2.0), (1.0, -2.0))):
        apply(tmp_path / "model.safetensors", messages, tmp_path / "new.safetensors", weights=weights, threads=2)
        found = load(tmp_path / "new.safetensors")
        for name, tensor in model.items():
            if name == "steps":
                assert found[name].equal(tensor)
                continue
            total = sum(np.float32(share) * update[name] for share, update in zip(shares, updates, strict=True))
            expected = (tensor.float() + torch.from_numpy(np.asarray(total))).to(tensor.dtype)
            assert found[name].dtype == tensor.dtype
            assert torch.allclose(found[name].float(), expected.float(), rtol=2**-7 if name == "a.bias" else 2**-10)
            if tensor.dtype == torch.float32:
                assert found[name].equal(expected)
    assert SafetensorsFile(tmp_path / "new.safetensors").metadata == {"format": "pt"}


def test_hostile_messages_change_nothing(tmp_path: Path) -> None:
    save_file(made(9), tmp_path / "model")
    model = (tmp_path / "model").read_bytes()
    order = {name: made(0)[name] for name in SafetensorsFile(tmp_path / "model").shapes}
    compress(order, tmp_path / "r", tmp_path / "m", **SMALL)
    good, rng = (tmp_path / "m").read_bytes(), np.random.default_rng(0)
    total = {name: np.ones(shape, np.float32) for name, shape in SHAPES.items()}
    cases = [good[:end] for end in rng.integers(0, len(good), 40)] + [good + b"\0"]
    for at in rng.integers(0, len(good), 120):
        flipped = bytearray(good)
        flipped[at] ^= 1 << rng.integers(8)
        cases.append(bytes(flipped))
    for blob in cases:
        (tmp_path / "bad").write_bytes(blob)
        with pytest.raises(WireError):
            apply(tmp_path / "model", [tmp_path / "bad"], tmp_path / "model")
        with pytest.raises(WireError):
            Message(tmp_path / "bad").add_to(total)
    assert (tmp_path / "model").read_bytes() == model
    assert all((array == 1).all() for array in total.values())
    assert not list(tmp_path.glob("*.tmp"))


def test_a_forged_header_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    compress(made(0), tmp_path / "r", tmp_path / "m", **SMALL)
    good = (tmp_path / "m").read_bytes()
    length = int.from_bytes(good[5:9], "little")
    about = json.loads(good[9 : 9 + length])
    forged = [
        {"cut": 2**40, "group": 2**40},
        {"tensors": [["w", [2**40, 2**40]]]},
        {"tensors": [["w", [-1]]]},
        {"tensors": [["w", [1]], ["w", [1]]]},
        {"tensors": "w"},
        {"origin": "../../../../etc"},
        {"round": True},
        {"method": ["x"]},
        {"more": 1},
    ]
    for change in forged:
        header = json.dumps(about | change).encode()
        blob = good[:5] + len(header).to_bytes(4, "little") + header + good[9 + length :]
        with pytest.raises(WireError):
            list(MessageReader(io.BytesIO(blob)).payloads(1))


def test_memory_does_not_grow_with_the_pieces_that_a_header_states(tmp_path: Path) -> None:
    compress(made(0), tmp_path / "r", tmp_path / "m", **SMALL)
    good = (tmp_path / "m").read_bytes()
    length = int.from_bytes(good[5:9], "little")
    about = json.loads(good[9 : 9 + length]) | {"tensors": [["w", [2**40]]], "cut": 1, "group": 1}
    header = json.dumps(about).encode()
    tracemalloc.start()
    with pytest.raises(WireError):
        list(MessageReader(io.BytesIO(good[:5] + len(header).to_bytes(4, "little") + header)).payloads(1))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1e6


def test_a_message_of_other_tensors_is_not_put_back(tmp_path: Path) -> None:
    """It states the residual's own origin, but the pieces are those of another model."""
    compress(made(0), tmp_path / "r", tmp_path / "m", **SMALL)
    shapes = {name: array.shape for name, array in reversed(made(0).items())}
    about = MessageReader(io.BytesIO((tmp_path / "m").read_bytes())).about
    with (tmp_path / "m").open("wb") as file:
        writer = MessageWriter(file, replace(about, shapes=shapes))
        for piece in replace(about, shapes=shapes).pieces():
            writer.add(fedsparq.Payload.full(piece.layout, np.zeros(piece.size, np.float32)))
        writer.close()
    before = (tmp_path / "r").read_bytes()
    with pytest.raises(RunError):
        restore(tmp_path / "m", tmp_path / "r")
    assert (tmp_path / "r").read_bytes() == before


def test_another_model_is_refused(tmp_path: Path) -> None:
    save_file(made(9) | {"c": np.zeros(3, np.float32)}, tmp_path / "model")
    compress(made(0), tmp_path / "r", tmp_path / "m")
    with pytest.raises(WireError, match=r"tensor 'c' is \[700\] there and \[3\] here"):
        apply(tmp_path / "model", [tmp_path / "m"], tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_only_one_process_works_on_a_residual(tmp_path: Path) -> None:
    from fedsparq.large.residual import locked

    with locked(tmp_path / "r"), pytest.raises(RunError, match="another process"):
        compress(made(0), tmp_path / "r", tmp_path / "m")
