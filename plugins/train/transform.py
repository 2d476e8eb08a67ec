"""What stands between the numbers that are trained and the weights that a model computes with: a plugin node.

Without one they are the same.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from pipeline.errors import Problem
from pipeline.mesh import Layout, Parameter
from pipeline.ops import Kernel
from pipeline.stage import Checkpoint
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.store import TensorStore

Shapes = Mapping[str, tuple[int, ...]]
Inputs = Callable[[Sequence[str], int], Mapping[str, Any]]
"""(names of parameters, count) → name → float32 `[in]`, the root mean square of each input in so many examples of the
training data, where that can be known."""


class Transform(Protocol):
    """A plugin node. Its module imports no framework.

    Attributes:
        freezes: whether the checkpoint's weights stay what they are, packed ones packed, and others are trained.
    """

    freezes: bool

    def problems(self, parameters: Sequence[Parameter], specs: Mapping[str, TensorSpec]) -> Iterator[Problem]:
        """What is wrong with it for a model.

        Args:
            specs: of the weights that training will give, as later stages will read them.
        """
        ...

    def uncut(self, parameters: Sequence[Parameter], specs: Mapping[str, TensorSpec]) -> tuple[Parameter, ...]:
        """The same parameters, with what a mesh must not cut as their units.

        Args:
            specs: as in `problems`.
        """
        ...

    def mesh_problems(
        self, parameters: Sequence[Parameter], specs: Mapping[str, TensorSpec], layouts: Mapping[str, Layout],
        ways: Callable[[Sequence[str]], int],
    ) -> Iterator[Problem]:  # fmt: skip
        """What is wrong with it for parameters that lie so.

        Args:
            ways: parts that axes of the mesh make.
        """
        ...

    def ops(self, ops: Any) -> Any:
        """The ops (`plugins.models.common.ops.Ops`) of a model whose parameters hold what `leaves` gives."""
        ...

    def leaves(
        self, bound: Any, parameters: Sequence[Parameter], specs: Mapping[str, TensorSpec]
    ) -> Callable[..., Any]:
        """A `plugins.train.step.Leaves`, for a `plugins.train.step.Bound`."""
        ...


class Freezing(Transform, Protocol):
    """One that `freezes`."""

    def base(self, checkpoint: Checkpoint) -> Checkpoint:
        """The checkpoint whose weights stay, as the model computes with them.

        Raises:
            PlanError: they cannot be as they are to be.
        """
        ...

    def trained(self, parameters: Sequence[Parameter]) -> Shapes:
        """Name → shape of what is trained."""
        ...

    def lies(self, parameters: Sequence[Parameter], layouts: Mapping[str, Layout]) -> Mapping[str, Layout]:
        """How what is `trained` lies over a mesh.

        Args:
            layouts: of the weights that stay.
        """
        ...

    def begin(
        self, parameters: Sequence[Parameter], seed: int, checkpoint: Checkpoint, inputs: Inputs
    ) -> Mapping[str, Any]:
        """The numbers that training begins with, float32, of all that is `trained`.

        Args:
            checkpoint: the one that `base` was made of.
        """
        ...

    def weights(
        self, trained: Mapping[str, Any], checkpoint: Checkpoint, parameters: Sequence[Parameter], *, cast: Kernel,
        unpack: Kernel, specs: Mapping[str, TensorSpec],
    ) -> TensorStore:  # fmt: skip
        """The weights that come out.

        Args:
            trained: name → float32 NumPy array.
            specs: of what comes out.
        """
        ...

    def write(
        self, folder: Path, trained: Mapping[str, Any], checkpoint: Checkpoint, parameters: Sequence[Parameter]
    ) -> None:
        """Write what else there is of it beside those weights."""
        ...
