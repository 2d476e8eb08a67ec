"""Get and build the peers, those that are not built yet: `python -m plugins.bench.peers`. See the package."""

import argparse
import subprocess
import sys
import tarfile
from pathlib import Path

from pipeline.planning.rates import cores
from plugins.bench.peers import FOLDER, LOGITS, PEERS, SOURCES, Peer
from plugins.kernels.native import compiler

OPTIONS = ("CMAKE_BUILD_TYPE=Release", "LLAMA_BUILD_TESTS=OFF", "LLAMA_BUILD_SERVER=OFF", "LLAMA_CURL=OFF")
# The source distribution of ik_llama.cpp lacks the script that its build asks which commit it is of.
BUILD_INFO = """set(BUILD_NUMBER 0)
set(BUILD_COMMIT unknown)
configure_file(common/build-info.cpp.in common/build-info.cpp)
"""
# GCC 12 takes `_tile_loadconfig` to read eight bytes, and leaves out what is written behind them: llama.cpp's products
# for AMX then end the process.
TELL_TILES = "    _tile_loadconfig(&tc);"
WRITTEN_BEFORE = '    asm volatile("" ::"r"(&tc) : "memory");\n' + TELL_TILES


def run(*command: object) -> None:
    # pip, cmake, and what was unpacked from files of known digests.
    if subprocess.run([str(part) for part in command]).returncode:  # noqa: S603
        raise SystemExit(f"{' '.join(map(str, command))}: failed")


def get() -> None:
    """The archives, by pip, which holds them to their digests; unpacked."""
    exact = ("--no-deps", "--no-binary", ":all:", "--require-hashes", "-r", SOURCES)
    run(sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q", *exact, "-d", FOLDER)
    for archive in sorted(FOLDER.glob("*.tar.gz")):
        with tarfile.open(archive) as file:
            file.extractall(FOLDER, filter="data")
        archive.unlink()


def build(peer: Peer, jobs: int) -> None:
    source = peer.unpacked()
    script = source / "common/cmake/build-info-gen-cpp.cmake"
    if peer.name == "ik_llama.cpp" and not script.exists():
        script.parent.mkdir(exist_ok=True)
        script.write_text(BUILD_INFO)
    amx = source / "ggml/src/ggml-cpu/amx/mmq.cpp"
    if peer.name == "llama.cpp" and WRITTEN_BEFORE not in (text := amx.read_text()):
        amx.write_text(text.replace(TELL_TILES, WRITTEN_BEFORE))
    definitions = [f"-D{given}" for given in (*OPTIONS, *peer.definitions)]
    run("cmake", "-S", source, "-B", peer.build, "-G", "Ninja", *definitions)
    run("cmake", "--build", peer.build, "--target", "llama-bench", "-j", jobs)


def build_logits() -> None:
    peer = PEERS["llama.cpp"]
    headers = [f"-I{peer.unpacked() / folder}" for folder in ("include", "ggml/include")]
    libraries = peer.bench.parent
    linked = [f"-L{libraries}", "-lllama", "-lggml", "-lggml-base", f"-Wl,-rpath,{libraries}"]
    source = Path(__file__).with_name("logits.cc")
    run(*compiler.command(), "-std=c++17", "-O2", *headers, source, "-o", LOGITS, *linked)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=cores(), help="compilers at once")
    args = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    if any(not list(FOLDER.glob(f"{peer.package}-*/")) for peer in PEERS.values()):
        get()
    for peer in PEERS.values():
        if not peer.bench.is_file():
            build(peer, args.jobs)
        print(f"{peer.name}: {peer.bench}")
    if not LOGITS.is_file():
        build_logits()


if __name__ == "__main__":
    main()
