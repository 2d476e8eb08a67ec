"""What every dialect promises, as tests: it decodes what it encodes, bit for bit, and accounts for everything."""

import json
import pickle
from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import pytest

from pipeline.errors import PlanError
from pipeline.formats import PEEKED, Dialect, DialectHooks
from pipeline.hooks import misspelt, optional
from pipeline.tensors.binding import Binding
from pipeline.tensors.spec import TensorSpec, numpy_dtype
from pipeline.tensors.views import JoinedStore, split
from pipeline.testing.memory import MemoryStore, random_boxes, same, spec_of


def constants(binding: Binding) -> dict[str, Any]:
    """The leaves that a binding writes whole, as arrays."""
    specs = {n: binding.leaves[n] for n in binding.constants}
    return {n: np.frombuffer(binding.constants[n], numpy_dtype(s.dtype)).reshape(s.shape) for n, s in specs.items()}


class DialectContract:
    """Tests of one dialect on one model."""

    strict = True
    """Whether it knows its model, so that a missing or unknown leaf is an error."""

    def dialect(self) -> Dialect:
        """The dialect, made anew."""
        raise NotImplementedError

    def tensors(self) -> Mapping[str, Any]:
        """Logical tensors: arrays and QTensors that the dialect can hold."""
        raise NotImplementedError

    def config(self) -> Mapping[str, Any]:
        """config.json of the model, as Hugging Face spells it."""
        raise NotImplementedError

    @pytest.fixture
    def encoded(self) -> Binding:
        """The tensors, bound for writing."""
        return self.dialect().encode(self.specs(), self.config())

    def specs(self) -> dict[str, TensorSpec]:
        return {name: spec_of(value) for name, value in self.tensors().items()}

    def seen(self, binding: Binding) -> dict[str, Any]:
        """The config that a reader of the written folder is handed: config.json, companions, leaves to peek at."""
        companions = {n: json.loads(b) for n, b in binding.files.items() if n in self.dialect().companions}
        patterns = optional(self.dialect(), DialectHooks, "peeks")
        peeked = {n: a for n, a in constants(binding).items() if any(fnmatchcase(n, p) for p in patterns)}
        return {**binding.config, **companions, **({PEEKED: peeked} if patterns else {})}

    def test_has_no_misspelt_member(self) -> None:
        assert not misspelt(type(self.dialect()), Dialect)

    def test_is_plain_data(self, encoded: Binding) -> None:
        assert pickle.loads(pickle.dumps(self.dialect())) == self.dialect()
        assert pickle.loads(pickle.dumps(encoded)) == encoded, "a binding must pickle: workers receive it"
        json.dumps(dict(encoded.config))

    def test_binds_every_tensor_and_every_byte(self, encoded: Binding) -> None:
        assert {n: b.spec for n, b in encoded.tensors.items()} == self.specs()
        assert all(spec.scheme is None for spec in encoded.leaves.values()), "a leaf is a plain array"
        leaves = {n: np.zeros(s.shape, numpy_dtype(s.dtype)) for n, s in encoded.leaves.items()}
        filled = {n: np.full(s.shape, n in encoded.constants, np.int8) for n, s in encoded.leaves.items()}
        for name, value in self.tensors().items():
            for leaf, box, array in split(encoded.tensors[name], (), value):
                assert array.dtype == leaves[leaf].dtype, (
                    f"{leaf} is {leaves[leaf].dtype}, {name} fills in {array.dtype}"
                )
                filled[leaf][box] += 1
        wrong = [n for n, f in filled.items() if not (f == 1).all()]
        assert not wrong, f"leaves filled not at all or twice in places: {wrong}"

    def test_recognizes_its_own(self, encoded: Binding) -> None:
        assert self.dialect().recognizes(encoded.leaves, self.seen(encoded))

    def test_decodes_what_it_encodes(self, encoded: Binding) -> None:
        """Written through one binding and read through the other, whole and in random boxes."""
        leaves = {n: np.zeros(s.shape, numpy_dtype(s.dtype)) for n, s in encoded.leaves.items()}
        tensors = self.tensors()
        for name, value in tensors.items():
            for leaf, box, array in split(encoded.tensors[name], (), value):
                leaves[leaf][box] = array
        leaves |= constants(encoded)
        decoded = self.dialect().decode(encoded.leaves, self.seen(encoded))
        store, given = JoinedStore(MemoryStore(leaves), decoded), MemoryStore(tensors)
        assert dict(store.specs) == self.specs()
        rng = np.random.default_rng(0)
        for name, spec in store.specs.items():
            for box in random_boxes(spec, rng, 4):
                assert same(store.read(name, box), given.read(name, box)), f"{name}{list(box)} came back changed"

    def test_an_outline_is_what_is_decoded(self, encoded: Binding) -> None:
        """As far as config.json tells: of plain tensors it states one dtype."""
        outline = optional(self.dialect(), DialectHooks, "outline")
        shapes = {name: spec.shape for name, spec in self.specs().items()}
        found = outline(shapes, self.seen(encoded)) if outline is not None else None
        if found is None:
            pytest.skip("config.json alone does not tell")
        assert {n: (s.shape, s.scheme) for n, s in found.items()} == {
            n: (s.shape, s.scheme) for n, s in self.specs().items()
        }

    def test_encodes_again_what_it_decoded(self, encoded: Binding) -> None:
        decoded = self.dialect().decode(encoded.leaves, self.seen(encoded))
        again = self.dialect().encode({n: b.spec for n, b in decoded.tensors.items()}, decoded.config)
        assert again == encoded, "encode, decode, encode is not encode"

    def test_says_which_leaves_are_missing_or_unknown(self, encoded: Binding) -> None:
        if not self.strict:
            pytest.skip("knows no model")
        names = list(encoded.leaves)
        absent = names[len(names) // 2]
        leaves = {n: s for n, s in encoded.leaves.items() if n != absent} | {"no.such.leaf": TensorSpec((3,), "F32")}
        with pytest.raises(PlanError) as why:
            self.dialect().decode(leaves, self.seen(encoded))
        where = {p.where for p in why.value.problems}
        assert {absent, "no.such.leaf"} <= where, f"{absent} is missing, no.such.leaf is unknown; named were {where}"

    def test_says_which_tensors_it_cannot_express(self) -> None:
        if not self.strict:
            pytest.skip("knows no model")
        specs = self.specs()
        name = next(n for n, s in specs.items() if s.scheme is None and len(s.shape) > 1)
        specs[name] = replace(specs[name], shape=(*specs[name].shape[:-1], specs[name].shape[-1] + 1))
        with pytest.raises(PlanError) as why:
            self.dialect().encode({**specs, "no.such.tensor": TensorSpec((3,), "F32")}, self.config())
        assert {name, "no.such.tensor"} <= {p.where for p in why.value.problems}
