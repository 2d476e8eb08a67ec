"""GGUF files of tiny models of every architecture: metadata, tensor entries and bytes changed; then through load and
everything that follows it."""

import math
import random
import struct
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from plugins.formats.gguf.archs import ARCHS
from plugins.formats.gguf.config import sizes_of, to_kv
from plugins.formats.gguf.header import FIXED, VALUE_TYPES
from plugins.formats.gguf.table import entries
from tests.cases.hostile.gguf_files import FILES, GOOD
from tests.fuzz.driver import Files, put
from tests.fuzz.loading import config, opened, used
from tests.fuzz.mutate import NUMBERS, TEXTS, changed_bytes, one

TYPES = {name: number for number, name in VALUE_TYPES.items()}
SEEDS = [d for d, _ in FILES.values()]
MERGES = ["a b", "ab c", "", " ", "a"]
KV = dict[str, tuple[str, Any]]
Tensors = list[tuple[bytes, tuple[int, ...], int, int]]  # name, dimensions fastest first, type, bytes


@cache
def seed(name: str) -> tuple[KV, Tensors]:
    """A model of the architecture, of zeros in F32, with a vocabulary of 40 tokens."""
    arch, given = ARCHS[name], config(name)
    kv: KV = {"general.architecture": ("string", name), "general.name": ("string", "tiny"), **to_kv(arch, given)[0]}
    pieces = name in ("llama", "gemma3")
    tokens = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{i:02X}>" for i in range(7)),
        *(chr(97 + i) for i in range(26)),
        "ab",
        "abc",
        "▁",
        "▁a",
    ]
    own: KV = {
        "model": ("string", "llama" if pieces else "gpt2"),
        "pre": ("string", "default" if pieces else "qwen2"),
        "tokens": ("array:string", tokens),
        "scores": ("array:float32", [-float(i) for i in range(40)]),
        "token_type": ("array:int32", [2, 3, 3, *[6] * 7, *[1] * 30]),
        "merges": ("array:string", MERGES),
        "bos_token_id": ("uint32", 1),
        "eos_token_id": ("uint32", 2),
        "add_bos_token": ("bool", True),
        "add_space_prefix": ("bool", True),
    }
    kv |= {f"tokenizer.ggml.{key}": entry for key, entry in own.items()}
    kv["tokenizer.chat_template"] = ("string", "{{ messages }}<|im_end|>")
    tensors: dict[bytes, tuple[bytes, tuple[int, ...], int, int]] = {}
    for entry in entries(arch, sizes_of(given)):
        shape = list(entry.shape)
        if entry.expert is not None:
            shape = [given["num_experts"], *shape]
        if len(entry.leaves) > 1:
            shape[entry.lane_dim] //= len(entry.leaves)
        for leaf in entry.leaves:
            nbytes = 4
            for d in shape:
                nbytes *= d
            tensors[leaf.encode()] = (leaf.encode(), tuple(reversed(shape)), 0, nbytes)
    return kv, list(tensors.values())


def text(raw: bytes) -> bytes:
    return struct.pack("<Q", len(raw)) + raw


def _packed(kind: str, value: Any) -> bytes:
    if kind == "string":
        return text(value if isinstance(value, bytes) else str(value).encode(errors="surrogatepass"))
    if kind in ("float32", "float64"):
        try:
            return struct.pack("<" + FIXED[kind], float(value))
        except (OverflowError, ValueError, TypeError):
            return struct.pack("<" + FIXED[kind], float("inf"))
    size = struct.calcsize("<" + FIXED[kind])
    number = int(value) if isinstance(value, int | float) and math.isfinite(value) else 7
    return (number & (1 << 128) - 1).to_bytes(16, "little")[:size]


def file(kv: KV, tensors: Tensors) -> bytes:
    """The bytes of a file, its data zeros."""
    out = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(kv))]
    for key, (kind, value) in kv.items():
        outer, _, inner = kind.partition(":")
        out.append(text(key.encode(errors="surrogatepass")) + struct.pack("<I", TYPES[outer]))
        if inner:
            out.append(struct.pack("<IQ", TYPES[inner], len(value)) + b"".join(_packed(inner, v) for v in value))
        else:
            out.append(_packed(kind, value))
    at = 0
    for name, dims, kind_number, nbytes in tensors:
        out.append(
            text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *(d % 2**64 for d in dims), kind_number, at)
        )
        at += -(-nbytes // 32) * 32
    head = b"".join(out)
    return head + bytes(-len(head) % 32 + at)


def _entry(rng: random.Random, old: Any) -> tuple[str, Any]:
    """A metadata value of any type, often near the one that was there."""
    kind = one(rng, tuple(k for k in TYPES if k != "array"))
    if rng.random() < 0.4:
        return f"array:{kind}", [_plain(rng, kind) for _ in range(rng.randrange(5))]
    if rng.random() < 0.3 and isinstance(old, list):
        return f"array:{kind}", old
    return kind, _plain(rng, kind)


def _plain(rng: random.Random, kind: str) -> Any:
    if kind == "string":
        return one(rng, TEXTS)
    return (
        rng.randrange(2) if kind == "bool" else int(one(rng, NUMBERS)) % 2**63 if "int" in kind else one(rng, NUMBERS)
    )


def make(rng: random.Random) -> Files:  # noqa: C901  one case after the other, with their odds
    kind = rng.random()
    if kind < 0.1:
        return {"model.gguf": changed_bytes(rng, one(rng, (GOOD, *SEEDS)) or GOOD, GOOD)}
    kv, tensors = seed(one(rng, tuple(ARCHS)))
    kv, tensors = dict(kv), list(tensors)
    for _ in range(one(rng, (0, 1, 1, 1, 2, 4))):
        key, (old_kind, old) = one(rng, tuple(kv.items()))
        change = rng.randrange(6)
        if change == 0:
            del kv[key]
        elif change == 1 and isinstance(old, list) and old:
            copy = list(old)
            copy[rng.randrange(len(copy))] = _plain(rng, old_kind.partition(":")[2])
            kv[key] = (old_kind, copy[: rng.randrange(len(copy) + 1)] if rng.random() < 0.3 else copy)
        elif change in (2, 3) and ":" not in old_kind:
            kv[key] = (old_kind, _plain(rng, old_kind))
        else:
            kv[key] = _entry(rng, old)
    for _ in range(one(rng, (0, 0, 0, 1, 2))):
        i = rng.randrange(len(tensors))
        name, dims, number, nbytes = tensors[i]
        change = rng.randrange(6)
        if change == 0:
            del tensors[i]
        elif change == 1:
            tensors[i] = (changed_bytes(rng, name), dims, number, nbytes)
        elif change == 2:
            dims = tuple(int(one(rng, NUMBERS)) % 2**63 if rng.random() < 0.3 else d for d in dims)
            tensors[i] = (name, dims, number, nbytes)
        elif change == 3:
            tensors[i] = (name, dims, rng.randrange(45), nbytes)
        elif change == 4:
            tensors.append((b"rope_freqs.weight", (rng.randrange(6),), 0, 4 * rng.randrange(6)))
        else:
            tensors[i] = (name, (*dims, 0)[-4:], number, 0)
        if not tensors:
            break
    data = file(kv, tensors)
    if kind < 0.25:
        head = data[: min(len(data), 3000)]
        data = changed_bytes(rng, head, GOOD) + data[len(head) :]
    return {"model.gguf": data}


def run(files: Mapping[str, bytes], folder: Path) -> None:
    put(files, folder)
    used(opened(folder))
