"""The scripts of `deploy/` with Flower's commands replaced by ones that only write down how they were called."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

DEPLOY = Path(__file__).parents[2] / "deploy"
sys.path.insert(0, str(DEPLOY))

from one_machine import trained_nothing  # noqa: E402

NOT_YET = """#!/bin/sh
echo "$@" >>"$CALLS"
[ "$(wc -l <"$CALLS")" -gt "$FAILS" ] || exit "$STATUS"
"""


@pytest.fixture
def script(tmp_path: Path):
    """Runs a script; returns what it ended with, how Flower was called, and how long it would have slept."""
    for name, text in {
        "flower-supernode": NOT_YET,
        "flower-superlink": NOT_YET,
        "flwr": '#!/bin/sh\necho "$@" >>"$CALLS"\necho "$SAYS"\n[ -z "$SAYS" ]\n',
        "sleep": '#!/bin/sh\necho "$1" >>"$CALLS.sleeps"\n',
    }.items():
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)

    def run(*command: str, fails: int = 0, status: int = 1, **environment: str):
        calls = tmp_path / "calls"
        variables = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "CALLS": str(calls), "STATUS": str(status)}
        environment = os.environ | variables | {"FAILS": str(fails)} | environment
        done = subprocess.run(
            [str(DEPLOY / command[0]), *command[1:]], env=environment, capture_output=True, text=True, timeout=60
        )
        sleeps = tmp_path / "calls.sleeps"
        slept = [int(line) for line in sleeps.read_text().split()] if sleeps.exists() else []
        return done, calls.read_text().splitlines(), slept

    return run


def test_a_node_is_told_its_part_of_how_many_and_whatever_else_the_operator_says(script):
    done, calls, _ = script("supernode.sh", "/keys", "1", "4", "--max-retries", "9", NODE_CONFIG='site="north"')
    assert done.returncode == 0
    (call,) = calls
    assert 'partition-id=1 num-partitions=4 fedsparq-state="/keys/state-1" site="north"' in call
    assert call.endswith("--max-retries 9")


def test_a_node_that_is_refused_tries_again_and_waits_longer_each_time(script):
    done, calls, slept = script("supernode.sh", "/keys", "0", "2", fails=6)
    assert done.returncode == 0
    assert len(calls) == 7
    assert slept == [5, 10, 20, 40, 60, 60]
    assert "SuperNode 0 ended with status 1; starting it again in 5 s" in done.stderr


def test_a_node_gives_up_in_the_end_and_says_so(script):
    done, calls, _ = script("supernode.sh", "/keys", "0", "2", fails=99, RETRIES="3")
    assert done.returncode == 1
    assert len(calls) == 4
    assert "failed 4 times in a row" in done.stderr


def test_options_that_flower_does_not_know_are_not_tried_again(script):
    done, calls, slept = script("supernode.sh", "/keys", "0", "2", "--no-such", fails=99, status=2)
    assert done.returncode == 2
    assert len(calls) == 1
    assert not slept


def test_options_for_the_superlink_are_passed_on(script):
    done, calls, _ = script("superlink.sh", "/keys", "--isolation", "process")
    assert done.returncode == 0
    assert calls[0].endswith("--isolation process")
    assert "--enable-supernode-auth" in calls[0]


def test_keys_that_are_registered_already_are_no_error_and_anything_else_is(script, tmp_path):
    for node in range(2):
        (tmp_path / f"node-{node}.key.pub").touch()
    done, calls, _ = script("connect.sh", str(tmp_path), SAYS="Error: Public key already in use.")
    assert done.returncode == 0, done.stderr
    assert len(calls) == 2
    assert "node-1.key.pub is registered already" in done.stdout
    done, _, _ = script("connect.sh", str(tmp_path), SAYS="Error: no connection")
    assert done.returncode == 1
    assert "no connection" in done.stderr


def test_a_node_that_is_told_to_stop_stops(tmp_path: Path):
    """And with it the SuperNode, which is a child of the script."""
    (tmp_path / "flower-supernode").write_text(f'#!/bin/sh\necho $$ >"{tmp_path}/pid"\nexec sleep 60\n')
    (tmp_path / "flower-supernode").chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with subprocess.Popen([DEPLOY / "supernode.sh", tmp_path, "0", "1"], env=environment) as process:
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            time.sleep(0.02)
        child = int((tmp_path / "pid").read_text())
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 143
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


@pytest.mark.parametrize(
    ("results", "nothing"), [([0, 0, 0], True), ([0, 2, 0], False), ([3], False), ([], False)], ids=str
)
def test_a_log_tells_whether_anything_was_trained(results, nothing):
    log = "".join(f"aggregate_train: Received {n} results and {3 - n} failures\n" for n in results)
    assert trained_nothing(log + "aggregate_evaluate: Received 0 results and 3 failures\n") is nothing
