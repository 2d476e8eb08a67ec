"""The embedded gpt-oss without its upper half: one layer with a window and one without, whose programs compile twice as
fast. For what is so of any model; what a trained one says is asked of the whole."""

import json
import re
import shutil
import tempfile
from functools import cache
from pathlib import Path

import ml_dtypes  # noqa: F401  NumPy knows bfloat16 from then on
from safetensors.numpy import load_file, save_file

TINY = Path(__file__).parents[2] / "plugins/models/gpt_oss/tiny"
LAYERS = 2


@cache
def folder() -> Path:
    """Written once in each process."""
    made = Path(tempfile.mkdtemp(prefix="two-layers-"))
    config = json.loads((TINY / "config.json").read_text())
    config |= {"num_hidden_layers": LAYERS, "layer_types": config["layer_types"][:LAYERS]}
    (made / "config.json").write_text(json.dumps(config))
    for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(TINY / name, made / name)
    tensors = {n: x for file in sorted(TINY.glob("*.safetensors")) for n, x in load_file(file).items()}
    upper = {n for n in tensors if (found := re.match(r"model\.layers\.(\d+)\.", n)) and int(found[1]) >= LAYERS}
    assert len(upper) == len([n for n in tensors if ".layers." in n]) / 2
    kept = {n: x for n, x in tensors.items() if n not in upper}
    save_file(kept, made / "model.safetensors", metadata={"format": "pt"})
    return made
