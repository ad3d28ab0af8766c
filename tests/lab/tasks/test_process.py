import os
import subprocess
import sys

import pytest

_STEPS = """
import resource, sys, torch
from fedsparq.lab.tasks.devices import prepare_process

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        tensors = [torch.ones(1 << 22), torch.ones(1 << 22)]
        del tensors
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

prepare_process()
faults()
print(torch.get_num_threads(), faults())
"""
PAGES = 20 * 2 * 4 * (1 << 22) // 4096
"""What twenty steps with two tensors of 16 MiB touch."""


def run(**environment: str) -> tuple[int, int]:
    variables = {name: value for name, value in os.environ.items() if "MALLOC" not in name and name != "GLIBC_TUNABLES"}
    command = [sys.executable, "-c", _STEPS]
    done = subprocess.run(command, env=variables | environment, capture_output=True, text=True, check=True)
    threads, faults = map(int, done.stdout.split())
    return threads, faults


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_a_step_takes_the_memory_that_the_last_one_freed() -> None:
    threads, faults = run()
    assert threads == 1
    assert faults < PAGES / 10


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_what_the_user_set_stays() -> None:
    _, faults = run(MALLOC_TRIM_THRESHOLD_="131072", MALLOC_MMAP_THRESHOLD_="131072")
    assert faults > PAGES / 2
