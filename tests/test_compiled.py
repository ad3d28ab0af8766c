"""Compiled loops: their machine code is kept, and found again without the compiler."""

import subprocess
import sys

PROGRAM = """
import sys
import numpy as np
import fedsparq as fq

layout = fq.Layout.of({"fc.weight": (50, 40), "fc.bias": (50,)})
update = np.random.default_rng(0).laplace(size=layout.size).astype(np.float32)
method = fq.method("fedsparq")
payload, _ = method.compress(update, method.init(layout), np.random.default_rng(1))
blob = fq.encode(payload)
print("numba.np.arraymath" in sys.modules, np.array_equal(fq.decode(blob, layout).dense(), payload.dense()), blob.hex())
"""


def test_a_new_process_takes_machine_code_from_the_cache_without_making_the_compiler_ready(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    first, second = (
        subprocess.run([sys.executable, "program.py"], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
        for _ in range(2)
    )
    compiler, same, blob = second.split()
    assert (compiler, same) == ("False", "True")
    assert blob == first.split()[-1]


LOOP = """
from fedsparq.compiled import jit
from constants import LIMIT
from helper import helped

@jit
def loop(n):
    return _inner(n) if n < LIMIT else -1

@jit
def _inner(n):
    return helped(n)
"""
HELPER = """
from fedsparq.compiled import jit

@jit
def helped(n):
    return n + {}
"""
CONSTANTS = """
import numpy as np
LIMIT = np.uint32({})
"""


def test_machine_code_is_made_anew_where_another_file_has_changed(tmp_path):
    """What a loop calls, by way of a function that stands below it, or a constant that it knows."""

    def answer() -> list[str]:
        program = "from loop import loop; print(loop(7), sum(loop.stats.cache_hits.values()))"
        done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.split()

    (tmp_path / "loop.py").write_text(LOOP)
    (tmp_path / "helper.py").write_text(HELPER.format(1))
    (tmp_path / "constants.py").write_text(CONSTANTS.format(10))
    assert [answer(), answer()] == [["8", "0"], ["8", "1"]]
    (tmp_path / "helper.py").write_text(HELPER.format(200))
    assert [answer(), answer()] == [["207", "0"], ["207", "1"]]
    (tmp_path / "constants.py").write_text(CONSTANTS.format(5))
    assert [answer(), answer()] == [["-1", "0"], ["-1", "1"]]
