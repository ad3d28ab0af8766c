"""The codecs of other packages, each measured alike. Runs in each package's own environment: needs numpy and it alone.

python peer_codecs.py NAME vector.npy        prints one line of JSON for each codec of a package
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from types import ModuleType
from typing import Any

import numpy as np

Codec = tuple[str, Callable[[Any], bytes], Callable[[bytes], Any]]
"""A name, and how a float32 array of two dimensions becomes what travels and comes back."""
_SECONDS = 0.4


def bare(*packages: str) -> None:
    """Make packages importable without what their own first lines import: a codec's module does not need it."""
    for package in packages:
        parts = package.split(".")
        home = [f"{place}/{'/'.join(parts)}" for place in sys.path if os.path.isdir(f"{place}/{'/'.join(parts)}")]
        sys.modules[package] = module = ModuleType(package)
        module.__path__ = home


def flwr() -> Iterator[Codec]:
    from flwr.app import Array

    def encode(x: Any) -> bytes:
        return bytes(Array(x).data)

    def decode(blob: bytes) -> Any:
        return Array(dtype="float32", shape=SHAPE, stype="numpy.ndarray", data=blob).numpy()

    yield "Array", encode, decode


def openfl() -> Iterator[Codec]:
    bare("openfl.pipelines")
    from openfl.pipelines.eden_pipeline import EdenPipeline
    from openfl.pipelines.no_compression_pipeline import NoCompressionPipeline
    from openfl.pipelines.random_shift_pipeline import RandomShiftPipeline
    from openfl.pipelines.stc_pipeline import STCPipeline

    made = {
        "no compression": NoCompressionPipeline(),
        "STC, a tenth": STCPipeline(p_sparsity=0.1),
        "EDEN, 1 bit": EdenPipeline(n_bits=1, device="cpu"),
        "EDEN, 4 bits": EdenPipeline(n_bits=4, device="cpu"),
        "random shift": RandomShiftPipeline(),
    }
    for name, pipeline in made.items():

        def encode(x: Any, pipeline: Any = pipeline) -> bytes:
            return pickle.dumps(pipeline.forward(x))

        def decode(blob: bytes, pipeline: Any = pipeline) -> Any:
            data, about = pickle.loads(blob)
            return pipeline.backward(data, about)

        yield name, encode, decode


def nvflare() -> Iterator[Codec]:
    import torch

    bare("nvflare", "nvflare.app_opt", "nvflare.app_opt.pt", "nvflare.app_opt.pt.quantization")
    from nvflare.app_opt.pt.quantization.ada_quant import AdaQuantizer

    def encode(x: Any) -> bytes:
        return pickle.dumps(AdaQuantizer().quantize(torch.from_numpy(x)))

    def decode(blob: bytes) -> Any:
        return AdaQuantizer().dequantized(*pickle.loads(blob)).float().numpy()

    yield "AdaQuant", encode, decode

    def encode_half(x: Any) -> bytes:
        return torch.from_numpy(x).clamp(-65504, 65504).half().numpy().tobytes()

    def decode_half(blob: bytes) -> Any:
        return torch.frombuffer(bytearray(blob), dtype=torch.float16).float().reshape(SHAPE).numpy()

    yield "float16", encode_half, decode_half


def fedlab() -> Iterator[Codec]:
    import torch
    from fedlab.contrib.compressor.quantization import QSGDCompressor
    from fedlab.contrib.compressor.topk import TopkCompressor

    qsgd, topk = QSGDCompressor(n_bit=8), TopkCompressor(compress_ratio=0.1)

    def encode(x: Any) -> bytes:
        return b"".join(_raw(part) for part in qsgd.compress(torch.from_numpy(x.reshape(-1))))

    def decode(blob: bytes) -> Any:
        size = SHAPE[0] * SHAPE[1]
        norm = torch.frombuffer(bytearray(blob[:4]), dtype=torch.float32)
        signs = torch.frombuffer(bytearray(blob[4 : 4 + size]), dtype=torch.bool)
        levels = torch.frombuffer(bytearray(blob[4 + size :]), dtype=torch.int32)
        return qsgd.decompress((norm, signs, levels)).numpy()

    def encode_top(x: Any) -> bytes:
        values, indices = topk.compress(torch.from_numpy(x.reshape(-1)))
        return bytes(values.numpy().tobytes() + indices.numpy().tobytes())

    def decode_top(blob: bytes) -> Any:
        count = len(blob) // 12
        values = torch.frombuffer(bytearray(blob[: 4 * count]), dtype=torch.float32)
        indices = torch.frombuffer(bytearray(blob[4 * count :]), dtype=torch.int64)
        return topk.decompress(values, indices, (SHAPE[0] * SHAPE[1],)).numpy()

    yield "QSGD, 8 bits", encode, decode
    yield "top tenth", encode_top, decode_top


