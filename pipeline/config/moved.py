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
TARGETS: Final = {f"plugins.formats.dialects.{old}": f"plugins.formats.{new}" for old, new in _FORMATS.items()} | {
    "plugins.formats.gguf_file.Gguf": "plugins.formats.gguf.file.GgufContainer",
    "plugins.formats.hub.Hub": "plugins.formats.hub.remote.Hub",
    "plugins.formats.npy.Npy": "plugins.formats.npy.container.Npy",
    "plugins.formats.orbax.Orbax": "plugins.formats.orbax.container.Orbax",
    "plugins.formats.safetensors.SafeTensors": "plugins.formats.safetensors.container.SafeTensors",
}
"""`_target_` before → now."""

FIELDS: Final = {
    ("plugins.engine.engine.Engine", "hold"): "weights_dtype",
    ("stages.evaluate.Evaluate", "baselines"): "paths.outputs",
}
"""(`_target_`, field before) → the field now."""
