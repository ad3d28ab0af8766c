"""A decoder of FSQ1 written from FORMAT.md alone, in plain Python. Slow, and clear."""

from __future__ import annotations

import math
import struct

import xxhash

try:
    from compression import zstd
except ImportError:
    from backports import zstd

PIECE = 1 << 20
M64 = 2**64 - 1


class BadMessageError(Exception):
    pass


def need(condition):
    if not condition:
        raise BadMessageError


class Bytes:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        need(self.at + count <= len(self.data))
        self.at += count
        return self.data[self.at - count : self.at]

    def unpack(self, code, count=1):
        return struct.unpack(f"<{count}{code}", self.take(count * struct.calcsize("<" + code)))

    def u8(self):
        return self.take(1)[0]

    def varint(self):
        value = 0
        for i in range(10):
            byte = self.u8()
            value |= (byte & 127) << (7 * i)
            if byte < 128:
                need(byte or not i)
                return value
        raise BadMessageError

    def stream(self, raw_size, size):
        """The bytes, and whether they were raw."""
        length = self.varint()
        if length == 0:
            return self.take(raw_size), True
        need(length < raw_size)
        data = zstd.decompress(self.take(length))
        need(len(data) == size)
        return data, False


def bit(data, i):
    return data[i >> 3] >> (i & 7) & 1


def number(data, at, width):
    return sum(bit(data, at + j) << j for j in range(width))


def digest(tensors):
    lines = [f"{role} {dtype} {'x'.join(map(str, shape))} {name}\n" for name, shape, dtype, role in tensors]
    return xxhash.xxh3_64_intdigest("".join(lines).encode())


def seeded(seed, count, d):
    places = []
    for i in range(d):
        z = (seed + (i + 1) * 0x9E3779B97F4A7C15) & M64
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & M64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & M64
        z ^= z >> 31
        if ((z >> 32) * (d - i)) >> 32 < count - len(places):
            places.append(i)
    return places


def read_index(r, start, size, drawn):
    code = r.u8()
    need((code == 5) == (drawn is not None))
    if code == 0:
        return []
    if code == 1:
        return list(range(size))
    if code == 5:
        return [i - start for i in drawn if start <= i < start + size]
    m = r.varint()
    need(1 <= m <= size - 1)
    if code == 2:
        data, _ = r.stream((size + 7) // 8, (size + 7) // 8)
        places = [i for i in range(8 * len(data)) if bit(data, i)]
    elif code == 3:
        b = r.varint()
        need(b <= 3 * m)
        data, _ = r.stream(b, b)
        gaps, places = Bytes(data), []
        for _ in range(m):
            places.append((places[-1] + 1 if places else 0) + gaps.varint())
        need(gaps.at == b)
    else:
        need(code == 4)
        k, at, places = r.u8(), 0, []
        need(k <= 20)
        rest = r.data[r.at :]
        for _ in range(m):
            ones = 0
            while bit(rest, at):
                ones, at = ones + 1, at + 1
            gap = ones << k | number(rest, at + 1, k)
            at += 1 + k
            places.append((places[-1] + 1 if places else 0) + gap)
        used = r.take((at + 7) // 8)
        need(number(used, at, 8 * len(used) - at) == 0)
    need(len(places) == m and places[-1] < size)
    return places


def read_head(r):
    byte = r.u8()
    kind, t = byte & 3, byte >> 2
    if kind == 3:
        return kind, t, r.unpack("f", t)
    need(t == 0)
    if kind != 2:
        return kind, 0, ()
    top = r.varint()
    return kind, top, r.unpack("f") if top else ()


def single(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def read_values(r, head, m):
    kind, top, scale = head
    if kind == 0:
        return r.unpack("f", m)
    if kind == 1:
        high, _ = r.stream(m, m)
        low, _ = r.stream(m, m)
        turned = [h << 8 | lo for h, lo in zip(high, low, strict=True)]
        return [struct.unpack("<e", struct.pack("<H", u >> 1 | (u & 1) << 15))[0] for u in turned]
    signs = r.take((m + 7) // 8)
    need(number(signs, m, 8 * len(signs) - m) == 0)
    above, w = [0] * m, (top - 1).bit_length()
    for shift in range(0, w, 8):
        v = min(8, w - shift)
        data, raw = r.stream((m * v + 7) // 8, m)
        for i in range(m):
            above[i] |= (number(data, i * v, v) if raw else data[i]) << shift
    need(max(above) < top)
    values = [single(scale[0] * (a + 1)) if kind == 2 else scale[a] for a in above]
    return [-value if bit(signs, i) else value for i, value in enumerate(values)]


def decode(blob, tensors):
    """The dense update, the buffers and the counters of a message; `tensors` are (name, shape, type, role)."""
    need(len(blob) >= 21)
    need(xxhash.xxh3_64_intdigest(blob[:-8]) == int.from_bytes(blob[-8:], "little"))
    r = Bytes(blob[:-8])
    need(r.take(4) == b"FSQ1")
    flags = r.u8()
    need(flags < 4)
    need(r.unpack("Q")[0] == digest(tensors))
    sizes = {role: [math.prod(t[1]) for t in tensors if t[3] == role] for role in ("parameter", "buffer", "counter")}
    d = sum(sizes["parameter"])
    drawn = None
    if flags & 1:
        seed, count = *r.unpack("Q"), *r.unpack("I")
        need(count <= d)
        drawn = seeded(seed, count, d)
    dense, offset = [0.0] * d, 0
    for layer_size in sizes["parameter"]:
        head = read_head(r)
        for start in range(offset, offset + layer_size, PIECE):
            places = read_index(r, start, min(PIECE, offset + layer_size - start), drawn)
            values = read_values(r, head, len(places)) if places else []
            for place, value in zip(places, values, strict=True):
                need(math.isfinite(value))
                dense[start + place] = value
        offset += layer_size
    buffers = counters = ()
    if flags & 2:
        n, c = sum(sizes["buffer"]), sum(sizes["counter"])
        buffers = Bytes(r.stream(4 * n, 4 * n)[0]).unpack("f", n)
        counters = Bytes(r.stream(8 * c, 8 * c)[0]).unpack("q", c)
    need(r.at == len(r.data))
    return dense, buffers, counters