def _raw(part: Any) -> bytes:
    data: bytes = (part if hasattr(part, "numpy") else __import__("torch").tensor(part)).numpy().tobytes()
    return data


def hivemind() -> Iterator[Codec]:
    import torch

    bare("hivemind", "hivemind.utils")
    from hivemind.compression import deserialize_torch_tensor, serialize_torch_tensor
    from hivemind.proto.runtime_pb2 import CompressionType, Tensor

    for kind in ("FLOAT16", "MEANSTD_16BIT", "UNIFORM_8BIT", "QUANTILE_8BIT"):

        def encode(x: Any, kind: str = kind) -> bytes:
            data: bytes = serialize_torch_tensor(
                torch.from_numpy(x), getattr(CompressionType, kind)
            ).SerializeToString()
            return data

        def decode(blob: bytes) -> Any:
            return deserialize_torch_tensor(Tensor.FromString(blob)).numpy()

        yield kind, encode, decode


def nncodec() -> Iterator[Codec]:
    frameworks = ("tensorflow_model", "pytorch_model", "use_case_init")
    bare("nncodec", "nncodec.framework", *(f"nncodec.framework.{name}" for name in frameworks))
    from nncodec.nnc import compress, decompress

    for qp in (-32, -38, -48):

        def encode(x: Any, qp: int = qp) -> bytes:
            return bytes(compress({"w": x}, qp=qp, return_bitstream=True))

        def decode(blob: bytes) -> Any:
            return decompress(bytearray(blob))["w"]

        yield f"qp {qp}", encode, decode


def appfl() -> Iterator[Codec]:
    from pysz import sz, szAlgorithm, szConfig, szErrorBoundMode

    for bound in (1e-1, 1e-2):

        def config(bound: float = bound) -> Any:
            made = szConfig(SHAPE)
            made.cmprAlgo, made.errorBoundMode, made.relErrorBound = (
                szAlgorithm.INTERP_LORENZO,
                szErrorBoundMode.REL,
                bound,
            )
            return made

        def encode(x: Any, config: Callable[[], Any] = config) -> bytes:
            return bytes(sz.compress(x, config())[0])

        def decode(blob: bytes) -> Any:
            return sz.decompress(np.frombuffer(blob, np.uint8), np.float32, SHAPE)[0]

        yield f"SZ3, {bound:g} of the range", encode, decode


def torch() -> Iterator[Codec]:
    """PowerSGD's hook on one process: what it would send is its two factors, and the gradient after it is decoded."""
    import torch.distributed as dist
    from torch import from_numpy, nn
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
    from torch.nn.parallel import DistributedDataParallel

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
    dist.init_process_group("gloo", rank=0, world_size=1)
    probe = from_numpy(np.eye(SHAPE[1], dtype=np.float32)[:1])
    for rank in (4, 32):
        layer = nn.Linear(SHAPE[1], SHAPE[0], bias=False)
        wrapped = DistributedDataParallel(layer)
        state = PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=2)
        wrapped.register_comm_hook(state, powerSGD_hook)
        for _ in range(3):
            wrapped(probe).sum().backward()

        def encode(x: Any, layer: Any = layer, wrapped: Any = wrapped, state: Any = state, rank: int = rank) -> bytes:
            state.error_dict.clear()
            layer.weight.grad = None
            wrapped.require_backward_grad_sync = True
            (wrapped(probe).sum() * 0 + (layer.weight * from_numpy(x)).sum()).backward()
            found: bytes = layer.weight.grad.numpy().tobytes()
            return found

        yield f"PowerSGD, rank {rank}", encode, lambda blob: np.frombuffer(blob, np.float32).reshape(SHAPE)


