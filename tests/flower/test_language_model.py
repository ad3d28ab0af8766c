"""The example in `examples/language-model`, with a model of two layers, where transformers and peft are installed."""

import runpy
import sys
import tomllib
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict

from inprocess_grid import InProcessGrid

pytest.importorskip("transformers")
pytest.importorskip("peft")
sys.path.insert(0, str(Path(__file__).parents[2] / "deploy"))

import torch
from one_machine import Federation
from safetensors.torch import load_file

EXAMPLE = Path(__file__).parents[2] / "examples" / "language-model"
TINY = {"layers": 2, "width": 64, "heads": 2, "steps": 1}


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> dict:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.delitem(sys.modules, "task", raising=False)
    yield runpy.run_path(str(EXAMPLE / "app.py"))
    sys.modules.pop("task", None)


def play(example: dict, out: Path, **more: object) -> tuple[dict[str, torch.Tensor], InProcessGrid]:
    """The arrays after a run of the app, and the grid that carried it."""
    settings = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    config = settings | TINY | {"out": str(out / "model.safetensors")} | more
    grid = InProcessGrid([example["app"]] * 2, node_config={"num-partitions": 2})
    for context in grid.contexts.values():
        context.run_config = config
    example["server"](grid, Context(1, 1, {}, RecordDict(), config))
    return load_file(config["out"]), grid


@pytest.mark.parametrize("lora", [0, 4])
@pytest.mark.parametrize("strategy", ["Compressed", "FedSparQ"])
def test_a_method_without_loss_gives_plain_flowers_model(example, tmp_path, monkeypatch, lora, strategy):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    start = example["arrays_of"](example["new_model"]({**TINY, "lora": lora}))
    plain, _ = play(example, tmp_path, strategy="FedAvg", lora=lora)
    other, _ = play(example, tmp_path, strategy=strategy, method="fedavg", lora=lora)
    assert plain.keys() == other.keys() == start.keys()
    moved = max(float((plain[name] - start[name]).abs().max()) for name in start)
    apart = max(float((plain[name] - other[name]).abs().max()) for name in start)
    assert moved > 1e-5
    assert apart < 1e-6


def test_the_embedding_travels_once_and_an_adapter_without_the_model(example, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    model = example["new_model"]({**TINY, "lora": 0})
    assert model.lm_head.weight is model.transformer.wte.weight
    whole, dense = play(example, tmp_path, strategy="FedAvg", rounds=1)
    assert "lm_head.weight" not in whole
    assert sum(tensor.numel() for tensor in whole.values()) == sum(p.numel() for p in model.parameters())
    adapter, small = play(example, tmp_path, strategy="FedAvg", rounds=1, lora=4)
    assert all("lora_" in name for name in adapter)
    assert sum(small.up.values()) < sum(dense.up.values()) / 100


@pytest.mark.parametrize("lora", [0, 4])
def test_compressed_both_ways_it_sends_less_and_every_round_counts(example, tmp_path, monkeypatch, lora):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    _, dense = play(example, tmp_path, strategy="FedAvg", lora=lora)
    both = {"method": "fedsparq", "downlink": "lattice"}
    arrays, small = play(example, tmp_path, strategy="Compressed", lora=lora, **both)
    assert not any(reply.has_error() for reply in small.replies)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in arrays.values())
    assert sum(small.up.values()) < sum(dense.up.values()) / 2
    assert sum(small.down.values()) < sum(dense.down.values()) * 0.7


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_it_runs_in_a_deployment(tmp_path):
    sizes = " ".join(f"{name}={value}" for name, value in TINY.items())
    with Federation(tmp_path, 1) as federation:
        federation.node(0)
        run = federation.run(EXAMPLE, f'{sizes} nodes=1 downlink="lattice" out="{tmp_path}/model.safetensors"')
        federation.finish(run, 1200)
    assert "transformer.wte.weight" in load_file(tmp_path / "model.safetensors")
