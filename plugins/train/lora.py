"""LoRA: what is trained is added to weights that stay as they are, packed ones packed (QLoRA)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pipeline.adapters import AdapterFormat, Layer, MergedStore, scale_of
from pipeline.errors import PlanError, Problem, did_you_mean
from pipeline.mesh import Layout, Parameter
from pipeline.ops import Kernel
from pipeline.stage import Checkpoint
from pipeline.tensors.spec import TensorSpec
from plugins.train.packing import Packing
from plugins.train.transform import Shapes

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
                yield Problem(where, f"{pattern!r} matches no parameter{did_you_mean(pattern, matrices)}")
            if where == "targets":
                for name in found:
                    if name not in matrices:
                        yield Problem(
                            name, f"is in targets ({pattern!r}) and is no weight of a linear layer or experts"
                        )
        if self.format is not None:
            yield from self.format.problems(p.names for p in self._chosen(parameters))
        if not self._chosen(parameters):
            yield Problem("targets", f"match no weight{did_you_mean(self.targets[0], matrices)}")

    def uncut(self, parameters: Sequence[Parameter], specs: Mapping[str, TensorSpec]) -> tuple[Parameter, ...]:
        """See `Transform.uncut`."""
        return tuple(parameters)

    def mesh_problems(
        self, parameters: Sequence[Parameter], specs: Mapping[str, TensorSpec], layouts: Mapping[str, Layout],
        ways: Callable[[Sequence[str]], int],
    ) -> Iterator[Problem]:  # fmt: skip
        """See `Transform.mesh_problems`: adapters lie wherever weights do."""
        yield from ()

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

    def begin(self, parameters: Sequence[Parameter], seed: int) -> dict[str, Any]:
        """As PEFT: a uniform between ±1 / √in (torch's kaiming_uniform_ with a = √5), b zero. Each a is a function of
        `seed` and its name."""
        found = {}
        for name, shape in self.trained(parameters).items():
            if name.endswith(B):
                found[name] = np.zeros(shape, np.float32)
            else:
                rng = np.random.default_rng([seed, *name.encode()])
                found[name] = rng.uniform(-(shape[-1] ** -0.5), shape[-1] ** -0.5, shape).astype(np.float32)
        return found

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


def _is_matrix(p: Parameter) -> bool:
    return len(p.shape) in (2, 3) and not any(fnmatchcase(p.name, pattern) for pattern in NO_MATRICES)
