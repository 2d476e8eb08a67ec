"""gpt-oss in its two written forms: Hugging Face's and the one of openai/gpt-oss.

Packed experts are the same bytes in both (`[E, out, in/32, 16]` codes and `[E, out, in/32]` scales), so changing from
one to the other is renaming, and q, k, v rows moving in and out of one fused leaf. Plain experts are not: Hugging Face
stores them transposed, `[E, in, out]`. Neither dialect quantizes or converts values.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from pipeline.errors import PlanError, Problem
from pipeline.tensors.binding import Binding, Bound, Part
from pipeline.tensors.scheme import MXFP4, Scheme
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.steps import Slice, Split, Transpose
from pipeline.tensors.views import stored_leaves
from plugins.facts import gpt_oss
from plugins.facts.dtypes import DEFAULT, TORCH
from plugins.formats.common import experts, outlines
from plugins.formats.gpt_oss.bind import bind, express
from plugins.formats.gpt_oss.config import ORIGINAL_KEYS, WHERE, from_original, sizes_of, to_original
from plugins.formats.gpt_oss.table import Entry

QUANTIZATION = "quantization_config"
SIDECAR = "hf_config.json"
BLOCKS = Split(MXFP4.block_elems * MXFP4.element_bits // 8)

# What the published checkpoints list. transformers matches these as prefixes, regular expressions or suffixes of module
# names (`should_convert_module`), and looks at `<layer>.mlp.experts` only.
NOT_CONVERTED = ("model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head")


@dataclass(frozen=True, slots=True)
class GptOss:
    """Names of `GptOssForCausalLM`; experts plain and transposed, or MXFP4 as `_blocks` and `_scales`."""

    companions: ClassVar[tuple[str, ...]] = ()

    def recognizes(self, leaves: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> bool:
        """By model_type; not when leaves have original names, nor when experts lie as [E, out, in] (see `Plain`)."""
        if not gpt_oss.is_gpt_oss(config) or _original_names(leaves):
            return False
        return not experts.are_unturned(leaves, config)

    def decode(self, leaves: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> Binding:
        """See `Dialect.decode`. The config passes through in the spelling it has."""
        sizes = sizes_of(config, len(leaves))
        ignored = {n: "rotary frequencies follow from config.json" for n in leaves if n.endswith("rotary_emb.inv_freq")}
        if sizes.tied and "lm_head.weight" in leaves:
            ignored["lm_head.weight"] = "tie_word_embeddings: model.embed_tokens.weight takes its place"
        tensors, problems = bind(self, sizes, leaves, ignored)
        method = (config.get(QUANTIZATION) or {}).get("quant_method", "mxfp4")
        if method != "mxfp4":
            text = f"quantization_config says quant_method {method!r}; gpt-oss checkpoints are read plain or as 'mxfp4'"
            problems.insert(0, Problem(WHERE, text))
        if problems:
            raise PlanError(problems)
        return Binding(tensors, stored_leaves(tensors), _without(config, QUANTIZATION), ignored)

    def outline(
        self, shapes: Mapping[str, tuple[int, ...]], config: Mapping[str, Any]
    ) -> Mapping[str, TensorSpec] | None:
        """See `pipeline.formats.DialectHooks`. All experts are packed, but for those of `modules_to_not_convert`."""
        quantization = config.get(QUANTIZATION) or {}
        if not gpt_oss.is_gpt_oss(config) or quantization.get("quant_method") != "mxfp4":
            return None
        kept, problems = _not_converted(quantization.get("modules_to_not_convert")), []
        specs = outlines.plain(shapes, config)
        for name, shape in shapes.items():
            module, _, matrix = name.rpartition(".")
            if matrix not in gpt_oss.TURNS or any(k.match(module) or module.endswith(k.pattern) for k in kept):
                continue
            if reason := MXFP4.problem(shape):
                problems.append(Problem(name, f"config.json does not allow MXFP4 here: {reason}"))
            specs[name] = replace(specs[name], dtype="BF16", scheme=MXFP4)
        if problems:
            raise PlanError(problems, exit_code=4)
        return specs

    def encode(self, tensors: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> Binding:
        """See `Dialect.encode`. Layers may differ in scheme, the two expert matrices of one layer may not: the packed
        module of transformers replaces both or neither."""
        bound, schemes, problems = express(self, sizes_of(config, len(tensors)), tensors)
        plain_layers = []
        for name, scheme in schemes.items():
            experts, matrix = name.rsplit(".", 1)
            if matrix != "gate_up_proj":
                continue
            down = f"{experts}.down_proj"
            if down in schemes and (scheme is None) != (schemes[down] is None):
                packed, plain = (down, name) if scheme is None else (name, down)
                text = (
                    f"is quantized and {plain} is not; Hugging Face gpt-oss packs both matrices of a layer or neither"
                )
                problems.append(Problem(packed, text))
            if scheme is None:
                plain_layers.append(experts)
        if problems:
            raise PlanError(problems)
        out = {**_without(config, QUANTIZATION), **_torch_dtype(bound, config)}
        if any(schemes.values()):
            out[QUANTIZATION] = {"quant_method": "mxfp4", "modules_to_not_convert": [*NOT_CONVERTED, *plain_layers]}
        return Binding(bound, stored_leaves(bound), out, drop=(SIDECAR, "dtypes.json"))

    def parts(self, entry: Entry, scheme: Scheme | None) -> tuple[Part, ...]:
        """Where `entry` lies when packed as `scheme`."""
        if scheme is None:
            return (Part(entry.logical, steps=(Transpose(),) if entry.packs else ()),)
        return (Part(f"{entry.logical}_blocks", "codes", (BLOCKS,)), Part(f"{entry.logical}_scales", "scales"))


@dataclass(frozen=True, slots=True)
class Original:
    """Names of openai/gpt-oss; q, k, v fused, experts [E, out, in] plain or MXFP4 as `.blocks` and `.scales`.

    config.json then holds exactly the keys that `gpt_oss.torch.model.ModelConfig` takes, which cannot say everything a
    Hugging Face config says. The latter is written beside it as `hf_config.json`; decoding takes it from there when it
    is present and agrees with config.json. gpt_oss.torch itself loads packed experts only; plain ones are for other
    readers of this naming.
    """

    companions: ClassVar[tuple[str, ...]] = (SIDECAR,)

    def recognizes(self, leaves: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> bool:
        """By leaf names; a config.json of another model_type is none of ours."""
        return _original_names(leaves) and config.get("model_type") in (None, gpt_oss.FAMILY)

    def decode(self, leaves: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> Binding:
        """See `Dialect.decode`. The binding's config is Hugging Face's."""
        config = _without(hugging_face_config(config, len(leaves)), QUANTIZATION)
        sizes = sizes_of(config, len(leaves))
        ignored = {}
        if sizes.tied and "unembedding.weight" in leaves:
            ignored["unembedding.weight"] = "tie_word_embeddings: embedding.weight takes its place"
        tensors, problems = bind(self, sizes, leaves, ignored)
        if problems:
            raise PlanError(problems)
        return Binding(tensors, stored_leaves(tensors), config, ignored)

    def encode(self, tensors: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> Binding:
        """See `Dialect.encode`. Tied embeddings are written twice: this naming has no way to tie them."""
        sizes = sizes_of(config, len(tensors))
        bound, _, problems = express(self, sizes, tensors)
        out, more = to_original(config)
        problems += more
        if sizes.tied and "model.embed_tokens.weight" in bound:
            spec, parts = (table := bound["model.embed_tokens.weight"]).spec, table.parts
            bound["model.embed_tokens.weight"] = Bound(spec, (*parts, Part("unembedding.weight")))
        leaves: dict[str, TensorSpec] = {}
        try:
            leaves = stored_leaves(bound) if not problems else {}
        except PlanError as e:
            problems += e.problems
        if problems:
            raise PlanError(problems)
        files = {
            SIDECAR: _json({**_without(config, QUANTIZATION), **_torch_dtype(bound, config)}),
            "dtypes.json": _json({name: _dtype_word(name, spec) for name, spec in leaves.items()}),
        }
        return Binding(bound, leaves, out, files=files)

    def parts(self, entry: Entry, scheme: Scheme | None) -> tuple[Part, ...]:
        """Where `entry` lies when packed as `scheme`."""
        if scheme is None:
            return (Part(entry.original, steps=(Slice(entry.row0),) if entry.row0 else ()),)
        return (
            Part(f"{entry.original}.blocks", "codes", (BLOCKS,)),
            Part(f"{entry.original}.scales", "scales"),
        )


def hugging_face_config(config: Mapping[str, Any], tensors: int) -> dict[str, Any]:
    """The Hugging Face config of a folder with original names: its own, the companion's, or one made from config.json.

    Raises:
        PlanError: config.json is neither spelling, or the companion says something else.
    """
    given = _without(config, SIDECAR)
    if "model_type" in given:
        return given
    made = from_original(given, tensors)
    companion = config.get(SIDECAR)
    if companion is None:
        return made
    stated, problems = to_original(companion)
    effective, _ = to_original(made)
    problems += [
        Problem(
            SIDECAR, f"says {key} {stated.get(key)!r}, {WHERE} says {effective[key]!r}; correct one or remove {SIDECAR}"
        )
        for key in ORIGINAL_KEYS
        if stated.get(key) != effective[key]
    ]
    if problems:
        raise PlanError(problems)
    return dict(companion)


def _not_converted(given: Any) -> list[re.Pattern[str]]:
    """`modules_to_not_convert`: patterns that match the beginning of a module's name, or are its end."""
    where = f"{WHERE} {QUANTIZATION}.modules_to_not_convert"
    if given is not None and not (isinstance(given, list) and all(isinstance(p, str) for p in given)):
        raise PlanError([Problem(where, f"{given!r:.80} is no list of names")], exit_code=4)
    found, problems = [], []
    for pattern in given or ():
        try:
            found.append(re.compile(pattern))
        except re.error as why:
            problems.append(Problem(where, f"{pattern!r:.80} is no regular expression: {why}"))
    if problems:
        raise PlanError(problems, exit_code=4)
    return found


def _original_names(leaves: Mapping[str, TensorSpec]) -> bool:
    return any(n in leaves for n in ("block.0.attn.qkv.weight", "block.0.mlp.mlp1_bias", "unembedding.weight"))


def _without(config: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {k: v for k, v in config.items() if k not in keys}


def _torch_dtype(tensors: Mapping[str, Bound], config: Mapping[str, Any]) -> dict[str, str]:
    """config.json's `dtype`: the plain tensors' one when they agree (transformers loads in it), else left as it is.

    transformers before 4.56 reads `torch_dtype`: a config that has that key keeps it in step.
    """
    dtypes = {b.spec.dtype for b in tensors.values() if b.spec.scheme is None}
    if len(dtypes) != 1 and "dtype" in config:
        return {}
    name = TORCH[dtypes.pop()] if len(dtypes) == 1 else DEFAULT
    return {key: name for key in ("dtype", "torch_dtype") if key == "dtype" or key in config}


def _dtype_word(leaf: str, spec: TensorSpec) -> str:
    """The words of the published dtypes.json: FP4 and UE8 for the two halves of MXFP4."""
    return {"blocks": "FP4", "scales": "UE8"}.get(leaf.rsplit(".", 1)[-1], spec.dtype)


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()
