"""transformers as the reference: what it computes from an exported checkpoint, layer by layer, in fp32."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import ConfigError


@dataclass(frozen=True)
class Transformers:
    """A `stages.parity.Reference`. Runs on the CPU, with eager attention.

    Attributes:
        threads: of torch; null: as torch likes.
    """

    threads: int | None = None

    def taps(self, folder: Path, ids: Sequence[int]) -> dict[str, Any]:
        """Hidden states of one text: `embed`, `layers.0`, …, `norm` [T, D], and `logits` [T, V]; float32.

        Raises:
            ConfigError: torch or transformers is not installed.
        """
        try:
            import torch
            from transformers import AutoModelForCausalLM
        except ModuleNotFoundError as why:
            raise ConfigError(f"flow=parity needs {why.name}: pip install 'weightmill[oracles]'") from None
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        model.eval()
        found: dict[str, Any] = {}

        def keep(name: str) -> Any:
            def hook(module: Any, args: Any, output: Any) -> None:
                hidden = output[0] if isinstance(output, tuple) else output
                found[name] = np.array(hidden[0].float().numpy())

            return hook

        parts = {"embed": model.model.embed_tokens, "norm": model.model.norm}
        parts |= {f"layers.{i}": layer for i, layer in enumerate(model.model.layers)}
        hooks = [part.register_forward_hook(keep(name)) for name, part in parts.items()]
        with torch.no_grad():
            logits = model(torch.tensor([list(ids)])).logits
        for hook in hooks:
            hook.remove()
        return {**found, "logits": logits[0].float().numpy()}
