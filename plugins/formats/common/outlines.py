"""How tensors would lie by config.json alone, for plans of checkpoints whose weights are not here."""

from collections.abc import Mapping
from typing import Any

from pipeline.errors import PlanError, Problem, did_you_mean
from pipeline.tensors.spec import TensorSpec
from plugins.facts.dtypes import DEFAULT, FROM_TORCH

Shapes = Mapping[str, tuple[int, ...]]


def plain(shapes: Shapes, config: Mapping[str, Any]) -> dict[str, TensorSpec]:
    """All of them in the dtype that config.json states (`dtype`; `torch_dtype` before transformers 4.56), else BF16.

    Raises:
        PlanError: it states another than weights are read in.
    """
    key = "dtype" if config.get("dtype") is not None else "torch_dtype"
    stated = DEFAULT if config.get(key) is None else config[key]
    dtype = FROM_TORCH.get(str(stated).removeprefix("torch."))
    if dtype is None:
        text = f"{stated!r:.80} is no dtype that plain weights are read in{did_you_mean(str(stated), FROM_TORCH, 10)}"
        raise PlanError([Problem(f"config.json {key}", text)], exit_code=4)
    return {name: TensorSpec(shape, dtype) for name, shape in shapes.items()}
