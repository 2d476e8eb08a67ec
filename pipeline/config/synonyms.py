"""What other programs call it: names of options, and spellings of dtypes, that people bring along."""

from collections.abc import Iterable, Mapping

# What people write → what to write here; by config group, in small letters.
CHOICES: Mapping[str, Mapping[str, str]] = {
    "quant": {
        "4bit": "int4, nf4 or mxfp4", "8bit": "int8", "fp8": "fp8_e4m3", "fp4": "mxfp4 or nvfp4", "f8": "fp8_e4m3",
        "gptq": "int4, rounded to nearest", "awq": "int4, rounded to nearest", "bnb": "nf4",
        "w4a16": "int4", "w8a16": "int8",
        "q4": "q4_0", "q8": "q8_0", "q4_k_m": "q4_0 or q4_1; K-quants are read and not written",
        "q5_k_m": "q8_0; K-quants are read and not written", "q6_k": "q8_0; K-quants are read and not written",
        "bf16": "none", "fp16": "none with export.dtype=fp16", "fp32": "none with export.dtype=fp32", "no": "none",
    },
    "export": {
        "safetensors": "hf, or plain for bf16", "huggingface": "hf", "transformers": "hf", "vllm": "compressed_tensors",
        "llama.cpp": "gguf", "ggml": "gguf", "ollama": "gguf", "npz": "numpy", "npy": "numpy", "jax": "orbax or numpy",
        "flax": "orbax", "bnb": "bitsandbytes", "tensorrt": "modelopt", "llm-compressor": "compressed_tensors",
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
