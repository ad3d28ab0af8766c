"""Compiled loops: their machine code is kept, and found again without the compiler."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedsparq

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


SOURCE = Path(fedsparq.__file__).parent
FIXED = {"count_ones", "trailing_zeros", "random_bits", "uniform", "half_to_float"}
"""What loops may call of other files, as FORMAT.md or arithmetic says what it does."""
COMPRESSORS = {
    "adaptive_kernels.py": {"MAX_LEVEL"},
    "stochastic_kernels.py": {"BINS", "BIN_SHIFT", "MOST_LEVELS", "at_least_word", "bin_of", "fine_levels", "x_log_x"},
}
"""What loops of compressors still take from beside them."""


def loops() -> Iterator[tuple[Path, ast.Module, list[ast.FunctionDef]]]:
    """The files with compiled loops, and these."""
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.decorator_list]
        compiled = [
            f for f in found if any(isinstance(d, ast.Name) and d.id.startswith("jit") for d in f.decorator_list)
        ]
        if compiled:
            yield path, tree, compiled


def test_loops_take_nothing_from_other_files_that_may_change() -> None:
    """numba's cache does not see when another file changes."""
    seen = 0
    for path, tree, compiled in loops():
        imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and "fedsparq" in str(node.module)]
        elsewhere = {alias.asname or alias.name for node in imports for alias in node.names}
        names = {node.id for loop in compiled for node in ast.walk(loop) if isinstance(node, ast.Name)}
        jits = {"jit", "jit_reordering_sums"}
        assert (names & elsewhere) - FIXED - jits <= COMPRESSORS.get(path.name, set()), path
        seen += len(compiled)
    assert seen > 50


@pytest.mark.parametrize("module", ["ctypes", "llvmlite"])
def test_nothing_is_called_by_its_address(module: str) -> None:
    """One call is left, which tells the allocator of a training process to keep its memory."""
    users = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            imported = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            imported += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            users |= {path.name for name in imported if name.split(".")[0] == module}
    assert users <= ({"devices.py"} if module == "ctypes" else set())
