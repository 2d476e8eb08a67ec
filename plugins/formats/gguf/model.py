"""GGUF as a dialect: llama.cpp's names, its order of rows, its metadata for config.json, its tokenizer inside.

Types that are schemes (MXFP4, NVFP4, Q8_0, Q4_0, Q4_1) go both ways without touching a value, and those that are
structs (Q4_K, …) byte for byte. Any other type is read as the F32 values it decodes to.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from pipeline.errors import PlanError, Problem, did_you_mean, strangers
from pipeline.formats import PEEKED
from pipeline.tensors.binding import Binding, Bound, Part
from pipeline.tensors.scheme import Scheme
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.steps import Lane
from pipeline.tensors.views import stored_leaves
from plugins.facts.ggml_mixes import MIX_NUMBERS, mix_of
from plugins.formats.gguf import sampling
from plugins.formats.gguf.archs import ARCHS
from plugins.formats.gguf.config import ROPE_FREQS, sizes_of, to_config, to_kv, too_many
from plugins.formats.gguf.general import METADATA
from plugins.formats.gguf.general import from_kv as metadata_file
from plugins.formats.gguf.general import to_kv as kept_metadata
from plugins.formats.gguf.packing import Ggml, OfStack, PerMatrix, Structs
from plugins.formats.gguf.table import Arch, Entry, entries
from plugins.formats.gguf.tokenizer import GENERATION, NO_TOKENIZER, TAKES, from_kv, tokenizer_kv, unsaid
from plugins.formats.gguf.types import FILE_TYPES, KEPT_WHOLE, PLAIN, SCHEMES, UNREADABLE, stored_shape, type_of

KEY = "gguf"  # what the container tells us, and we tell it
FLOATS = ("BF16", "F16", "F32")
IGNORED = {
    ".input_scale": "scale of activations, which nothing here quantizes",
    ROPE_FREQS: "its factors are rope_scaling of config.json",
}


@dataclass(frozen=True, slots=True)
class GgufDialect:
    """One dialect for all architectures of `gguf_table`; the file, or config.json, says which.

    Attributes:
        pre: `tokenizer.ggml.pre` to write, for a tokenizer.json whose splitting is not one known here.
    """

    companions: ClassVar[tuple[str, ...]] = ()
    peeks: ClassVar[tuple[str, ...]] = (ROPE_FREQS, "*_exps.scale")
    takes: ClassVar[tuple[str, ...]] = (*TAKES, METADATA)
    own: ClassVar[tuple[Scheme, ...]] = (*(SCHEMES[kind] for kind in ("Q8_0", "Q4_0", "Q4_1")), *KEPT_WHOLE.values())

    pre: str | None = None

    def recognizes(self, leaves: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> bool:
        """By the metadata that only the GGUF container hands over."""
        return KEY in config

    def decode(self, leaves: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> Binding:
        """See `Dialect.decode`. config.json, the tokenizer's files and `METADATA` are made from the metadata."""
        given = config[KEY]
        kv, types = given["kv"], given["types"]
        name = kv.get("general.architecture", ("", None))[1]
        arch = ARCHS.get(name) if isinstance(name, str) else None
        if arch is None:
            known = f" (known: {', '.join(ARCHS)})"
            raise PlanError([Problem("general.architecture", f"{name!r:.60} is not known{known}")])
        peeked = config.get(PEEKED, {})
        made, problems = to_config(arch, kv, leaves, peeked.get(ROPE_FREQS))
        if problems:
            raise PlanError(problems)
        tensors: dict[str, Bound] = {}
        table = list(entries(arch, sizes_of(made)))
        for entry in table:
            bound = _bind(entry, leaves, types, peeked, problems)
            if bound is not None:
                tensors[entry.logical] = bound
        ignored = {n: why for n in leaves for end, why in IGNORED.items() if n.endswith(end)}
        expected = {leaf for entry in table for leaf in entry.leaves}
        problems += _check(leaves, stored_leaves(tensors), expected | ignored.keys())
        if problems:
            raise PlanError(problems)
        decoded = sorted({kind for kind in types.values() if kind not in (*PLAIN, *SCHEMES, *KEPT_WHOLE)})
        notes = [f"{', '.join(decoded)} decoded"] if decoded else []
        files = from_kv(kv, made)
        kind = "/".join(str(kv[k][1])[:60] for k in ("tokenizer.ggml.model", "tokenizer.ggml.pre") if k in kv)
        if not files and kind not in ("", "none", "no_vocab"):
            notes.append(f"tokenizer {kind} left out")
        return Binding(tensors, dict(leaves), made, ignored, files=files | metadata_file(kv), notes=tuple(notes))

    def encode(self, tensors: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> Binding:
        """See `Dialect.encode`. Everything goes into the GGUF file: no config.json and no tokenizer beside it."""
        model_type = config.get("model_type")
        arch = next((a for a in ARCHS.values() if a.writes(model_type)), None)
        if arch is None:
            known = [name for a in ARCHS.values() for name in (a.model_type, *a.aliases)]
            text = f"model_type {model_type!r:.60} has no GGUF table here (known: {', '.join(known)})"
            raise PlanError([Problem("config.json", text + did_you_mean(str(model_type), known))])
        settings, factors, problems = to_kv(arch, config)
        problems = problems or too_many(arch, config, len(tensors), len(tensors))
        if problems:
            raise PlanError(problems)
        bound: dict[str, Bound] = {}
        types: dict[str, str] = {}
        table = list(entries(arch, sizes_of(config)))
        for entry in table:
            made = _express(entry, tensors.get(entry.logical), problems)
            if made is not None:
                bound[entry.logical] = made
                types |= {p.leaf: _kind(p) for p in made.parts}
        names = dict.fromkeys(e.logical for e in table)
        problems += strangers((n for n in tensors if n not in names), names, f"{arch.name} in GGUF has no such tensor")
        tokenizer, more = tokenizer_kv(config, self.pre)
        kept, wrong = kept_metadata(config)
        problems += [*more, *wrong]
        if tokenizer.get("tokenizer.ggml.model") == NO_TOKENIZER:  # llama.cpp counts the tokens where there are some
            settings[f"{arch.name}.vocab_size"] = ("uint32", config["vocab_size"])
        if problems:
            raise PlanError(problems)
        drawn = sampling.to_kv(config.get(GENERATION) or {})
        kv = {**_general(arch, bound, config), **kept, **drawn, **settings, **tokenizer}
        leaves, constants = stored_leaves(bound), {}
        if factors is not None:
            leaves = {ROPE_FREQS: TensorSpec(factors.shape, "F32"), **leaves}
            types[ROPE_FREQS], constants = "F32", {ROPE_FREQS: factors.astype("<f4").tobytes()}
        return Binding(
            bound,
            leaves,
            {},
            constants=constants,
            metadata={KEY: {"kv": kv, "types": types}},
            drop=(*self.takes, "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt"),
            notes=tuple(filter(None, [unsaid(config, tokenizer)])),
        )


def _bind(
    entry: Entry,
    leaves: Mapping[str, TensorSpec],
    types: Mapping[str, str],
    peeked: Mapping[str, Any],
    problems: list[Problem],
) -> Bound | None:
    """The tensor that leaves of the types they have hold; shapes are checked afterwards, all together."""

    def refuse(leaf: str, text: str) -> None:
        if not entry.expert:  # what is wrong with a stack of experts is said once
            problems.append(Problem(leaf, text))

    missing = [leaf for leaf in entry.leaves if leaf not in leaves]
    for leaf in missing:
        refuse(leaf, f"missing; {entry.logical} {list(entry.shape)} is stored there")
    if missing:
        return None
    kinds = [types[leaf] for leaf in entry.leaves]
    kind, scheme = kinds[0], (SCHEMES | KEPT_WHOLE).get(kinds[0])
    if len(set(kinds)) > 1:
        text = f"is {kinds[1]}, {entry.leaves[0]} is {kind}; the two are one tensor, {entry.logical}, and must agree"
        refuse(entry.leaves[1], text)
        return None
    try:
        stored_shape(kind, entry.shape)
    except ValueError as why:
        refuse(entry.leaves[0], str(why))
        return None
    if kind in UNREADABLE or (kind in PLAIN and kind not in FLOATS):
        refuse(entry.leaves[0], f"has type {kind}, which weights cannot be read from")
        return None
    if entry.plus and kind not in PLAIN:
        refuse(entry.leaves[0], f"has type {kind}; a norm that is stored plus one is plain ({', '.join(FLOATS)})")
        return None
    parts = _parts(entry, kind, "")
    dtype = "BF16" if scheme is not None else kind if kind in PLAIN and not entry.plus else "F32"
    spec = TensorSpec(entry.shape, dtype, scheme)
    scales = [_scale_leaf(leaf) for leaf in entry.leaves if kind == "NVFP4" and _scale_leaf(leaf) in leaves]
    if not scales:
        return Bound(spec, parts)
    if len(scales) < len(entry.leaves) or any(not np.array_equal(peeked[s], peeked[scales[0]]) for s in scales[1:]):
        text = f"{' and '.join(entry.leaves)} are one tensor, {entry.logical}, and need the same second scales"
        refuse(scales[-1], text)
        return None
    return _scaled(entry, spec, parts)


def _express(entry: Entry, spec: TensorSpec | None, problems: list[Problem]) -> Bound | None:
    """Where a logical tensor is to lie, and in which type."""
    where = entry.logical
    if spec is None:
        problems.append(Problem(where, f"missing; its shape would be {list(entry.shape)}"))
        return None
    if spec.shape != entry.shape:
        problems.append(Problem(where, f"has shape {list(spec.shape)}, config.json asks for {list(entry.shape)}"))
        return None
    kind = type_of(spec)
    if kind is None or (spec.scheme is None and kind not in FLOATS):
        can = f"plain {', '.join(FLOATS)}, and {', '.join((*SCHEMES, *KEPT_WHOLE))}"
        problems.append(Problem(where, f"is {spec.encoding}; a GGUF file can be written with {can}"))
        return None
    if spec.scheme is not None and not entry.packs:
        problems.append(Problem(where, f"is {spec.encoding}; llama.cpp takes it as F32 only"))
        return None
    try:
        stored_shape(kind, spec.shape)
    except ValueError as why:
        problems.append(Problem(where, str(why)))
        return None
    if spec.scheme is not None and spec.scheme.second and not entry.scaled:
        text = f"is {spec.encoding}; llama.cpp leaves its second scales out: quantize with quant.second=null"
        problems.append(Problem(where, text))
        return None
    if not entry.packs and kind != "F32":
        return Bound(spec, _parts(entry, "F32", kind))
    parts = _parts(entry, kind, "")
    return _scaled(entry, spec, parts) if spec.scheme is not None and spec.scheme.second else Bound(spec, parts)


def _parts(entry: Entry, kind: str, given: str) -> tuple[Part, ...]:
    """Where a tensor lies in its leaves."""
    is_struct = kind in KEPT_WHOLE
    whole = Structs(kind, entry.head) if is_struct else Ggml(kind, given, entry.head, entry.plus)
    packing = whole if entry.expert is None else OfStack(entry.expert, whole)
    component = "codes" if is_struct else "*" if kind in SCHEMES else "values"
    step = len(entry.leaves)
    return tuple(
        Part(leaf, component, (packing,), (Lane(entry.lane_dim, i, step),) if step > 1 else ())
        for i, leaf in enumerate(entry.leaves)
    )


def _kind(part: Part) -> str:
    """The ggml type of a leaf."""
    (packing,) = part.steps
    packing = packing.of if isinstance(packing, OfStack) else packing
    return packing.kind if isinstance(packing, Ggml | Structs) else "F32"


def _scale_leaf(leaf: str) -> str:
    return leaf.removesuffix(".weight") + ".scale"


def _scaled(entry: Entry, spec: TensorSpec, parts: tuple[Part, ...]) -> Bound:
    """With the second scales of NVFP4, a leaf beside each leaf of blocks (conversion/base.py of llama.cpp).

    A tensor whose rows are in two leaves has one second scale a matrix, which both leaves' scales repeat.
    """
    assert spec.scheme is not None
    packing = PerMatrix(None if len(spec.shape) > 2 else entry.expert or 0)
    scales = [Part(_scale_leaf(leaf), "second", (packing,)) for leaf in entry.leaves]
    return Bound(replace(spec, scheme=replace(spec.scheme, second="f32")), (*parts, *scales))


def _check(leaves: Mapping[str, TensorSpec], wanted: Mapping[str, TensorSpec], known: set[str]) -> Iterator[Problem]:
    """Shapes that are wrong, and leaves that nothing takes."""
    for name, want in wanted.items():
        if leaves[name] != want:
            text = (
                f"is stored as {leaves[name].dtype}{list(leaves[name].shape)}, expected {want.dtype}{list(want.shape)}"
            )
            yield Problem(name, text)
    unknown = (n for n in leaves if n not in wanted and n not in known)
    yield from strangers(unknown, wanted, "is not a tensor of this architecture, or not with this metadata")


def _general(arch: Arch, bound: Mapping[str, Bound], config: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """What every GGUF file says of itself."""
    specs = {name: b.spec for name, b in bound.items()}
    name = str(config.get("_name_or_path") or "").rstrip("/").rpartition("/")[2]
    kv = {
        "general.architecture": ("string", arch.name),
        "general.type": ("string", "model"),
        "general.name": ("string", name or arch.model_type),
        "general.file_type": ("uint32", _file_type(specs)),
    }
    if any(spec.scheme is not None for spec in specs.values()):
        kv["general.quantization_version"] = ("uint32", 2)  # GGML_QUANT_VERSION
    return kv


def _file_type(specs: Mapping[str, TensorSpec]) -> int:
    """The mix that the tensors are, else the type of most values."""
    kinds = {name: type_of(spec) or "F32" for name, spec in specs.items()}
    packed = {name: kind.lower() for name, kind in kinds.items() if specs[name].scheme is not None}
    if (mix := mix_of(packed, specs)) is not None:
        return MIX_NUMBERS[mix]
    weight: Counter[str] = Counter()
    for name, kind in kinds.items():
        weight[kind] += specs[name].size
    return FILE_TYPES[max(weight, key=lambda k: weight[k])]