def fedsparq() -> Iterator[Codec]:
    import fedsparq as fq

    layout = fq.Layout.of({"w": SHAPE})
    settings: list[tuple[str, str, dict[str, Any]]] = [("fedsparq", "fedsparq", {}), ("float16", "float16", {})]
    settings += [("fedavg", "fedavg", {}), ("eden", "eden", {})]
    settings += [
        (f"adaptive, {bits:g} bits", "fedsparq-adaptive", {"bits": bits, "rounding": "nearest"}) for bits in BITS
    ]
    settings += [(f"uniform, step {step:g}", "uniform", {"step": step, "dead_zone": 0.5}) for step in STEPS]
    for label, name, options in settings:
        method = fq.method(name, **options)
        state = method.init(layout)

        def encode(x: Any, method: fq.Method = method, state: fq.State = state) -> bytes:
            return fq.encode(method.compress(x.reshape(-1), state, np.random.default_rng(0), threads=1)[0], threads=1)

        yield label, encode, lambda blob: fq.decode(blob, layout).dense().reshape(SHAPE)


BITS = (0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 1.25, 1.3, 1.5, 2.0, 2.35, 3.0, 4.0, 4.75, 6.0, 8.0)
STEPS = (1.0, 0.2, 0.05, 0.01, 0.001, 0.0007, 0.0005)
PACKAGES = {"torch": "torch", "appfl": "pysz"}
SHAPE = (0, 0)


def look(name: str, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any], x: Any) -> dict[str, Any]:
    """Size, times as multiples of a copy, error, and what becomes of bad input."""
    blob = encode(x)
    back = np.asarray(decode(blob), np.float32).reshape(x.shape)
    warm = np.zeros_like(x)
    copy = _best(lambda: np.copyto(warm, x))
    return {
        "codec": name,
        "bytes a parameter": _travels(name, blob) / x.size,
        "encode, copies": _best(lambda: encode(x)) / copy,
        "decode, copies": _best(lambda: decode(blob)) / copy,
        "relative error": float(np.linalg.norm(back.astype(np.float64) - x) / np.linalg.norm(x.astype(np.float64))),
        "NaN": _nan(encode, decode, x),
        "damage": _damage(decode, blob, back),
    }


def _travels(name: str, blob: bytes) -> int:
    return 4 * int(name.split()[-1]) * sum(SHAPE) if name.startswith("PowerSGD") else len(blob)


def _best(step: Callable[[], object]) -> float:
    """Seconds of CPU: they do not depend on what else the machine does. All codecs run on one thread."""
    taken = list[float]()
    while not taken or (len(taken) < 7 and sum(taken) < _SECONDS):
        start = time.process_time()
        step()
        taken.append(time.process_time() - start)
    return min(taken)


def _nan(encode: Callable[[Any], bytes], decode: Callable[[bytes], Any], x: Any) -> str:
    bad = x.copy()
    bad[3, 5] = np.nan
    try:
        back = np.asarray(decode(encode(bad)), np.float32)
    except Exception:
        return "refused"
    wrong = int((~np.isfinite(back)).sum())
    return "passed on" if wrong == 1 else f"spoils {wrong:,}" if wrong else "becomes a number"


def _damage(decode: Callable[[bytes], Any], blob: bytes, right: Any) -> str:
    """One bit at each of 20 places."""
    silent = 0
    for place in np.random.default_rng(0).integers(0, len(blob), 20):
        broken = bytearray(blob)
        broken[place] ^= 0x10
        try:
            back = np.asarray(decode(bytes(broken)), np.float32).reshape(right.shape)
        except Exception:
            continue
        silent += not np.array_equal(back, right, equal_nan=True)
    return "refused" if not silent else f"{silent} of 20 taken for right"


if __name__ == "__main__":
    peer, vector = sys.argv[1], np.load(sys.argv[2])
    SHAPE = vector.shape
    release = "" if peer == "fedsparq" else version(PACKAGES.get(peer, peer))
    for codec, to_bytes, from_bytes in globals()[peer]():
        try:
            row = look(codec, to_bytes, from_bytes, vector)
        except Exception as error:
            row = {"codec": codec, "failed": f"{type(error).__name__}: {error}"}
        print(json.dumps({"package": peer, "version": release, **row}), flush=True)
