"""Every backend of our own ops gives what the reference gives."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import MXFP4, Scheme
from pipeline.tensors.spec import TensorSpec
from pipeline.testing.kernel import Case, KernelContract
from pipeline.testing.memory import random_bytes
from plugins.kernels import cast
from tests.cases.model_runs import quick_compilation

BF16 = ml_dtypes.bfloat16


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    edges = np.array([0.0, -0.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, 7.0, 1e-45, 3.4e38, -2.5], np.float32)
    return {
        "normal": rng.standard_normal((3, 5, 64), dtype=np.float32),
        "edges of E2M1": np.resize(edges, (2, 96)),
        "tiny": (rng.standard_normal((2, 96)) * 2.0**-130).astype(np.float32),
        "zeros": np.zeros((2, 96), np.float32),
        "no rows": np.zeros((0, 64), np.float32),
        "vector": rng.standard_normal(160, dtype=np.float32),
    }


BRIEF = (
    (Scheme("nf4", 64, "f32"), {"scale_rule": "amax", "ties": "down"}),
    (Scheme("uint3", 32, "f16", zero="min_f16"), {"scale_rule": "minmax"}),
    (Scheme("e2m3", 1, "e8m0", 2), {"scale_rule": "ceil"}),  # blocks down the columns
)
REAL = (
    (Scheme("int8", 0, "f32"), {"scale_rule": "amax"}),
    (Scheme("e4m3", 32, "f32", 2), {"scale_rule": "amax"}),
    (Scheme("e2m1", 16, "e4m3", second="f32"), {"scale_rule": "amax"}),
    (Scheme("uint4", 32, "f32", zero="int"), {"scale_rule": "minmax"}),
    (Scheme("e2m1", 1, "f32", 3), {"scale_rule": "amax"}),  # blocks down the columns, two in a byte
    *BRIEF,
)


class TestQuantize(KernelContract):
    def op(self) -> str:
        return "quantize"

    def cases(self, real: Iterable[tuple[Scheme, dict[str, str]]] = REAL) -> Iterable[Case]:
        for name, x in arrays().items():
            yield Case(name, (x, MXFP4), {"measure": True})
            yield Case(f"{name}, bf16", (x.astype(BF16), MXFP4))
        mixed = arrays()["edges of E2M1"]
        for rule, ties in product(("floor", "ceil", "even", "rceil"), ("even", "zero", "away")):
            yield Case(f"{rule} {ties}", (mixed, MXFP4), {"scale_rule": rule, "ties": ties})
        for scheme, recipe in real:
            yield Case(f"{scheme.element} {scheme.scale} {scheme.zero}", (arrays()["normal"], scheme), recipe)
        far = arrays()["normal"] * np.array([1, 2.0**-120, 2.0**-140, 0, -0.0], np.float32)[:, None]
        far[:, :, 5] = 2.0**110
        yield Case("-0 only for 0", (far, MXFP4), {"zero": "minus", "ties": "zero", "scale_rule": "rceil"})
        broken = np.array(mixed)
        broken[1, 40] = np.nan
        yield Case("NaN is an error", (broken, MXFP4))
        yield Case("NaN poisons", (broken, MXFP4), {"nonfinite": "poison"})
        search = {"scale_rule": "rceil", "search": "mse", "overflow": "inf"}
        yield Case("a search keeps off infinities", (np.full((1, 32), 3.1e38, np.float32), MXFP4), search)


OP_BY_OP = ("normal", "no rows", "-0 only for 0", "e2m3 e8m0 None")


def once(call: Mapping[str, Any]) -> tuple[str, str]:
    """Every case by every backend; of XLA, whose operations are compiled one by one here, a few: as programs it has the
    rules and the schemes in tests/unit/kernels/test_quantize_dequantize.py."""
    name = call["case"].name if "case" in call else ""
    return call["backend"], name if call["backend"] != "xla" or name in OP_BY_OP else ""


@pytest.mark.slow
@pytest.mark.brief(each=once)
class TestQuantizeDequantize(KernelContract):
    """The corpus of `quantize` once more, without what it refuses: programs cannot raise. Op by op every operation is
    compiled by itself; the rest of the schemes is in tests/unit/kernels/test_quantize_dequantize.py, as programs."""

    @pytest.fixture(autouse=True)
    def _quick(self) -> Iterator[None]:
        """There is nothing to fuse in an operation by itself."""
        with quick_compilation():
            yield

    def op(self) -> str:
        return "quantize_dequantize"

    def cases(self) -> Iterable[Case]:
        for case in TestQuantize().cases(BRIEF):
            options = {name: value for name, value in case.options.items() if name != "measure"}
            if np.isfinite(case.args[0].astype(np.float32)).all():
                yield Case(case.name, case.args, {**options, "overflow": "inf"})


class TestDequantize(KernelContract):
    def op(self) -> str:
        return "dequantize"

    def cases(self) -> Iterable[Case]:
        rng = np.random.default_rng(0)
        codes = rng.integers(0, 256, (3, 7, 64), dtype=np.uint8)
        for name, low, high in (("near one", 120, 132), ("all scales", 0, 256), ("tiny", 0, 4)):
            q = QTensor(codes, rng.integers(low, high, (3, 7, 4), dtype=np.uint8), MXFP4)
            for dtype in ("BF16", "F32", "F16"):
                yield Case(f"{name} to {dtype}", (q, dtype))
            yield Case(f"{name} to F16, clamped", (q, "F16"), {"overflow": "clamp"})


class TestCast(KernelContract):
    def op(self) -> str:
        return "cast"

    def cases(self) -> Iterable[Case]:
        rng = np.random.default_rng(0)
        for source, target in product(cast.DTYPES, cast.DTYPES):
            bits = random_bytes(TensorSpec((4, 61), source), (4, 61), rng)
            for overflow in ("error", "clamp", "inf"):
                yield Case(f"{source} to {target}, {overflow}", (bits, target), {"overflow": overflow})
