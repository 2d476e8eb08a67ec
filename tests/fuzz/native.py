"""Random calls of all ops with native kernels, held to the other backends: `python -m tests.fuzz.native SEED COUNT`.

Sizes are no multiple of anything, arrays lie anyhow, every instruction set of the machine takes its turn; whatever a
kernel declines is left out, so that what it learns is fuzzed at once; COUNT calls of each op are made. Then all are
made again by several threads at a time. Prints how many ran, by op and format, which functions of the libraries were
called, and a digest of what they gave. Meant for libraries that were compiled with sanitizers
(tests/unit/kernels/test_native_fuzz.py), which end the process where they find something.
"""

import ctypes
import hashlib
import json
import mmap
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np

import pipeline.tensors.pytree  # noqa: F401  QTensors may be traced
from pipeline.backends import DEFINITION, ROOM, about, backends_of, load, rooms
from pipeline.errors import ConfigError
from pipeline.ops import Kernel
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import Scheme
from pipeline.tensors.spec import TensorSpec
from pipeline.testing.kernel import Case, difference, outcome
from pipeline.testing.memory import quantized, random_bytes
from pipeline.testing.model_op import Call, ModelOpContract, agree, unit_of
from plugins.bench import machine
from plugins.kernels.cases import BY_STRUCTS, SCHEMES
from plugins.kernels.gptq import cases as gptq_cases
from plugins.kernels.moe.cases import glu
from plugins.kernels.native import build, library
from plugins.kernels.quantize_by_outputs import cases as by_outputs_cases

PAGE = mmap.PAGESIZE
FLOATS = (np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16))
POWERS = ("floor", "ceil", "even", "rceil")
FORMATS: Mapping[str, Scheme] = {
    **SCHEMES,
    "mxfp8 e5m2": Scheme("e5m2", 32, "e8m0"),
    "mxfp6": Scheme("e2m3", 32, "e8m0"),
    "mxint8": Scheme("mxint8", 32, "e8m0"),
    "int2": Scheme("int2", 16, "f32"),
    "uint8": Scheme("uint8", 64, "f32", zero="int"),
    "q8_0": Scheme("int8", 32, "f16"),
    "fp8 in bands": Scheme("e4m3", 128, "f32", block_rows=128),
    **BY_STRUCTS,
}


ENTRY = re.compile(
    r"(?:^WM_API[\w\s*]*?\b|extern \"C\" WM_API[\w\s*]*?\b|DEFINE_HANDLER_SYMBOL\()(wm_\w+)", re.MULTILINE
)


def entry_points() -> set[str]:
    """`unit.function` of everything that the libraries may be asked for, as their sources have it."""
    return {f"{unit}.{n}" for unit in build.units() for n in ENTRY.findall((build.SOURCES / f"{unit}.cc").read_text())}


class Watched(ctypes.CDLL):
    """A library of which is known what was called. Handlers are XLA's to call: they count once they are registered."""

    entered: set[str] = set()  # noqa: RUF012  one for all

    def __getitem__(self, name: Any) -> Any:
        found = super().__getitem__(name)
        if not str(name).startswith("wm_"):
            return found
        said = f"{Path(self._name).name.partition('-')[0]}.{name}"
        is_handler = "DEFINE_HANDLER" in (build.SOURCES / f"{said.partition('.')[0]}.cc").read_text()

        class Function(type(found)):  # type: ignore[misc]
            _flags_, _restype_ = type(found)._flags_, type(found)._restype_

            def __call__(self, *args: Any) -> Any:
                Watched.entered.add(said)
                return super().__call__(*args)

        if is_handler:
            Watched.entered.add(said)
            return found
        return Function((name, self))


def anyhow(x: Any, rng: np.random.Generator) -> Any:
    """The same values, somewhere else: transposed, with gaps, backwards, not aligned, before what nobody may read."""
    how = rng.integers(7)
    if how == 6:
        return guarded(x)
    if how == 1 and x.ndim > 1:
        return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)
    if how == 2:
        return np.repeat(x, 2, axis=-1)[..., ::2]
    if how == 3:
        return np.ascontiguousarray(x[..., ::-1])[..., ::-1]
    if how == 4:
        return np.frombuffer(b"x" + x.tobytes(), np.uint8)[1:].view(x.dtype).reshape(x.shape)
    if how == 5 and x.ndim > 1 and len(x):
        return np.broadcast_to(x[:1], x.shape)
    return x


