"""Which matrices of a model get other types than most: the mixes of llama-quantize, as data, and how a file says so.

Source: `llama_tensor_get_type_impl` in llama-quant.cpp of llama.cpp (with ggml 0.25), for architectures that have
weight tables here. The head is no part of it: a rule gives it Q6_K.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from pipeline.tensors.spec import TensorSpec

# What rows get that a super-block does not divide: `tensor_type_fallback` in llama-quant.cpp of llama.cpp (ggml 0.25).
FALLBACK = {"q2_k": "q4_0", "q3_k": "q4_0", "q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0"}
# llama_ftype of llama.h: the number of each mix in a file, and of those of one type whatever the rows.
MIX_NUMBERS = {
    "q2_k": 10, "q3_k_s": 11, "q3_k_m": 12, "q3_k_l": 13, "q4_k_s": 14, "q4_k_m": 15, "q5_k_s": 16, "q5_k_m": 17,
    "q2_k_s": 21,
}  # fmt: skip

When = Literal["always", "more", "first eighth", "first sixteenth", "first 2", "first 4", "4 queries a key"]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a mix; the first that holds for a matrix decides.

    Attributes:
        matrix: `v`, `o` or `down`.
        kind: what it gets.
        when: in which layers: `more` is the first and the last eighth, and of the others every third.
    """

    matrix: str
    kind: str
    when: When = "always"


MIXES: Mapping[str, tuple[Row, ...]] = {
    "q2_k": (Row("v", "q4_k", "4 queries a key"), Row("v", "q3_k"), Row("down", "q3_k"), Row("o", "q3_k")),
    "q2_k_s": (Row("v", "q4_k", "4 queries a key"), Row("down", "q4_k", "first eighth")),
    "q3_k_s": (),
    "q3_k_m": (
        Row("v", "q5_k", "first 2"), Row("v", "q4_k"), Row("down", "q5_k", "first sixteenth"), Row("down", "q4_k"),
        Row("o", "q4_k"),
    ),
    "q3_k_l": (Row("v", "q5_k"), Row("down", "q5_k"), Row("o", "q5_k")),
    "q4_k_s": (Row("v", "q5_k", "first 4"), Row("down", "q5_k", "first eighth")),
    "q4_k_m": (Row("v", "q6_k", "more"), Row("down", "q6_k", "more")),
    "q5_k_s": (),
    "q5_k_m": (Row("v", "q6_k", "more"), Row("down", "q6_k", "more")),
}  # fmt: skip
OF_EIGHT = {"v": "q8_0", "k": "q8_0"}  # what every mix gives them where a layer has 8 experts
O_OF_EIGHT = ("q2_k", "q3_k_s", "q3_k_m", "q4_k_s", "q4_k_m")  # which give `o` Q5_K there, and the others nothing
OF_70B = {"q3_k": "q5_k", "q4_k": "q5_k"}  # what `v` gets in place of these in 80 layers whose queries share keys

_MATRIX = re.compile(r"layers\.(\d+)\.(?:self_attn\.([qkvo])_proj\.weight|mlp\.(?:.+\.)?(down)_proj(?:\.weight)?)$")
_EXPERT = re.compile(r"\.experts\.(\d+)\.")


def mixed(mix: str, most: str, names: Iterable[str], specs: Mapping[str, TensorSpec]) -> dict[str, str]:
    """Tensor → the kind that it gets, of those of `names` that get another than `most`.

    Args:
        mix: of `MIXES`.
        specs: of all tensors of the model.
    """
    layers, experts = _layers(specs), _experts(specs)
    shared = _queries_a_key(specs)
    found = {}
    for name in names:
        if (match := _MATRIX.search(name)) is None:
            continue
        layer, matrix = int(match[1]), match[2] or match[3]
        rows = (r.kind for r in MIXES[mix] if r.matrix == matrix and _holds(r.when, layer, layers, shared))
        kind = next(rows, most)
        if matrix == "v" and layers == 80 and shared > 1:
            kind = OF_70B.get(kind, kind)
        if experts == 8:
            if matrix == "o":
                kind = "q5_k" if mix in O_OF_EIGHT else most
            kind = OF_EIGHT.get(matrix, kind)
        if kind != most:
            found[name] = kind
    return found


def mix_of(kinds: Mapping[str, str], specs: Mapping[str, TensorSpec]) -> str | None:
    """The mix that has made a model of what its matrices are, a key of `MIXES`; None where none has.

    Args:
        kinds: of all packed tensors the type, in small letters. Those that are in no layer say nothing: rules decide.
        specs: of all tensors of the model.
    """
    names = [name for name in kinds if "layers." in name]
    if not any(kinds[n].endswith("_k") for n in names):  # what rows get that are no whole super-blocks is no sign
        return None
    for mix in MIXES:
        most = mix[: len("q2_k")]
        found = mixed(mix, most, names, specs)
        wanted = ((name, found.get(name, most)) for name in names)
        if all(kinds[n] == (FALLBACK[k] if k in FALLBACK and specs[n].shape[-1] % 256 else k) for n, k in wanted):
            return mix
    return None


def _holds(when: When, layer: int, layers: int, shared: int) -> bool:
    eighth = layers // 8
    return {
        "always": True,
        "more": layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2,
        "first eighth": layer < eighth,
        "first sixteenth": layer < layers // 16,
        "first 2": layer < 2,
        "first 4": layer < 4,
        "4 queries a key": shared >= 4,
    }[when]


def _layers(specs: Iterable[str]) -> int:
    return len({match[1] for name in specs if (match := _MATRIX.search(name))})


def _experts(specs: Mapping[str, TensorSpec]) -> int:
    """Experts of a layer, stacked or each a tensor; 0 where there are none."""
    stacked = (s.shape[0] for n, s in specs.items() if n.endswith(".mlp.experts.down_proj"))
    numbered = (int(match[1]) + 1 for n in specs if (match := _EXPERT.search(n)))
    return max([*stacked, *numbered], default=0)


def _queries_a_key(specs: Mapping[str, TensorSpec]) -> int:
    """Heads of queries that share one of keys, in the first layer."""
    rows = {letter: _rows(specs, letter) for letter in "qk"}
    return rows["q"] // rows["k"] if rows["k"] else 1


def _rows(specs: Mapping[str, TensorSpec], letter: str) -> int:
    end = f"layers.0.self_attn.{letter}_proj.weight"
    return next((s.shape[0] for n, s in specs.items() if n.endswith(end)), 0)
