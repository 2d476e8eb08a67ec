"""What every quantization method promises, as tests."""

import pickle
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pipeline.hooks import misspelt
from pipeline.measured import encoded
from pipeline.method import Method
from pipeline.ops import Kernel
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.stats import ErrorStats
from pipeline.testing.memory import cut, holds, random_boxes, same, spec_of


class MethodContract:
    """Tests of one method on arrays of a few shapes and dtypes."""

    def method(self) -> Method:
        """The method, made anew."""
        raise NotImplementedError

    def values(self) -> Mapping[str, Any]:
        """Arrays to encode, by a name that says what they are. Shapes must fit the scheme."""
        rng = np.random.default_rng(0)
        shapes = {"vector": (256,), "matrix": (5, 256), "experts": (3, 7, 512)}
        kinds = {"bf16": ml_dtypes.bfloat16, "fp16": np.float16, "fp32": np.float32}
        random = {
            f"{s} of {k}": rng.standard_normal(shape).astype(kind)
            for s, shape in shapes.items()
            for k, kind in kinds.items()
        }
        return random | {"zeros": np.zeros((2, 256), np.float32), "no rows": np.zeros((0, 256), np.float32)}

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "x" in metafunc.fixturenames and type(self) is not MethodContract:
            scheme = self.method().scheme
            fit = {n: x for n, x in self.values().items() if scheme is None or scheme.problem(x.shape) is None}
            metafunc.parametrize("x", [pytest.param(x, id=n) for n, x in fit.items()])

    def test_two_of_a_kind_are_equal_and_pickle(self) -> None:
        method = self.method()
        assert method == self.method(), "two methods of equal config differ"
        assert pickle.loads(pickle.dumps(method)) == method, "the pickled method is another"

    def test_has_no_misspelt_member(self) -> None:
        assert not misspelt(type(self.method()), Method)

    def test_encodes_to_its_scheme(self, x: Any) -> None:
        method = self.method()
        q = method.encode(x)
        if method.scheme is None:
            assert same(q, x), "a method without a scheme must leave values as they are"
            return
        assert isinstance(q, QTensor), f"encode gave {type(q).__name__}"
        assert q.scheme == method.scheme, f"encode gave {q.scheme}, the method's scheme is {method.scheme}"
        assert q.shape == x.shape, f"encode made {q.shape} of {x.shape}"
        wrong = holds(q, spec_of(q), ())
        assert wrong is None, wrong

    def test_encoding_again_gives_the_same(self, x: Any) -> None:
        before = x.tobytes()
        copy: Method = pickle.loads(pickle.dumps(self.method()))
        assert same(self.method().encode(x), copy.encode(x)), "encode is not deterministic"
        assert x.tobytes() == before, "encode writes into its argument"

    def test_slices_may_be_encoded_apart(self, x: Any) -> None:
        """Whatever box of whole blocks a task is given, it writes what a single task would have written."""
        method = self.method()
        whole = method.encode(x)
        for box in random_boxes(spec_of(whole), np.random.default_rng(0)) if x.size else []:
            if method.needs_extremes:  # of whole matrices, without which a part is another thing
                box = (*box[:-2], *(slice(0, n) for n in x.shape[-2:]))
            apart = self.method().encode(np.ascontiguousarray(x[box]))
            assert same(apart, cut(whole, box)), f"{list(box)} encoded alone differs from the same slice of the whole"

    def test_memory_order_does_not_matter(self, x: Any) -> None:
        assert same(self.method().encode(np.asfortranarray(x)), self.method().encode(x))

    def test_recodes_its_own_without_loss(self, x: Any) -> None:
        method = self.method()
        if method.scheme is None:
            pytest.skip("has no codes")
        q = method.encode(x)
        again = method.recode(q)
        assert again.scheme == method.scheme
        assert same(method.decode(again, "F32"), method.decode(q, "F32")), "recode changes values"

    @pytest.mark.parametrize("dtype", ["BF16", "F32"])
    def test_decodes_to_the_asked_dtype(self, x: Any, dtype: str) -> None:
        method = self.method()
        q = method.encode(x)
        if method.scheme is None:
            pytest.skip("nothing to decode")
        y = method.decode(q, dtype)
        assert spec_of(y).dtype == dtype
        assert y.shape == x.shape
        boxes = random_boxes(spec_of(q), np.random.default_rng(0)) if x.size else []
        assert all(same(method.decode(cut(q, b), dtype), cut(y, b)) for b in boxes), "slices decode otherwise"

    def test_measures_what_it_loses(self, x: Any) -> None:
        method = self.method()
        if method.scheme is None:
            pytest.skip("nothing is lost where nothing is encoded")
        q, stats = encoded(method, x, Kernel("dequantize", ("numpy",)))
        assert same(q, method.encode(x)), "measuring changes the codes"
        wide = x.astype(np.float32)
        want = ErrorStats.between(wide, method.decode(q, "F32"))
        assert (stats.count, stats.max_abs) == (want.count, want.max_abs)
        assert np.isclose(stats.sq_error, want.sq_error, rtol=1e-6, atol=0)
        assert np.isclose(stats.sq_signal, want.sq_signal, rtol=1e-6, atol=0)
