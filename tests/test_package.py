"""The package as it would be on an index: what is in it, and that it installs and works in empty environments.

Every Python from 3.11 on that is in PATH or was built by pyenv is tried, without extras and with each.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = [extra for extra in PROJECT["optional-dependencies"] if extra not in ("docs", "dev")]
OURS = f"{sys.version_info.major}.{sys.version_info.minor}"
CORE = """
import fedsparq, numpy as np, importlib.util
layout = fedsparq.Layout.of({"w": (30, 40), "b": (40,)})
method = fedsparq.method("fedsparq-adaptive", bits=2.0)
payload, _ = method.compress(np.ones(layout.size, np.float32), method.init(layout), np.random.default_rng(0))
assert (fedsparq.decode(fedsparq.encode(payload), layout).dense() == payload.dense()).all()
print(fedsparq.__version__)
"""
SMOKE = {
    "": CORE,
    "cli": CORE + "import fedsparq.cli.app",
    "lab": CORE + "print(fedsparq.run('fedsparq-adaptive', rounds=1, train_limit=200, test_limit=50))",
    "torch": CORE + "import fedsparq.lab.experiments.run",
    "secure": CORE + "import fedsparq.secure",
    "flower": CORE + "from fedsparq.flower import Compressed, FedSparQ, compress; print(FedSparQ('fedsparq-adaptive'))",
    "fuzz": CORE + "import atheris",
    "privacy": CORE + "from fedsparq.privacy.poisson import poisson_epsilon as e; assert e(1e-3, 1.0, 0.1, 50) < 3.33",
    "tensorboard": CORE + "import tensorboard",
    "mlflow": CORE + "import mlflow, sqlalchemy",
    "wandb": CORE + "import wandb",
}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def pythons() -> dict[str, str]:
    """Interpreters by their version."""
    found = {OURS: sys.executable}
    for minor in range(11, 20):
        version = f"3.{minor}"
        built = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
        there = [str(path) for path in built] or [path for path in [shutil.which(f"python{version}")] if path]
        found |= {version: there[-1]} if there and version not in found else {}
    return found


def call(*command: object, **settings: object) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "FEDSPARQ"))}
    done = subprocess.run([*map(str, command)], env=clean, capture_output=True, text=True, **settings)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return str(done.stdout)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("build")
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in filter(None, listed.stdout.splitlines()):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    call(sys.executable, "-m", "build", cwd=folder)
    ((sdist,), (wheel,)) = (folder / "dist").glob("*.tar.gz"), (folder / "dist").glob("*.whl")
    return sdist, wheel


def test_wheel_and_sdist_hold_what_they_should_and_little_else(built: tuple[Path, Path]) -> None:
    sdist, wheel = built
    assert "PASSED" in call(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel)
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
        about = archive.read(next(name for name in inside if name.endswith("METADATA"))).decode()
    package = ROOT / "src" / "fedsparq"
    kept = {path for path in package.rglob("*") if path.is_file() and path.suffix not in (".pyc", ".nbi", ".nbc")}
    assert {str(path.relative_to(ROOT / "src")) for path in kept} == {
        name for name in inside if ".dist-info/" not in name
    }
    assert "fedsparq/py.typed" in inside
    assert {name for name in inside if "licenses/" in name} == {
        f"fedsparq-{PROJECT['version']}.dist-info/licenses/LICENSE"
    }
    assert set(re.findall(r"^Provides-Extra: (.*)$", about, re.MULTILINE)) == set(PROJECT["optional-dependencies"])
    with tarfile.open(sdist) as archive:
        assert any(name.endswith("src/fedsparq/py.typed") for name in archive.getnames())
    assert wheel.stat().st_size < 3e6
    assert sdist.stat().st_size < 6e6


@pytest.mark.parametrize("extra", ["", *EXTRAS])
@pytest.mark.parametrize("version", pythons())
def test_it_installs_and_works(version: str, extra: str, built: tuple[Path, Path], tmp_path: Path) -> None:
    wanted = f"{built[1]}[{extra}]" if extra else str(built[1])
    call(pythons()[version], "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "-q", "-c", ROOT / "constraints.txt"]
    if (
        extra in ("lab", "torch") and version != OURS
    ):  # off our own Python an index may only have torch with gigabytes of CUDA
        call(*pip, "--dry-run", wanted)
        return
    call(*pip, wanted)
    code = SMOKE.get(extra)
    assert code, f"say in SMOKE how to try the extra {extra!r}"
    assert call(python, "-W", "error::SyntaxWarning", "-c", code, cwd=tmp_path).startswith(PROJECT["version"])
    command = tmp_path / "venv" / "bin" / "fedsparq"
    if extra in ("cli", "lab", "torch"):
        assert "fedsparq-adaptive" in call(command, "methods")
    for bare, sentence in {"": "needs click: pip install 'fedsparq[cli]'", "cli": "'fedsparq[lab]'"}.items():
        if extra == bare:
            done = subprocess.run([command, "run"], capture_output=True, text=True)
            assert done.returncode == 2
            assert sentence in done.stderr


def test_its_types_are_found(built: tuple[Path, Path], tmp_path: Path) -> None:
    """A user's type checker sees the package's types."""
    call(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", tmp_path / "site", built[1])
    (tmp_path / "user.py").write_text("import fedsparq\nreveal_type(fedsparq.method('fedsparq'))\n")
    clean = os.environ | {"MYPYPATH": "", "PYTHONPATH": str(tmp_path / "site")}
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path / "cache"), "user.py"]
    done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True)
    assert "fedsparq.method.Method" in done.stdout, done.stdout + done.stderr