def guarded(x: Any) -> Any:
    """A copy whose last byte is the last of a page, the next of which nobody may touch: no sanitizer sees all loads."""
    pages = -(-x.nbytes // PAGE)
    memory = mmap.mmap(-1, (pages + 1) * PAGE)
    end = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + pages * PAGE
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(end), ctypes.c_size_t(PAGE), 0) == 0
    copy = np.frombuffer(memory, np.uint8, x.nbytes, pages * PAGE - x.nbytes).view(x.dtype).reshape(x.shape)
    copy[...] = x
    return copy


def values(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Any:
    """Of ordinary size, or any bits that are finite, denormals too."""
    if rng.integers(2):
        return (rng.standard_normal(shape) * 2.0 ** rng.integers(-9, 9)).astype(dtype)
    bits = rng.integers(0, 256, (*shape, dtype.itemsize), dtype=np.uint8).view(dtype)[..., 0]
    return np.where(np.isfinite(bits.astype(np.float32)), bits, dtype.type(1))


def shaped(rng: np.random.Generator, scheme: Scheme) -> tuple[int, ...]:
    """A shape that the scheme can have."""
    unit = scheme.column_grain if scheme.block_elems else 8
    n, rows = int(unit * rng.integers(1, 9)), int(rng.integers(1, 41))
    return [(n,), (rows, n), (int(rng.integers(1, 4)), rows, n)][rng.integers(3)]


def formats(rng: np.random.Generator) -> tuple[str, Scheme]:
    return list(FORMATS.items())[rng.integers(len(FORMATS))]


def quantize(rng: np.random.Generator) -> Case:
    struct = [*BY_STRUCTS][rng.integers(len(BY_STRUCTS))]
    some = ("mxfp4", "nvfp4", struct)[rng.integers(3)]  # which have C++ of their own
    name, scheme = formats(rng) if rng.integers(2) else (some, FORMATS[some])
    x = values(rng, shaped(rng, scheme), FLOATS[rng.integers(3)])
    if rng.integers(4) == 0 and x.size:
        x.reshape(-1)[rng.integers(x.size)] = np.nan
    if scheme.is_struct:
        importance = rng.random((*x.shape[:-2], x.shape[-1]), np.float32) if rng.integers(2) else None
        return Case(name, (anyhow(x, rng), scheme), {"measure": bool(rng.integers(2)), "importance": importance})
    ties, zero = rng.choice(["even", "zero", "away"]), rng.choice(["signed", "positive"])
    options: dict[str, Any] = {"measure": bool(rng.integers(2)), "nonfinite": rng.choice(["error", "poison"])}
    if scheme.scale == "e8m0":
        options |= {"scale_rule": rng.choice(POWERS), "ties": ties, "zero": zero, "overflow": "inf"}
    else:
        options |= {"scale_rule": "minmax" if scheme.zero else "amax"}
    options = {k: v if isinstance(v, bool) else str(v) for k, v in options.items()}
    if rng.integers(3) == 0:
        options |= {"search": "mse", "search_grid": (0.8, 1.1)}
    return Case(name, (anyhow(x, rng), scheme), options)


def dequantize(rng: np.random.Generator) -> Case:
    name, scheme = formats(rng)
    q = quantized(scheme, shaped(rng, scheme), seed=int(rng.integers(1 << 30)))
    q = QTensor(scheme=scheme, **{n: anyhow(a, rng) for n, a in q.components.items()})
    overflow = "clamp" if rng.integers(2) else "error"
    return Case(name, (q, str(rng.choice(["BF16", "F32", "F16"]))), {"overflow": overflow})


def cast(rng: np.random.Generator) -> Case:
    source, to = (str(rng.choice(["BF16", "F32", "F16", "F64"])) for _ in range(2))
    shape = tuple(int(n) for n in rng.integers(1, 70, rng.integers(1, 4)))
    x = random_bytes(TensorSpec(shape, source), shape, rng)
    return Case(f"{source} to {to}", (anyhow(x, rng), to), {"overflow": str(rng.choice(["error", "clamp", "inf"]))})


def weights(rng: np.random.Generator, *shape: int) -> tuple[str, Any]:
    """Packed, or plain: `[…, out, in]`, where `in` becomes a multiple of what the format needs."""
    if rng.integers(4) == 0:
        dtype = FLOATS[rng.integers(3)]
        return dtype.name, rng.standard_normal(shape).astype(dtype)
    name, scheme = formats(rng)
    unit = scheme.column_grain if scheme.block_elems else 8
    return name, quantized(scheme, (*shape[:-1], -(-shape[-1] // unit) * unit), seed=int(rng.integers(1 << 30)))


def matmul(rng: np.random.Generator) -> Case:
    large = rng.integers(8) == 0  # for several threads
    name, w = weights(rng, *((2055, 1000) if large else map(int, (rng.integers(1, 70), rng.integers(1, 300)))))
    rows = int(rng.choice([1, 2, 3, 4, 5, 8, 9, 37]))
    x = rng.standard_normal((rows, w.shape[-1])).astype(FLOATS[rng.integers(2)])
    bias = rng.standard_normal(w.shape[0]).astype(np.float32) if rng.integers(2) else None
    return Case(name, (x, w, bias))


def moe(rng: np.random.Generator) -> Case:
    experts, tokens, k = int(rng.integers(1, 6)), int(rng.choice([1, 2, 4, 7, 23])), int(rng.integers(1, 4))
    name, w_in = weights(rng, experts, int(rng.integers(1, 5)) * 64, int(rng.integers(1, 200)))
    scheme = w_in.scheme if isinstance(w_in, QTensor) else None
    two, (out, f) = w_in, (int(rng.integers(1, 50)), w_in.shape[1])
    if scheme is not None:
        unit = scheme.column_grain if scheme.block_elems else 8
        f = -(-f // unit) * unit
        w_in, two = (quantized(scheme, (experts, f, w_in.shape[2]), seed=s) for s in (1, 2))
        w_out = quantized(scheme, (experts, out, f), seed=3)
    else:
        w_out = rng.standard_normal((experts, out, f)).astype(w_in.dtype)
    x = (rng.standard_normal((tokens, w_in.shape[2])) / 16).astype(FLOATS[rng.integers(2)])
    chosen = rng.integers(0, experts, (tokens, k)).astype(np.int32)
    shares = np.where(rng.integers(0, 5, (tokens, k)) == 0, 0, rng.uniform(0.1, 1, (tokens, k))).astype(np.float32)
    bias = rng.standard_normal((experts, out)).astype(np.float32)
    return Case(name, (x, chosen, shares, (w_in, two), (None, None), w_out, bias), {"activation": glu})


def attention(rng: np.random.Generator) -> Case:
    batch, key_heads, group = (int(rng.integers(1, n)) for n in (4, 4, 5))
    queries, slots = int(rng.choice([1, 1, 2, 9, 40])), int(rng.choice([1, 5, 63, 64, 65, 200, 1500]))
    dims, held = int(rng.integers(1, 80)), int(rng.integers(0, slots + 1))
    value_dims = int(rng.integers(1, 80))
    q = rng.standard_normal((batch, queries, key_heads * group, dims)).astype(FLOATS[rng.integers(2)])
    name = str(rng.choice(["float32", "bfloat16", "int8", "e4m3"]))
    shapes = [(batch, slots, key_heads, d) for d in (dims, value_dims)]
    if name in ("int8", "e4m3"):
        k, v = (quantized(Scheme(name, 0, "f32"), s, seed=int(rng.integers(1 << 30))) for s in shapes)
    else:
        k, v = (rng.standard_normal(s).astype(FLOATS[name == "bfloat16"]) for s in shapes)
    slot = np.full((batch, slots), -1, np.int32)
    for row in slot:
        row[rng.permutation(slots)[:held]] = np.arange(held)
    at = rng.integers(-1, held + 2, (batch, queries)).astype(np.int32)
    options: dict[str, Any] = {"scale": dims**-0.5 / (300 if isinstance(k, QTensor) else 1)}
    options |= {"causal": bool(rng.integers(4)), "window": [None, 1, 7, 300][rng.integers(4)]}
    options |= {"softcap": 5.0} if rng.integers(2) else {}
    options |= {"sinks": rng.standard_normal(key_heads * group).astype(np.float32)} if rng.integers(2) else {}
    return Case(name, (q, k, v, at, slot), options)


def gptq(rng: np.random.Generator) -> Case:
    name = str(rng.choice([*gptq_cases.FORMATS]))
    scheme, recipe = gptq_cases.FORMATS[name]
    n = (scheme.block_elems or 32) * int(rng.integers(1, 6))
    case = gptq_cases.call(rng, scheme, int(rng.integers(1, 70)), n, bool(rng.integers(2)), **recipe)
    x, factor, _ = case.args
    return Case(name, (anyhow(x, rng), guarded(np.ascontiguousarray(factor)), scheme), case.options)


def quantize_by_outputs(rng: np.random.Generator) -> Case:
    name = str(rng.choice([*by_outputs_cases.FORMATS]))
    scheme, recipe = by_outputs_cases.FORMATS[name]
    n = (scheme.block_elems or 32) * int(rng.integers(1, 6))
    case = by_outputs_cases.call(rng, scheme, int(rng.integers(1, 70)), n, **recipe)
    x, hessian, _ = case.args
    return Case(name, (anyhow(x, rng), guarded(hessian), scheme), case.options)


def rope(rng: np.random.Generator) -> Case:
    batch, tokens, heads, half = (int(rng.integers(1, n)) for n in (4, 70, 20, 40))
    x = rng.standard_normal((batch, tokens, heads, 2 * half + int(rng.integers(0, 9)))).astype(FLOATS[rng.integers(3)])
    at = rng.integers(-1, 100000, (batch, tokens)).astype(np.int32)
    options = {"concentration": 1.3, "interleaved": bool(rng.integers(2))}
    return Case(x.dtype.name, (x, at, (500.0 ** -rng.random(half)).astype(np.float32)), options)


def embed(rng: np.random.Generator) -> Case:
    name, w = weights(rng, *map(int, (rng.integers(1, 70), rng.integers(1, 900))))
    ids = rng.integers(0, w.shape[0], tuple(rng.integers(0, 20, 2))).astype(np.int32)
    return Case(name, (ids, w), {"dtype": FLOATS[rng.integers(3)]})


def rms_norm(rng: np.random.Generator) -> Case:
    rows, n = int(rng.integers(0, 70)), int(rng.integers(1, 700))
    x, weight = (rng.standard_normal(shape).astype(FLOATS[rng.integers(3)]) for shape in ((rows, n), n))
    options = {"eps": float(rng.choice([0.0, 1e-5, 1.0])), "plus_one": bool(rng.integers(2))}
    return Case(f"{x.dtype.name} times {weight.dtype.name}", (x, weight), options)


CALLS: Mapping[str, Callable[[np.random.Generator], Case]] = {
    "quantize": quantize, "dequantize": dequantize, "cast": cast, "matmul": matmul, "moe": moe,
    "attention": attention, "embed": embed, "rope": rope, "rms_norm": rms_norm, "gptq": gptq,
    "quantize_by_outputs": quantize_by_outputs,
}  # fmt: skip
CODECS = ("quantize", "dequantize", "cast", "gptq", "quantize_by_outputs")
MOST_TRIED = 30  # for each that is not declined


def ops() -> list[tuple[str, str]]:
    """All (op, backend) that are native."""
    return [(op, name) for op in rooms() for name in backends_of(op) if name.startswith("native")]


def cases(op: str, backend: str, seed: int, count: int) -> Iterator[Case]:
    """Random calls that are not declined; of ops that have none here, the named ones of their corpus."""
    undeclined = partial(_undeclined, Kernel(op, (backend,)))
    if op in CALLS:
        many = (CALLS[op](np.random.default_rng([seed, i, *op.encode()])) for i in range(MOST_TRIED * count))
        yield from islice(filter(undeclined, many), count)
    else:
        yield from filter(undeclined, import_module(f"{ROOM}.{op}.cases").cases())


def _undeclined(kernel: Kernel, case: Case) -> bool:
    try:
        return kernel.resolve(*case.args, **case.options).backend is not None
    except ConfigError:  # options that do not go together
        return False


def call(op: str, backend: str, case: Case) -> Callable[[], Any]:
    """What makes the call again and again, compiled once."""
    if op in CODECS:
        return partial(outcome, op, backend, case)
    static = {k: v for k, v in case.options.items() if not isinstance(v, np.ndarray)}
    traced = {k: v for k, v in case.options.items() if isinstance(v, np.ndarray)}
    # What fits is read where it lies, up to the guard; the rest is copied by JAX.
    args, traced = jax.tree.map(lambda x: jax.device_put(guarded(np.asarray(x)), may_alias=True), (case.args, traced))
    program = jax.jit(partial(load(op, backend), **static)).lower(*args, **traced).compile()
    return lambda: np.asarray(program(*args, **traced))


def content(found: Any) -> bytes:
    """What tells results apart."""
    if isinstance(found, tuple):
        return b"".join(map(content, found))
    if isinstance(found, QTensor):
        return b"".join(np.asarray(a).tobytes() for a in found.components.values())
    return found.tobytes() if isinstance(found, np.ndarray) else repr(found).encode()


def check(op: str, backend: str, case: Case, found: Any) -> None:
    """
    Raises:
        AssertionError: it is not what the others give.
    """
    others = Kernel(op, ("numpy", DEFINITION) if "numpy" in backends_of(op) else (DEFINITION,))
    choice = others.resolve(*case.args, **case.options)
    assert choice.backend is not None
    if op in CODECS:
        wrong = difference(outcome(op, choice.backend, case), found, rtol=1e-5)
        assert wrong is None, wrong
    else:
        expected = load(op, choice.backend)(*case.args, **case.options)
        agree(expected, found, unit=max(unit_of(expected.dtype), about(backend).unit))


def gradients(seed: int, isas: tuple[str, ...]) -> None:
    """Of one random call of each op that has any, each under another instruction set, held to those of float64."""
    for i, op in enumerate(("matmul", "moe", "attention", "rope")):
        os.environ[library.ISA] = isas[i % len(isas)]
        contract = type("Contract", (ModelOpContract,), {"op": op})()
        plain = filter(partial(_plain, contract), cases(op, "native", seed, MOST_TRIED))
        contract.test_gradients_are_those_of_float64("native", next(plain))


def _plain(contract: ModelOpContract, case: Case) -> bool:
    """Whether all that it has of numbers is float32: C++ takes no gradients through packed weights."""
    call = Call.of(case, contract.constants())
    packed = any(isinstance(leaf, QTensor) for leaf in call.leaves)
    return not packed and {f.dtype.name for f in call.floats} == {"float32"}


def limits(rng: np.random.Generator) -> None:
    """The functions that benchmarks measure with, over an array that ends where nobody may read."""
    x, found = guarded(rng.integers(0, 256, 64 * int(rng.integers(1, 99)), np.uint8)), np.zeros(1, np.float32)
    machine.limits().wm_limit_read(library.isa(), x.ctypes.data, x.nbytes)
    machine.limits().wm_limit_multiply_add(library.isa(), 3, 0.5, found.ctypes.data)
    machine.limits().wm_limit_dot_int8(library.isa(), 3, 0.5, found.ctypes.data)


def main(seed: int, count: int) -> None:
    ctypes.CDLL = Watched  # type: ignore[misc]
    jax.config.update("jax_disable_most_optimizations", True)  # programs that run twice
    isas = (*library.ISAS[: library.isa() + 1], "")  # at last with whatever the machine has beside its instruction set
    made, done = [], Counter[str]()
    for op, backend in ops():
        for i, case in enumerate(cases(op, backend, seed, count)):
            os.environ[library.ISA] = isa = isas[i % len(isas)]
            said = f"{op} {backend} {i}: {case.name} {[getattr(a, 'shape', None) for a in case.args]} {isa}"
            print(said, file=sys.stderr, flush=True)  # the last line is the one that ended it
            again = call(op, backend, case)
            found = again()
            check(op, backend, case, found)
            made.append((isa, again, content(found), said))
            done[f"{op} {backend} {case.name}" if op in CALLS else f"{op} {backend}"] += 1
    gradients(seed, isas)
    with ThreadPoolExecutor(3) as pool:
        for isa in isas:
            os.environ[library.ISA] = isa
            limits(np.random.default_rng([seed, len(isa)]))
            mine = [one for one in made if one[0] == isa]
            for (_, _, before, said), found in zip(mine, pool.map(lambda one: one[1](), mine), strict=True):
                assert content(found) == before, f"other numbers at another time: {said}"
    digest = hashlib.sha256(b"".join(before for _, _, before, _ in made)).hexdigest()
    print(json.dumps({"done": done, "entered": sorted(Watched.entered), "digest": digest}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
