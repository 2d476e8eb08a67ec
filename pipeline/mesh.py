"""How devices are arranged, and how tensors lie over them: plain values, which know no framework.

Three kinds of names meet here. An axis of the mesh (`fsdp`, `tensor`) has so many devices along it. A logical axis
(`mlp`, `kv_heads`) is what a dimension of a tensor counts. A dimension is its place in the tensor. `Mesh.rules` say
which logical axes are divided over which axes of the mesh when the model computes; `Mesh.stored` what is divided
further as it lies, and gathered where it is used. `pipeline.planning.layout` makes a `Layout` of every tensor of it.

Devices are numbered row-major over the axes: along the last one neighbours are next to each other.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Literal

from pipeline.errors import PlanError, Problem, did_you_mean
from pipeline.fields import NEUTRAL
from pipeline.tensors.blocks import Box
from pipeline.tensors.spec import TensorSpec

COMPUTED = ("batch", "vocab", "heads", "kv_heads", "mlp", "experts")
"""Logical axes that a model can compute divided; `batch` counts the rows of activations and of the KV cache."""
ONLY_STORED = ("embed", "head", "experts_out")
"""Logical axes of weights that a model wants whole: they can be divided as they lie only."""

HOST = "host"  # the axis of a mesh along which hosts are, as conf/mesh/multihost.yaml names it
MOST_DEVICES = 1 << 16  # several of the largest machines there are; each of them is looked at
PICTURE = "mesh.png"  # of which device holds what, in a run's folder

Axes = tuple[str, ...]
"""Axes of the mesh that divide one dimension together, the first of them into the coarsest parts."""


@dataclass(frozen=True, eq=False)
class Mesh:
    """Devices as a grid with named axes, and what is divided over them. Equal ones are equal and hash alike.

    An axis of size 1 is there and divides nothing.

    Attributes:
        axes: axis of the mesh → devices along it; the first changes slowest. Their product is the number of devices.
        rules: logical axis → axis of the mesh, or several; null: none. How the model computes, and so how it lies.
        stored: axis of the mesh → logical axes. Weights lie divided over it as well, along the first of these that a
            tensor has and that divides, and are gathered where they are used (FSDP).
        replicated_most: share of the weights' bytes that may lie whole on every device; more is a problem.
        processes: that the devices are divided among, equally and in order; where there is an axis `host`, as many, and
            each has those at its place along it. This machine starts them all, or with `dask=` each a worker.
        coordinator: HOST:PORT at which the first of them listens for the others, and nowhere else; port 0: a free one;
            `auto`: its own address (127.0.0.1; a worker's own), and a free port.
    """

    axes: Mapping[str, int]
    rules: Mapping[str, str | tuple[str, ...] | None] = field(default_factory=dict)
    stored: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    replicated_most: float = field(default=0.1, metadata=NEUTRAL)
    processes: int = 1
    coordinator: str = field(default="auto", metadata=NEUTRAL)

    def __post_init__(self) -> None:
        rules = {k: v if v is None or isinstance(v, str) else tuple(v) for k, v in self.rules.items()}
        stored = {k: tuple(v) for k, v in self.stored.items()}
        for name, value in (("axes", dict(self.axes)), ("rules", rules), ("stored", stored)):
            object.__setattr__(self, name, value)
        if problems := list(_problems(self)):
            raise PlanError(problems)

    @property
    def _key(self) -> tuple[object, ...]:
        rules, stored = ({k: v for k, v in d.items() if v}.items() for d in (self.rules, self.stored))
        rest = self.replicated_most, self.processes, self.coordinator
        return tuple(self.axes.items()), frozenset(rules), tuple(stored), *rest

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mesh) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def size(self) -> int:
        """How many devices it has."""
        return math.prod(self.axes.values())

    def coordinates(self, device: int) -> dict[str, int]:
        """Axis of the mesh → where `device`, from 0 to `size` - 1, is along it."""
        if not 0 <= device < self.size:
            raise IndexError(f"device {device} of a mesh of {self.size}")
        found = {}
        for axis, size in reversed(tuple(self.axes.items())):
            device, found[axis] = divmod(device, size)
        return {axis: found[axis] for axis in self.axes}

    @property
    def hosts(self) -> tuple[tuple[int, ...], ...]:
        """The devices of each host, or process: those at one place along the axis `host`, wherever it stands; where
        there is none, those of each process in order."""
        each = self.size // self.processes
        found: dict[int, list[int]] = {}
        for device in range(self.size):
            found.setdefault(self.coordinates(device).get(HOST, device // each), []).append(device)
        return tuple(map(tuple, found.values()))

    def over(self, logical: str) -> Axes:
        """The axes of the mesh that divide a logical axis when the model computes, without those of size 1."""
        return tuple(a for a in several(self.rules.get(logical)) if self.axes[a] > 1)

    def ways(self, axes: Iterable[str]) -> int:
        """How many parts these axes of the mesh make together."""
        return math.prod(self.axes[axis] for axis in axes)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a model, as config.json alone determines it.

    Attributes:
        names: the checkpoint's tensors that it holds: one, or with `stack` equal ones along a new first dimension.
        shape: logical; that first dimension included.
        axes: the logical axis of every dimension: one of `COMPUTED` or `ONLY_STORED`.
        units: elements of every dimension that are never cut apart: head_dim where heads are flattened, 2 where gate
            and up are interleaved, else 1.
        stack: whether the tensors are stacked.
        places: of a row where it is applied, each time to other numbers: the pixels of what a filter gives.
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    units: tuple[int, ...]
    stack: bool = False
    places: int = 1

    def __post_init__(self) -> None:
        if not len(self.shape) == len(self.axes) == len(self.units):
            raise ValueError(f"{self.names[0]}: shape {self.shape}, axes {self.axes}, units {self.units}: one of each")
        if self.names and len(self.names) != (self.shape[0] if self.stack else 1):
            raise ValueError(f"{self.names[0]}: {len(self.names)} tensors in shape {self.shape}, stack={self.stack}")

    @property
    def name(self) -> str:
        """What it is known by: the first of its tensors."""
        return self.names[0]


@dataclass(frozen=True, slots=True)
class Layout:
    """How one tensor lies over a mesh. Parts are equal: no block, head or pair is cut, nothing is padded.

    Attributes:
        shape: logical, of the whole tensor.
        axes: the axes of the mesh that divide every dimension as it lies: first those that divide it for computing,
            then those that are gathered for use, so that what was gathered is one range.
        gathered: of these, those that are gathered where the tensor is used.
    """

    shape: tuple[int, ...]
    axes: tuple[Axes, ...]
    gathered: tuple[Axes, ...]

    @property
    def used(self) -> "Layout":
        """The same after gathering: how the model computes with it."""
        kept = zip(self.axes, self.gathered, strict=True)
        axes = tuple(tuple(a for a in over if a not in gathered) for over, gathered in kept)
        return Layout(self.shape, axes, ((),) * len(axes))

    @property
    def replicated(self) -> bool:
        """Whether it lies whole on every device."""
        return not any(self.axes)

    def local_shape(self, mesh: Mesh) -> tuple[int, ...]:
        """Of the part that lies on one device."""
        return tuple(n // mesh.ways(over) for n, over in zip(self.shape, self.axes, strict=True))

    def box(self, mesh: Mesh, device: int) -> Box:
        """The part of the tensor that lies on `device`."""
        at = mesh.coordinates(device)
        return self._box(mesh, [_index(mesh, over, [at[a] for a in over]) for over in self.axes])

    def boxes(self, mesh: Mesh) -> Iterator[tuple[Box, tuple[int, ...]]]:
        """Every distinct part, and the devices that hold it; in order of the first of them."""
        holders: dict[tuple[int, ...], list[int]] = {}
        for device, place in enumerate(product(*(range(n) for n in mesh.axes.values()))):
            at = dict(zip(mesh.axes, place, strict=True))
            key = tuple(_index(mesh, over, [at[a] for a in over]) for over in self.axes)
            holders.setdefault(key, []).append(device)
        yield from ((self._box(mesh, key), tuple(devices)) for key, devices in holders.items())

    def _box(self, mesh: Mesh, parts: Iterable[int]) -> Box:
        sides = zip(parts, self.local_shape(mesh), strict=True)
        return tuple(slice(part * n, (part + 1) * n) for part, n in sides)


@dataclass(frozen=True)
class Placement:
    """How the weights of a model lie over the devices that run it.

    Attributes:
        mesh: the devices.
        parameters: of the model, as config.json determines them; none for a mesh of one device.
        layouts: parameter → how it lies.
        specs: tensor → how it lies on a device; those that the model reads.
    """

    mesh: Mesh
    parameters: tuple[Parameter, ...] = ()
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    specs: Mapping[str, TensorSpec] = field(default_factory=dict)


Place = Literal["gather", "embedding", "sum", "experts", "logits", "loss", "gradients"]
"""Where devices exchange something: `gather`, weights for use; `embedding`, rows of their parts of the vocabulary;
`sum`, products with their parts of a matrix; `experts`, what theirs made of tokens; `logits`, of their vocabulary;
`loss`, what of these it takes; `gradients`, on the way back."""

Kind = Literal["all_gather", "psum", "psum_scatter"]


@dataclass(frozen=True, slots=True)
class Exchange:
    """Collectives of one kind in one step, all of them together.

    Attributes:
        place: where.
        kind: of collective.
        axes: of the mesh, over which.
        count: how many.
        nbytes: what each device sends.
    """

    place: Place
    kind: Kind
    axes: Axes
    count: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Step:
    """What the devices of a mesh do at once.

    Attributes:
        name: for people: prefill, decode, score.
        tokens: that go through the model on each device.
        predicted: of these, those whose logits are computed.
        exchanges: what each sends.
    """

    name: str
    tokens: int
    predicted: int
    exchanges: tuple[Exchange, ...]


def several(axes: str | tuple[str, ...] | None) -> Axes:
    """A rule's axes of the mesh, however it says them."""
    return (axes,) if isinstance(axes, str) else axes or ()


def _index(mesh: Mesh, axes: Axes, places: Iterable[int]) -> int:
    """Which of the parts that `axes` make is at these places along them."""
    found = 0
    for axis, place in zip(axes, places, strict=True):
        found = found * mesh.axes[axis] + place
    return found


def _problems(mesh: Mesh) -> Iterator[Problem]:
    """What is wrong with a mesh whatever the model; by its fields."""
    for axis, size in mesh.axes.items():
        if not isinstance(size, int) or size < 1:
            yield Problem(f"axes.{axis}", f"{size!r} devices along it; a whole number from 1 is needed")
    sizes = [size for size in mesh.axes.values() if isinstance(size, int)]
    if (size := math.prod(sizes)) > MOST_DEVICES:
        yield Problem("axes", f"{size:,} devices; {MOST_DEVICES:,} at most are planned for")
        return
    for logical, given in mesh.rules.items():
        yield from (Problem(f"rules.{logical}", said) for said in _wrong_rule(mesh, str(logical), several(given)))
    names = [n for n in (*COMPUTED, *ONLY_STORED) if n != "batch"]
    for axis, alternatives in mesh.stored.items():
        if axis not in mesh.axes:
            yield Problem(f"stored.{axis}", _no_axis(axis, mesh))
        for logical in (name for name in alternatives if name not in names):
            hint = did_you_mean(str(logical), names)
            yield Problem(f"stored.{axis}", f"{logical!r} is no logical axis of weights{hint}")
    yield from _wrong_processes(mesh)
    if not 0 <= mesh.replicated_most <= 1:
        yield Problem("replicated_most", f"{mesh.replicated_most}: a share is needed, from 0 to 1")
    heads, kv_heads = (several(mesh.rules.get(name)) for name in ("heads", "kv_heads"))
    if {*heads, *kv_heads} <= {*mesh.axes} and _dividing(mesh, heads) != _dividing(mesh, kv_heads):
        said = f"divided over {_named(kv_heads)}, and heads over {_named(heads)}; a head and the keys it looks at"
        yield Problem(
            "rules.kv_heads", f"{said} have to be on one device: both over {_named(heads or kv_heads)}, or null"
        )


def _wrong_processes(mesh: Mesh) -> Iterator[Problem]:
    """What is wrong with the processes that the devices of a mesh are divided among."""
    sizes = [size for size in mesh.axes.values() if isinstance(size, int) and size > 0]
    count, devices, hosts = mesh.processes, math.prod(sizes), mesh.axes.get(HOST)
    if count < 1 or devices % count:
        legal = ", ".join(str(n) for n in range(1, devices + 1) if devices % n == 0)
        yield Problem("processes", f"{count}: {devices} devices divide among {legal}")
    elif count > 1 and hosts not in (None, count):
        yield Problem("processes", f"{count}, and axes.{HOST} says {hosts}; one process a host is needed, or 1 in all")
    host, _, port = mesh.coordinator.rpartition(":")
    if mesh.coordinator != "auto" and (not host or not port.isdecimal() or int(port) > 65535):
        yield Problem("coordinator", f"{mesh.coordinator!r}: HOST:PORT is needed, such as 127.0.0.1:0, or auto")


def _wrong_rule(mesh: Mesh, logical: str, over: Axes) -> Iterator[str]:
    """What is wrong with one of a mesh's rules."""
    if logical in ONLY_STORED:
        said = f"{logical!r} is never computed divided; mesh.stored can divide it as it lies"
        yield f"{said} (allowed here: {', '.join(COMPUTED)})"
    elif logical not in COMPUTED:
        yield f"{logical!r} is no logical axis{did_you_mean(logical, COMPUTED)}"
    yield from (_no_axis(axis, mesh) for axis in dict.fromkeys(over) if axis not in mesh.axes)
    if len(over) != len(set(over)):
        yield f"names an axis twice: {', '.join(over)}; each divides once"
    shared = set(_dividing(mesh, over)) & set(several(mesh.rules.get("batch")))
    if shared and logical in COMPUTED and logical != "batch":
        said = f"devices along {_named(tuple(sorted(shared)))} have different rows (rules.batch), so they cannot share"
        yield f"{said} the work on one; another axis of the mesh can, and mesh.stored can divide weights over this one"


def _dividing(mesh: Mesh, axes: Axes) -> Axes:
    return tuple(a for a in axes if mesh.axes.get(a) != 1)


def _named(axes: Axes) -> str:
    return " and ".join(axes) or "nothing"


def _no_axis(axis: str, mesh: Mesh) -> str:
    return f"{axis!r} is no axis of this mesh{did_you_mean(str(axis), mesh.axes)}"


SINGLE = Mesh({}, replicated_most=1.0)
"""One device."""
