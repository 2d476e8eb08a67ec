"""What other programs call it: keys, names of options, and spellings of dtypes, that people bring along.

A dtype may be spelt as elsewhere. Nothing else works under another name: `quant.group_size=64` is an error that says
`quant.block_elems=64`.
"""

from collections.abc import Iterable, Mapping
from typing import Final

# What people write → what to write here; by config group, in small letters.
CHOICES: Mapping[str, Mapping[str, str]] = {
    "quant": {
        "4bit": "int4, nf4 or mxfp4", "8bit": "int8", "fp8": "fp8_e4m3", "fp4": "mxfp4 or nvfp4", "f8": "fp8_e4m3",
        "gptq": "int4 with calibrate=gptq", "awq": "int4 with calibrate=awq", "bnb": "nf4",
        "w4a16": "int4", "w8a16": "int8", "w8a8": "int8 with activations=int8",
        "hqq": "int4, rounded to nearest", "mxfp8": "mxfp8_e4m3", "mxfp6": "mxfp6_e2m3",
        "q4": "q4_0", "q8": "q8_0", "q2_k_s": "q2_k with quant.mix=q2_k_s", "q3_k_s": "q3_k", "q5_k_s": "q5_k",
        "bf16": "none", "f16": "none with export.dtype=fp16", "fp16": "none with export.dtype=fp16",
        "fp32": "none with export.dtype=fp32", "no": "none",
    },
    "export": {
        "safetensors": "hf, or plain for bf16", "huggingface": "hf", "transformers": "hf", "vllm": "compressed_tensors",
        "llama.cpp": "gguf", "llama_cpp": "gguf", "ggml": "gguf", "ollama": "gguf",
        "npz": "numpy", "npy": "numpy",
        "jax": "orbax or numpy", "flax": "orbax", "bnb": "bitsandbytes", "tensorrt": "modelopt",
        "llm-compressor": "compressed_tensors", "gptq": "compressed_tensors", "awq": "compressed_tensors",
    },
    "mesh": {
        "tp": "tensor", "dp": "data", "ddp": "data", "ep": "expert", "zero": "fsdp", "zero3": "fsdp", "model": "tensor",
        "replicated": "data",
    },
    "flow": {
        "chat": "the verb chat: weightmill chat DIR", "quantize": "convert", "quantise": "convert", "export": "convert",
        "eval": "evaluate", "perplexity": "evaluate", "ppl": "evaluate", "inference": "generate", "run": "full",
        "train": "finetune", "tune": "finetune", "lora": "finetune with train=lora", "compare": "verify",
        "diff": "verify",
    },
    "model": {"gemma": "gemma3", "mistral": "llama", "gptoss": "gpt_oss", "qwen2": "qwen", "qwen3": "qwen"},
    "dask": {"local": "threads", "cluster": "distributed", "processes": "distributed"},
    "sampling": {"random": "nucleus", "top_p": "nucleus", "argmax": "greedy"},
}  # fmt: skip
DTYPES = (
    {"fp32", "f32", "float32", "single"},
    {"fp16", "f16", "float16", "half"},
    {"bf16", "bfloat16"},
    {"fp8", "f8", "float8"},
)


def meant(group: str, name: str) -> str:
    """The tail of a message about a choice that there is not: what it is here, where that is known."""
    here = CHOICES.get(group, {}).get(name.lower().replace("-", "_")) or CHOICES.get(group, {}).get(name.lower())
    return f"; here that is {here}" if here else ""


def spelt(given: object, allowed: Iterable[object]) -> object:
    """The one of `allowed` that is another spelling of the dtype that is `given`; else `given`."""
    if not isinstance(given, str):
        return given
    same = next((names for names in DTYPES if given.lower() in names), {given})
    return next((a for a in allowed if a in same), given)


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
    **{f"train.{word}": "train.steps" for word in ("max_steps", "num_steps", "updates")},
    "train.batch_size": "train.batch",
    **{f"train.{word}": "train.micro" for word in ("micro_batch_size", "per_device_train_batch_size")},
    "train.weight_decay": "train.optimizer.decay",
    "train.max_grad_norm": "train.optimizer.clip",
    "train.save_steps": "train.save.every",
    "train.eval_steps": "train.look.every",
    **{f"train.{word}": "data.length" for word in ("length", *_LENGTHS)},
    "train.transform.r": "train.transform.rank",
    "train.transform.lora_alpha": "train.transform.alpha",
    "train.transform.lora_dropout": "train.transform.dropout",
    "train.transform.target_modules": "train.transform.targets",
    "train.gradient_checkpointing": "train.recompute",
}
"""Key elsewhere → key here, of which the last word is also known at the top: `group_size` as `quant.group_size`."""

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
