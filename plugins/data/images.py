"""Images and what they show: IDX files, and the handwritten digits of scikit-learn."""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import xxhash

from pipeline.digest import InputFile, small_input
from pipeline.errors import ConfigError, PlanError, Problem, SourceError
from pipeline.files import spoken
from pipeline.stage import NEUTRAL, Checkpoint, Results
from pipeline.training import DataPlan, Splits
from plugins.data import idx, sources
from plugins.data.faults import Faults
from plugins.data.rows import Rows, numbers
from plugins.data.shares import is_held_out, share
from plugins.data.supervised import divided, fits

BLOCK = 4096  # images at once


@dataclass(frozen=True)
class Scale:
    """Images as a model takes them: [B, height, width, channels], of mean 0 and deviation 1 over all that are trained
    on."""

    mean: float
    deviation: float

    def __call__(self, stored: np.ndarray) -> np.ndarray:
        scaled = (stored.astype(np.float32) - np.float32(self.mean)) / np.float32(self.deviation)
        return scaled if scaled.ndim == 4 else scaled[..., None]


@dataclass(frozen=True)
class Idx:
    """Images with labels in IDX files, as MNIST has them.

    Attributes:
        images, labels: files; .gz too.
        held_out_images, held_out_labels: others that are for evaluation only.
        held_out: share of the images that are for evaluation only.
        classes: labels are from 0 to one less than that.
        mirrored: also train on each image turned around from left to right.
        origin: where to get the files, for people who have none.
    """

    images: str
    labels: str
    held_out_images: str | None = None
    held_out_labels: str | None = None
    held_out: float = 0.0
    classes: int = 10
    mirrored: bool = False
    origin: str | None = field(default=None, metadata=NEUTRAL)

    def __post_init__(self) -> None:
        share(self.held_out)
        if (self.held_out_images is None) != (self.held_out_labels is None):
            raise ConfigError("data.held_out_images and data.held_out_labels go together")
        if self.held_out and self.held_out_images is not None:
            raise ConfigError("data.held_out and data.held_out_images: one of them says what is held out")

    def inputs(self) -> tuple[InputFile, ...]:
        """See `pipeline.training.Dataset`, for all of these."""
        return tuple(file for pair in self._pairs(Faults()) for file in pair)

    def check(self, checkpoint: Checkpoint | None) -> tuple[Problem, ...]:
        faults = Faults()
        pairs = self._pairs(faults)
        files = [images for images, _ in pairs]
        sources.check_apart(files[:1], files[1:], "data.held_out_images", faults)
        shapes = [self._checked(images.path, labels.path, faults) for images, labels in pairs]
        if len(set(shapes)) > 1:
            faults.add("data.held_out_images", f"has images of {shapes[1]}; data.images has {shapes[0]}")
        if shapes and not faults:
            fits(checkpoint, int(np.prod(shapes[0])), self.classes, faults)
        return faults.problems

    def plan(self, checkpoint: Checkpoint | None) -> DataPlan:
        pairs = self._pairs(faults := Faults())
        faults.check()
        shape, *apart = (idx.header(images.path)[1] for images, _ in pairs)
        part = round(shape[0] * self.held_out)
        count = max(1, shape[0] - part) * (1 + self.mirrored)
        nbytes = sum(int(np.prod(idx.header(f.path)[1])) for f in self.inputs() if f.path.suffix == ".gz")
        return DataPlan(
            count, numbers(_channels(shape[1:]), "int32"), 0, nbytes, 64 << 20, sum(s[0] for s in apart) + part
        )

    def open(self, results: Results, tokenizer: Any | None) -> Splits:
        faults = Faults()
        pairs = self._pairs(faults)
        faults.check()
        for images, labels in pairs:
            self._checked(images.path, labels.path, faults)
        faults.check()
        values, *apart = ((idx.mapped(results, one), idx.labels(two.path).astype(np.int32)) for one, two in pairs)
        return standardized(*values, self.held_out, self.mirrored, apart)

    def _pairs(self, faults: Faults) -> list[tuple[InputFile, InputFile]]:
        """Images and labels to train on, and those that are held out, as far as they are there."""
        named = [("images", self.images, "labels", self.labels)]
        if self.held_out_images and self.held_out_labels:
            named.append(("held_out_images", self.held_out_images, "held_out_labels", self.held_out_labels))
        pairs = []
        for first, images, second, labels in named:
            one = sources.found([images], f"data.{first}", faults, self.origin)
            two = sources.found([labels], f"data.{second}", faults, self.origin)
            if one and two:
                pairs.append((one[0], two[0]))
        return pairs

    def _checked(self, images: Path, labels: Path, faults: Faults) -> tuple[int, ...]:
        """The shape of an image; what is wrong with a pair of files goes to `faults`."""
        shape: tuple[int, ...] = ()
        try:
            _, shape = idx.header(images)
            if len(shape) not in (3, 4):
                faults.add(images, f"images have two dimensions, or three with channels; it has {shape}")
            found = idx.labels(labels)
            if len(found) != shape[0]:
                faults.add(labels, f"has {len(found):,} labels for {shape[0]:,} images in {images.name}")
            _in_range(found, self.classes, labels, faults)
        except SourceError as why:
            path = images if str(why).startswith(f"{spoken(images)}: ") else labels
            faults.add(path, str(why).removeprefix(f"{spoken(path)}: "))
        return shape[1:]


