"""A run takes no more memory than its plan says, and its plan says no more than it may."""

import json
import re
import sys
from dataclasses import replace
from math import prod

import ml_dtypes
import numpy as np
import pytest

from pipeline.testing.peak import watch
from tests.cases import big_gpt_oss
from tests.cli.run import QUIETLY, ROOT, command, pipeline

SIZES = big_gpt_oss.Sizes(layers=1, experts=6, hidden=1536, inter=1600, heads=8, kv_heads=2, head_dim=64, vocab=512)
DISTRIBUTED = ["dask=distributed", "dask.dashboard=false", "dask.workers=2"]
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return big_gpt_oss.write(tmp_path_factory.mktemp("source"), SIZES)  # 101 MB


@pytest.fixture(scope="module")
def packed(source, tmp_path_factory):
    run = tmp_path_factory.mktemp("packed")
    assert pipeline(*QUIETLY, f"paths.run={run}", f"model.source={source}", "quant=mxfp4").code == 0
    return run / "model"


def predicted(*args):
    said = pipeline("plan", "+model=gpt_oss", *args, cwd=ROOT)
    assert said.code == 0, said.err
    number, unit = re.search(r"peak memory ([\d.]+) (\w+) of", said.out.replace("\n", " ")).groups()
    return float(number) * UNITS[unit]


@pytest.mark.parametrize(
    "args",
    [
        ["quant=mxfp4", "dask.workers=1"],
        ["quant=mxfp4", "dask.workers=4", "dask.chunk=4MiB"],
        ["quant=mxfp4", *DISTRIBUTED],
        ["quant=none", "export=numpy", "export.dtype=fp32", "dask.workers=2"],
        ["quant=mxfp4", "export=original", "dask.workers=2", "dask.memory=150MiB"],
    ],
    ids=lambda args: " ".join(args),
)
@pytest.mark.brief(when=lambda args: args[-1] == "dask.workers=1" or "dask=distributed" in args)
def test_the_peak_is_no_higher_than_planned(source, tmp_path, args):
    args = [*args, f"model.source={source}", f"paths.run={tmp_path}", f"paths.outputs={tmp_path}.outputs"]
    most = predicted(*args)
    seen = watch(command(*QUIETLY, *args), cwd=ROOT)
    assert seen.returncode == 0, seen.output
    assert most / 3 < seen.tree_nbytes <= most


@pytest.fixture(scope="module")
def twice(tmp_path_factory):
    return big_gpt_oss.write(tmp_path_factory.mktemp("twice"), replace(SIZES, layers=2))  # 179 MiB


@pytest.mark.parametrize(
    "args",
    [
        ["quant=int8", "quant.block_rows=0", "export=orbax"],  # a scale a matrix: everything is read twice
        ["quant=nvfp4", "export=modelopt"],
    ],
    ids=lambda args: " ".join(args),
)
@pytest.mark.brief(1)
def test_any_scheme_keeps_to_a_bound_that_the_weights_are_past(twice, tmp_path, args):
    """The codec of all schemes, not MXFP4's own: high-water mark of the process, whichever tile it was in."""
    bound = 150 << 20
    assert sum(p.stat().st_size for p in twice.glob("*.safetensors")) > bound * 7 / 6
    args = [*args, "flow=convert", "dask.workers=2", "dask.memory=150MiB"]
    args += [f"model.source={twice}", f"paths.run={tmp_path}", f"paths.outputs={tmp_path}.outputs"]
    most = predicted(*args)
    seen = watch(command(*QUIETLY, *args), cwd=ROOT)
    assert seen.returncode == 0, seen.output
    assert most / 3 < seen.process_nbytes[0] <= most <= bound


def test_running_a_model_takes_what_is_planned(tmp_path):
    """The whole main job, compiling included; and the plan is not far above it."""
    text = f"evaluate.texts=[{ROOT}/plugins/texts/sotu_eval.txt]"
    few = [text, "evaluate.windows.tokens=2048", "sampling.max_tokens=8"]
    args = ["quant=mxfp4", "flow=full", "engine.programs=null", *few, f"paths.run={tmp_path}"]
    most = predicted(*args)
    seen = watch(command(*QUIETLY, *args), cwd=ROOT)
    assert seen.returncode == 0, seen.output
    assert most / 2 < seen.tree_nbytes <= most


