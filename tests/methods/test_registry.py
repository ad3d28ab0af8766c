"""Methods by name: registered, from a file of the working folder, installed; and what a node takes from the wire."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from fedsparq import Identity, Method, method, register, resolver
from fedsparq.errors import OptionError, WireError
from fedsparq.methods import registry
from fedsparq.methods.registry import (
    METHODS,
    check_portable,
    compresses_downlink,
    federated_method,
    find_recipe,
    known_methods,
    left_to_federations,
)
from fedsparq.optimize import Adam
from fedsparq.options import Fraction

MODULE = """
import fedsparq as fq

class Nothing:
    def init(self, layout):
        return {}
    def compress(self, update, layout, state, rng):
        return fq.Payload.sparse(layout, [], update[:0]), state

def nothing(strength: float = 0.5, name: str = "x"):
    return fq.Method(Nothing(), feedback="full")

def versioned():
    return fq.Method(Nothing())
versioned.version = 3
"""


def plain(fraction: Fraction = 0.1, scope: Literal["layer", "global"] = "layer", rounds: int = 3) -> Method:
    return Method(method("top-10", fraction=fraction).compressor)


@pytest.fixture(autouse=True)
def _registry_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(plain, "version", None, raising=False)
    methods, modules = dict(METHODS), set(sys.modules)
    yield
    METHODS.clear()
    METHODS.update(methods)
    registry._load_installed.cache_clear()
    for name in set(sys.modules) - modules:
        del sys.modules[name]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder, and the user in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "users_own.py").write_text(MODULE)
    return tmp_path


def identity(made: Method) -> Identity:
    assert made.identity is not None
    return made.identity


# registered


def test_registered_recipe_is_a_method() -> None:
    assert register("plain", version=7)(plain) is plain
    made = method("plain", fraction=0.5)
    assert identity(made) == Identity("plain", "7", {"fraction": 0.5, "scope": "layer", "rounds": 3})
    assert made.label == "plain fraction=0.5"
    assert resolver()(identity(made)) == made
    assert "plain" in known_methods()
    assert find_recipe("plain").__module__ == __name__


def test_version_of_a_registered_recipe_is_its_source_unless_stated() -> None:
    register("plain")(plain)
    assert identity(method("plain")).version.startswith("source ")


def test_duplicate_name_is_refused() -> None:
    with pytest.raises(OptionError, match=r"a method 'fedsparq' already, by fedsparq\.methods"):
        register("fedsparq")(plain)
    register("plain")(plain)
    register("plain")(plain)
    assert method("fedsparq").identity != method("plain").identity


@pytest.mark.parametrize("name", ["", "a:b", "with space", "a\ttab", "line\nbreak"])
def test_bad_name_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match=r"cannot be registered as .* such as 'every-tenth'"):
        register(name)


def test_unknown_name_is_refused_with_those_there_are() -> None:
    with pytest.raises(OptionError, match=r"no method 'fedsparc'; did you mean 'fedsparq'.*package\.module:function"):
        method("fedsparc")


def required(size: int) -> Method:
    return plain()


def path_option(folder: Any = Path("x")) -> Method:
    return plain()


def pair_option(pair: Any = (1, 2)) -> Method:
    return plain()


def wrong_result() -> Any:
    return "a method"


@pytest.mark.parametrize(
    ("recipe", "options", "words"),
    [
        (plain, {"fractoin": 1}, r"has no option 'fractoin'; its options are: fraction=0\.1, scope=layer, rounds=3"),
        (plain, {"name": "x"}, "has no option 'name'"),
        (plain, {"fraction": 1.5}, r"fraction=1\.5 is not possible .* less than or equal to 1"),
        (plain, {"fraction": "much"}, r"fraction='much' is not possible .* a number such as 0\.1"),
        (plain, {"rounds": 2.5}, r"rounds=2\.5 is not possible .* a whole number such as 3"),
        (plain, {"scope": "model"}, "scope='model' is not possible .*'layer' or 'global'"),
        (required, {}, "needs the option 'size'"),
        (path_option, {}, "folder=.* cannot be told to other machines; an option is a number, a word"),
        (pair_option, {}, r"pair=\(1, 2\) of method 'test' cannot be told"),
        (plain, {"fraction": float("nan")}, "fraction=nan is not possible"),
        (wrong_result, {}, r"method 'test' gave a str; it must return a fedsparq\.Method"),
    ],
)
def test_options_are_the_recipes_keywords(recipe: Any, options: dict[str, Any], words: str) -> None:
    register("test", version=1)(recipe)
    with pytest.raises(OptionError, match=words):
        method("test", **options)


def test_whole_numbers_are_numbers() -> None:
    register("plain", version=1)(plain)
    made = method("plain", fraction=1)
    assert type(made.options["fraction"]) is float
    assert identity(made).digest == identity(method("plain", fraction=1.0)).digest


# package.module:function


def test_function_of_the_working_folder(folder: Path) -> None:
    made = method("users_own:nothing", strength=2)
    assert made.label == "users_own:nothing strength=2.0"
    assert dict(made.options) == {"strength": 2.0, "name": "x"}
    assert method("users_own:nothing", name="y").options["name"] == "y", "an option may be called as it likes"
    assert find_recipe("users_own:nothing").__module__ == "users_own"
    assert str(folder) not in sys.path, "nothing else can be imported from there afterwards"


def test_function_of_an_installed_module() -> None:
    made = method("fedsparq.methods.fedsparq:fedsparq", multiplier=2)
    assert made.compressor == method("fedsparq", multiplier=2).compressor
    assert made.name == "fedsparq.methods.fedsparq:fedsparq"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("users_own:absent", "'users_own' has no function 'absent'"),
        ("users_own:MODULE", "'users_own' has no function 'MODULE'"),
        ("no_such_file:f", "cannot import 'no_such_file' .*No module named"),
        ("broken:f", r"cannot import 'broken' \(ZeroDivisionError"),
        ("users_own:a.b", "unknown method 'users_own:a.b'"),
        (":f", "unknown method"),
        ("users_own:", "unknown method"),
        ("../users_own:nothing", "unknown method"),
    ],
)
def test_function_that_is_not_there_is_named(folder: Path, name: str, words: str) -> None:
    (folder / "broken.py").write_text("1 / 0\n")
    with pytest.raises(OptionError, match=words):
        method(name)


def test_version_is_the_attribute_or_the_modules_source(folder: Path) -> None:
    assert identity(method("users_own:versioned")).version == "3"
    first = identity(method("users_own:nothing"))
    assert first.version.startswith("source ")
    (folder / "users_own.py").write_text(MODULE + "\n# another source is another version\n")
    assert identity(method("users_own:nothing")) == first, "the module that runs is still the first"
    del sys.modules["users_own"]
    second = identity(method("users_own:nothing"))
    assert second.version.startswith("source ")
    assert second.version != first.version
    assert second.digest != first.digest
    assert identity(method("users_own:versioned")).version == "3"
    (folder / "users_own.py").write_text(MODULE)
    del sys.modules["users_own"]
    assert identity(method("users_own:nothing")) == first, "the same source is the same version"


# installed


def install(folder: Path, points: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny distribution, as pip would leave it."""
    info = folder / "site" / "tiny_methods-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-methods\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[fedsparq.methods]\n{points}")
    (folder / "site" / "tiny_methods.py").write_text(MODULE + "\nnot_a_function = 3\n")
    monkeypatch.syspath_prepend(str(folder / "site"))