@dataclass(frozen=True)
class Digits:
    """The 1,797 handwritten digits of scikit-learn, 8×8: there without a download, learned in seconds.

    Attributes:
        held_out: share of the images that are for evaluation only.
    """

    held_out: float = 0.2

    installed: ClassVar[str] = "scikit-learn, which has them, is not installed; pip install 'weightmill[data]' does"

    def __post_init__(self) -> None:
        share(self.held_out)

    def inputs(self) -> tuple[InputFile, ...]:
        """See `pipeline.training.Dataset`, for all of these."""
        file = self._file()
        return () if file is None else (small_input(file),)

    def check(self, checkpoint: Checkpoint | None) -> tuple[Problem, ...]:
        faults = Faults()
        if self._file() is None:
            faults.add("data", self.installed)
        fits(checkpoint, 64, 10, faults)
        return faults.problems

    def plan(self, checkpoint: Checkpoint | None) -> DataPlan:
        part = round(1797 * self.held_out)
        return DataPlan(1797 - part, numbers((8, 8, 1), "int32"), 0, 0, 1 << 20, part)

    def open(self, results: Results, tokenizer: Any | None) -> Splits:
        file = self._file()
        if file is None:
            raise PlanError([Problem("data", self.installed)], exit_code=SourceError.exit_code)
        with sources.streamed(file) as stream:
            found = np.loadtxt(stream.content, np.uint8, delimiter=",")
        return standardized(found[:, :-1].reshape(-1, 8, 8), found[:, -1].astype(np.int32), self.held_out)

    def _file(self) -> Path | None:
        """Where scikit-learn has them; it is not imported, which would take a second."""
        package = importlib.util.find_spec("sklearn")
        places = () if package is None else tuple(package.submodule_search_locations or ())
        return next((f for p in places if (f := Path(p, "datasets/data/digits.csv.gz")).is_file()), None)


def standardized(
    images: np.ndarray,
    labels: np.ndarray,
    held_out: float,
    mirrored: bool = False,
    apart: Sequence[tuple[np.ndarray, np.ndarray]] = (),
) -> Splits:
    """Images [rows, height, width] or with channels, scaled; a share of them held out, and those that stand apart."""
    out = np.zeros(len(images), bool)
    if held_out:
        digests = np.array([xxhash.xxh3_64_intdigest(np.ascontiguousarray(i).tobytes()) for i in images], np.uint64)
        out = is_held_out(held_out)(digests)
    mean, deviation = _moments(images, np.flatnonzero(~out))
    rows = Rows(images, labels, Scale(mean, deviation), _channels(images.shape[1:]), mirrored=mirrored)
    splits = divided(rows, out, {"mean": mean, "deviation": deviation})
    if not apart:
        return splits
    kept = replace(rows, inputs=apart[0][0], targets=apart[0][1], mirrored=False)
    return replace(splits, held_out=kept)


def _moments(images: np.ndarray, chosen: np.ndarray) -> tuple[float, float]:
    """Mean and deviation of all their values."""
    count, total, squares = 0, 0.0, 0.0
    for begin in range(0, len(chosen), BLOCK):
        some = images[chosen[begin : begin + BLOCK]].astype(np.float64)
        count, total, squares = count + some.size, total + some.sum(), squares + np.square(some).sum()
    mean = total / max(1, count)
    return float(mean), float(np.sqrt(max(0.0, squares / max(1, count) - mean * mean))) or 1.0


def _channels(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape if len(shape) == 3 else (*shape, 1)


def _in_range(found: np.ndarray, classes: int, path: Path, faults: Faults) -> None:
    wrong = np.flatnonzero((found < 0) | (found >= classes))
    if len(wrong):
        more = f", and {len(wrong) - 1:,} more are out of range" if len(wrong) > 1 else ""
        first = f"label {wrong[0] + 1:,} is {found[wrong[0]]}"
        faults.add(path, f"{first}; data.classes={classes} allows 0 to {classes - 1}{more}")
