"""What is installed is what is in the tree: packages, conf, the embedded checkpoint, and nothing else."""

import json
import os
import shlex
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path, PurePosixPath

import pytest

from plugins.kernels.native import compiler
from tests.cases.model_runs import quick_environment
from tests.cases.native import needs_compiler
from tests.cli.run import MAIN, ROOT

SHIPPED = ("weightmill", "pipeline", "stages", "plugins", "conf", "hydra_plugins")


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
    few = ("evaluate.windows.tokens=64", "evaluate.windows.window=32", "sampling.max_tokens=2", "paths.run=outputs/run")
    for args in (("plan", *MAIN), (*MAIN, *few)):
        done = ran(site, cwd, *args, **quick_environment())
        assert done.returncode == 0, done.stderr
        assert str(ROOT) not in done.stdout
    assert (cwd / "outputs/run/model/config.json").exists()
    manifest = (cwd / "outputs/run/manifest.json").read_text()
    assert str(site) in manifest  # the embedded checkpoint that was read is the wheel's
    said = json.loads(manifest)
    del said["environment"]["variables"]  # of whoever runs the tests
    assert f'"{ROOT}/' not in json.dumps(said)


QUICK = """#!/bin/sh
case "$*" in
*/core.cc | */quantize.cc) exec {cc} -DWM_X86=0 "$@" -O0 ;;
esac
while [ "$1" != -o ]; do shift; done
exec {cc} -shared -o "$2" -x c++ /dev/null
"""


@needs_compiler
def test_a_wheel_with_compiled_kernels_needs_no_compiler(tmp_path: Path) -> None:
    """It brings all libraries. Where it runs nothing is compiled, and native kernels run: those libraries that the run
    calls are compiled here, of what is portable and not optimized; the others are empty."""
    quick = tmp_path / "c++"
    quick.write_text(QUICK.format(cc=shlex.join(compiler.command())))
    quick.chmod(0o755)
    wheel = built(tmp_path / "tree", tmp_path / "out", WEIGHTMILL_PREBUILT="1", CXX=str(quick))
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


THEIRS = ("pipeline", "stages", "plugins", "conf", "hydra_plugins")


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A folder that holds packages of our names, which must not be imported."""
    for name in THEIRS:
        (tmp_path / "theirs" / name).mkdir(parents=True)
        (tmp_path / "theirs" / name / "__init__.py").write_text("" if name == THEIRS[-1] else "raise RuntimeError(1)")
    return tmp_path / "theirs"


def begun(site: Path, folder: Path, code: str, *args: str) -> subprocess.CompletedProcess[str]:
    """A program that Python starts in `folder`, which it looks through first, in an environment with the wheel."""
    paths = [str(folder), str(site), *(p for p in sys.path if p.endswith("site-packages"))]
    program = f"import sys\nsys.path[:0] = {paths!r}\n{code}"
    return subprocess.run(
        [sys.executable, "-S", "-c", program, *args], cwd=folder, env={**os.environ, "PYTHONPATH": ""},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.repeats
def test_a_folder_with_packages_of_the_same_names(wheel: Path, theirs: Path, tmp_path: Path) -> None:
    """By our own name ours are found, also in processes that Dask starts, and Hydra finds what ours has."""
    site, _ = unpacked(wheel, tmp_path)
    code = "from weightmill.__main__ import main\nmain()"
    for args in (("dask=distributed", "dask.workers=1"), ("-m", "quant=mxfp4,none")):
        said = begun(site, theirs, code, *args, *MAIN[:1], "flow=convert")
        assert said.returncode == 0, said.stderr
        assert "RuntimeError" not in said.stderr
    code = "import weightmill\nprint(weightmill.run(['+model=gpt_oss', 'quant=int8', 'flow=convert']).reused)"
    said = begun(site, theirs, code)
    assert said.returncode == 0, said.stderr


def test_a_package_of_theirs_that_is_imported_already_is_said(wheel: Path, theirs: Path, tmp_path: Path) -> None:
    site, _ = unpacked(wheel, tmp_path)
    (theirs / "stages" / "__init__.py").write_text("")
    said = begun(site, theirs, "import stages, weightmill")
    assert f"a package 'stages' was imported before, from {theirs}/stages/__init__.py" in said.stderr
    assert "import weightmill first" in said.stderr


def test_other_programs_with_hydra_import_nothing_of_ours(wheel: Path, theirs: Path, tmp_path: Path) -> None:
    """Neither when they start nor when they compose, and they are warned of nothing."""
    site, cwd = unpacked(wheel, tmp_path)
    code = """
import warnings
warnings.simplefilter("error")
from hydra import compose, initialize_config_dir
from hydra.core.plugins import Plugins
Plugins.instance().discover()
with initialize_config_dir(sys.argv[1], version_base="1.3"):
    compose(overrides=["+a=1"])
print(sorted(m for m in sys.modules if m.partition(".")[0] in ("weightmill", "pipeline", "stages", "plugins")))
print([m for m in sys.modules if m.startswith("hydra_plugins.")])
"""
    for folder in (cwd, theirs):
        said = begun(site, folder, code, str(cwd))
        assert (said.stdout, said.stderr, said.returncode) == ("[]\n[]\n", "", 0)


def test_the_console_script(wheel: Path) -> None:
    (name,) = [n for n in zipfile.ZipFile(wheel).namelist() if n.endswith("entry_points.txt")]
    assert "weightmill = weightmill.__main__:main" in zipfile.ZipFile(wheel).read(name).decode()
    done = subprocess.run(
        [Path(sys.executable).with_name("weightmill"), "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "weightmill" in done.stdout.lower()
