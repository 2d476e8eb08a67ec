"""Contenders that multiply nothing, in a folder of a user's own: a right one, a slow one, a wrong one, one that is not
installed, one that cannot, and one that makes its weights by itself."""

from pathlib import Path

MODULE = """
import time
from dataclasses import dataclass

import numpy as np

from pipeline.contender import Form

VOCAB = 4096  # of the embedded gpt-oss


@dataclass(frozen=True)
class Fake:
    kernels: str = ""
    dtype: str = ""
    export: str = "hf"
    programs: str | None = None
    step_s: float = 0.0
    shift: int = 0
    module: str = "numpy"
    only: str = "none"
    dies: bool = False
    leaks: bool = False
    own: str = ""

    @property
    def needs(self):
        return {self.module: f"pip install {self.module}"}

    def form(self, quant, config):
        why_not = "" if quant == self.only else f"it has no {quant}"
        return Form("none" if self.own else quant, self.export, own=self.own, why_not=why_not)

    def prepare(self, place, own, to):
        assert (place / "config.json").is_file()
        (to / "weights").write_text(own)

    def load(self, place, threads):
        assert (place / ("weights" if self.own else "config.json")).is_file()
        if self.dies:
            raise RuntimeError("no such instruction")
        return Loaded(self)

    def versions(self):
        return {"fake": "1.0"}


@dataclass(frozen=True)
class Limits:
    def of(self, threads):
        return {"read": 1e9, "multiply_add": 1e9}


class Loaded:
    device_nbytes = 64

    def __init__(self, fake):
        self.fake, self.kept = fake, []

    def prefill(self, prompts):
        time.sleep(0.002 + self.fake.step_s)

    def decode(self, prompts, new, seen):
        if self.fake.leaks:
            self.kept.append(bytearray(b"x") * (1 << 18))
        for _ in range(new):
            time.sleep(0.002 + self.fake.step_s)
            seen()
        return [[self.fake.shift] * new for _ in prompts]

    def score(self, ids):
        found = np.zeros((len(ids), VOCAB), np.float32)
        found[np.arange(len(ids)), (np.asarray(ids) + self.fake.shift) % VOCAB] = 12.0
        return found
"""
FIELDS = {
    "fake": "dies: false", "slow": "step_s: 0.02", "wrong": "shift: 1", "absent": "module: acme_engine",
    "picky": "only: mxfp4", "broken": "dies: true", "leaky": "leaks: true", "maker": "only: mxfp4\nown: smaller",
}  # fmt: skip
TARGET, LIMITS = "plugins.contenders.fake.Fake", "plugins.contenders.fake.Limits"


def written(folder: Path) -> Path:
    """The YAML of all of them in `folder`; their module is `{"plugins.contenders.fake": MODULE}` of a guest."""
    (folder / "engines").mkdir(parents=True)
    for name, fields in FIELDS.items():
        text = f"# @package engines.{name}\n# An engine.\n_target_: {TARGET}\n{fields}\n"
        (folder / "engines" / f"{name}.yaml").write_text(text)
    return folder
