import sys

import pytest
import torch

from fedsparq.errors import OptionError
from fedsparq.lab.tasks import models
from fedsparq.lab.tasks.models import Signature

IMAGE = Signature((1, 28, 28), 10)
COLOUR = Signature((3, 32, 32), 10)
TEXT = Signature((20,), 65, (20,), integers=True)


def count(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(("name", "parameters"), [("mlp", 101_770), ("lenet5", 61_706)])
def test_sizes_on_mnist_images(name, parameters):
    model = models.build(name, IMAGE, seed=0)
    assert count(model) == parameters
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


@pytest.mark.parametrize("name", ["mlp", "lenet5", "resnet18"])
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (3, 20, 20), (1, 24, 20), (3, 33, 47)])
def test_models_adapt_to_the_images(name, shape):
    model = models.build(name, Signature(shape, 7), seed=0).eval()
    assert model(torch.zeros(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize(("name", "parameters"), [("char-lstm", 815_945), ("char-transformer", None)])
def test_models_of_text_see_only_what_came_before(name, parameters):
    model = models.build(name, Signature((80,), 65, (80,), integers=True), seed=0).eval()
    assert parameters in (None, count(model))
    text = torch.arange(80).remainder(65)[None]
    changed = text.clone()
    changed[0, 50] = 3
    with torch.no_grad():
        before, after = model(text), model(changed)
    assert before.shape == (1, 80, 65)
    assert torch.equal(before[:, :50], after[:, :50])
    assert not torch.allclose(before[:, 50:], after[:, 50:])


def torchvision_resnet18_shapes() -> dict[str, tuple[int, ...]]:
    """The state dict of torchvision's resnet18 at ten classes, written out by its published rules."""

    def norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
        fields = ("weight", "bias", "running_mean", "running_var")
        return {f"{name}.{field}": (width,) for field in fields} | {f"{name}.num_batches_tracked": ()}

    shapes = {"conv1.weight": (64, 3, 7, 7)} | norm("bn1", 64)
    before = 64
    for layer, width in enumerate((64, 128, 256, 512), start=1):
        for block in range(2):
            name = f"layer{layer}.{block}"
            shapes |= {f"{name}.conv1.weight": (width, before, 3, 3)} | norm(f"{name}.bn1", width)
            shapes |= {f"{name}.conv2.weight": (width, width, 3, 3)} | norm(f"{name}.bn2", width)
            if block == 0 and layer > 1:
                shapes |= {f"{name}.downsample.0.weight": (width, before, 1, 1)} | norm(f"{name}.downsample.1", width)
            before = width
    return shapes | {"fc.weight": (10, 512), "fc.bias": (10,)}


def test_resnet18_has_torchvisions_names_order_and_sizes():
    model = models.build("resnet18", COLOUR, seed=0)
    state = model.state_dict()
    expected = torchvision_resnet18_shapes()
    assert [(name, tuple(value.shape)) for name, value in state.items()] == list(expected.items())
    assert count(model) == 11_181_642
    statistics = [value for name, value in state.items() if "running" in name]
    counters = [value for name, value in state.items() if name.endswith("num_batches_tracked")]
    assert sum(value.numel() for value in statistics) == 9_600
    assert len(counters) == 20
    assert {value.dtype for value in counters} == {torch.int64}


def test_cifar_stem_keeps_the_resolution():
    sizes = {}
    for stem in ("imagenet", "cifar"):
        model = models.build("resnet18", COLOUR, seed=0, stem=stem).eval()
        model.layer1.register_forward_hook(lambda _m, _i, out, stem=stem: sizes.update({stem: tuple(out.shape)}))
        model(torch.zeros(1, 3, 32, 32))
    assert sizes == {"imagenet": (1, 64, 8, 8), "cifar": (1, 64, 32, 32)}
    assert count(model) == 11_181_642 - 64 * 3 * (49 - 9)


def test_weights_are_a_function_of_the_seed_alone():
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first = models.build("lenet5", IMAGE, seed=3).state_dict()
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(2)
    second = models.build("lenet5", IMAGE, seed=3).state_dict()
    other = models.build("lenet5", IMAGE, seed=4).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["fc1.weight"], other["fc1.weight"])


MINE = """
import torch
from torch import nn

def net(inputs, outputs, width=3):
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs[0] * inputs[1] * inputs[2], width), nn.Linear(width, outputs))

def anything(**given):
    return net(**given)

def lazy(inputs, outputs):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(outputs))

def number(inputs, outputs):
    return 3

def raises(inputs, outputs):
    return nn.Linear(inputs, outputs)

def too_wide(inputs, outputs):
    return net(inputs, 2 * outputs)

def refuses(inputs, outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(5, outputs))

def untrained(inputs, outputs):
    return nn.Sequential(nn.Flatten(), nn.AvgPool1d(78), nn.Unflatten(1, (outputs,)))

def tied(inputs, outputs):
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 784), nn.Linear(784, 784), nn.Linear(784, outputs))
    model[2].weight = model[1].weight
    return model

def other_words(shape, classes_there_are):
    return None
"""


@pytest.fixture
def own(tmp_path, monkeypatch) -> str:
    (tmp_path / "my_own_model.py").write_text(MINE)
    (tmp_path / "my_broken_model.py").write_text("def net(inputs, outputs)\n    pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_own_model", raising=False)
    return "my_own_model"


@pytest.mark.parametrize("name", ["net", "anything"])
def test_a_users_own_model_is_imported_from_the_working_directory(own, name):
    model = models.build(f"{own}:{name}", IMAGE, seed=0, width=2)
    assert model(torch.zeros(1, 1, 28, 28)).shape == (1, 10)


def test_lazy_layers_get_their_sizes_from_an_example(own):
    first, second = (models.build(f"{own}:lazy", IMAGE, seed=4).state_dict() for _ in range(2))
    assert first["1.weight"].shape == (10, 784)
    assert torch.equal(first["1.weight"], second["1.weight"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("number", "gave a int; it must return a torch.nn.Module"),
        ("missing", "no function 'missing'"),
        ("raises", r"failed: TypeError: .*my_own_model\.py, line 18"),
        ("too_wide", r"gave \(2, 20\) for two examples, where \(2, 10\) are needed"),
        ("refuses", r"cannot take an example of shape \(1, 28, 28\): RuntimeError"),
        ("untrained", "no parameters to train"),
        ("tied", "shares one tensor under two names"),
        ("other_words", "missing a required argument: 'shape'"),
    ],
)
def test_a_users_model_that_cannot_be_trained_gets_one_sentence(own, name, message):
    with pytest.raises(OptionError, match=message) as caught:
        models.build(f"{own}:{name}", IMAGE, seed=0)
    assert "\n" not in str(caught.value)
    assert f"{own}:{name}" in str(caught.value)


def test_a_users_syntax_error_is_shown_with_its_line(own):
    with pytest.raises(OptionError, match=r"cannot import.*my_broken_model\.py, line 1"):
        models.build("my_broken_model:net", IMAGE, seed=0)


def test_options_of_a_users_model_are_its_parameters(own):
    with pytest.raises(OptionError, match=r"depth.*options are: width"):
        models.build(f"{own}:net", IMAGE, seed=0, depth=2)


@pytest.mark.parametrize(
    ("name", "signature", "options", "message"),
    [
        ("vgg", IMAGE, {}, "choose from mlp, lenet5, resnet18, char-lstm, char-transformer"),
        ("no_such_package.models:build", IMAGE, {}, "cannot import"),
        ("mlp", IMAGE, {"width": 3}, "options are: hidden"),
        ("lenet5", IMAGE, {"width": 3}, "options are: none"),
        ("mlp", IMAGE, {"hidden": 0}, "at least 1"),
        ("mlp", TEXT, {}, r"\(2, 20, 65\) are needed; for text there are char-lstm"),
        ("resnet18", IMAGE, {"stem": "big"}, "'imagenet' or 'cifar'"),
        ("lenet5", Signature((1, 7, 28), 10), {}, "at least 12x12 pixels, got 7x28"),
        ("lenet5", Signature((30,), 10), {}, r"takes images of \(channels, height, width\), not examples of \(30,\)"),
        ("char-lstm", IMAGE, {}, "takes windows of a text"),
        ("char-lstm", Signature((30,), 10), {}, "char-lstm"),
        ("char-transformer", TEXT, {"heads": 3}, "multiple of heads=3"),
        ("char-transformer", TEXT, {"layers": 0}, "layers must be a whole number of at least 1"),
    ],
)
def test_what_cannot_be_built_is_refused_with_the_choices(name, signature, options, message):
    with pytest.raises(OptionError, match=message):
        models.build(name, signature, seed=0, **options)
