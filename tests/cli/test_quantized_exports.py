"""Exports in the dialects of quantization libraries, read back by the command line itself."""

from pathlib import Path
from typing import Any

import pytest

from plugins.formats.safetensors import SafeTensors
from tests.cases import toy_gpt_oss
from tests.cases.runs import done, weightmill


def run(folder: Path, source: Path, name: str, *args: str) -> Path:
    """Export `source` to `folder/name` in pieces of 32 KiB."""
    target = folder / name
    where = (f"model.source={source}", f"export.path={target}", f"paths.run={folder / f'run-{name}'}")
    done(*where, "dask.chunk=32KiB", *args)
    return target


def leaves(folder: Path) -> dict[str, Any]:
    store = SafeTensors().open(folder)
    return {n: (s, store.read(n).tobytes()) for n, s in store.specs.items()}


def test_mxfp4_goes_to_compressed_tensors_and_back_unchanged(tmp_path: Path) -> None:
    source = toy_gpt_oss.write(tmp_path / "source", toy_gpt_oss.make("hf", "mxfp4"))
    there = run(tmp_path, source, "there", "quant=mxfp4", "export=compressed_tensors")
    names = set(leaves(there))
    assert "model.layers.0.mlp.experts.4.gate_up_proj.weight_packed" in names
    back = run(tmp_path, there, "back", "quant=mxfp4", "export=hf")
    assert leaves(back) == leaves(source)


@pytest.mark.parametrize(
    ("quant", "export", "leaf"),
    [
        (["quant=int4", "quant.block_elems=32"], "compressed_tensors", "weight_shape"),
        (["quant=fp8_e4m3", "quant.block_rows=32", "quant.block_elems=32"], "compressed_tensors", "weight_scale"),
        (["quant=nvfp4"], "modelopt", "weight_scale_2"),
        (["quant=nf4", "quant.block_elems=32"], "bitsandbytes", "weight.quant_map"),
    ],
    ids=["int4", "fp8 tiles", "nvfp4", "nf4"],
)
def test_what_is_exported_decodes_alike_in_any_pieces(quant: list[str], export: str, leaf: str, tmp_path: Path) -> None:
    """Written and read in small pieces, or in one: the same bytes, the same values."""
    source = toy_gpt_oss.write(tmp_path / "source", toy_gpt_oss.make("hf", "bf16"))
    small = run(tmp_path, source, "small", *quant, f"export={export}")
    large = run(tmp_path, source, "large", *quant, f"export={export}", "dask.chunk=32MiB")
    assert leaves(small) == leaves(large)
    assert f"model.layers.2.mlp.experts.1.down_proj.{leaf}" in leaves(small)
    values = run(tmp_path, small, "values", "quant=none", "export=hf")
    again = run(tmp_path, small, "again", "quant=none", "export=hf", "dask.chunk=32MiB")
    assert leaves(values) == leaves(again)
    assert leaves(values).keys() == leaves(source).keys()


def test_the_reciprocal_of_a_second_scale_is_refused_with_the_reason(tmp_path: Path) -> None:
    said = weightmill("quant=nvfp4", "export=compressed_tensors", f"paths.run={tmp_path / 'run'}")
    assert said.returncode == 3
    assert "quantize with second=inverse_f32" in said.stderr
