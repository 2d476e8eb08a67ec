"""What is installed is what is in the tree: packages, conf, the embedded checkpoint, and nothing else."""

import json
import os
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path, PurePosixPath

import pytest

from tests.cases.native import needs_compiler
from tests.cli.run import MAIN, ROOT

SHIPPED = ("pipeline", "stages", "plugins", "conf", "hydra_plugins")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheel"))


def built(tree: Path, out: Path, **env: str) -> Path:
    """From a copy, so that no build folder is left in the tree, by the setuptools that is installed."""
    for path in tracked():
        target = tree / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / path).read_bytes())
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "-w",
        out,
        tree,
    ]
    done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (found,) = out.glob("*.whl")
    return found


def tracked() -> list[Path]:
    """The files that a build looks at: what git knows or would take, or everything where there is no git."""
    wanted = ("pyproject.toml", "setup.py", "README.md", "LICENSE", *SHIPPED)
    git = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *wanted]
    done = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == 0 and done.stdout:
        return [p for n in done.stdout.split("\0") if n and (ROOT / (p := Path(n))).is_file()]
    roots = [ROOT / w for w in wanted]
    found = [p for r in roots for p in ([r] if r.is_file() else r.rglob("*")) if p.is_file()]
    return [p.relative_to(ROOT) for p in found if "__pycache__" not in p.parts]


def test_every_file_of_the_shipped_folders_is_in_the_wheel(wheel: Path) -> None:
    names = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}
    wanted = {p.as_posix() for p in tracked() if p.parts[0] in SHIPPED}
    wanted -= {n for n in wanted if PurePosixPath(n).suffix in (".md",) and "/tiny/" not in n}
    assert wanted - names == set(), "in the tree, not in the wheel: see [tool.setuptools] in pyproject.toml"
    assert names - wanted == set(), "in the wheel, not in the tree"


def test_every_package_is_listed() -> None:
    conf = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert len(conf) == len(set(conf))
    folders = {p.parent.as_posix().replace("/", ".") for p in tracked() if p.suffix == ".py" and p.parts[0] in SHIPPED}
    assert set(conf) == folders


def test_the_wheel_works_elsewhere(wheel: Path, tmp_path: Path) -> None:
    """Unpacked into a folder of its own, found before the sources, run from another folder."""
    site, cwd = unpacked(wheel, tmp_path)
    for args in (("plan", *MAIN), MAIN):
        done = ran(site, cwd, *args)
        assert done.returncode == 0, done.stderr
        assert str(ROOT) not in done.stdout
    assert (cwd / "outputs/gpt_oss-mxfp4/model/config.json").exists()
    manifest = (cwd / "outputs/gpt_oss-mxfp4/manifest.json").read_text()
    assert str(site) in manifest  # the embedded checkpoint that was read is the wheel's
    assert f'"{ROOT}/' not in manifest


@needs_compiler
def test_a_wheel_with_compiled_kernels_needs_no_compiler(tmp_path: Path) -> None:
    """It brings what the tests have compiled. Where it runs nothing is compiled, and native kernels run."""
    wheel = built(tmp_path / "tree", tmp_path / "out", WEIGHTMILL_PREBUILT="1")
    assert wheel.name.endswith(f"-py3-none-{sysconfig.get_platform().replace('-', '_')}.whl")
    site, cwd = unpacked(wheel, tmp_path)
    args = (*MAIN, "flow=convert", "kernels=native")
    env = {"PATH": "", "CXX": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = ran(site, cwd, *args, "paths.run=run", **env)
    assert done.returncode == 0, done.stderr
    assert ["quantize", "native"] in json.loads((cwd / "run/manifest.json").read_text())["backends"]
    assert not [*(tmp_path / "cache").rglob("*.so")]
    (file,) = site.glob("plugins/kernels/native/shipped/quantize-*.so")
    file.write_bytes(b"")  # as good as one of another machine
    done = ran(site, cwd, *args, "paths.run=again", **env)
    assert done.returncode != 0
    assert "no C++ compiler" in done.stderr


def unpacked(wheel: Path, folder: Path) -> tuple[Path, Path]:
    """A folder of packages, and an empty one to run in."""
    site, cwd = folder / "site", folder / "cwd"
    zipfile.ZipFile(wheel).extractall(site)
    cwd.mkdir()
    return site, cwd


def ran(site: Path, cwd: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    # -S leaves out the path hooks of an editable install; the libraries are added by hand.
    libraries = [p for p in sys.path if p.endswith("site-packages")]
    code = f"""
import sys
sys.path[:0] = [{str(site)!r}]
sys.path += {libraries!r}
import pipeline
assert pipeline.__path__[0].startswith({str(site)!r}), pipeline.__path__
sys.argv = ["weightmill", *sys.argv[1:]]
from pipeline.__main__ import main
main()
"""
    command = [sys.executable, "-S", "-c", code, *args]
    return subprocess.run(command, cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True, check=False)


def test_the_console_script(wheel: Path) -> None:
    (name,) = [n for n in zipfile.ZipFile(wheel).namelist() if n.endswith("entry_points.txt")]
    assert "weightmill = pipeline.__main__:main" in zipfile.ZipFile(wheel).read(name).decode()
    done = subprocess.run(
        [Path(sys.executable).with_name("weightmill"), "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "weightmill" in done.stdout.lower()
