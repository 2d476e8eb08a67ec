"""What every family of models promises, as tests: what plans are told is what the model asks for, and it runs."""

import pickle
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest

from pipeline.api import compose_run
from pipeline.errors import PlanError
from pipeline.testing.memory import checkpoint

TOKENS = [3, 1, 4, 1, 5]


class FamilyContract:
    """Tests of one family of language models on one small config.json."""

    def family(self) -> Any:
        """The family, made anew."""
        raise NotImplementedError

    def config(self) -> Mapping[str, Any]:
        """config.json of a small model, with which every dimension had better be another number."""
        raise NotImplementedError

    def weights(self) -> dict[str, Any]:
        """Random tensors, by the names that the family says."""
        rng = np.random.default_rng(0)
        found: dict[str, Any] = {}
        for p in self.family().parameters(self.config()):
            shape = p.shape[1:] if p.stack else p.shape
            found |= {name: (0.2 * rng.standard_normal(shape)).astype(np.float32) for name in p.names}
        return found

    @cached_property
    def engine(self) -> Any:
        """The engine of a run, with this family only."""
        stage: Any = compose_run(["+model=gpt_oss", "stages=[load,generate]"]).stages["generate"]
        return replace(stage.engine, families=(self.family(),))

    def loaded(self, weights: Mapping[str, Any], **config: Any) -> Any:
        return self.engine.load(checkpoint(weights, config={**self.config(), **config}))

    def test_two_of_a_kind_are_equal_and_pickle(self) -> None:
        assert pickle.loads(pickle.dumps(self.family())) == self.family()

    def test_recognizes_its_config(self) -> None:
        assert self.config()["model_type"] in self.family().model_types

    def test_every_tensor_is_named_once(self) -> None:
        names = [n for p in self.family().parameters(self.config()) for n in p.names]
        assert len(names) == len(set(names))

    def test_the_model_asks_for_what_plans_are_told(self) -> None:
        """Loading fails where a tensor is missing, of another shape, or asked for by nobody."""
        weights = self.weights()
        assert self.loaded(weights).facts["device_nbytes"] == sum(w.nbytes for w in weights.values())
        for name in (min(weights), max(weights)):
            with pytest.raises(PlanError):
                self.loaded({n: w for n, w in weights.items() if n != name})
        with pytest.raises(PlanError):
            self.loaded({**weights, "nobody.asks": np.zeros((2, 3), np.float32)})

    def test_it_runs(self) -> None:
        weights = self.weights()
        logits = self.loaded(weights).taps(TOKENS)["logits"]
        assert logits.shape == (len(TOKENS), self.config()["vocab_size"])
        assert np.isfinite(logits).all()
        again = self.loaded(weights).taps([*TOKENS[:-1], 9])["logits"]
        assert np.array_equal(logits[:-1], again[:-1]), "a token sees one that comes after it"
        assert not np.array_equal(logits[-1], again[-1]), "the last token changes nothing"

    def test_a_config_that_lacks_something_is_an_error(self) -> None:
        with pytest.raises(PlanError):
            self.family().parameters({"model_type": self.config()["model_type"]})
