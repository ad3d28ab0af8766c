"""A program: every loop runs as Python, and the lines that decoding runs are counted: {message: lines a coordinate}.

NUMBA_DISABLE_JIT=1 python counted_work.py
"""

from __future__ import annotations

import json
import sys
import warnings
from types import FrameType
from typing import Any

import numpy as np
from every_kind import LAYOUT, RAW_BYTES, payload_of

import fedsparq
from fedsparq import Layout
from fedsparq.payload import Dense, LowRank, Payload, Sketch
from fedsparq.payload.sketch import MAX_ROWS

ROWS, COLUMNS = 48, 64
SQUARE = Layout.of({"w": (256, 256)})


def dearest() -> dict[str, tuple[Layout, bytes]]:
    """Of each kind a message; where the sender chooses how much work it is, the most that is allowed."""
    found = {name: (LAYOUT, fedsparq.encode(payload_of(name))) for name in RAW_BYTES}
    for name, layout, values in (
        ("low rank, the most", LAYOUT, LowRank(np.ones((ROWS, 27), np.float32), np.ones((COLUMNS, 27), np.float32))),
        ("low rank, 128", SQUARE, LowRank(np.ones((256, 128), np.float32), np.ones((256, 128), np.float32))),
        ("sketch, the most", LAYOUT, Sketch(LAYOUT.size, 7, np.ones((MAX_ROWS, 1), np.float32))),
    ):
        payload = Payload(layout, Dense(layout.size), (values,))
        found[name] = layout, fedsparq.encode(payload)
    return found


def lines(layout: Layout, message: bytes) -> int:
    """How many lines of ours run while a message is decoded and judged."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if "fedsparq" not in frame.f_code.co_filename:
            return None
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        fedsparq.decode(message, layout).largest()
    finally:
        sys.settrace(None)
    return count


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # hashes are meant to overflow
    print(json.dumps({name: lines(*case) / case[0].size for name, case in dearest().items()}))
