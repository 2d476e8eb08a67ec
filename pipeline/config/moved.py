"""What configs named once and is called otherwise now: an error that names the new place, and not a riddle.

Nothing works under an old name; whoever wrote it is told what to write instead.
"""

from typing import Final

_FORMATS: Final = {
    "bitsandbytes.BitsAndBytes": "bitsandbytes.dialect.BitsAndBytes",
    "compressed_tensors.CompressedTensors": "compressed_tensors.dialect.CompressedTensors",
    "gguf_model.Gguf": "gguf.model.GgufDialect",
    "gpt_oss.HuggingFace": "gpt_oss.dialect.GptOss",
    "gpt_oss.Original": "gpt_oss.dialect.Original",
    "hugging_face.HuggingFace": "safetensors.hugging_face.HuggingFaceDialect",
    "modelopt.ModelOpt": "modelopt.dialect.ModelOpt",
    "plain.Plain": "safetensors.plain.Plain",
    "pytree.Pytree": "orbax.pytree.Pytree",
}
_KERNELS: Final = {
    "attention": "Attention", "cast": "Cast", "dequantize": "Dequantize", "embed": "Embed", "matmul": "MatMul",
    "moe": "MoE", "quantize": "Quantize", "rms_norm": "RMSNorm", "rope": "Rope", "softmax": "Softmax",
}  # fmt: skip
TARGETS: Final = (
    {f"plugins.formats.dialects.{old}": f"plugins.formats.{new}" for old, new in _FORMATS.items()}
    | {
        "plugins.formats.gguf_file.Gguf": "plugins.formats.gguf.file.GgufContainer",
        "plugins.formats.hub.Hub": "plugins.formats.hub.remote.Hub",
        "plugins.formats.npy.Npy": "plugins.formats.npy.container.Npy",
        "plugins.formats.orbax.Orbax": "plugins.formats.orbax.container.Orbax",
        "plugins.formats.safetensors.SafeTensors": "plugins.formats.safetensors.container.SafeTensors",
        "plugins.quant.mx.MX": "plugins.quant.blockwise.Blockwise",
        "stages.quantize.Rule": "pipeline.rules.Rule",
    }
    | {f"plugins.train.trainer.{name}": f"plugins.train.options.{name}" for name in ("Looking", "Population", "Saving")}
    | {f"plugins.kernels.{op}.{old}": f"${{kernels.{op}}}" for op, old in _KERNELS.items()}
)
"""`_target_` before → now."""

FIELDS: Final = {
    ("plugins.engine.engine.Engine", "hold"): "weights_dtype",
    ("stages.bench.Bench", "folder"): "measuring.folder",
    ("stages.bench.Bench", "outputs"): "measuring.outputs",
    ("stages.evaluate.Evaluate", "baselines"): "paths.outputs",
}
"""(`_target_`, field before) → the field now."""

GONE: Final = {
    ("plugins.bench.converters.LlamaQuantize", "program"): "llama.cpp's library does it, without its program",
    ("plugins.formats.safetensors.container.SafeTensors", "framework"): "files always say `pt`, which all readers take",
    ("plugins.quant.none.Unquantized", "scale_rule"): "it had no effect; quant=none is a job of its own",
}
"""(`_target_`, field before) → why there is none now."""


def field(target: str, name: str) -> str:
    """What became of a field, ``: nothing is known of it."""
    if (now := FIELDS.get((target, name))) is not None:
        return f"is now {now!r}"
    return f"is gone: {why}" if (why := GONE.get((target, name))) else ""


def kernel(op: str, names: str) -> str:
    """What to write instead of a node under `kernels`, which has lists of names now."""
    return f"is a list of backends now, and no node: kernels.{op}=[{names}], or in YAML {op}: [{names}]"
