"""Arrays by name and a few facts about them, as one safetensors file that tells when it was damaged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedsparq.errors import FedSparQError

Arrays = Mapping[str, NDArray[np.generic]]
_KEY = "fedsparq"
"""The one entry of the file's metadata: safetensors writes several in any order."""


class ArchiveError(FedSparQError):
    """A file that is not one of ours, or not as it was written."""


def pack(about: Mapping[str, Any], arrays: Arrays) -> bytes:
    """The bytes of a file. safetensors itself has no checksum: ours covers the facts and every array."""
    text = json.dumps(about)
    return save(dict(arrays), {_KEY: json.dumps([text, _checksum(text, arrays)])})


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """What `pack` was given, or ArchiveError."""
    try:
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        text, expected = json.loads(header["__metadata__"][_KEY])
        arrays = load(data)
        about: dict[str, Any] = json.loads(text)
    except (SafetensorError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise ArchiveError(f"it is not a file of FedSparQ's: {error}") from None
    if _checksum(text, arrays) != expected:
        raise ArchiveError("its checksum does not match: it was damaged after it was written")
    return about, arrays


def _checksum(text: str, arrays: Arrays) -> str:
    digest = xxhash.xxh3_64(text.encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return str(digest.hexdigest())