def test_entry_points_are_methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "tiny-nothing = tiny_methods:nothing\ntiny-versioned = tiny_methods:versioned\n", monkeypatch)
    made = method("tiny-nothing", strength=2)
    assert made.label == "tiny-nothing strength=2.0"
    assert identity(method("tiny-versioned")).version == "3"
    assert resolver()(identity(made)).identity == made.identity, "what is installed needs no word of the operator's"
    assert {"tiny-nothing", "tiny-versioned", "fedsparq"} <= set(known_methods())
    assert find_recipe("tiny-nothing").__module__ == "tiny_methods"
    with pytest.raises(OptionError, match=r"there is .*tiny-nothing, tiny-versioned"):
        method("tiny-something")


def test_broken_entry_points_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = "absent = tiny_methods:absent\nmissing = no_such_module:f\nnumber = tiny_methods:not_a_function\n"
    install(tmp_path, points, monkeypatch)
    for name, words in {
        "absent": "method 'absent' of tiny_methods:absent cannot be imported",
        "missing": "method 'missing' of no_such_module:f cannot be imported: No module named",
        "number": r"method 'number' of .* is not a function that returns a fedsparq\.Method",
    }.items():
        with pytest.raises(OptionError, match=words):
            method(name)


def test_what_is_registered_goes_before_what_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "fedsparq = tiny_methods:nothing\n", monkeypatch)
    assert find_recipe("fedsparq") is METHODS["fedsparq"]
    assert known_methods()["fedsparq"] is METHODS["fedsparq"]


