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

CHUNK = 1 << 20
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
    indices = []
    for i in range(d):
        if ((splitmix(seed, i) >> 32) * (d - i)) >> 32 < count - len(indices):
            indices.append(i)
    return indices


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
        indices = [i for i in range(8 * len(data)) if bit(data, i)]
    elif code == 3:
        b = r.varint()
        need(b <= 3 * m)
        data, _ = r.stream(b, b)
        gaps, indices = Bytes(data), []
        for _ in range(m):
            indices.append((indices[-1] + 1 if indices else 0) + gaps.varint())
        need(gaps.at == b)
    else:
        need(code == 4)
        k, at, indices = r.u8(), 0, []
        need(k <= 20)
        rest = r.data[r.at :]
        for _ in range(m):
            ones = 0
            while bit(rest, at):
                ones, at = ones + 1, at + 1
            gap = ones << k | number(rest, at + 1, k)
            at += 1 + k
            indices.append((indices[-1] + 1 if indices else 0) + gap)
        used = r.take((at + 7) // 8)
        need(number(used, at, 8 * len(used) - at) == 0)
    need(len(indices) == m and indices[-1] < size)
    return indices


def read_header(r, shape, short=False):
    """Kind and t, the highest level, the scale or scales, and what is beside them: a bucket's size, a seed, or, where
    the header holds the layer, its values."""
    size = math.prod(shape)

    def scales(count):
        return [struct.unpack("<f", b"\0\0" + r.take(2))[0] for _ in range(count)] if short else r.unpack("f", count)

    byte = r.u8()
    if byte & 3 == 3:
        return 3, byte >> 2, scales(byte >> 2), 0
    need(byte in (0, 1, 2, 6, 10, 14, 18, 22, 26))
    if byte == 18:
        tops = [r.varint() for _ in range(r.varint())]
        need(all(tops))
        steps = scales(len(tops))
        table = [single(step * a) for step, top in zip(steps, tops, strict=True) for a in range(1, top + 1)]
        return 3, len(table), table, 0
    if byte in (14, 22, 26):
        whole = {14: low_rank, 22: sketch, 26: cosines}[byte]
        return byte, 0, (), whole(r, *((shape[0], math.prod(shape[1:])) if len(shape) > 1 else (1, size)))
    if byte == 2:
        top = r.varint()
        return byte, top, scales(1 if top else 0), 0
    if byte == 6:
        bucket, top = r.varint(), r.varint()
        return byte, top, scales(-(-size // bucket)), bucket
    if byte == 10:
        seed = r.unpack("Q")[0]
        return byte, 0, scales(len(blocks(size))), seed
    return byte, 0, (), 0


def low_rank(r, rows, columns):
    rank = r.varint()
    need(rank <= 128)
    need(rank * (rows + columns) <= rows * columns)
    left, right = r.unpack("f", rows * rank), r.unpack("f", columns * rank)
    values = []
    for i in range(rows):
        for j in range(columns):
            value = 0.0
            for k in range(rank):
                value = single(value + single(left[i * rank + k] * right[j * rank + k]))
            values.append(value)
    return values


def sketch(r, rows, columns):
    seed, height, width = r.unpack("Q")[0], r.varint(), r.varint()
    need(height % 2 and 0 < height * width <= rows * columns)
    table = r.unpack("f", height * width)
    values = []
    for i in range(rows * columns):
        found = []
        for row in range(height):
            bits = splitmix(splitmix(seed, row), i)
            value = table[row * width + ((bits >> 32) * width >> 32)]
            found.append(-value if bits & 1 else value)
        values.append(sorted(found)[height // 2])
    return values


def cosines(r, rows, columns):
    height, width = (next((n for n in range(min(side, 64), 0, -1) if side % n == 0), 1) for side in (rows, columns))
    kept, count = r.varint(), rows // height * (columns // width)
    low, _ = r.stream(kept * count, kept * count)
    high, _ = r.stream(kept * count, kept * count)
    sent = r.unpack("f", kept * count)
    values = [0.0] * (rows * columns)

    def wave(n, k, i):
        return math.sqrt((2 if k else 1) / n) * math.cos(math.pi * (2 * i + 1) * k / (2 * n))

    for block in range(count):
        top, first = block // (columns // width) * height, block % (columns // width) * width
        place, terms = -1, []
        for n in range(block * kept, (block + 1) * kept):
            place += 1 + low[n] + (high[n] << 8)
            need(place < height * width)
            terms.append((place // width, place % width, sent[n]))
        for i in range(height):
            for j in range(width):
                total = sum(value * wave(height, u, i) * wave(width, v, j) for u, v, value in terms)
                values[(top + i) * columns + first + j] = single(total)
    return values


def blocks(size):
    """(coordinates, with those that fill up) of each block of a rotated layer."""
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
    """One block of float32, in place."""
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


def read_rotated(r, header, m, first):
    """A chunk of a rotated layer whose first block is number `first` of the layer."""
    _, _, scale, seed = header
    values = []
    for j, (size, padded) in enumerate(blocks(m), first):
        signs = r.take(padded // 8)
        x = [-scale[j] if bit(signs, i) else scale[j] for i in range(padded)]
        values += rotate_back(x, splitmix(seed, j))[:size]
    return values


def single(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def read_values(r, header, indices):
    """The values at these indices, which are counted from the start of the layer."""
    kind, top, scale, bucket = header
    m = len(indices)
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
        steps = [scale[index // bucket if kind == 6 else 0] for index in indices]
        values = [single(step * (a + 1)) for step, a in zip(steps, above, strict=True)]
    return [-value if bit(signs, i) else value for i, value in enumerate(values)]


def read_layers(r, shapes, drawn):
    sizes = [math.prod(shape) for shape in shapes]
    dense, offset = [0.0] * sum(sizes), 0
    for shape, layer_size in zip(shapes, sizes, strict=True):
        header = read_header(r, shape)
        for start in range(offset, offset + layer_size, CHUNK):
            size = min(CHUNK, offset + layer_size - start)
            indices = read_index(r, start, size, drawn)
            if header[0] == 10:
                need(len(indices) == size)
                values = read_rotated(r, header, size, (start - offset) // 32768)
            elif header[0] in (14, 22, 26):
                need(len(indices) == size)
                values = header[3][start - offset : start - offset + size]
            else:
                values = read_values(r, header, [start - offset + index for index in indices]) if indices else []
            for index, value in zip(indices, values, strict=True):
                need(math.isfinite(value))
                dense[start + index] = value
        offset += layer_size
    return dense


def read_levels(r, shapes, short):
    headers = [read_header(r, shape, short) for shape in shapes]
    need(all(header[0] in (2, 3) for header in headers))
    data = r.take(r.varint())
    need(not data or data[-1])
    decoder, dense = plain_context.Decoder(data), []
    for shape, (kind, top, scale, _) in zip(shapes, headers, strict=True):
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
    dense = read_levels(r, shapes, bool(flags & 8)) if flags & 4 else read_layers(r, shapes, drawn)
    buffers = counters = ()
    if flags & 2:
        n, c = sum(sizes["buffer"]), sum(sizes["counter"])
        buffers = Bytes(r.stream(4 * n, 4 * n)[0]).unpack("f", n)
        counters = Bytes(r.stream(8 * c, 8 * c)[0]).unpack("q", c)
    need(r.at == len(r.data))
    return dense, buffers, counters
