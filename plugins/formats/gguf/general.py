"""What a GGUF file says of its model that config.json and the tokenizer's files have no place for.

Name, author, license, languages, what it was made from (`general.*`), and small settings of the tokenizer that
llama.cpp alone has. Kept in a file beside the weights, each entry with its GGUF type, and written again when the
checkpoint becomes a GGUF file once more. Not kept is what describes the file and not the model (layout, types of its
tensors, how it was quantized), and what follows from the weights and the other files.
"""

import json
from collections.abc import Mapping
from typing import Any

from pipeline.errors import Problem
from plugins.formats.gguf.header import FIXED
from plugins.formats.gguf.sampling import KEYS as SAMPLING
from plugins.formats.gguf.tokenizer import TOKENIZER

METADATA = "gguf_metadata.json"
OF_THE_FILE = frozenset(
    f"general.{key}" for key in ("architecture", "type", "alignment", "file_type", "quantization_version")
)
KEPT = ("general.", "tokenizer.ggml.")
TOKENS = ("bos", "eos", "eot", "eom", "unknown", "padding")
OF_THE_TOKENIZER = frozenset(  # follows from its files
    (
        *(f"tokenizer.ggml.{key}" for key in ("model", "pre", "add_bos_token", *(f"{t}_token_id" for t in TOKENS))),
        *(key for key, _ in SAMPLING.values()),
    )
)
RANGES = {  # whole numbers by type
    f"{sign}int{bits}": ((0, 2**bits) if sign else (-(2 ** (bits - 1)), 2 ** (bits - 1)))
    for sign in ("u", "")
    for bits in (8, 16, 32, 64)
}


def from_kv(kv: Mapping[str, tuple[str, Any]]) -> dict[str, bytes]:
    """The file, `{METADATA: {key: [type, value]}}` as JSON; nothing when there is nothing to keep."""
    kept = {
        key: list(entry)
        for key, entry in kv.items()
        if key.startswith(KEPT)
        and key not in OF_THE_FILE | OF_THE_TOKENIZER
        and (key.startswith("general.") or not entry[0].startswith("array:"))
    }
    return {METADATA: (json.dumps(kept, ensure_ascii=False, indent=1) + "\n").encode()} if kept else {}


def to_kv(config: Mapping[str, Any]) -> tuple[dict[str, tuple[str, Any]], list[Problem]]:
    """The entries of the file that is in `config` under its name, and what is wrong with them.

    Those about the tokenizer are for one that `config` has too.
    """
    kept, problems = config.get(METADATA, {}), []
    out: dict[str, tuple[str, Any]] = {}
    for key, entry in kept.items() if isinstance(kept, Mapping) else [("", kept)]:
        if key in OF_THE_FILE or not key.startswith(KEPT):
            problems.append(Problem(METADATA, f"{key!r:.80} is none of general.… and tokenizer.ggml.… that are kept"))
        elif not (isinstance(entry, list) and len(entry) == 2 and _fits(*entry)):
            text = f"{key} is {entry!r:.80}; [type, value] is expected, types: {', '.join(FIXED)}, string, array:TYPE"
            problems.append(Problem(METADATA, text))
        elif key.startswith("general.") or TOKENIZER in config:
            out[key] = (entry[0], entry[1])
    return out, problems


def _fits(kind: Any, value: Any) -> bool:
    """Whether `value` can be written as a GGUF value of type `kind`."""
    if not isinstance(kind, str):
        return False
    if kind.startswith("array:"):
        inner = kind.removeprefix("array:")
        return isinstance(value, list) and not inner.startswith("array") and all(_fits(inner, v) for v in value)
    if kind in RANGES:
        low, high = RANGES[kind]
        return type(value) is int and low <= value < high
    if kind in ("float32", "float64"):
        return type(value) in (int, float)
    return isinstance(value, str) if kind == "string" else kind == "bool" and isinstance(value, bool)
