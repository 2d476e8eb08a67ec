"""What loading a model over four devices takes, and exporting it: `python -m tests.sharding.peaks FOLDER` prints it."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import jax
import psutil  # type: ignore[import-untyped]

from pipeline.running import peak
from pipeline.tensors.spec import TensorSpec
from plugins.engine.load import on_devices
from plugins.formats.orbax.container import Orbax
from plugins.formats.orbax.pytree import Pytree
from plugins.formats.safetensors.container import SafeTensors
from plugins.formats.safetensors.hugging_face import HuggingFaceDialect
from tests.cases import model_runs
from tests.sharding import toys

CONFIG = {
    **toys.CONFIGS["llama"], "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 4,
    "vocab_size": 96 << 10, "tie_word_embeddings": True,
}  # fmt: skip


def main(folder: Path) -> None:
    source = folder / "source"
    source.mkdir()
    specs = {p.names[0]: TensorSpec(p.shape, "BF16") for p in toys.parameters_of(CONFIG)}
    binding = HuggingFaceDialect().encode(specs, CONFIG)
    layout = SafeTensors().layout(binding.leaves, {"format": "pt"}, None)
    SafeTensors().begin(source, layout)  # of zeros
    (source / "config.json").write_text(json.dumps(CONFIG))
    given, mesh = model_runs.checkpoint(source), toys.mesh("fsdp", fsdp=4)
    toys.layouts_of(mesh, given)
    jax.block_until_ready([jax.device_put(0, device) for device in jax.devices()])
    found = {"before": _now()}
    peak.begin()
    model = toys.load(given, mesh)
    arrays = [p.get_value() for p in toys.parameters(model)]
    jax.block_until_ready(arrays)
    found["live"] = sum(shard.data.nbytes for a in arrays for shard in a.addressable_shards)
    found["loading"], found["loaded"] = peak.nbytes(), _now()
    peak.begin()
    held = replace(given, store=on_devices(model, given.store.specs), stored={})
    work = toys.export(held, folder / "model", Pytree(), Orbax(), chunk_nbytes=8 << 20)
    work.begin(fresh=True)
    work.finish([{"digest": work.do(chunk)} for chunk in work.chunks])
    found["exporting"] = peak.nbytes()
    print(json.dumps(found))


def _now() -> int:
    return int(psutil.Process().memory_info().rss)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
