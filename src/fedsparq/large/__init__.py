"""Models that need not fit into memory: updates, residuals and messages as files, a few layers at a time."""

from fedsparq.large.container import About, MessageReader, MessageWriter
from fedsparq.large.message import Message, apply
from fedsparq.large.pieces import Tensors
from fedsparq.large.send import Sent, compress, restore
from fedsparq.large.tensors import SafetensorsFile

__all__ = [
    "About",
    "Message",
    "MessageReader",
    "MessageWriter",
    "SafetensorsFile",
    "Sent",
    "Tensors",
    "apply",
    "compress",
    "restore",
]
