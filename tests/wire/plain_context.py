"""The context coding of FSQ1, from FORMAT.md alone, in plain Python."""

from __future__ import annotations

import math

STRETCH = [max(-2047, min(2047, round(256 * math.log((i + 0.5) / (4095.5 - i))))) for i in range(4096)]
SQUASH = {x: max(24, min(65512, round(65536 / (1 + math.exp(-x / 256))))) for x in range(-2047, 2048)}


class Context:
    def __init__(self, chance):
        self.chance, self.count = chance, 0

    def learn(self, bit):
        self.chance += (((bit << 16) - self.chance) * (65536 // (self.count + 2))) >> 16
        self.count = min(self.count + 1, 255)


class Decoder:
    def __init__(self, data):
        self.data, self.at = data, 0
        self.low, self.high, self.code = 0, 2**32 - 1, 0
        for _ in range(4):
            self.code = self.code << 8 | self.next_byte()
        self.whole = Context(2600)
        self.sent_weights, self.sign_weights = [26214, 26214, 26214, -13107], [26214, 13107, 26214]

    def next_byte(self):
        self.at += 1
        return self.data[self.at - 1] if self.at <= len(self.data) else 0

    def bit(self, p):
        span = self.high - self.low
        middle = self.low + (span >> 16) * p + (((span & 65535) * p) >> 16)
        bit = int(self.code <= middle)
        if bit:
            self.high = middle
        else:
            self.low = middle + 1
        while self.low >> 24 == self.high >> 24:
            self.low = self.low << 8 & 0xFFFFFFFF
            self.high = self.high << 8 & 0xFFFFFFFF | 255
            self.code = self.code << 8 & 0xFFFFFFFF | self.next_byte()
        return bit

    def mixed_bit(self, contexts, weights):
        t = [STRETCH[context.chance >> 4] for context in contexts]
        total = sum(w * x for w, x in zip(weights, t, strict=True)) >> 16
        p = SQUASH[max(-2047, min(2047, total))]
        bit = self.bit(p)
        for k in range(len(t)):
            weights[k] += (t[k] * ((bit << 16) - p) * 6) >> 18
        for context in contexts:
            context.learn(bit)
        return bit

    def direct_bit(self, context):
        bit = self.bit(max(1, min(65535, context.chance)))
        context.learn(bit)
        return bit

    def tail(self, longer):
        k = 0
        while k < 15 and self.direct_bit(longer[k]):
            k += 1
        e = 1
        for _ in range(k):
            e = e << 1 | self.bit(32768)
        return e - 1

    def layer(self, shape, top):
        rows = shape[0] if len(shape) > 1 else 1
        columns = math.prod(shape[1:]) if len(shape) > 1 else math.prod(shape)
        side = math.isqrt(columns)
        stride = shape[-1] if len(shape) > 2 else side if len(shape) == 2 and side * side == columns else 0
        near = [Context(self.whole.chance) for _ in range(16)]
        near_signs = [Context(32768) for _ in range(9)]
        column_sent, column_signs = [None] * columns, [Context(32768) for _ in range(columns)]
        higher, longer = [Context(32768) for _ in range(16)], [Context(32768) for _ in range(15)]
        levels = []
        for r in range(rows):
            row_sent, row_signs, last, row = Context(self.whole.chance), Context(32768), 0, []
            for k in range(columns):
                above = levels[(r - 1) * columns + k] if r else 0
                seen = (row[-1:], row[-2:-1], [above], row[k - stride : k - stride + 1] if 0 < stride <= k else [])
                slot = sum(1 << i for i, level in enumerate(seen) if any(level))
                column_sent[k] = column_sent[k] or Context(self.whole.chance)
                if not self.mixed_bit([row_sent, column_sent[k], near[slot], self.whole], self.sent_weights):
                    row.append(0)
                    continue
                slot = 3 * (0 if above == 0 else 1 if above > 0 else 2) + last
                negative = self.mixed_bit([row_signs, column_signs[k], near_signs[slot]], self.sign_weights)
                last = 1 + negative
                a = 1
                while a < min(top, 16) and self.direct_bit(higher[a]):
                    a += 1
                if a == 16:
                    a += self.tail(longer)
                    assert a <= top
                row.append(-a if negative else a)
            levels += row
        return levels
