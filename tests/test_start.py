"""How a command starts: quickly, without what it does not need, and in places where nothing can be written."""

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fedsparq
from fedsparq.lab.tasks import networks
from fedsparq.lab.tasks.models import MODELS

PACKAGE = Path(fedsparq.__file__).parent
_LISTING = "import sys, json, atexit; atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr));"
HEAVY = ("torch", "numba", "flwr", "matplotlib", "datasets", "pandas")


def loaded(*words: str) -> tuple[str, set[str]]:
    """What a command says, and which heavy modules it imported."""
    code = f"{_LISTING} sys.argv = {['fedsparq', *words]!r}; from fedsparq.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    *said, modules = done.stderr.splitlines()
    return "\n".join([done.stdout, *said]), set(json.loads(modules)).intersection(HEAVY)


def test_help_imports_nothing_heavy() -> None:
    said, modules = loaded("--help")
    assert "compare" in said
    assert modules == loaded("run", "--help")[1] == loaded("--version")[1] == set()


def test_a_run_draws_nothing(tmp_path: Path) -> None:
    words = ["--method", "fedavg", "--rounds", "1", "--train-limit", "60", "--test-limit", "20", "--out", str(tmp_path)]
    said, modules = loaded("run", *words)
    assert "Results are in" in said
    assert "matplotlib" not in modules


@pytest.mark.slow
def test_help_takes_half_a_second_of_work() -> None:
    took = []
    for _ in range(10):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "fedsparq", "--help"], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(took) < 0.5


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run", "--methdo", "fedavg"], "No such option"),
        (["run", "--method", "fedagv"], "there is no method 'fedagv'"),
        (["run", "--dataset", "mnits"], "unknown data set 'mnits'"),
        (["run", "--model", "transformer"], "unknown model 'transformer'"),
        (["run", "--partition", "dirichelt"], "dirichelt"),
        (["run", "--track", "tensorbord"], "did you mean 'tensorboard'?"),
        (["compare", "quikstart"], "quickstart"),
    ],
)
def test_a_typo_is_reported_before_torch_is_imported(words: list[str], expected: str) -> None:
    said, modules = loaded(*words)
    assert expected in said
    assert modules <= {"numba"}


def test_model_names_are_those_that_there_are() -> None:
    assert all(hasattr(networks, name) for name in MODELS.values())


def test_version() -> None:
    assert loaded("--version")[0].strip() == f"fedsparq {fedsparq.__version__}"


def test_bundled_specs_are_named_in_the_help() -> None:
    said = loaded("compare", "--help")[0]
    assert all(path.stem in said for path in (PACKAGE / "lab" / "specs" / "bundled").glob("*.toml"))


def test_every_public_name_is_there() -> None:
    for name in fedsparq.__all__:
        assert getattr(fedsparq, name) is not None
    assert set(fedsparq.__all__) <= set(dir(fedsparq))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = fedsparq.nothing


def test_method_is_the_function_also_after_its_module_was_imported() -> None:
    code = "import fedsparq.method, fedsparq.methods; import fedsparq; print(fedsparq.method('fedavg').label)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "fedavg\n"


def test_it_works_where_nothing_can_be_written(tmp_path: Path) -> None:
    """The package's folders take no cache, and there is no home: for root too, as a file is where a folder would be."""
    copy = tmp_path / "site" / "fedsparq"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in [copy, *(path for path in copy.rglob("*") if path.is_dir())]:
        (folder / "__pycache__").touch()
    nowhere = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "IPYTHONDIR"), "/dev/null/nowhere")
    environment = os.environ | nowhere | {"PYTHONPATH": str(copy.parent)}
    environment.pop("NUMBA_CACHE_DIR", None)
    code = (
        "import fedsparq, numpy as np, subprocess, sys, os\n"
        "layout = fedsparq.Layout.of({'a': (4, 5)})\n"
        "method = fedsparq.method('fedsparq')\n"
        "payload, _ = method.compress(np.ones(20, np.float32), method.init(layout), np.random.default_rng(0))\n"
        "print(fedsparq.__file__, len(fedsparq.encode(payload)) > 0)\n"
        "subprocess.run([sys.executable, '-c', 'import fedsparq.payload'], check=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.stdout == f"{copy / '__init__.py'} True\n", done.stderr
    assert done.stderr.count("compiled code cannot be kept") == 1
