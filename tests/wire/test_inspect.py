"""An inspection accounts for every byte, and its bound is the textbook's."""

import io

import numpy as np
import pytest
from golden_payloads import PAYLOADS
from rich.console import Console

import fedsparq
from fedsparq import Buffers, Layout, Payload, WireError
from fedsparq.cli.files import inspect_file, render
from fedsparq.wire.inspect import inspect

LAYOUT = Layout.of({"conv.weight": (60, 50), "none": (0,), "bias": (60,), "bn.running_mean": np.zeros(60, np.float32)})


def message(name, layout=LAYOUT, **options):
    method = fedsparq.method(name, **options)
    update = np.random.default_rng(0).laplace(scale=1e-3, size=layout.size).astype(np.float32)
    payload, _ = method.compress(update, method.init(layout), np.random.default_rng(0))
    buffers = Buffers(np.ones(layout.buffer_size, np.float32), np.empty(0, np.int64)) if layout.buffer_size else None
    return fedsparq.encode(Payload(layout, payload.selection, payload.values, buffers)), payload


def adds_up(inspection, blob):
    spent = sum(layer.index_bytes + layer.value_bytes for layer in inspection.layers)
    spent += sum(inspection.other_bytes.values())
    assert spent == inspection.total_bytes == len(blob)


@pytest.mark.parametrize("name", fedsparq.METHODS)
def test_every_byte_is_accounted_for(name):
    blob, payload = message(name)
    inspection = inspect(blob, LAYOUT)
    adds_up(inspection, blob)
    assert [layer.name for layer in inspection.layers] == ["conv.weight", "none", "bias"]
    assert [layer.kept for layer in inspection.layers] == [len(values) for values in payload.values]
    assert inspection.other_bytes["buffers and counters"] > 0


@pytest.mark.parametrize("name", PAYLOADS)
def test_golden_messages_add_up(name):
    blob = fedsparq.encode(PAYLOADS[name])
    adds_up(inspect(blob, PAYLOADS[name].layout), blob)


def test_codings_by_name():
    blob, _ = message("fedsparq", multiplier=2.3)
    assert [(layer.index_coding, layer.value_coding) for layer in inspect(blob, LAYOUT).layers] == [
        ("rice", "float16"),
        ("", "float16"),
        ("rice", "float16"),
    ]
    blob, _ = message("random-10")
    assert inspect(blob, LAYOUT).layers[0].index_coding == "seeded"
    assert inspect(blob, LAYOUT).other_bytes["header"] == 25


def test_the_bound_of_a_laplace_layer():
    layout = Layout.of({"a": (1 << 20,)})
    blob, payload = message("fedsparq", layout, multiplier=float(np.log(10)))
    inspection = inspect(blob, layout)
    p = payload.kept / layout.size
    indices = (-p * np.log2(p) - (1 - p) * np.log2(1 - p)) / p
    turned = (payload.values[0].bits << 1) | (payload.values[0].bits >> 15)
    values = sum(
        -(share[share > 0] * np.log2(share[share > 0])).sum()
        for share in (np.bincount(plane) / plane.size for plane in (turned >> 8, turned & 255))
    )
    assert inspection.bound_bytes * 8 / payload.kept == pytest.approx(indices + values)
    assert inspection.bound_bytes < len(blob) < 1.03 * inspection.bound_bytes


def test_without_a_layout_only_the_header_is_told():
    blob, _ = message("fedsparq")
    inspection = inspect(blob)
    assert (inspection.digest, inspection.total_bytes, inspection.layers) == (LAYOUT.digest, len(blob), ())
    with pytest.raises(WireError):
        inspect(blob[:-1])


def printed(inspection):
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(render(inspection))
    return console.export_text()


def test_the_table():
    blob, payload = message("fedsparq")
    text = printed(inspect(blob, LAYOUT))
    for word in (
        "conv.weight",
        "bias",
        "3,000",
        "float16",
        "checksum",
        "buffers",
        f"{len(blob):,}",
        f"{payload.kept:,}",
        "48",
    ):
        assert word in text
    assert f"{LAYOUT.digest:016x}" in printed(inspect(blob))


def test_files(tmp_path, capsys):
    blob, _ = message("fedsparq")
    (tmp_path / "m.fsq").write_bytes(blob)
    (tmp_path / "layout.json").write_text(LAYOUT.to_json())
    inspect_file(tmp_path / "m.fsq", tmp_path / "layout.json")
    assert "conv" in capsys.readouterr().out
    inspect_file(tmp_path / "m.fsq")
    assert f"{LAYOUT.digest:016x}" in capsys.readouterr().out
    with pytest.raises(WireError, match=r"absent\.fsq"):
        inspect_file(tmp_path / "absent.fsq")


def test_narrow_terminals_get_two_tables_that_fit():
    blob, _ = message("fedsparq")
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(render(inspect(blob, LAYOUT), console.width))
    text = console.export_text()
    assert "…" not in text
    for word in ("conv.weight", "3,000", "float16", "value bytes", "bits / kept", "bound", "paper", f"{len(blob):,}"):
        assert word in text


def test_without_a_layout_no_coordinates_are_made_up():
    blob, _ = message("fedsparq")
    text = printed(inspect(blob))
    assert f"{len(blob):,} bytes for model {LAYOUT.digest:016x}; what they hold can be told with" in text
    assert "total" not in text
