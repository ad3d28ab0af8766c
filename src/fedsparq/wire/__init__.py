"""Payloads as bytes: the FSQ1 format, which FORMAT.md beside this file describes."""

from fedsparq.wire.context import CONTEXT_LIMIT
from fedsparq.wire.frame import decode, encode

__all__ = ["CONTEXT_LIMIT", "decode", "encode"]