@pytest.mark.repeats
def test_decoding_to_a_transposed_layout(packed, tmp_path):
    args = [
        "quant=none",
        "dask.workers=2",
        f"model.source={packed}",
        f"paths.run={tmp_path}",
        f"paths.outputs={tmp_path}.outputs",
    ]
    most = predicted(*args)
    seen = watch(command(*QUIETLY, *args), cwd=ROOT)
    assert seen.returncode == 0, seen.output
    assert seen.tree_nbytes <= most


@pytest.mark.parametrize("how", [[], DISTRIBUTED], ids=["threads", "distributed"])
@pytest.mark.brief("threads")
def test_too_little_memory_says_how_much_would_do(source, tmp_path, how):
    args = ["+model=gpt_oss", "quant=mxfp4", f"model.source={source}", f"paths.run={tmp_path / 'run'}", *how]
    said = pipeline(*args, "dask.memory=64MiB", cwd=ROOT)
    assert said.code == 3
    assert "64MiB is too little" in said.err
    enough = int(re.search(r"dask\.memory=(\d+)MiB", said.err)[1])
    assert pipeline("plan", *args, f"dask.memory={enough}MiB", cwd=ROOT).code == 0
    assert pipeline("plan", *args, f"dask.memory={enough - 2}MiB", cwd=ROOT).code == 3
    assert not (tmp_path / "run").exists()


KEPT = ["+model=llama", "flow=convert", "dask.workers=1", "progress=false"]


@pytest.fixture(scope="module")
def long_rows(tmp_path_factory):
    """Two rows of 48 MB, a vector of 24: none of them fits what a task may take."""
    return plain_llama(tmp_path_factory.mktemp("long"), {"model.layers.0.w.weight": (2, 24 << 20), "b": (12 << 20,)})


def plain_llama(folder, shapes):
    places, at = {}, 0
    for name, shape in shapes.items():
        nbytes = 2 * prod(shape)
        places[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + nbytes]}
        at += nbytes
    head = json.dumps(places).encode()
    rng = np.random.default_rng(0)
    block = rng.standard_normal(1 << 20).astype(ml_dtypes.bfloat16).tobytes()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for start in range(0, at, len(block)):
            file.write(block[: at - start])
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return folder


@pytest.mark.parametrize(
    "args",
    [
        ["model.rules=[{match: '*', to: keep}]", "quant=none"],
        ["model.rules=[{match: '*.weight', to: quant}]", "quant=int8", "export=compressed_tensors"],
    ],
    ids=["kept", "a scale a row"],
)
@pytest.mark.brief("a scale a row")
def test_a_row_need_not_fit(long_rows, tmp_path, args):
    args = [*KEPT, *args, f"model.source={long_rows}", f"paths.run={tmp_path}", "dask.memory=112MiB"]
    seen = watch(command(*args), cwd=ROOT)
    assert seen.returncode == 0, seen.output
    assert seen.process_nbytes[0] <= 112 << 20


@pytest.fixture(scope="module")
def matrices(tmp_path_factory):
    shapes = {f"model.layers.{i}.w.weight": (4096, 4096) for i in range(6)}
    return plain_llama(tmp_path_factory.mktemp("matrices"), shapes)  # 192 MiB


@pytest.mark.parametrize("quant", ["q4_k", "q2_k", "iq4_nl"])
@pytest.mark.brief("q4_k")
def test_what_is_measured_by_decoding_keeps_to_the_plan(matrices, tmp_path, quant):
    """Methods that do not measure while they encode: what they lose is looked at in pieces."""
    args = ["model.rules=[{match: '*.weight', to: quant}]", f"quant={quant}", "quant.rules=[]", "export=orbax"]
    args = [*KEPT, *args, "dask.workers=2", "dask.memory=150MiB"]
    args += [f"model.source={matrices}", f"paths.run={tmp_path / 'run'}"]
    seen = watch(command(*args), cwd=ROOT)
    assert seen.returncode == 0, seen.output
    assert seen.process_nbytes[0] <= kept_to(tmp_path / "run")["planned"] <= 150 << 20


