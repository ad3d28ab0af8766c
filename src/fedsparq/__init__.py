"""FedSparQ: adaptive sparse quantization with error feedback for federated learning."""

from fedsparq.compress.method import METHODS, method
from fedsparq.compress.payload import Payload
from fedsparq.compress.pipeline import Method
from fedsparq.compress.state import State
from fedsparq.errors import FedSparQError, WireError
from fedsparq.layout import Exact, Layout
from fedsparq.wire.frame import decode, encode

__all__ = [
    "METHODS",
    "Exact",
    "FedSparQError",
    "Layout",
    "Method",
    "Payload",
    "State",
    "WireError",
    "decode",
    "encode",
    "method",
]
