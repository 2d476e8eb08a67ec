"""Hugging Face transformers with torch, on the CPU: eager, or compiled."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from pipeline.contender import Form
from pipeline.errors import StageError

INSTALL = "pip install torch transformers"
COMPRESSED = {"compressed_tensors": "pip install compressed-tensors"}
BNB = {"bitsandbytes": "pip install bitsandbytes"}
FORMS = {  # what its readers run on a CPU
    "none": Form("none", "hf"),
    "int8": Form("int8", "compressed_tensors", needs=COMPRESSED),
    "int4": Form("int4", "compressed_tensors", needs=COMPRESSED),
    "nf4": Form("nf4", "bitsandbytes", needs=BNB),
}
EXPERTS = (
    "transformers has experts as stacks, does not find their packed matrices, one by one, in compressed_tensors files, "
    "and draws weights at random in their place"
)
NUMBERS = ("num_local_experts", "num_experts")  # of experts, in config.json
SHOWN = 3
DTYPES = {"auto": "auto", "bf16": "bfloat16", "f32": "float32"}  # as transformers calls them


@dataclass(frozen=True)
class Transformers:
    """See `pipeline.contender.Contender`.

    Attributes:
        compiled: by `torch.compile`, which takes its time at the first call.
        dtype: of weights that are not packed, and of activations; `auto`: as config.json has it.
    """

    compiled: bool = False
    dtype: Literal["auto", "bf16", "f32"] = "auto"

    @property
    def needs(self) -> Mapping[str, str]:
        return dict.fromkeys(("torch", "transformers"), INSTALL)

    def form(self, quant: str, config: Mapping[str, Any]) -> Form:
        if (known := FORMS.get(quant)) is not None:
            packed = known.export == "compressed_tensors" and any(config.get(name) for name in NUMBERS)
            return replace(known, why_not=EXPERTS if packed else "")
        why = "transformers multiplies with such weights on GPUs alone" if quant.startswith(("mx", "nv", "fp8")) else (
            f"transformers reads no weights of ours in it; {', '.join(FORMS)} on a CPU"
        )  # fmt: skip
        return Form(quant, why_not=why)

    def load(self, place: Path, threads: int) -> "LoadedTransformers":
        import torch

        torch.set_num_threads(threads)
        model = pretrained(place, dtype=DTYPES[self.dtype])
        return LoadedTransformers(model, torch.compile(model) if self.compiled else model)

    def versions(self) -> Mapping[str, str]:
        return {name: version(name) for name in ("torch", "transformers")}


def pretrained(place: Path, **options: Any) -> Any:
    """The model of a folder, with all its weights.

    Raises:
        StageError: some were not in the files; transformers has drawn them at random, and would go on.
    """
    from transformers import AutoModelForCausalLM

    model, found = AutoModelForCausalLM.from_pretrained(
        place, local_files_only=True, output_loading_info=True, **options
    )
    lacking = sorted({*found["missing_keys"], *(key for key, *_ in found["mismatched_keys"])})
    if lacking:
        some = ", ".join(lacking[:SHOWN]) + (" …" if len(lacking) > SHOWN else "")
        raise StageError(f"transformers did not find {len(lacking)} weights of the model in {place.name}: {some}")
    return model.eval()


class LoadedTransformers:
    """See `pipeline.contender.Loaded`."""

    def __init__(self, model: Any, call: Any):
        """
        Args:
            call: the same, maybe compiled.
        """
        self._model, self._call = model, call

    @property
    def device_nbytes(self) -> int:
        return int(self._model.get_memory_footprint())

    def prefill(self, prompts: Sequence[Sequence[int]]) -> None:
        self.decode(prompts, 1, lambda: None)

    def decode(self, prompts: Sequence[Sequence[int]], new: int, seen: Callable[[], None]) -> Sequence[Sequence[int]]:
        import torch

        given, cache, columns = torch.tensor([list(ids) for ids in prompts]), None, []
        with torch.inference_mode():
            for _ in range(new):
                out = self._call(input_ids=given, past_key_values=cache, use_cache=True, logits_to_keep=1)
                cache, given = out.past_key_values, out.logits[:, -1].argmax(-1, keepdim=True)
                columns.append(given[:, 0].tolist())
                seen()
        return [list(row) for row in zip(*columns, strict=True)]

    def score(self, ids: Sequence[int]) -> Any:
        import torch

        with torch.inference_mode():
            return self._call(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0].float().numpy()
