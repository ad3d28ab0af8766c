"""Float16 values as parts of one array."""

import numpy as np

from fedsparq.payload import Float16Values, Float32Values
from fedsparq.payload.float16 import in_one_array


def test_bits_in_one_array_are_found_and_nothing_else_is_taken_for_them() -> None:
    whole = np.arange(9, dtype=np.uint16)
    cut = [Float16Values(whole[a:b]) for a, b in ((0, 4), (4, 4), (4, 9), (9, 9))]
    assert in_one_array(cut) is whole
    assert in_one_array([cut[3], *cut]) is whole, "an empty layer stands anywhere"
    others = {
        "in another order": [cut[2], cut[0]],
        "with a gap": [Float16Values(whole[:3]), cut[2]],
        "twice": [cut[0], cut[0], cut[2]],
        "not all of it": cut[:2],
        "of two arrays": [cut[0], Float16Values(whole.copy()[4:])],
        "every second": [Float16Values(whole[::2])],
        "an array of its own": [Float16Values(whole.copy())],
        "of another kind": [cut[0], Float32Values(np.zeros(5, np.float32))],
        "none": [],
        "empty": [cut[1]],
    }
    assert [name for name, layers in others.items() if in_one_array(layers) is not None] == []
