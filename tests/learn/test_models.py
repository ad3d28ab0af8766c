import pytest
import torch

from fedsparq.errors import OptionError
from fedsparq.learn import models

IMAGE = {"classes": 10, "channels": 1, "size": 28}


def count(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(("name", "parameters"), [("mlp", 101_770), ("lenet5", 61_706)])
def test_sizes_on_mnist_images(name, parameters):
    model = models.build(name, **IMAGE, seed=0)
    assert count(model) == parameters
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


@pytest.mark.parametrize("name", ["mlp", "lenet5", "resnet18"])
@pytest.mark.parametrize(("channels", "size"), [(3, 32), (1, 28), (3, (20, 40))])
def test_models_adapt_to_the_images(name, channels, size):
    model = models.build(name, classes=7, channels=channels, size=size, seed=0).eval()
    height, width = (size, size) if isinstance(size, int) else size
    assert model(torch.zeros(2, channels, height, width)).shape == (2, 7)


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
    model = models.build("resnet18", classes=10, channels=3, size=32, seed=0)
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
        model = models.build("resnet18", classes=10, channels=3, size=32, seed=0, stem=stem).eval()
        model.layer1.register_forward_hook(lambda _m, _i, out, stem=stem: sizes.update({stem: tuple(out.shape)}))
        model(torch.zeros(1, 3, 32, 32))
    assert sizes == {"imagenet": (1, 64, 8, 8), "cifar": (1, 64, 32, 32)}
    assert count(model) == 11_181_642 - 64 * 3 * (49 - 9)


def test_weights_are_a_function_of_the_seed_alone():
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first = models.build("lenet5", **IMAGE, seed=3).state_dict()
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(2)
    second = models.build("lenet5", **IMAGE, seed=3).state_dict()
    other = models.build("lenet5", **IMAGE, seed=4).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["fc1.weight"], other["fc1.weight"])


def test_a_users_own_model_is_imported_from_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "my_own_model.py").write_text(
        "import torch\n"
        "def build(classes, channels, size, width=3):\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(channels * size * size, classes * width))\n"
        "def number(classes, channels, size):\n"
        "    return 3\n"
    )
    monkeypatch.chdir(tmp_path)
    model = models.build("my_own_model:build", **IMAGE, seed=0, width=2)
    assert model(torch.zeros(1, 1, 28, 28)).shape == (1, 20)
    with pytest.raises(OptionError, match=r"depth.*options are: width"):
        models.build("my_own_model:build", **IMAGE, seed=0, depth=2)
    with pytest.raises(OptionError, match=r"torch\.nn\.Module"):
        models.build("my_own_model:number", **IMAGE, seed=0)
    with pytest.raises(OptionError, match="no function 'missing'"):
        models.build("my_own_model:missing", **IMAGE, seed=0)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("vgg", {}, "choose from mlp, lenet5, resnet18"),
        ("no_such_package.models:build", {}, "cannot import"),
        ("mlp", {"width": 3}, "options are: hidden"),
        ("lenet5", {"width": 3}, "options are: none"),
        ("mlp", {"hidden": 0}, "at least 1"),
        ("resnet18", {"stem": "big"}, "'imagenet' or 'cifar'"),
        ("lenet5", {"size": 7}, "at least 12x12"),
        ("mlp", {"classes": 0}, "classes of at least 1"),
    ],
)
def test_what_cannot_be_built_is_refused_with_the_choices(name, options, message):
    with pytest.raises(OptionError, match=message):
        models.build(name, **{**IMAGE, **options}, seed=0)


def test_the_catalogue_describes_each_model_in_one_line():
    rows = models.catalogue()
    assert list(rows) == ["mlp", "lenet5", "resnet18"]
    assert all(text and "\n" not in text for text in rows.values())
