"""A secret that was given to a run is nowhere in what the run writes and says; what it changes is noticed."""

import json
from pathlib import Path

import pytest

from tests.cli.run import Said, pipeline

SECRET = "hunter2&hunter2"
URL = f"https://joe:{SECRET}@127.0.0.1:9/hub?token={SECRET}"
ENV = {"WM_SECRET": SECRET, "WM_URL": URL, "HF_TOKEN": f"hf_{SECRET}"}
TYPED = f"hub.endpoint='{URL}'"
STAGE = """
from dataclasses import dataclass
import pytest

from pipeline.stage import Checkpoint, Context

@dataclass(frozen=True)
class Sign:
    token: str
    fail: bool = False

    def run(self, ctx: Context, checkpoint: Checkpoint) -> Checkpoint:
        return checkpoint.map(self._leave, "model.norm.weight")

    def _leave(self, x):
        if self.fail:
            raise ValueError(f"the server does not take {self.token!r}")
        return x
"""
YAML = "# @package stages.sign\n_target_: stages.sign.Sign\ntoken: ${oc.env:WM_SECRET}\nfail: false\n"


def signed(*args: str, cwd: Path, **env: str) -> Said:
    (cwd / "mine" / "stages").mkdir(parents=True, exist_ok=True)
    (cwd / "mine" / "stages" / "sign.py").write_text(STAGE)
    (cwd / "mine" / "stages" / "sign.yaml").write_text(YAML)
    how = ["+model=gpt_oss", "stages=[load,decode,sign,export]", "hub.endpoint=${oc.env:WM_URL}"]
    return pipeline("--config-dir", "mine", *how, *args, cwd=cwd, env={**ENV, **env})


def leaks(cwd: Path, *said: Said) -> list[str]:
    """Where any form of the secret stands: in files, in names of files, in what was said."""
    texts = {str(i): s.out + s.err for i, s in enumerate(said)}
    for path in (p for p in cwd.rglob("*") if p.is_file()):
        texts[str(path.relative_to(cwd))] = f"{path}\n{path.read_bytes().decode('latin-1')}"
    return [where for where, text in texts.items() if "hunter2" in text]


def test_from_the_environment(tmp_path: Path) -> None:
    first = signed("paths.run=run", cwd=tmp_path)
    assert first.code == 0, first.err
    run = tmp_path / "run"
    recorded = json.loads((run / "run.json").read_bytes())["nodes"]["sign"]["parts"]["config"]
    assert recorded["token.given"] == "${oc.env:WM_SECRET}"
    assert "endpoint: ${oc.env:WM_URL}" in (run / "config.yaml").read_text()
    assert "hub.endpoint=${oc.env:WM_URL}" in json.loads((run / "manifest.json").read_bytes())["command"]
    again = signed("paths.run=run", cwd=tmp_path, WM_URL="https://elsewhere")  # who is asked changes no result
    assert "complete already" in again.err
    other = signed("paths.run=run", cwd=tmp_path, WM_SECRET="hunter2hunter3")
    assert other.code == 2
    assert "holds another run (sign: field token.digest: " in other.err
    token = "stages.sign.token=${oc.env:WM_SECRET}"  # in the name of the folder
    failed = signed(token, "stages.sign.fail=true", "dask.retries=0", cwd=tmp_path)
    assert failed.code == 6
    assert "the server does not take '${oc.env:WM_SECRET}'" in failed.err
    assert leaks(tmp_path, first, again, other, failed) == []


@pytest.mark.repeats
def test_typed_into_an_address(tmp_path: Path) -> None:
    swept = pipeline("-m", "+model=gpt_oss", "quant=mxfp4,none", TYPED, cwd=tmp_path)
    assert swept.code == 0, swept.err
    sweep = next((tmp_path / "outputs").glob("sweep-*"))
    assert "endpoint: https://***@127.0.0.1:9/hub?token=***" in (sweep / "multirun.yaml").read_text()
    source = "model.source=hf://owner/name"
    asked = pipeline("+model=llama", source, TYPED, "hub.cache=cache", "debug=true", cwd=tmp_path, env=ENV)
    assert asked.code == 4
    assert "cannot be read from https://***@127.0.0.1:9" in asked.err
    assert "Traceback" in asked.err
    nowhere = pipeline("+model=llama", f"model.source='{URL}'", cwd=tmp_path)
    assert "nothing here fetches from https://" in nowhere.err
    typo = pipeline("+model=gpt_oss", f"hub.endpont='{URL}'", f"hub.endpoint={URL}", cwd=tmp_path)
    assert typo.code == 2
    assert leaks(tmp_path, swept, asked, nowhere, typo) == []
