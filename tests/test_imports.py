"""A user's own functions: found in the working folder, and every mistake named."""

import sys
from pathlib import Path

import pytest

from fedsparq.errors import OptionError
from fedsparq.imports import load_function

FILES = {
    "sound.py": "import beside_it\ndef make():\n    return beside_it.VALUE\nnumber = 3\n",
    "beside_it.py": "VALUE = 7\n",
    "torn.py": "def make(:\n",
    "raises.py": "import math\n\ndef fail():\n    raise KeyError('no\\nluck')\n\nfail()\n",
    "leaves.py": "import sys\nsys.exit('done')\n",
    "needs.py": "import no_such_thing\n",
    "package/__init__.py": "",
    "package/inner.py": "def make():\n    return 'inner'\n",
}


@pytest.fixture(autouse=True)
def _own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "package").mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) is None or str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


def test_functions_of_the_working_folder_and_of_packages():
    path = list(sys.path)
    assert load_function("sound:make", "method")() == 7
    assert load_function("package.inner:make", "method")() == "inner"
    assert load_function("json:dumps", "method")([1]) == "[1]"
    assert sys.path == path


def test_a_working_folder_that_is_importable_already_stays_so(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(tmp_path))
    path = list(sys.path)
    assert load_function("sound:make", "method")() == 7
    assert sys.path == path


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sound", "unknown method 'sound': choose from a, b, or give package.module:function"),
        ("sound:", "unknown method"),
        (":make", "unknown method"),
        ("sound:make:again", "unknown method"),
        (".sound:make", "unknown method"),
        ("./sound.py:make", "unknown method"),
        ("", "unknown method"),
        ("sound:missing", "module 'sound' has no function 'missing'"),
        ("sound:number", "module 'sound' has no function 'number'"),
        ("nowhere:make", r"cannot import 'nowhere' \(No module named 'nowhere'; looked for among the installed"),
        ("sound.py:make", "cannot import 'sound.py'"),
        ("needs:make", "cannot import 'needs' .*'no_such_thing'"),
        ("torn:make", r"cannot import 'torn' \(.*torn\.py, line 1\)"),
        ("raises:make", r"cannot import 'raises' \(KeyError: 'no.*luck': .*raises\.py, line 4\)"),
        ("leaves:make", r"cannot import 'leaves' \(SystemExit: done: .*leaves\.py, line 2\)"),
    ],
)
def test_mistakes_are_one_sentence(name, message):
    with pytest.raises(OptionError, match=message) as caught:
        load_function(name, "method", ["a", "b"])
    assert "\n" not in str(caught.value)
