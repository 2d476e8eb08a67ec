"""`model.source=hf://owner/name` from the command line, on a hub of its own."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.api import run as pipeline_run
from pipeline.planning.model_choice import model_option
from tests.cases import runs
from tests.cases.hub_server import HubServer, Repo, files_of, serving
from tests.cli.run import QUIETLY, done, pipeline, start

TINY = Path(__file__).parents[2] / "plugins" / "models" / "gpt_oss" / "tiny"
SECOND = "model-00002-of-00003.safetensors"
ARGS = ("+model=gpt_oss", "quant=mxfp4", "model.source=hf://org/tiny")


@pytest.fixture
def server() -> Iterator[HubServer]:
    with serving(org__tiny=Repo(files_of(TINY))) as hub:
        yield hub


@pytest.fixture
def env(server: HubServer, tmp_path: Path) -> dict[str, str]:
    return {"HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": ""}


def test_planned_run_killed_resumed_and_verified_offline(
    server: HubServer, env: dict[str, str], tmp_path: Path
) -> None:
    planned = pipeline("plan", *ARGS, cwd=tmp_path, env=env)
    assert planned.code == 0, planned.err
    commit = server.repos["org/tiny"].commit
    assert f"hf://org/tiny@{commit[:12]}, 3 files (9.7 MiB) to download" in planned.out
    assert not [*(tmp_path / "home").rglob("*.safetensors")]

    run = tmp_path / "run"
    server.stall_after[SECOND] = 1 << 20
    command = (*QUIETLY, "quant=mxfp4", "model.source=hf://org/tiny", f"paths.run={run}")
    process = start(*command, env=env)
    runs.until(server.stalled.is_set, process)
    process.kill()
    _, err = process.communicate()
    assert "downloading 3 files (9.7 MiB) into " in err
    assert "1 of 3 files, model-00001-of-00003.safetensors, 3.2 MiB" in err
    assert not run.exists()

    server.stall_after.clear()
    server.released.set()
    server.forget()
    manifest = done(*command, env=env)
    assert server.bodies == [SECOND, "model-00003-of-00003.safetensors"]
    assert all(f"/snapshots/{commit}/" in file["path"] and file["xxh3_128"] for file in manifest["inputs"])
    local = tmp_path / "local"
    done(*QUIETLY, "quant=mxfp4", f"paths.run={local}")
    assert runs.digests(run / "model") == runs.digests(local / "model")

    server.forget()
    offline = pipeline(*command, "hub.offline=true", env=env)
    assert offline.code == 0, offline.err
    assert f"complete already, outputs verified: {run}" in offline.err
    assert not [p for _, p, _ in server.requests if "tiny" in p]


def test_what_is_said_of_sources_that_are_not_there(env: dict[str, str], tmp_path: Path) -> None:
    said = pipeline("+model=gpt_oss", "model.source=hf://org/tini", cwd=tmp_path, env=env)
    assert said.code == 4
    assert "stages.load: hf://org/tini: http://127.0.0.1" in said.err
    assert "has no such repository" in said.err
    said = pipeline("+model=gpt_oss", "model.source=hff://org/tiny", cwd=tmp_path, env=env)
    assert said.code == 4
    assert "nothing here fetches from hff://; did you mean 'hf://'?" in said.err


def test_the_model_of_an_address_is_detected(server: HubServer, env: dict[str, str], tmp_path: Path) -> None:
    """By its config.json, which is fetched once; what no option is for is not downloaded."""
    typed = ("model.source=hf://org/tiny", "quant=mxfp4", "flow=convert", f"paths.run={tmp_path / 'run'}")
    planned = pipeline("plan", *typed, cwd=tmp_path, env=env)
    assert planned.code == 0, planned.err
    assert len([p for method, p, _ in server.requests if method == "GET" and p.endswith("/config.json")]) == 1
    assert not [*(tmp_path / "home").rglob("*.safetensors")]
    server.forget()
    ran = pipeline(*typed, cwd=tmp_path, env=env)
    assert ran.code == 0, ran.err
    whole = [p.rpartition("/")[2] for method, p, part in server.requests if method == "GET" and part is None]
    assert sorted(n for n in whole if n.endswith("tensors")) == [
        f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)
    ]
    files = files_of(TINY)
    server.repos["org/lama"] = Repo({**files, "config.json": files["config.json"].replace(b"gpt_oss", b"lama")})
    server.forget()
    refused = pipeline("model.source=hf://org/lama", "quant=mxfp4", cwd=tmp_path, env=env)
    assert refused.code == 2
    assert "its model_type is 'lama', and no model option is for that; did you mean 'llama'" in refused.err
    assert "downloading" not in refused.err
    assert not [*(tmp_path / "home").rglob("models--org--lama/**/*.safetensors")]


def test_the_api_takes_addresses_and_where_they_lead(server: HubServer, tmp_path: Path) -> None:
    where = [f"hub.endpoint={server.url}", f"hub.cache={tmp_path / 'cache'}"]
    assert model_option("hf://org/tiny", where) == "gpt_oss"
    assert (tmp_path / "cache" / "models--org--tiny").is_dir()
    report = pipeline_run(["flow=verify", "a=hf://org/tiny", f"b={TINY}", f"paths.run={tmp_path / 'run'}", *where])
    assert report.exit_code == 0
    [first, *_] = report.inputs
    assert f"/snapshots/{server.repos['org/tiny'].commit}/" in first["path"]


def test_huggingface_hub_is_imported_for_such_sources_only(tmp_path: Path) -> None:
    code = "import sys, pipeline; pipeline.run(['+model=gpt_oss', 'flow=convert', 'paths.run=run']); "
    code += "assert 'huggingface_hub' not in sys.modules"
    from subprocess import run

    done = run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
