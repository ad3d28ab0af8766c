"""What the paper counts a message as: a formula over what is sent, where everybody else here takes `len(bytes)`."""

from fedsparq.payload import Payload, Sparse


def message_bytes(payload: Payload) -> int:
    """The values, 4 bytes for each index that is listed, and the model's buffers as they are."""
    total = sum(values.raw_bytes() for values in payload.values)
    if isinstance(payload.selection, Sparse):
        total += 4 * payload.kept
    if payload.buffers is not None:
        total += payload.buffers.statistics.nbytes + payload.buffers.counters.nbytes
    return total
