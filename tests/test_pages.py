"""Every code block of the documentation runs, as it stands or as the shortest thing that is the same.

A page is a folder: its named blocks are files in it, and its commands and its Python run there in order. Trainings are
cut down to a round on a few examples. What cannot be run here is listed below with the test that runs it.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from pages import PAGES, ROOT, Block, blocks, save_files

pytest.importorskip("torch")
pytest.importorskip("flwr")

from fedsparq import cli
from fedsparq.lab.specs import RunSpec, check, compare_of

RUN_BY = {
    "docs/EXTENDING.md": "tests/test_extending.py",
    "docs/TASKS.md": "tests/lab/test_tasks_page.py",
    "docs/PYTHON.md": "tests/lab/experiments/test_api.py",
    "examples/flower-pytorch/README.md": "tests/flower/test_example.py",
    "examples/language-model/README.md": "tests/flower/test_language_model.py",
}
"""Pages whose code is run, and looked at more closely, by a test of their own."""

NOT_HERE = {
    "cd examples/flower-pytorch/after": "tests/flower/test_example.py (starts Flower's simulation)",
    "flwr run . --stream": "tests/flower/test_example.py (starts Flower's simulation)",
    "fedsparq run --engine flower-simulation": "tests/lab/engines/test_parity.py (starts Ray)",
    "fedsparq deploy app": "tests/flower/test_deployment.py (needs SuperLink and SuperNodes)",
    "python deploy/one_machine.py": "tests/flower/test_deployment.py (needs SuperLink and SuperNodes)",
    "deploy/": "tests/flower/test_deploy_scripts.py (needs several machines)",
    "HOST=": "tests/flower/test_deploy_scripts.py (needs several machines)",
    "SUPERLINK=": "tests/flower/test_deploy_scripts.py (needs several machines)",
    "FLWR_HOME=": "tests/flower/test_deploy_scripts.py (needs several machines)",
    "fedsparq reproduce": "tests/lab/paper/test_reproduce.py (hours of training)",
}
"""How commands begin that are run by another test, and why."""

LONG = (
    *("fedsparq compare past-cifar10", "fedsparq compare frontier"),
    *("fedsparq compare cifar10-whole", "fedsparq compare shakespeare"),
)
"""How commands begin that take a while even when they are short: they are for `make test-slow`."""

FULL_DATA = ("README.md", "results/README.md")
"""Pages with commands on data sets that do not come with the package."""

SHORT = {
    "run": ["--rounds", "1", "--train-limit", "200", "--test-limit", "20"],
    "compare": [
        *("--rounds", "1", "--train-limit", "200", "--test-limit", "20"),
        *("--jobs", "1", "--seed", "0", "--clients", "3"),
    ],
}
"""What makes a command short. A later option takes the place of an earlier one."""
LANGUAGES = ("python", "sh", "bash", "toml")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone's look: what pages name by a path is here."""
    for name in ("specs", "Makefile", "constraints.txt", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    save_files("docs/EXTENDING.md", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told(page: str) -> list[Block]:
    return [] if page in RUN_BY else blocks(page, *LANGUAGES)


@pytest.mark.parametrize("page", [page for page in PAGES if told(page)])
def test_the_code_of_a_page_runs(page: str, folder: Path, request: pytest.FixtureRequest) -> None:
    if page in FULL_DATA:
        request.getfixturevalue("real_datasets")
    monkeypatch = request.getfixturevalue("monkeypatch")
    save_files(page, folder)
    names: dict[str, Any] = {"__name__": "page"}
    exec(
        "from flwr.clientapp import ClientApp\nfrom flwr.serverapp.strategy import FedAvg\napp = ClientApp()\n"
        "from fedsparq.flower import FedSparQ, compress",
        names,
    )
    for block in told(page):
        if block.language == "toml":
            check_toml(block)
        elif block.language == "python":
            names["app"]._train = None
            exec(compile("from __future__ import annotations\n" + block.text, str(block), "exec"), names)
        else:
            for words in commands(block.text):
                call(words, monkeypatch)


def commands(text: str) -> list[list[str]]:
    lines = (shlex.split(line, comments=True) for line in text.replace("\\\n", " ").splitlines())
    return [words for words in lines if words]


def call(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A command of a page: fedsparq's in this process, `make` only as far as saying what it would do."""
    line = " ".join(words)
    if line.startswith((*NOT_HERE, *LONG)):
        return
    if words[0] == "make":
        done = subprocess.run([*words, "-n"], capture_output=True, text=True, check=True)
        assert done.stdout
        return
    assert words[0] == "fedsparq", f"{line}: nothing here can run this; say in NOT_HERE which test does"
    run_here(words, monkeypatch)


def run_here(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A short form of a command of fedsparq's, in this process."""
    monkeypatch.setattr(sys, "argv", [*words, *SHORT.get(words[1], [])])
    monkeypatch.setattr("fedsparq.cli.experiments.conclude", _no_report)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code, words


def _no_report(*given: object, **about: object) -> None:
    """In place of the report at the end of a comparison, which takes seconds; `fedsparq report` is called as it is."""


def check_toml(block: Block) -> None:
    """TOML that can be read; a spec, unless it is of another program's file."""
    table = tomllib.loads(block.text)
    if "methods" in table:
        assert compare_of(table, {}).runs()
    elif not table.keys() & {"project", "dependencies", "tool"}:
        check(RunSpec, table)


LINES = [words for page in PAGES for block in blocks(page, "sh", "bash") for words in commands(block.text)]


@pytest.mark.slow
@pytest.mark.parametrize("words", [words for words in LINES if " ".join(words).startswith(LONG)], ids=" ".join)
def test_a_command_that_takes_a_while(
    words: list[str], folder: Path, real_datasets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_here(words, monkeypatch)


def test_what_is_run_elsewhere_is_there() -> None:
    for place in (*RUN_BY.values(), *(reason.split(" ")[0] for reason in NOT_HERE.values())):
        assert (ROOT / place).exists(), place
    for start in (*NOT_HERE, *LONG):
        assert any(" ".join(words).startswith(start) for words in LINES), f"no page says {start!r} any more"
