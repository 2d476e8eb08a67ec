"""bitsandbytes' facts about a packed matrix: its JSON and the offset of quantized scales."""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.errors import SourceError
from pipeline.strictjson import parse_object
from pipeline.tensors.steps import Box, Grain
from plugins.facts.dtypes import FROM_TORCH

STATE = "quant_state.bitsandbytes__nf4"
LONGEST_NUMBER = 25  # characters of a float64's shortest spelling: sign, 17 digits, point, e-308


@dataclass(frozen=True, slots=True)
class Nested:
    """Second-level scales: F32 [blocks + 1], the last one the offset, ↔ the leaf's F32 [blocks].

    Attributes:
        offset: when reading, what the JSON says; not needed to write.
    """

    offset: float | None
    dtype: str = "F32"

    def box(self, box: Box) -> Box:
        return (slice(0, box[0].stop - 1),)

    def pack(self, value: Any) -> Any:
        return np.ascontiguousarray(value[:-1])

    def unpack(self, array: Any) -> Any:
        assert self.offset is not None
        return np.append(array, np.float32(self.offset)).astype("<f4")

    def grain(self, inner: Grain) -> Grain:
        return inner


@dataclass(frozen=True, slots=True)
class StateJson:
    """The JSON of a matrix with quantized scales, whose offset is the last of the second-level scales. Written only."""

    shape: tuple[int, ...]
    torch_dtype: str
    block: int
    dtype: str = "U8"

    def box(self, box: Box) -> Box:
        return (slice(0, len(self._text(0.0)) - len("0.0") + LONGEST_NUMBER),)

    def pack(self, value: Any) -> Any:
        length = self.box(())[0].stop
        return np.frombuffer(self._text(float(value[-1])).ljust(length), np.uint8)

    def unpack(self, array: Any) -> Any:
        raise AssertionError("the offset is read when planning")

    def grain(self, inner: Grain) -> Grain:
        return inner

    def _text(self, offset: float) -> bytes:
        return state_json(self.shape, self.torch_dtype, self.block, offset)


def state_json(shape: tuple[int, ...], torch_dtype: str, block: int, offset: float | None = None) -> bytes:
    """The JSON of a matrix; with `offset`, of one with quantized scales."""
    state: dict[str, Any] = {"quant_type": "nf4", "blocksize": block, "dtype": torch_dtype, "shape": list(shape)}
    if offset is not None:
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset}
    return json.dumps(state).encode()


def read_state(content: Any) -> dict[str, Any]:
    """The JSON of a matrix, checked; `dtype` in safetensors' spelling.

    Raises:
        ValueError: not such JSON, or something NF4 does not have.
    """
    try:
        state = parse_object(content.tobytes(), STATE)
    except SourceError as why:
        raise ValueError(str(why)) from None
    shape, block = state.get("shape"), state.get("blocksize")
    if state.get("quant_type") != "nf4":
        raise ValueError(f"{STATE} has quant_type {state.get('quant_type')!r} (allowed: 'nf4')")
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(f"{STATE} has shape {shape!r}; a list of numbers is needed")
    if type(block) is not int:
        raise ValueError(f"{STATE} has blocksize {block!r}; a number is needed")
    if state.get("dtype") not in FROM_TORCH:
        raise ValueError(f"{STATE} has dtype {state.get('dtype')!r} (allowed: {', '.join(FROM_TORCH)})")
    nested = {k: state.get(k) for k in ("nested_blocksize", "nested_offset", "nested_dtype") if k in state}
    if nested and (type(nested.get("nested_offset")) is not float or nested.get("nested_dtype") != "float32"):
        raise ValueError(f"{STATE} has {nested!r}; nested_offset as a number and nested_dtype float32 are needed")
    return {**state, "dtype": FROM_TORCH[state["dtype"]]}
