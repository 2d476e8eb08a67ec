"""What llm-compressor makes of a checkpoint, for a Python that has it: its pins are no others' here.

    python -I plugins/bench/oneshot.py settings.json

It imports nothing of ours, and is `plugins.bench.llm_compressor`'s to start. The settings:

    model, out: folders; `out` is written as compressed-tensors, as `save_pretrained` has it
    rows: a .npy of token ids [windows, tokens], all of them calibrated on, in this order
    method: gptq, or awq and then rounding
    dtype: what the model is loaded in, and scales are stored in
    groups: columns of a group → the modules, by name, or regular expressions behind `re:`
    bits, symmetric, damping, actorder: as its recipes have them
    batch: windows at once
"""

import json
import sys
from collections.abc import Mapping
from typing import Any


def recipe(of: Mapping[str, Any]) -> list[Any]:
    """Its modifiers, in order."""
    integers = {"num_bits": of["bits"], "type": "int", "symmetric": of["symmetric"], "strategy": "group"}
    groups = {
        f"group_{size}": {"targets": targets, "weights": {**integers, "group_size": int(size)}}
        for size, targets in of["groups"].items()
    }
    if of["method"] == "gptq":
        from llmcompressor.modifiers.gptq import GPTQModifier

        return [GPTQModifier(config_groups=groups, dampening_frac=of["damping"], actorder=of["actorder"])]
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from llmcompressor.modifiers.transform.awq import AWQModifier

    return [AWQModifier(duo_scaling="both"), QuantizationModifier(config_groups=groups)]


def main(of: Mapping[str, Any]) -> None:
    """Quantize and write, as `of` says."""
    from types import SimpleNamespace

    import numpy as np
    import torch
    from llmcompressor import oneshot
    from torch.utils.data import DataLoader

    if not torch.accelerator.is_available():  # AWQ of 0.14 pins what it keeps, which torch refuses where there is none
        torch.Tensor.pin_memory = lambda self, *_, **__: self
    rows = [{"input_ids": torch.tensor(row)} for row in np.load(of["rows"]).astype(np.int64)]
    model = oneshot(
        model=of["model"], dataset=DataLoader(rows, batch_size=of["batch"]), recipe=recipe(of), precision=of["dtype"],
        processor=SimpleNamespace(),  # what would encode text, of which there is none
    )  # fmt: skip
    model.save_pretrained(of["out"], save_compressed=True)


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        main(json.load(file))
