"""Other ways to convert a checkpoint: peers of `flow=bench_convert`.

Those in Python are the main job as somebody would write it who needs the result once, in a process of its own. Whole
tensors are held, and the result until it is saved.
"""

import ctypes
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pipeline.errors import StageError
from plugins.contenders.llama_cpp import PEERS, LlamaCpp, bindings
from plugins.facts.ggml_mixes import MIX_NUMBERS

CONFIG = "config.json"
EXPERTS = (".mlp.experts.gate_up_proj", ".mlp.experts.down_proj")
GGUF = {  # quant options as llama.h has them (`enum llama_ftype`)
    "q8_0": 7, "q4_0": 2, "q4_1": 3, "q6_k": 18, "iq4_nl": 25,
    **{mix: MIX_NUMBERS[mix] for mix in ("q2_k", "q3_k_m", "q3_k_l", "q4_k_s", "q4_k_m", "q5_k_m")},
}  # fmt: skip
GGML_TYPE_F32 = 0  # of ggml.h
PROGRAM = "import sys; from plugins.bench.converters import main; main(sys.argv[1:])"
COPIES = ("keep", "none")


@dataclass(frozen=True)
class Loop:
    """See `pipeline.bench.conversion.Converter`: a loop over the tensors of one .safetensors.

    Attributes:
        name: `copy` reads all by torch and writes them, `ml_dtypes` and `torchao` make MXFP4 of gpt-oss's experts.
    """

    name: Literal["copy", "ml_dtypes", "torchao"]

    @property
    def needs(self) -> Mapping[str, str]:
        packages = {"copy": ["torch"], "ml_dtypes": [], "torchao": ["torch", "torchao"]}[self.name]
        return dict.fromkeys(packages, f"pip install {' '.join(packages)}")

    def why_not(self, source: Path, quant: str, config: Mapping[str, Any]) -> str:
        if not list(source.glob("*.safetensors")):
            return "it reads folders of .safetensors"
        if self.name == "copy":
            return "" if quant in COPIES else f"it copies values, and makes no {quant}"
        if quant != "mxfp4" or config.get("model_type") != "gpt_oss" or "quantization_config" in config:
            return "it makes MXFP4 of gpt-oss in bfloat16, and nothing else"
        return ""

    def command(self, source: Path, place: Path, quant: str) -> Sequence[str]:
        return [sys.executable, "-c", PROGRAM, self.name, str(source), str(place)]


@dataclass(frozen=True)
class LlamaQuantize:
    """See `pipeline.bench.conversion.Converter`: what `llama-quantize` of llama.cpp calls, on a GGUF file."""

    @property
    def needs(self) -> Mapping[str, str]:
        return LlamaCpp().needs

    def why_not(self, source: Path, quant: str, config: Mapping[str, Any]) -> str:
        if source.suffix != ".gguf":
            return "it reads one .gguf"
        return "" if quant in GGUF else f"of quant options it has {', '.join(GGUF)}"

    def command(self, source: Path, place: Path, quant: str) -> Sequence[str]:
        return [sys.executable, "-c", PROGRAM, f"llama_quantize {GGUF[quant]}", str(source), str(place / "model.gguf")]


class _Importance(ctypes.Structure):
    """`llama_model_imatrix_data` of llama.h."""

    _fields_ = (("name", ctypes.c_char_p), ("data", ctypes.POINTER(ctypes.c_float)), ("size", ctypes.c_size_t))


