"""Our own stages keep the contract that we ship."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.stage import Checkpoint
from pipeline.testing.memory import checkpoint, example
from pipeline.testing.stage import StageContract, stage_of
from tests.cases import toy_gpt_oss

RULES = "rules=[{match: '*.experts.*', to: quant}]"
PLAIN = ("export=numpy", "export.dtype=keep")


def toy(experts: toy_gpt_oss.Experts = "bf16") -> Checkpoint:
    """A whole toy gpt-oss, loaded from memory through no dialect of ours."""
    from pipeline.tensors.qtensor import QTensor
    from pipeline.tensors.scheme import MXFP4

    made = toy_gpt_oss.make("hf", experts)
    tensors = {n: QTensor(v[0], v[1], MXFP4) if isinstance(v, tuple) else v for n, v in made.logical.items()}
    config = {k: v for k, v in made.config.items() if k != "quantization_config"}
    return checkpoint(tensors, config=config)


class TestLoad(StageContract):
    def stage(self) -> Any:
        return stage_of("load")

    def inputs(self) -> Mapping[str, Any]:
        return {}


class TestDecode(StageContract):
    def stage(self) -> Any:
        return stage_of("decode")

    def inputs(self) -> Mapping[str, Any]:
        return {"checkpoint": checkpoint(example(packed=True))}


class TestDecodeKeep(TestDecode):
    def stage(self) -> Any:
        return stage_of("decode", "dtype=keep")


class TestQuantize(StageContract):
    def stage(self) -> Any:
        return stage_of("quantize", RULES, overrides=["quant=mxfp4"])


class TestQuantizePacked(TestQuantize):
    """What is MXFP4 already passes."""

    def inputs(self) -> Mapping[str, Any]:
        return {"checkpoint": checkpoint(example(packed=True))}


class TestUnquantize(TestQuantizePacked):
    whole_rows = True

    def stage(self) -> Any:
        return stage_of("quantize", RULES, overrides=["quant=none"])


class TestShard(StageContract):
    def stage(self) -> Any:
        return stage_of(
            "shard", overrides=["mesh=expert", "mesh.axes.expert=5", "mesh.rules.vocab=null", "mesh.replicated_most=1"]
        )

    def inputs(self) -> Mapping[str, Any]:
        return {"checkpoint": toy("mxfp4")}


class TestShardSingle(TestShard):
    """On one device anything will do, a model or not."""

    def stage(self) -> Any:
        return stage_of("shard")

    def inputs(self) -> Mapping[str, Any]:
        return {"checkpoint": checkpoint(example(packed=True))}


class TestExport(StageContract):
    def stage(self) -> Any:
        return stage_of("export")

    def inputs(self) -> Mapping[str, Any]:
        return {"checkpoint": toy("mxfp4")}

    def context(self, run_dir: Path) -> Any:
        return type(super().context(run_dir))(run_dir, chunk_nbytes=1 << 17)


class TestExportOriginal(TestExport):
    def stage(self) -> Any:
        return stage_of("export", overrides=["export=original", "export.max_shard_size=1MB"])


class TestExportValues(TestExport):
    def stage(self) -> Any:
        return stage_of("export", overrides=["export.dtype=fp32"])


class TestExportNumpy(StageContract):
    def stage(self) -> Any:
        return stage_of("export", overrides=PLAIN)


class TestTranscode(StageContract):
    def stage(self) -> Any:
        return stage_of("transcode", overrides=["quant=mxfp4"])

    def inputs(self) -> Mapping[str, Any]:
        return {"checkpoint": checkpoint(example(packed=True))}


class TestVerify(StageContract):
    def stage(self) -> Any:
        return stage_of("verify")

    def inputs(self) -> Mapping[str, Any]:
        return {"a": checkpoint(), "b": checkpoint(example(seed=1))}