# from the wire


@pytest.mark.parametrize("name", ["sentinel:boom", "sentinel", "sentinel.boom", "fedsparq.sentinel:boom", "os:getcwd"])
def test_name_from_the_wire_imports_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (folder / "sentinel.py").write_text("from pathlib import Path\nPath('imported').touch()\n")
    monkeypatch.syspath_prepend(str(folder))
    with pytest.raises(WireError, match=f"{name}'(, which this client was not told of|; there is)"):
        resolver("users_own:nothing")(Identity(name, "1", {}))
    assert not (folder / "imported").exists()
    assert not any("sentinel" in module for module in sys.modules)


def test_name_that_the_operator_gave_is_resolved(folder: Path) -> None:
    asked = identity(method("users_own:nothing", strength=0.25))
    del sys.modules["users_own"]
    with pytest.raises(WireError, match=r"'users_own:nothing', which this client was not told of; name it here too"):
        resolver()(asked)
    with pytest.raises(WireError, match="was not told of"):
        resolver("users_own:versioned")(asked)
    made = resolver("users_own:nothing")(asked)
    assert made.identity == asked
    assert made.options["strength"] == 0.25


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": "2"}, "it asks for version 2 of 'fedsparq' instead of version 1; install the same version"),
        ({"without": "beta"}, r"it asks for beta=\(no such option\) instead of 0\.9"),
        ({"options": {"sharpness": 3}}, "has no option 'sharpness'; its options are: beta"),
        ({"options": {"beta": 7}}, "beta=7 is not possible"),
        ({"options": {"beta": "0.9"}}, "beta='0.9' is not possible"),
        ({"options": {"scope": ["layer"]}}, "scope=.* is not possible"),
        ({"options": {"name": "x"}}, "no option 'name'"),
        ({"name": "fedsparq-2"}, "there is no method 'fedsparq-2'"),
    ],
)
def test_client_that_would_do_something_else_refuses(change: dict[str, Any], words: str) -> None:
    ours = identity(method("fedsparq"))
    options = {key: value for key, value in ours.options.items() if key != change.get("without")}
    asked = Identity(
        change.get("name", ours.name), change.get("version", ours.version), options | change.get("options", {})
    )
    with pytest.raises(WireError, match=words):
        resolver()(asked)


def test_another_source_is_refused(folder: Path) -> None:
    asked = identity(method("users_own:nothing"))
    (folder / "users_own.py").write_text(MODULE.replace("update[:0]", "update[:0] * 1"))
    del sys.modules["users_own"]
    with pytest.raises(WireError, match=r"it asks for version source [0-9a-f]{16} of 'users_own:nothing' instead of"):
        resolver("users_own:nothing")(asked)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_option_of_every_method_travels(name: str) -> None:
    made = method(name)
    travelled = Identity.decode(identity(made).encode())
    assert resolver()(travelled) == made
    assert resolver()(travelled).identity == made.identity


# other processes


def test_method_made_by_hand_is_refused_with_the_way_out() -> None:
    with pytest.raises(OptionError, match=r"made by hand .* workers could not .*write a function .*package\.module"):
        check_portable(Method(method("fedsparq").compressor), "workers")


