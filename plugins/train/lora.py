"""LoRA: what is trained is added to weights that stay as they are, packed ones packed (QLoRA)."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from pipeline.adapters import AdapterFormat, Layer, MergedStore, scale_of
from pipeline.errors import PlanError, Problem, did_you_mean, some
from pipeline.mesh import Layout, Parameter
from pipeline.ops import Kernel
from pipeline.stage import Checkpoint
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.spec import TensorSpec
from plugins.train.correction import correction
from plugins.train.packing import Packing
from plugins.train.transform import Inputs, Shapes

NO_MATRICES = ("*embed_tokens.weight", "*norm.weight", "*bias", "*sinks")
FOLDER = "adapter"
A, B = ".lora_A.weight", ".lora_B.weight"  # as PEFT calls them


@dataclass(frozen=True, kw_only=True)
class Lora:
    """A `plugins.train.transform.Transform`: to chosen weights of linear layers and experts b · a is added.

    Attributes:
        rank: of what is added; `ranks`: pattern of names → another rank; the first that matches counts.
        alpha: the factor on what is added is alpha / rank; or alpha / √rank (`rslora`).
        dropout: share of their input that adapters do not see while they are trained.
        targets: patterns of the names of tensors: matrices, and stacks of experts.
        packing: how the weights that stay are packed first (QLoRA); null: they are as the checkpoint has them.
        init: what is added at first: `zero`, nothing; `error`, as much of what `packing` loses as the rank can hold,
            where inputs are large before where they are small (`plugins.train.correction`); of what is not packed,
            and loses nothing, the same as `zero`.
        examples: of the training data, by which it is known how large inputs are, for init=error.
        format: in which the adapters are written as well, into the folder `adapter` beside the merged weights; null:
            they are not.
    """

    rank: int = 16
    ranks: Mapping[str, int] = field(default_factory=dict)
    alpha: float = 32.0
    rslora: bool = False
    dropout: float = 0.0
    targets: tuple[str, ...] = ("*_proj.weight", "*_proj")
    packing: Packing | None = None
    init: Literal["zero", "error"] = "zero"
    examples: int = 8
    format: AdapterFormat | None = None

    freezes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        problems = [
            Problem(name, f"{rank}: a whole number from 1 is needed")
            for name, rank in {"rank": self.rank, **{f"ranks.{p}": r for p, r in self.ranks.items()}}.items()
            if rank < 1
        ]
        if not self.alpha > 0:
            problems.append(Problem("alpha", f"{self.alpha}: a number above 0 is needed"))
        if not 0 <= self.dropout < 1:
            problems.append(Problem("dropout", f"{self.dropout}: a share from 0 to below 1 is needed"))
        if self.examples < 1:
            problems.append(Problem("examples", f"{self.examples}: at least 1 is needed"))
        if not self.targets:
            problems.append(Problem("targets", "name no tensor, so nothing would be trained"))
        if problems:
            raise PlanError(problems)

    def problems(self, parameters: Sequence[Parameter], specs: Mapping[str, TensorSpec]) -> Iterator[Problem]:
        """Patterns that match nothing, and tensors that are no weights of linear layers or experts."""
        names = [p.name for p in parameters]
        matrices = [p.name for p in parameters if _is_matrix(p)]
        for pattern in (*self.targets, *self.ranks):
            where = "targets" if pattern in self.targets else "ranks"
            found = [n for n in names if fnmatchcase(n, pattern)]
            if not found and pattern not in Lora.targets:
                yield Problem(where, f"{pattern!r} matches no parameter{_hint(pattern, matrices)}")
            if where == "targets":
                for name in found:
                    if name not in matrices:
                        yield Problem(
                            name, f"is in targets ({pattern!r}) and is no weight of a linear layer or experts"
                        )
        if self.format is not None:
            yield from self.format.problems(p.names for p in self._chosen(parameters))
        if not self._chosen(parameters) and {*self.targets} <= {*Lora.targets}:  # or else it is said already
            yield Problem("targets", f"match no weight{did_you_mean(self.targets[0], matrices)}")

    def uncut(self, parameters: Sequence[Parameter], specs: Mapping[str, TensorSpec]) -> tuple[Parameter, ...]:
        """See `Transform.uncut`."""
        return tuple(parameters)

    def mesh_problems(
        self, parameters: Sequence[Parameter], specs: Mapping[str, TensorSpec], layouts: Mapping[str, Layout],
        ways: Callable[[Sequence[str]], int],
    ) -> Iterator[Problem]:  # fmt: skip
        """See `Transform.mesh_problems`: adapters lie wherever weights do, and inputs are looked at on one device."""
        if self.init == "error" and self.packing is not None:
            yield Problem("train.transform.init", "error is for one device so far; zero, or mesh=single")

    def lies(self, parameters: Sequence[Parameter], layouts: Mapping[str, Layout]) -> dict[str, Layout]:
        """See `Freezing.lies`: divided as their weights are computed with, so that none of it has to be gathered."""
        found = {}
        for p in self._chosen(parameters):
            r, (*experts, out, into) = self._rank(p), p.shape
            *apart, down, across = layouts[p.name].used.axes
            for name, shape, axes in (
                (A, (*experts, r, into), (*apart, (), across)),
                (B, (out, r, *experts), (down, (), *apart)),
            ):
                found[stem(p) + name] = Layout(shape, axes, ((),) * len(axes))
        return found

    def base(self, checkpoint: Checkpoint) -> Checkpoint:
        """See `Transform.base`."""
        return checkpoint if self.packing is None else self.packing.applied(checkpoint)

    def trained(self, parameters: Sequence[Parameter]) -> Shapes:
        """See `Transform.trained`."""
        found: dict[str, tuple[int, ...]] = {}
        for p in self._chosen(parameters):
            r, (*experts, out, into) = self._rank(p), p.shape
            found[stem(p) + A] = (*experts, r, into)
            found[stem(p) + B] = (out, r, *experts)
        return found

    def begin(
        self, parameters: Sequence[Parameter], seed: int, checkpoint: Checkpoint | None = None,
        inputs: Inputs | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """As PEFT: a uniform between ±1 / √in (torch's kaiming_uniform_ with a = √5), b zero. Each a is a function of
        `seed` and its name. Or, with init=error, both of what packing loses of the checkpoint's weights."""
        if self.init == "error" and self.packing is not None:
            assert checkpoint is not None
            assert inputs is not None
            return self._of_error(parameters, seed, checkpoint, inputs)
        found = {}
        for name, shape in self.trained(parameters).items():
            if name.endswith(B):
                found[name] = np.zeros(shape, np.float32)
            else:
                rng = np.random.default_rng([seed, *name.encode()])
                found[name] = rng.uniform(-(shape[-1] ** -0.5), shape[-1] ** -0.5, shape).astype(np.float32)
        return found

    def _of_error(
        self, parameters: Sequence[Parameter], seed: int, checkpoint: Checkpoint, inputs: Inputs
    ) -> dict[str, Any]:
        """Tensors that are not packed begin with nothing added, as they lose nothing."""
        assert self.packing is not None
        methods, _ = self.packing.chosen(checkpoint.store.specs)
        found = replace(self, init="zero").begin(parameters, seed)
        chosen = [p for p in self._chosen(parameters) if any(n in methods for n in p.names)]
        sizes, packed = inputs([p.name for p in chosen], self.examples), self.base(checkpoint).store
        for p in chosen:
            # Rounded once more as it is packed, a tensor at a time; of a stack every expert has an a and a b.
            parts = []
            for name in p.names:
                lost = _plain(checkpoint.store.read(name), self.packing) - _plain(packed.read(name), self.packing)
                for i, one in enumerate(lost if lost.ndim == 3 else (lost,)):
                    parts.append(correction(one, sizes.get(p.name), self._rank(p), [seed, i, *name.encode()]))
            root = np.float32(self._scale(p) ** -0.5)
            b, a = (np.stack(side) * root for side in zip(*parts, strict=True))
            found[stem(p) + A], found[stem(p) + B] = (a, np.moveaxis(b, 0, 2)) if len(p.shape) == 3 else (a[0], b[0])
        return {name: np.ascontiguousarray(w) for name, w in found.items()}

    def ops(self, ops: Any) -> Any:
        """See `Transform.ops`."""
        from plugins.train.adapters import adapting

        return adapting(ops)

    def leaves(
        self, bound: Any, parameters: Sequence[Parameter], specs: Mapping[str, TensorSpec]
    ) -> Callable[..., Any]:
        """See `Transform.leaves`."""
        chosen = {p.name: (stem(p), self._scale(p)) for p in self._chosen(parameters)}

        def leaves(trained: Mapping[str, Any], frozen: Mapping[str, Any], key: Any) -> dict[str, Any]:
            import jax

            from plugins.train.adapters import Adapted

            found: dict[str, Any] = bound.leaves({}, frozen, key)
            for i, (name, (at, scale)) in enumerate(chosen.items()):
                own = jax.random.fold_in(key, i) if self.dropout and key is not None else None
                dropout = 0.0 if own is None else self.dropout
                found[name] = Adapted(found[name], trained[at + A], trained[at + B], own, scale, dropout)
            return found

        return leaves

    def layers(self, trained: Mapping[str, Any], parameters: Sequence[Parameter]) -> tuple[Layer, ...]:
        """What was trained, by the tensors that it is for."""
        return tuple(
            Layer(p.names, np.asarray(trained[stem(p) + A]), np.asarray(trained[stem(p) + B]), self.alpha, self.rslora)
            for p in self._chosen(parameters)
        )

    def weights(
        self, trained: Mapping[str, Any], checkpoint: Checkpoint, parameters: Sequence[Parameter], *, cast: Kernel,
        unpack: Kernel, specs: Mapping[str, TensorSpec],
    ) -> MergedStore:  # fmt: skip
        """Merged, in float32 and rounded once, into what was computed with, packed where `packing` says so."""
        return MergedStore(self.base(checkpoint).store, self.layers(trained, parameters), specs, cast, unpack)

    def write(
        self, folder: Path, trained: Mapping[str, Any], checkpoint: Checkpoint, parameters: Sequence[Parameter]
    ) -> None:
        """The adapters, in a format of their own."""
        if self.format is not None:
            self.format.write(folder / FOLDER, self.layers(trained, parameters), dropout=self.dropout)

    def _chosen(self, parameters: Sequence[Parameter]) -> list[Parameter]:
        return [p for p in parameters if _is_matrix(p) and any(fnmatchcase(p.name, t) for t in self.targets)]

    def _rank(self, parameter: Parameter) -> int:
        return next((r for p, r in self.ranks.items() if fnmatchcase(parameter.name, p)), self.rank)

    def _scale(self, parameter: Parameter) -> float:
        return scale_of(self.alpha, self._rank(parameter), rslora=self.rslora)


def stem(parameter: Parameter) -> str:
    """What a parameter's adapter goes by: `….experts.gate_proj` of experts that files have one by one."""
    name = parameter.name.removesuffix(".weight")
    return name.replace(".experts.0.", ".experts.") if parameter.stack else name


def _plain(value: Any, packing: Packing) -> Any:
    """float32."""
    return packing.method.decode(value, "F32") if isinstance(value, QTensor) else value.astype(np.float32)


def _hint(pattern: str, names: Sequence[str]) -> str:
    """What to write for a pattern that matches none of `names`: other programs take the end of a name, or a part."""
    whole = {n: re.search(rf"\.{re.escape(pattern)}(\.|$)", n) for n in names}
    meant = dict.fromkeys(f"*{name[part.start() :]}" for name, part in whole.items() if part)
    if not meant:
        return did_you_mean(pattern, names)
    return f"; patterns are of whole names: {some(list(map(repr, meant)))} {'match' if len(meant) > 1 else 'matches'}"


def _is_matrix(p: Parameter) -> bool:
    return len(p.shape) in (2, 3) and not any(fnmatchcase(p.name, pattern) for pattern in NO_MATRICES)
