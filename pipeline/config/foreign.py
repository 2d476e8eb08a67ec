"""Words of other programs for what is called otherwise here: an error that says what to type instead.

Nothing works under a foreign word; `quant.group_size=64` is told `quant.block_elems=64`.
"""

from collections.abc import Mapping
from typing import Final

_GROUPS: Final = ("group_size", "groupsize", "q_group_size", "blocksize", "block_size")
_BITS: Final = ("bits", "num_bits", "nbits", "w_bit", "w_bits", "wbits", "weight_bits")
_SOURCES: Final = ("path", "dir", "name", "name_or_path", "model_path", "model_name_or_path", "model_id", "checkpoint")
_LENGTHS: Final = ("max_length", "max_len", "max_seq_len", "max_seq_length", "seqlen", "seq_len", "n_ctx", "ctx_size")
_CONTINUED: Final = ("max_new_tokens", "max_gen_len", "max_completion_tokens", "n_predict", "num_predict")
_DTYPES: Final = {
    "float16": "fp16", "half": "fp16", "f16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float": "fp32",
    "f32": "fp32", "auto": "keep",
}  # fmt: skip
_SCALES: Final = {**_DTYPES, "float16": "f16", "half": "f16", "fp16": "f16", "float32": "f32", "fp32": "f32"}

WORDS: Final[Mapping[str, str]] = {
    **{f"quant.{word}": "quant.block_elems" for word in _GROUPS},
    **{f"quant.{word}": "quant" for word in _BITS},
    **{f"quant.{word}": "quant.scale" for word in ("scale_dtype", "scales_dtype")},
    **{f"model.{word}": "model.source" for word in _SOURCES},
    **{f"sampling.{word}": "sampling.max_tokens" for word in _CONTINUED},
    "sampling.temp": "sampling.temperature",
    "sampling.repeat_penalty": "sampling.repetition_penalty",
    **{f"evaluate.{word}": "evaluate.windows.window" for word in _LENGTHS},
    **{f"evaluate.windows.{word}": "evaluate.windows.window" for word in _LENGTHS},
    "evaluate.batch_size": "evaluate.windows.batch",
    "evaluate.windows.batch_size": "evaluate.windows.batch",
    **{f"export.{word}": "export.dtype" for word in ("torch_dtype", "outtype", "precision")},
    **{f"export.{word}": "export.path" for word in ("outfile", "output_dir", "out_dir", "dir")},
    **{f"train.{word}": "train.optimizer.rate" for word in ("lr", "learning_rate")},
    **{f"train.optimizer.{word}": "train.optimizer.rate" for word in ("lr", "learning_rate")},
    "train.max_steps": "train.steps",
    "train.num_steps": "train.steps",
    "train.batch_size": "train.batch",
    "train.micro_batch_size": "train.micro",
    "train.gradient_checkpointing": "train.recompute",
}
"""Key elsewhere → key here, of which the last word is also known at the top: `group_size` as `quant.group_size`."""

OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "quant": {
        "w4a16": "int4", "w8a16": "int8", "4bit": "int4", "8bit": "int8", "awq": "int4", "gptq": "int4", "hqq": "int4",
        "fp8": "fp8_e4m3", "fp4": "nvfp4", "bnb": "nf4", "bnb_4bit": "nf4", "mxfp8": "mxfp8_e4m3", "bf16": "none",
        "fp16": "none", "f16": "none", "mxfp6": "mxfp6_e2m3", "q4_k_m": "q4_0", "q4_k_s": "q4_0", "q4_k": "q4_0",
    },
    "export": {"safetensors": "hf", "transformers": "hf", "vllm": "compressed_tensors", "llama_cpp": "gguf",
               "llama.cpp": "gguf", "ollama": "gguf", "bnb": "bitsandbytes", "tensorrt": "modelopt"},
}  # fmt: skip
"""Group → option elsewhere → the nearest option here."""

_OF_CLASS: Final = {
    "Blockwise": "quant", "Sampling": "sampling", "Windows": "evaluate.windows", "Trainer": "train", "Export": "export",
}  # fmt: skip


def instead(key: str, value: str) -> str | None:
    """The override that says here what `key=value` says elsewhere; None where nothing is known of `key`."""
    ours = WORDS.get(key) or next((now for word, now in WORDS.items() if word.rpartition(".")[2] == key), None)
    if ours is None:
        return None
    if ours == "quant":
        return f"quant=int{value}" if value in ("2", "3", "4", "8") else "quant=int4, or int2, int3, int8"
    if ours in ("export.dtype", "quant.scale"):
        value = (_SCALES if ours == "quant.scale" else _DTYPES).get(value.removeprefix("torch."), value)
    return f"{ours}={value}" if value else f"{ours}=…"


def of_field(cls: str, name: str, value: object) -> str | None:
    """The same of a field that a class was given and does not have."""
    group = _OF_CLASS.get(cls)
    return instead(f"{group}.{name}", str(value)) if group and f"{group}.{name}" in WORDS else None


def option(group: str, name: str) -> str | None:
    """The option of `group` that is nearest to what other programs call `name`."""
    return OPTIONS.get(group, {}).get(name.lower().replace("-", "_"))
