"""Run names: readable, safe as folder names, and different for different runs."""

import re
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config.names import LONGEST, place_name, run_name

MAIN = ["+model=gpt_oss", "quant=mxfp4"]


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        ([], "default"),
        (MAIN, "gpt_oss-mxfp4"),
        ([*MAIN, "quant.scale_rule=even"], "gpt_oss-mxfp4-scale_rule=even"),
        (
            [*MAIN, "dask=distributed", "dask.workers=2", "overwrite=true", "paths.outputs=/x", "debug=true"],
            "gpt_oss-mxfp4",
        ),
        ([*MAIN, "hydra.verbose=true", "progress=false", "digest_inputs=false"], "gpt_oss-mxfp4"),
        ([*MAIN, "trace=true", "trace_jax=true"], "gpt_oss-mxfp4"),
    ],
)
def test_names(overrides: list[str], name: str) -> None:
    assert run_name(overrides) == name


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("outputs/gpt_oss-mxfp4/model", "gpt_oss-mxfp4"),
        ("/o/smol/model/model.gguf", "smol"),
        ("hf://owner/name", "name"),
        ("small.gguf", "small.gguf"),
        ("../model", "model"),
        ("/", ""),
    ],
)
def test_what_is_called_model_is_named_after_its_run(path: str, name: str) -> None:
    assert place_name(path) == name
    if "/" in path[1:] and name != "model":
        assert run_name([f"model.source={path}"]).startswith(f"{name}~")


# Two of these in the same folder would be told that it holds another run.
DISTINCT = [
    MAIN,
    [*MAIN, "export=numpy"],
    [*MAIN, "kernels=numpy"],
    [*MAIN, "export.dtype=bf16"],
    [*MAIN, "stages.decode.dtype=bf16"],
    [*MAIN, "seed=1"],
    [*MAIN, "quant.seed=1"],
    [*MAIN, "model.source=/a/checkpoint"],
    [*MAIN, "model.source=/b/checkpoint"],
    [*MAIN, "model.source=/b/check point"],
    [*MAIN, "export.path=/b/checkpoint"],
    [*MAIN, "stages=[load,export]"],
    [*MAIN, "stages=[load,decode,export]"],
    [*MAIN, "~stages.decode"],
    [*MAIN, "++seed=1", "export=numpy"],
    [*MAIN, "flow=transcode"],
    [*MAIN, "quant.ties=even"],
    [*MAIN, "quant.scale_rule=even"],
]


@pytest.mark.parametrize(("one", "other"), list(combinations(DISTINCT, 2)))
def test_different_runs_have_different_names(one: list[str], other: list[str]) -> None:
    assert run_name(one) != run_name(other)


KEYS = st.sampled_from(["model.source", "quant.scale_rule", "seed", "export.path", "stages.decode.dtype", "x.y.z"])


@given(st.lists(st.tuples(KEYS, st.text(st.characters(codec="utf-8"), max_size=200)), max_size=6))
def test_always_a_folder_name(pairs: list[tuple[str, str]]) -> None:
    name = run_name([f"{k}={v}" for k, v in pairs])
    assert re.fullmatch(r"[\w.,=+~-]+", name)
    assert name not in (".", "..")
    assert len(name) <= LONGEST
    assert not name.startswith((".", "-"))


@given(st.text(max_size=40), st.text(max_size=40))
def test_values_that_differ_only_in_unsafe_characters_stay_apart(one: str, other: str) -> None:
    names = {run_name([f"model.source={v}"]) for v in {one, other}}
    assert len(names) == len({one, other})
