"""What the devices of a mesh send each other for an update, from layouts alone; known without a framework.

Of every micro-batch what a pass of the model takes forth, and what comes of that on the way back: where weights were
gathered along devices that have different rows, their gradients are added up and divided again; where what is the same
on all devices went into divided weights, its gradient is a sum over them. Gradients of weights that are no parts along
the rows are added up once an update. Single numbers (losses, norms) are not counted, nor what adapters have to add up
of each micro-batch, nor what an optimizer sends that looks at whole matrices (Muon), nor what a teacher's own pass
takes, nor what accelerators gather a second time to compute layers again (XLA's CPU backend sees that it has it).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from pipeline.mesh import Axes, Exchange, Kind, Layout, Mesh, Parameter, Place, Step
from pipeline.planning.layout import spec_of
from pipeline.planning.mesh_costs import PARTIAL_NBYTES, exchanges, held_nbytes, summed
from pipeline.tensors.spec import TensorSpec

FLOAT32 = 4
# Axes of weights that what goes into them meets divided → by which logical axes.
INTO: Mapping[Axes, Axes] = {
    ("heads", "embed"): ("heads",), ("mlp", "embed"): ("mlp",), ("experts", "mlp", "embed"): ("experts", "mlp"),
}  # fmt: skip
# Axes of weights that are whole and meet what is divided: norms of heads, and biases that one of several adds.
SHARED: Mapping[Axes, str] = {("head",): "heads", ("experts", "embed"): "mlp"}

_Sent = tuple[Place, Kind, Axes, int, int]  # …, how many of them, bytes that a device sends for all


@dataclass(frozen=True, slots=True)
class Update:
    """One update of a model on a mesh.

    Attributes:
        mesh, parameters, layouts: as `pipeline.planning.layout.lay_out` has them.
        specs: tensor → how it is computed with.
        adapters: name → how it lies, of what is trained beside weights that stay; None: these are trained.
        tokens: of a micro-batch on each device, or rows.
        micros: of them in an update.
        activation_nbytes: of a number between layers.
        chosen: experts of a token.
    """

    mesh: Mesh
    parameters: Sequence[Parameter]
    layouts: Mapping[str, Layout]
    specs: Mapping[str, TensorSpec]
    adapters: Mapping[str, Layout] | None
    tokens: int
    micros: int
    activation_nbytes: int
    chosen: int

    @property
    def step(self) -> Step:
        """For a plan."""
        found: dict[tuple[Place, Kind, Axes], tuple[int, int]] = {}
        of_micro = ((*sent[:3], self.micros * sent[3], self.micros * sent[4]) for sent in self._micro())
        for place, kind, axes, count, nbytes in (*of_micro, *self._gradients()):
            if axes and nbytes:
                before = found.get((place, kind, axes), (0, 0))
                found[place, kind, axes] = before[0] + count, before[1] + nbytes
        tokens = self.tokens * self.micros
        return Step("update", tokens, tokens, tuple(Exchange(*key, *sent) for key, sent in found.items()))

    @property
    def _rows(self) -> Axes:
        return self.mesh.over("batch")

    def _micro(self) -> Iterator[_Sent]:
        """Of one micro-batch."""
        forth = exchanges(
            self.mesh, self.parameters, self.specs, self.layouts,
            tokens=self.tokens, predicted=0, activation_nbytes=self.activation_nbytes,
        )  # fmt: skip
        yield from ((e.place, e.kind, e.axes, e.count, e.nbytes) for e in forth if e.place != "logits")
        for parameter in self.parameters:
            yield from self._back(parameter)
        yield from self._inputs()
        yield from self._loss()

    def _back(self, parameter: Parameter) -> Iterator[_Sent]:
        """Of one parameter's gradient."""
        layout, spec = self.layouts[parameter.name], spec_of(parameter, self.specs)
        assert spec is not None  # or it would not have been laid out
        if self.adapters is None:
            wide = TensorSpec(spec.shape, "F32")
            gathered = tuple(a for over in layout.gathered for a in over if a in self._rows)
            nbytes = held_nbytes(self.mesh, layout.used, wide)
            ways = self.mesh.ways(gathered)
            yield "gradients", "psum_scatter", gathered, 1, nbytes * (ways - 1) // ways
            if (over := SHARED.get(parameter.axes)) is not None:
                axes = self.mesh.over(over)
                yield "gradients", "psum", axes, 1, summed(self.mesh, axes, nbytes)

    def _inputs(self) -> Iterator[_Sent]:
        """Of what goes into weights that are divided along what comes out."""
        seen = set()
        for p in self.parameters:
            if (logical := INTO.get(p.axes)) is None:
                continue
            module = re.split(r"\.experts\.|\.\w+_proj\.", p.name)[0]
            if (module, logical) in seen:
                continue
            seen.add((module, logical))
            if self.adapters is not None and ".layers.0." in p.name and logical == ("heads",):
                continue  # nothing is trained before it
            axes = tuple(a for name in logical for a in self.mesh.over(name))
            hidden = self.tokens * p.shape[-1] * self.activation_nbytes
            yield "gradients", "psum", axes, 1, summed(self.mesh, axes, hidden)
            for own in (self.mesh.over(name) for name in logical if p.axes[0] == "experts"):
                weights = self.tokens * self.chosen * FLOAT32
                yield "gradients", "psum", own, 1, summed(self.mesh, own, weights)

    def _loss(self) -> Iterator[_Sent]:
        """Of logits that are divided: what goes into the head, and for each token their largest, sum and own one."""
        vocab = [p for p in self.parameters if p.axes == ("vocab", "embed")]
        if vocab and (axes := self.mesh.over("vocab")):
            yield "loss", "psum", axes, 3, 3 * summed(self.mesh, axes, self.tokens * PARTIAL_NBYTES)
            hidden = self.tokens * vocab[-1].shape[1] * self.activation_nbytes
            yield "gradients", "psum", axes, 1, summed(self.mesh, axes, hidden)

    def _gradients(self) -> Iterator[_Sent]:
        """Once an update: of what is no part along devices that have different rows."""
        trained = (
            self.adapters if self.adapters is not None else {p.name: self.layouts[p.name] for p in self.parameters}
        )
        for layout in trained.values():
            lies = {axis for over in layout.axes for axis in over}
            axes = tuple(axis for axis in self._rows if axis not in lies)
            nbytes = prod(layout.local_shape(self.mesh)) * FLOAT32
            yield "gradients", "psum", axes, 1, summed(self.mesh, axes, nbytes)
