"""Compiled programs are kept in a folder that does not grow for ever."""

from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache import compilation_cache

from pipeline.errors import ConfigError
from plugins.engine.start import keep_programs
from tests.cases import model_runs

OPTIONS = ("jax_compilation_cache_dir", "jax_compilation_cache_max_size", "jax_persistent_cache_min_compile_time_secs")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = {option: getattr(jax.config, option) for option in OPTIONS}
    compilation_cache.reset_cache()
    yield
    for option, value in before.items():
        jax.config.update(option, value)
    compilation_cache.reset_cache()


def compile_some(first: int, count: int) -> None:
    for i in range(first, first + count):
        jax.jit(lambda x, i=i: x * i + i)(jnp.ones(3 + i))


def kept(folder: Path) -> dict[str, int]:
    return {p.name: p.stat().st_size for p in folder.glob("*-cache")}


def test_programs_not_used_for_longest_go(tmp_path: Path) -> None:
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))  # as it was once: no bound, nothing is dated
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    compile_some(0, 4)
    for file in tmp_path.glob("*-atime"):
        file.unlink()
    old = kept(tmp_path)
    assert len(old) >= 4
    compilation_cache.reset_cache()
    most = sum(old.values()) + max(old.values())
    keep_programs(str(tmp_path), f"{most}B")
    for first in range(10, 40, 10):
        compile_some(first, 10)
        assert most - 2 * max(old.values()) < sum(kept(tmp_path).values()) <= most
    assert not set(old) & set(kept(tmp_path))


def test_what_jax_was_told_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "own"))
    jax.config.update("jax_compilation_cache_max_size", -1)  # whatever ran before in this process
    keep_programs("auto", "1MB")
    assert (jax.config.jax_compilation_cache_dir, jax.config.jax_compilation_cache_max_size) == (f"{tmp_path}/own", -1)
    jax.config.update("jax_compilation_cache_dir", None)
    keep_programs("auto", "1MB")
    found = jax.config.jax_compilation_cache_dir, jax.config.jax_compilation_cache_max_size
    assert found == (f"{tmp_path}/weightmill/jax", 1_000_000)


def test_a_bound_that_is_none() -> None:
    from dataclasses import replace

    with pytest.raises(ConfigError, match=r"engine.programs_most='much' is not a size"):
        replace(model_runs.engine(), programs_most="much")
