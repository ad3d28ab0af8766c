"""A decoder of FSQ1 written from FORMAT.md alone, in plain Python. Slow, and clear."""

from __future__ import annotations

import math
import struct

import plain_context
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
        if ((splitmix(seed, i) >> 32) * (d - i)) >> 32 < count - len(places):
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


def read_head(r, size, short=False):
    """Kind and t, the highest level, the scale or scales, and what is beside them: a bucket's size or a seed."""

    def scales(count):
        return [struct.unpack("<f", b"\0\0" + r.take(2))[0] for _ in range(count)] if short else r.unpack("f", count)

    byte = r.u8()
    if byte & 3 == 3:
        return 3, byte >> 2, scales(byte >> 2), 0
    need(byte in (0, 1, 2, 6, 10))
    if byte == 2:
        top = r.varint()
        return byte, top, scales(1 if top else 0), 0
    if byte == 6:
        bucket, top = r.varint(), r.varint()
        return byte, top, scales(-(-size // bucket)), bucket
    if byte == 10:
        seed = r.unpack("Q")[0]
        return byte, 0, scales(len(chunks(size))), seed
    return byte, 0, (), 0


def chunks(size):
    """(coordinates, with those that fill up) of each chunk of a rotated layer."""
    found = []
    while size >= 64:
        taken = min(32768, 1 << (size.bit_length() - 1))
        found.append((taken, taken))
        size -= taken
    if size:
        found.append((size, max(8, 1 << (size - 1).bit_length())))
    return found


def splitmix(seed, i):
    z = (seed + (i + 1) * 0x9E3779B97F4A7C15) & M64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & M64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & M64
    return z ^ (z >> 31)


def rotate_back(x, seed):
    """One chunk of float32, in place."""
    n, h = len(x), 1
    while h < n:
        for i in range(n):
            if i & h == 0:
                x[i], x[i + h] = single(x[i] + x[i + h]), single(x[i] - x[i + h])
        h *= 2
    factor = single(1 / math.sqrt(n))
    for i in range(n):
        negative = splitmix(seed, i >> 6) >> (i & 63) & 1
        x[i] = single((-x[i] if negative else x[i]) * factor)
    return x


def read_rotated(r, head, m, first):
    """A piece of a rotated layer whose first chunk is number `first` of the layer."""
    _, _, scale, seed = head
    values = []
    for j, (size, padded) in enumerate(chunks(m), first):
        signs = r.take(padded // 8)
        x = [-scale[j] if bit(signs, i) else scale[j] for i in range(padded)]
        values += rotate_back(x, splitmix(seed, j))[:size]
    return values


def single(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def read_values(r, head, places):
    """The values at these places, which are counted from the start of the layer."""
    kind, top, scale, bucket = head
    m = len(places)
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
    if kind == 3:
        values = [scale[a] for a in above]
    else:
        steps = [scale[place // bucket if kind == 6 else 0] for place in places]
        values = [single(step * (a + 1)) for step, a in zip(steps, above, strict=True)]
    return [-value if bit(signs, i) else value for i, value in enumerate(values)]


def read_layers(r, sizes, drawn):
    dense, offset = [0.0] * sum(sizes), 0
    for layer_size in sizes:
        head = read_head(r, layer_size)
        for start in range(offset, offset + layer_size, PIECE):
            size = min(PIECE, offset + layer_size - start)
            places = read_index(r, start, size, drawn)
            if head[0] == 10:
                need(len(places) == size)
                values = read_rotated(r, head, size, (start - offset) // 32768)
            else:
                values = read_values(r, head, [start - offset + place for place in places]) if places else []
            for place, value in zip(places, values, strict=True):
                need(math.isfinite(value))
                dense[start + place] = value
        offset += layer_size
    return dense


def read_levels(r, shapes, short):
    heads = [read_head(r, math.prod(shape), short) for shape in shapes]
    need(all(head[0] in (2, 3) for head in heads))
    data = r.take(r.varint())
    need(not data or data[-1])
    decoder, dense = plain_context.Decoder(data), []
    for shape, (kind, top, scale, _) in zip(shapes, heads, strict=True):
        levels = decoder.layer(shape, top) if top else [0] * math.prod(shape)
        table = [0.0, *(scale if kind == 3 else (single(scale[0] * a) for a in range(1, top + 1) if top))]
        dense += [math.copysign(table[abs(level)], level) if level else 0.0 for level in levels]
    need(decoder.at >= len(data))
    return dense


def decode(blob, tensors):
    """The dense update, the buffers and the counters of a message; `tensors` are (name, shape, type, role)."""
    need(len(blob) >= 21)
    need(xxhash.xxh3_64_intdigest(blob[:-8]) == int.from_bytes(blob[-8:], "little"))
    r = Bytes(blob[:-8])
    need(r.take(4) == b"FSQ1")
    flags = r.u8()
    need(flags < 16 and flags & 5 != 5 and flags & 12 != 8)
    need(r.unpack("Q")[0] == digest(tensors))
    sizes = {role: [math.prod(t[1]) for t in tensors if t[3] == role] for role in ("parameter", "buffer", "counter")}
    d = sum(sizes["parameter"])
    drawn = None
    if flags & 1:
        seed, count = *r.unpack("Q"), *r.unpack("I")
        need(count <= d)
        drawn = seeded(seed, count, d)
    shapes = [t[1] for t in tensors if t[3] == "parameter"]
    dense = read_levels(r, shapes, bool(flags & 8)) if flags & 4 else read_layers(r, sizes["parameter"], drawn)
    buffers = counters = ()
    if flags & 2:
        n, c = sum(sizes["buffer"]), sum(sizes["counter"])
        buffers = Bytes(r.stream(4 * n, 4 * n)[0]).unpack("f", n)
        counters = Bytes(r.stream(8 * c, 8 * c)[0]).unpack("q", c)
    need(r.at == len(r.data))
    return dense, buffers, counters