def test_function_of_main_is_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "__module__", "__main__")
    register("mine", version=1)(plain)
    with pytest.raises(OptionError, match="'mine' is a function of __main__, which Flower cannot import; move it"):
        check_portable(method("mine"), "Flower")
    monkeypatch.setattr(sys.modules["__main__"], "plain", plain, raising=False)
    with pytest.raises(OptionError, match="is a function of __main__"):
        check_portable(method("__main__:plain"), "Flower")


def test_named_methods_are_portable(folder: Path) -> None:
    register("plain", version=1)(plain)
    for made in (method("plain"), method("users_own:nothing"), method("stc").with_server(optimizer=Adam())):
        check_portable(made, "workers")


# broadcasts, and parts of the server


def test_methods_that_compress_the_downlink_by_default() -> None:
    register("both-ways", version=1, compresses_downlink=True)(plain)
    assert compresses_downlink("both-ways")
    assert {name for name in METHODS if compresses_downlink(name)} == {"both-ways", "fedsparq-adaptive"}


def test_options_that_suit_federations() -> None:
    register("plain", version=1, in_federations=lambda every, part: {"fraction": part * every["fraction"]})(plain)
    assert method("plain").options["fraction"] == 0.1
    assert federated_method("plain", 0.5).options["fraction"] == 0.05
    assert federated_method("plain", 0.5).label == "plain", "usual there"
    assert federated_method("plain", 0.5, fraction=0.1).label == "plain fraction=0.1"
    assert left_to_federations(method("plain")) == {"fraction"}
    assert federated_method("stc", 0.5).identity == method("stc").identity
    assert not left_to_federations(method("stc"))


@pytest.mark.parametrize(
    ("fraction", "options", "drift", "stale"),
    [
        (1.0, {}, "sent", "sent"),
        (0.8, {}, "left-out", "sent"),
        (0.8, {"drift": "sent"}, "sent", "sent"),
        (1.0, {"bits": 0.1}, "sent", "let-go"),
        (1.0, {"bits": 0.15}, "sent", "sent"),
        (1.0, {"bits": 0.1, "stale": "sent"}, "sent", "sent"),
        (0.8, {"bits": 0.1, "rounding": "nearest"}, "sent", "sent"),
        (0.8, {"bits": 0.1}, "left-out", "let-go"),
        (1.0, {"bits": 0.1, "budget": "20 kB"}, "sent", "sent"),
    ],
)
def test_what_the_adaptive_method_leaves_to_federations(fraction, options, drift, stale) -> None:
    chosen = federated_method("fedsparq-adaptive", fraction, **options)
    assert (chosen.options["drift"], chosen.options["stale"]) == (drift, stale)
    assert chosen.identity == method("fedsparq-adaptive", **options | {"drift": drift, "stale": stale}).identity


def test_server_parts_by_name(folder: Path) -> None:
    assert registry.optimizer("adam", lr=1) == Adam(lr=1.0)
    (folder / "parts.py").write_text(
        "from fedsparq.optimize import Adam\ndef own(rate: float = 0.1): return Adam(rate)"
    )
    assert registry.optimizer("parts:own", rate=0.5) == Adam(lr=0.5)
    with pytest.raises(OptionError, match="optimizer 'adam' has no option 'rate'"):
        registry.optimizer("adam", rate=1)
    with pytest.raises(OptionError, match="aggregator 'mean' has no option 'rate'"):
        registry.aggregator("mean", rate=1)
    with pytest.raises(OptionError, match="unknown aggregator 'median': choose from mean"):
        registry.aggregator("median")


@pytest.mark.parametrize(("spelling", "name"), [("top-k", "top-10"), ("random-k", "random-10")])
def test_other_spellings_are_the_same_method(spelling: str, name: str) -> None:
    assert method(spelling, fraction=0.2).identity == method(name, fraction=0.2).identity
    assert method(spelling).label == name
    assert spelling not in METHODS
    with pytest.raises(WireError):
        resolver()(Identity(spelling, "1", {"fraction": 0.1}))


def test_a_run_with_another_spelling_is_the_same_run() -> None:
    from fedsparq.lab.specs import RunSpec

    run, same = RunSpec(method="top-k", downlink="lattice"), RunSpec(method="top-10", downlink="lattice")
    assert (run, run.folder_name) == (same, same.folder_name)