def llama_quantize(
    kind: int, source: Path, out: Path, importance: Mapping[str, Any] | None = None, *, plain_ends: bool = False
) -> None:
    """By the library.

    Args:
        importance: tensor of the file → mean squares of its inputs, fp32, contiguous.
        plain_ends: embedding and head stay in fp32.

    Raises:
        StageError: it failed.
    """
    api = bindings(PEERS)
    api.llama_backend_init()
    given = api.llama_model_quantize_default_params()
    given.ftype, given.nthread, given.allow_requantize = kind, len(os.sched_getaffinity(0)), True
    if plain_ends:
        given.token_embedding_type = given.output_tensor_type = GGML_TYPE_F32
    names = (_Importance * (len(importance or {}) + 1))()  # the last one, of no name, ends them
    for entry, (name, values) in zip(names, (importance or {}).items(), strict=False):
        entry.name, entry.size = name.encode(), values.size
        entry.data = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    if importance:
        given.imatrix = ctypes.cast(names, type(given.imatrix))
    if code := api.llama_model_quantize(str(source).encode(), str(out).encode(), ctypes.byref(given)):
        raise StageError(f"llama_model_quantize: code {code}; what it said stands above")


def copy(source: Path, out: Path) -> None:
    """Every tensor as it is, by torch."""
    from safetensors.torch import load_file, save_file

    shutil.copyfile(source / CONFIG, out / CONFIG)
    for file in source.glob("*.safetensors"):
        save_file(load_file(file), out / file.name)


def plain(source: Path, out: Path) -> None:
    """NumPy and ml_dtypes, expert by expert."""
    import ml_dtypes
    import numpy as np
    from safetensors import safe_open
    from safetensors.numpy import save_file

    def encode(x: Any) -> tuple[Any, Any]:
        blocks = x.reshape(*x.shape[:-1], -1, 32).astype(np.float32)
        amax = np.abs(blocks).max(axis=-1)
        exponent = np.frexp(np.maximum(amax, 2.0**-126))[1] - 1 - 2
        codes = np.ldexp(blocks, -exponent[..., None]).clip(-6, 6).astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
        return codes[..., ::2] | codes[..., 1::2] << 4, (exponent + 127).astype(np.uint8)

    def experts(x: Any) -> tuple[Any, Any]:
        pairs = [encode(np.ascontiguousarray(x[e].view(ml_dtypes.bfloat16).T)) for e in range(len(x))]
        return np.stack([c for c, _ in pairs]), np.stack([s for _, s in pairs])

    _contend(source, out, experts, lambda path: safe_open(path, "np"), save_file)


def torchao(source: Path, out: Path) -> None:
    """torchao's reference conversion, on every core."""
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file
    from torchao.prototype.mx_formats.mx_tensor import to_mx

    torch.set_num_threads(len(os.sched_getaffinity(0)))

    def experts(x: Any) -> tuple[Any, Any]:
        pairs = [to_mx(x[e].T.contiguous(), torch.float4_e2m1fn_x2, 32) for e in range(len(x))]
        codes = torch.stack([c.view(torch.uint8).reshape(*c.shape[:-1], -1, 16) for _, c in pairs])
        return codes, torch.stack([s.view(torch.uint8) for s, _ in pairs])

    _contend(source, out, experts, lambda path: safe_open(path, "pt"), save_file)


def _contend(source: Path, out: Path, experts: Callable[[Any], Any], opened: Callable[..., Any], save: Any) -> None:
    config = json.loads((source / CONFIG).read_text())
    (out / CONFIG).write_text(json.dumps(config | {"quantization_config": {"quant_method": "mxfp4"}}))
    for path in source.glob("*.safetensors"):
        tensors = {}
        with opened(str(path)) as file:
            for name in file.keys():  # noqa: SIM118 (not a mapping)
                value = file.get_tensor(name)
                if not name.endswith(EXPERTS):
                    tensors[name] = value
                    continue
                tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = experts(value)
                del value
        save(tensors, str(out / path.name))


LOOPS = {"copy": copy, "ml_dtypes": plain, "torchao": torchao}


def main(words: Sequence[str]) -> None:
    name, source, out = words
    program, _, kind = name.partition(" ")
    if program == "llama_quantize":
        llama_quantize(int(kind), Path(source), Path(out))
    else:
        LOOPS[name](Path(source), Path(out))
