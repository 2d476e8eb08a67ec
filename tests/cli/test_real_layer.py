"""A layer of gpt-oss-20b in its real size, from MXFP4 bytes: it runs, and never takes 2 GiB.

In bf16, experts alone would be 1.6 GB.
"""

import json
import sys

import pytest

from pipeline.testing.peak import watch
from tests.cases import big_gpt_oss
from tests.cli.run import ROOT

SIZES = big_gpt_oss.Sizes()  # 2880, 32 experts, 64 heads; one layer, a short vocabulary
PROGRAM = """
import json, sys
from pathlib import Path
import numpy as np
from plugins.engine.generate import generate
from plugins.engine.options import Sampling
from tests.cases import model_runs

runtime = model_runs.load(Path(sys.argv[1]), "stages=[load]", dtype="bf16")
prompts = np.random.default_rng(0).integers(0, 2048, (2, 40)).tolist()
done, timings = generate(runtime, [prompts[0], prompts[1][:9]], Sampling(max_tokens=5))
print(json.dumps({"tokens": [c.tokens for c in done], "device_nbytes": runtime.device_nbytes}))
"""


@pytest.mark.repeats  # of the experts alone tests/unit/kernels/test_moe.py says it, of small models test_memory.py
def test_one_layer_of_gpt_oss_20b(tmp_path):
    folder = big_gpt_oss.write(tmp_path / "layer", SIZES, mxfp4=True)
    stored = (folder / "model.safetensors").stat().st_size
    assert stored > 450 << 20
    command = [sys.executable, "-c", PROGRAM, str(folder)]
    seen = watch(command, cwd=ROOT, env={"PATH": "", "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)})
    assert seen.returncode == 0, seen.output
    said = json.loads(seen.output.splitlines()[-1])
    assert 0 < stored - said["device_nbytes"] < 16384  # the header: nothing was decoded on the way
    assert [len(t) for t in said["tokens"]] == [5, 5]
    assert seen.tree_nbytes < 2 << 30
    print(f"peak {seen.tree_nbytes / (1 << 20):.0f} MiB, device {said['device_nbytes'] / (1 << 20):.0f} MiB")
