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
