"""Methods whose updates can be summed under masks and made private."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedsparq.aggregate import CommonMean, Support
from fedsparq.compress.lattice import CommonLattice
from fedsparq.method import Method
from fedsparq.methods.registry import register
from fedsparq.optimize import Momentum
from fedsparq.options import Decay, Fraction


@register("fedsparq-private", version=1)
def fedsparq_private(
    fraction: Fraction = 0.1,
    top: Annotated[int, Field(ge=1, le=32767)] = 2,
    known: Decay = 0.5,
    small: Decay = 0.0,
    server_momentum: Decay = 0.0,
) -> Method:
    """Whole-number levels on coordinates that the server names for all clients of a round, with error feedback.

    Nobody's own choice of coordinates is to be seen, and sums of levels can be made under masks: with `--epsilon` and
    `--secure-sums` it is private, without it is a method like the others.

    Args:
        fraction: of the coordinates that a round is about.
        top: the largest level; what is above waits for the next round.
        known: the share of them that the server takes from where past rounds moved most; the rest is random.
        small: up to this share of them is whole layers, the smallest first; `known` is a share of the rest.
        server_momentum: the server's.

    >>> from fedsparq import method
    >>> method("fedsparq-private", fraction=0.05).compressor
    CommonLattice(top=2)
    """
    aggregator = CommonMean(Support(fraction=fraction, known=known, small=small))
    return Method(CommonLattice(top), "full", aggregator=aggregator, optimizer=Momentum(server_momentum))
