"""Exports in the dialects of quantization libraries, read back by the command line itself."""

from pathlib import Path
from typing import Any

import pytest

from plugins.formats.safetensors.container import SafeTensors
from tests.cases import toy_gpt_oss
from tests.cli.run import QUIETLY, done


def run(folder: Path, source: Path, name: str, *args: str) -> Path:
    """Export `source` to `folder/name` in pieces of 32 KiB."""
    target = folder / name
    where = (f"model.source={source}", f"export.path={target}", f"paths.run={folder / f'run-{name}'}", "flow=convert")
    done(*QUIETLY, *where, "dask.chunk=32KiB", *args)
    return target


def leaves(folder: Path) -> dict[str, Any]:
    store = SafeTensors().open(folder)
    return {n: (s, store.read(n).tobytes()) for n, s in store.specs.items()}


@pytest.mark.parametrize(
    ("quant", "export", "leaf"),
    [
        (["quant=int4"], "compressed_tensors", "1.up_proj.weight_shape"),
        (["quant=nvfp4", "quant.second=inverse_f32"], "compressed_tensors", "4.gate_proj.weight_global_scale"),
        (["quant=fp8_e4m3"], "compressed_tensors", "1.gate_proj.weight_scale"),
        (["quant=nvfp4"], "modelopt", "down_proj_weight_scale_2"),
        (["quant=nf4", "quant.block_elems=32"], "bitsandbytes", "1.down_proj.weight.quant_map"),
    ],
    ids=["int4", "nvfp4", "fp8", "modelopt", "nf4"],
)
@pytest.mark.brief("int4", "modelopt", "nf4")
def test_what_is_exported_decodes_alike_in_any_pieces(quant: list[str], export: str, leaf: str, tmp_path: Path) -> None:
    """Written and read in small pieces, or in one: the same bytes, the same values."""
    source = toy_gpt_oss.write(tmp_path / "source", toy_gpt_oss.make("hf", "bf16"))
    small = run(tmp_path, source, "small", *quant, f"export={export}")
    large = run(tmp_path, source, "large", *quant, f"export={export}", "dask.chunk=32MiB")
    assert leaves(small) == leaves(large)
    assert f"model.layers.2.mlp.experts.{leaf}" in leaves(small)
    values = run(tmp_path, small, "values", "quant=none", "export=hf")
    again = run(tmp_path, small, "again", "quant=none", "export=hf", "dask.chunk=32MiB")
    assert leaves(values) == leaves(again)
    assert leaves(values).keys() == leaves(source).keys()
