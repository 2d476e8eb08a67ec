"""Dask by TLS: a cluster of one's own with certificates that Dask's settings name, and one made for the run."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import dask
import pytest

import pipeline
from pipeline.api import compose_run
from pipeline.config.spine import Dask
from pipeline.errors import ConfigError, PlanError, StageError
from pipeline.running import cluster as clusters
from pipeline.running.cluster import connect

HOW = ["+model=gpt_oss", "quant=mxfp4", "flow=convert"]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A self-signed certificate, which is its own authority, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("makes certificates with openssl")
    folder = tmp_path_factory.mktemp("certificates")
    made = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1", "-subj", "/CN=test"]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run(["openssl", "req", "-x509", *made, *files], check=True, capture_output=True)
    return str(folder / "cert.pem"), str(folder / "key.pem")


@pytest.fixture(scope="module")
def address(certificate: tuple[str, str]) -> Iterator[str]:
    """Of a scheduler that takes nobody without the certificate."""
    from distributed import LocalCluster, Security

    cert, key = certificate
    roles = ("client", "scheduler", "worker")
    names = {f"tls_{role}_{kind}": file for role in roles for kind, file in (("cert", cert), ("key", key))}
    security = Security(tls_ca_file=cert, require_encryption=True, **names)
    with LocalCluster(
        n_workers=1, processes=False, security=security, protocol="tls://", host="127.0.0.1",
        dashboard_address="127.0.0.1:0", scheduler_kwargs={"dashboard": False},
    ) as cluster:  # fmt: skip
        yield cluster.scheduler_address


def settings(ca: str | None, cert: str | None, key: str | None) -> dict[str, object]:
    return {"distributed.comm.tls.ca-file": ca, "distributed.comm.tls.client": {"cert": cert, "key": key}}


def test_a_run_on_a_cluster_that_asks_for_certificates(
    address: str, certificate: tuple[str, str], tmp_path: Path
) -> None:
    assert address.startswith("tls://")
    cert, key = certificate
    with dask.config.set(settings(cert, cert, key)):
        report = pipeline.run([*HOW, f"dask.address={address}", f"paths.run={tmp_path / 'run'}"])
    assert report.chunks["all"] > 0
    with pytest.raises(StageError, match="no scheduler answers there"):
        pipeline.run([*HOW, f"dask.address={address.replace('tls', 'tcp')}", f"paths.run={tmp_path / 'plain'}"])


def test_certificates_that_are_missing_or_none(address: str, certificate: tuple[str, str], tmp_path: Path) -> None:
    cert, key = certificate
    for given, said in (
        (settings(None, None, None), "DASK_DISTRIBUTED__COMM__TLS__CA_FILE.*not set: ca-file, client.cert"),
        (settings(cert, None, key), "not set: client.cert"),
        (settings(str(tmp_path / "nope.pem"), cert, key), r"nope\.pem.*No such file"),
        (settings(key, cert, key), r"key\.pem"),
    ):
        with dask.config.set(given), pytest.raises(ConfigError, match=said):
            pipeline.run([*HOW, f"dask.address={address}", f"paths.run={tmp_path / 'run'}"])


def spine(*more: str) -> Dask:
    return compose_run([*HOW, "dask=distributed", "dask.workers=1", "dask.dashboard=false", *more]).spine.dask


def test_workers_of_our_own_talk_by_tls() -> None:
    with connect(spine("dask.tls=true"), 1, 1 << 30, lambda said: None) as client:
        assert client.scheduler.address.startswith("tls://")
        assert all(a.startswith("tls://") for a in client.scheduler_info()["workers"])
        assert client.submit(len, "four").result() == 4


def test_what_makes_certificates_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install cryptography"), connect(spine("dask.tls=true"), 1, 1, print):
        pass


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["dask=threads", "dask.tls=true"], "threads have no connections"),
        (["dask.address=tcp://127.0.0.1:1", "dask.tls=true"], "dask.address=tls://HOST:PORT says it by itself"),
        (["dask.address=http://127.0.0.1:1"], "tcp://HOST:PORT or tls://HOST:PORT is expected"),
        (["dask.address='tcp://joe:pw@127.0.0.1:1'"], r"tcp://\*\*\*@127.0.0.1:1"),
    ],
)
def test_what_means_nothing_is_refused(overrides: list[str], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        compose_run([*HOW, *overrides])