def kept_to(run):
    """What the run's manifest says of memory, planned and measured."""
    [memory] = [r for r in json.loads((run / "manifest.json").read_text())["predicted"] if r["what"] == "memory"]
    return memory


HOLDS = """
import sys, pipeline
held = bytes(400 << 20).replace(b"\\0", b"1")
pipeline.run(sys.argv[1:])
"""


def test_what_a_process_has_before_is_counted_on_both_sides(tmp_path):
    """As what the first of the two runs of quant=auto leaves, or a notebook has."""
    overrides = command(*QUIETLY, "quant=mxfp4", f"paths.run={tmp_path}")[3:]
    seen = watch([sys.executable, "-c", HOLDS, *overrides], cwd=ROOT)
    assert seen.returncode == 0, seen.output
    memory = kept_to(tmp_path)
    assert 400 << 20 < memory["measured"] <= memory["planned"] < memory["measured"] * 1.2


@pytest.mark.parametrize("how", [["dask.workers=2"], DISTRIBUTED], ids=["threads", "distributed"])
@pytest.mark.brief("threads")
def test_tensors_are_counted(tmp_path, how):
    folder = tmp_path / "source"
    folder.mkdir()
    plain_llama(folder, {f"model.layers.{i}.norm.weight": (64,) for i in range(10_000)})
    args = [
        "model.rules=[{match: '*', to: keep}]",
        "quant=none",
        f"model.source={folder}",
        f"paths.run={tmp_path / 'run'}",
    ]
    args = [*KEPT, *args, *how]
    seen = watch(command(*args), cwd=ROOT)
    assert seen.returncode == 0, seen.output
    said = pipeline("plan", *args, cwd=ROOT)
    number, unit = re.search(r"peak memory ([\d.]+) (\w+) of", said.out.replace("\n", " ")).groups()
    assert seen.tree_nbytes <= float(number) * UNITS[unit]


@pytest.mark.parametrize(
    ("kernels", "columns"), [("numpy", 4 << 20), ("xla", 4 << 20), ("reference", 1 << 18)], ids=lambda v: str(v)
)
@pytest.mark.brief("numpy-4194304")
def test_rows_that_must_be_whole_keep_to_the_plan(tmp_path, kernels, columns):
    """A scale that a whole row searches for: what the codec takes is tens of times the row."""
    folder = tmp_path / "source"
    folder.mkdir()
    plain_llama(folder, {"model.layers.0.w.weight": (1, columns)})
    args = ["model.rules=[{match: '*', to: quant}]", "quant=int8", "quant.block_elems=0", "quant.search=mse"]
    args = [
        *KEPT,
        *args,
        "export=orbax",
        f"kernels={kernels}",
        f"model.source={folder}",
        f"paths.run={tmp_path / 'run'}",
    ]
    seen = watch([sys.executable, "-m", "pipeline", *args], cwd=ROOT)
    assert seen.returncode == 0, seen.output
    memory = kept_to(tmp_path / "run")
    assert seen.process_nbytes[0] <= memory["planned"]
    assert abs(seen.process_nbytes[0] - memory["measured"]) < 16 << 20  # and the run knows what it has taken


@pytest.mark.parametrize("kernels", ["xla", "reference"])
@pytest.mark.brief("xla")
def test_every_backend_keeps_to_the_plan(tmp_path, kernels):
    folder = tmp_path / "source"
    folder.mkdir()
    rows = {"xla": 4096, "reference": 96}[kernels]  # slow, and tens of times its input at once
    plain_llama(folder, {f"model.layers.{i}.w.weight": (rows, 1024) for i in range(2)})
    args = ["model.rules=[{match: '*', to: quant}]", "quant=int8", "export=compressed_tensors", f"kernels={kernels}"]
    args = [*KEPT, *args, f"model.source={folder}", f"paths.run={tmp_path / 'run'}", "dask.workers=2"]
    seen = watch(command(*args), cwd=ROOT)
    assert seen.returncode == 0, seen.output
    said = pipeline("plan", *args, cwd=ROOT)
    number, unit = re.search(r"peak memory ([\d.]+) (\w+) of", said.out.replace("\n", " ")).groups()
    assert seen.process_nbytes[0] <= float(number) * UNITS[unit]
