"""The loops of the context coding, compiled. FORMAT.md tells in words what they do.

One walk serves both ways, so that encoder and decoder cannot come to differ: it meets every coordinate of a layer,
asks its contexts how likely the next bit is, moves the bit through an arithmetic coder, and lets the contexts learn.

A context is one number: the chance of a one, in 1/65536, shifted up by 8, plus how often it was met (255 at most).
"""

from typing import Any

import numpy as np

from fedsparq.compiled import jit

_WORD = 0xFFFFFFFF
_FIRST_BYTE = 0xFF000000

LOW, HIGH, CODE, AT, UNSOUND = 0, 1, 2, 3, 4
"""Registers of the arithmetic coder: the range that is left, the number being read, the next byte, a wrong level."""

_MET = 0xFF
_STRETCHED = 12
"""A context's number, shifted down by this, is the index of its chance in the table `stretch`."""
_CHANCES = 4095
_LIMIT = 2047
_LEARNING = 6
_EVEN = 1 << 23
_NEIGHBOURS = 16
_UNARY = 16
_LONGEST = 15


@jit
def _move(coder: Any, data: Any, decode: bool, bit: int, p: int) -> int:
    """Code one bit, in or out; p is the probability of a one, in 1/65536. After the data follow zeros."""
    low, high = coder[LOW], coder[HIGH]
    span = high - low
    middle = low + (span >> 16) * p + (((span & 0xFFFF) * p) >> 16)
    if decode:
        bit = int(coder[CODE] <= middle)
    if bit:
        high = middle
    else:
        low = middle + 1
    while (low ^ high) & _FIRST_BYTE == 0:
        at = coder[AT]
        if decode:
            coder[CODE] = ((coder[CODE] << 8) & _WORD) | (np.int64(data[at]) if at < data.size else 0)
        else:
            data[at] = high >> 24
        coder[AT] = at + 1
        low = (low << 8) & _WORD
        high = ((high << 8) & _WORD) | 0xFF
    coder[LOW] = low
    coder[HIGH] = high
    return bit


@jit
def _learned(context: int, bit: int, rates: Any) -> Any:
    """Return the context with its probability moved towards the bit: the less, the more often it was met."""
    met = context & _MET
    chance = context >> 8
    chance += (((bit << 16) - chance) * rates[met]) >> 16
    return (chance << 8) | min(met + 1, _MET)


@jit
def _squashed(x: int, squash: Any) -> int:
    return int(squash[min(max(x >> 16, -_LIMIT), _LIMIT) + _LIMIT])


@jit
def _direct(context: int) -> int:
    """Return the probability of a context that is not mixed with others."""
    return min(max(context >> 8, 1), 0xFFFF)


@jit
def _move_tail(coder: Any, data: Any, decode: bool, tail: int, lengths: Any, rates: Any) -> int:
    """Code an integer of at least 0: the length of tail + 1 in bits, then its bits below the first."""
    length = 0
    while length < _LONGEST:
        longer = _move(coder, data, decode, int((tail + 1) >> (length + 1) > 0), _direct(lengths[length]))
        lengths[length] = _learned(lengths[length], longer, rates)
        if longer == 0:
            break
        length += 1
    value = 1
    for shift in range(length - 1, -1, -1):
        value = 2 * value + _move(coder, data, decode, ((tail + 1) >> shift) & 1, 0x8000)
    return value - 1


@jit
def walk(levels: Any, matrix: Any, top: int, tables: Any, learned: Any, coder: Any, data: Any, decode: bool) -> None:
    """Move a layer of signed levels (0: not sent) of up to `top` through the coder, as a matrix (see `context.matrix`).

    What is `learned` is carried on from layer to layer: the weights of the mixed predictions (four of whether a
    coordinate is sent, three of its sign), and the context of all coordinates.
    """
    rows, columns, stride = matrix
    weights, wholes = learned
    w_0, w_1, w_2, w_3, whole = weights[0], weights[1], weights[2], weights[3], wholes[0]
    stretch, squash, rates = tables
    row_signs, column_signs = np.full(rows, _EVEN), np.full(columns, _EVEN)
    near_sent, near_signs = np.full(_NEIGHBOURS, whole & ~_MET), np.full(9, _EVEN)
    column_sent = np.full(columns, np.int64(-1))
    more, lengths = np.full(_UNARY, _EVEN), np.full(_LONGEST, _EVEN)
    for r in range(rows):
        row_sent = whole & ~_MET
        row, upper = levels[r * columns : (r + 1) * columns], levels[max(r - 1, 0) * columns : max(r, 1) * columns]
        left = left_2 = last = 0
        for k in range(columns):
            above = int(upper[k]) if r > 0 else 0
            behind = int(row[k - stride]) if 0 < stride <= k else 0
            near = int(left != 0) + 2 * int(left_2 != 0) + 4 * int(above != 0) + 8 * int(behind != 0)
            if column_sent[k] < 0:
                column_sent[k] = whole & ~_MET
            a = stretch[(row_sent >> _STRETCHED) & _CHANCES]
            b = stretch[(column_sent[k] >> _STRETCHED) & _CHANCES]
            c = stretch[(near_sent[near] >> _STRETCHED) & _CHANCES]
            d = stretch[(whole >> _STRETCHED) & _CHANCES]
            p = _squashed(a * w_0 + b * w_1 + c * w_2 + d * w_3, squash)
            bit = _move(coder, data, decode, int(row[k] != 0), p)
            error = ((bit << 16) - p) * _LEARNING
            w_0 += (a * error) >> 18
            w_1 += (b * error) >> 18
            w_2 += (c * error) >> 18
            w_3 += (d * error) >> 18
            row_sent = _learned(row_sent, bit, rates)
            column_sent[k] = _learned(column_sent[k], bit, rates)
            near_sent[near] = _learned(near_sent[near], bit, rates)
            whole = _learned(whole, bit, rates)
            left_2, left = left, 0
            if bit == 0:
                if decode:
                    row[k] = 0
                continue
            near = 3 * (0 if above == 0 else 1 + int(above < 0)) + last
            a = stretch[(row_signs[r] >> _STRETCHED) & _CHANCES]
            b = stretch[(column_signs[k] >> _STRETCHED) & _CHANCES]
            c = stretch[(near_signs[near] >> _STRETCHED) & _CHANCES]
            p = _squashed(a * weights[4] + b * weights[5] + c * weights[6], squash)
            bit = _move(coder, data, decode, int(row[k] < 0), p)
            error = ((bit << 16) - p) * _LEARNING
            weights[4] += (a * error) >> 18
            weights[5] += (b * error) >> 18
            weights[6] += (c * error) >> 18
            row_signs[r] = _learned(row_signs[r], bit, rates)
            column_signs[k] = _learned(column_signs[k], bit, rates)
            near_signs[near] = _learned(near_signs[near], bit, rates)
            last = 1 + bit
            level = 1
            while level < min(top, _UNARY):
                higher = _move(coder, data, decode, int(abs(row[k]) > level), _direct(more[level]))
                more[level] = _learned(more[level], higher, rates)
                if higher == 0:
                    break
                level += 1
            if level == _UNARY:
                level += _move_tail(coder, data, decode, abs(int(row[k])) - _UNARY, lengths, rates)
                if level > top:
                    coder[UNSOUND] = 1
                    level = top
            left = -level if bit else level
            row[k] = left
    weights[0], weights[1], weights[2], weights[3], wholes[0] = w_0, w_1, w_2, w_3, whole
