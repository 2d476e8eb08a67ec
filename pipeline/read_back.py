"""What stands for a checkpoint once it was exported: the export, opened as any later run would open it.

So what is evaluated is what was written, and nothing is quantized twice. An export that holds other encodings than the
checkpoint has (plain values of packed tensors, another dtype) does not stand for it: then the checkpoint is read.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from pipeline import meter
from pipeline.digest import Digested, digest_file
from pipeline.errors import SourceError, StageError, StorageError, WeightmillError
from pipeline.hooks import optional
from pipeline.stage import Checkpoint, Exported, ReadBack, WorkHooks
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.store import Index, TensorStore
from pipeline.tensors.store_view import StoreView


def predicted(checkpoint: Checkpoint, exported: Any) -> tuple[Checkpoint, str]:
    """What `opened` will give, as far as specs go, and in words what that is.

    Args:
        checkpoint: what is exported.
        exported: the `Work[Exported]`, as planning hands it to stages; None: nothing is exported.
    """
    back = optional(exported, WorkHooks, "read_back")
    if back is None:
        return checkpoint, ""
    if why_not := _why_not(checkpoint, back):
        return checkpoint, f"reads the checkpoint and not the export: {why_not}"
    return replace(checkpoint, store=_Promised(checkpoint.store, back.specs)), "reads the export"


def opened(checkpoint: Checkpoint, exported: Exported | None) -> Checkpoint:
    """The export where it stands for `checkpoint`, else that itself. Reads headers; the first read of a tensor digests
    the files, which must be as they were when they were put in place.

    Raises:
        StageError: the export cannot be opened as the source was, or has other tensors than were written.
    """
    back = exported.read_back if exported is not None else None
    if exported is None or back is None or _why_not(checkpoint, back):
        return checkpoint
    assert back.opener is not None
    try:
        found = back.opener(exported.path)
    except WeightmillError as why:
        raise StageError(f"{exported.path}: what was exported cannot be opened again, to be read here: {why}") from None
    if (given := dict(found.store.specs)) != (promised := dict(back.specs)):
        name = next(n for n in {**promised, **given} if promised.get(n) != given.get(n))
        raise StageError(
            f"{exported.path}: does not read back as what was written: {name!r} was {promised.get(name)}, and is "
            f"{given.get(name)}; please report it"
        )
    scales = found.input_scales or checkpoint.input_scales  # of those that the export holds what it holds
    return replace(found, store=ExportStore(exported.files, found.store), input_scales=scales)


def _why_not(checkpoint: Checkpoint, back: ReadBack) -> str:
    """Why the export does not stand for `checkpoint`; empty when it does."""
    return back.why_not or ("" if back.of == checkpoint.store else "a stage after the export changed it")


@dataclass(frozen=True)
class ExportStore(StoreView):
    """The tensors of an export of this run. Equal ones hold equal bytes, as the digests of their files say.

    Attributes:
        files: of the export, as they were put in place.
        store: their tensors.
    """

    files: tuple[Digested, ...]
    store: TensorStore = field(compare=False)

    def read(self, name: str, index: Index = ()) -> Any:
        """
        Raises:
            StorageError: a file is not what was put in place.
        """
        store = self._checked
        with meter.stage("export") as gave:
            value = store.read(name, index)
            gave[0] = value.nbytes
        return value

    @cached_property
    def _checked(self) -> TensorStore:
        """The store, once every file was held to its digest."""
        for file in self.files:
            try:
                now = digest_file(file.path)
            except SourceError as why:  # to the user this is the output, not a source
                raise StorageError(str(why)) from None
            if now != file:
                raise StorageError(
                    f"{file.path}: is no longer what this run wrote there: another program's doing, or the disk's; "
                    "the same command writes it again"
                )
        return self.store


@dataclass(frozen=True)
class _Promised:
    """Specs without values."""

    store: TensorStore
    specs: Mapping[str, TensorSpec]

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.store.metadata

    def read(self, name: str, index: Index = ()) -> Any:
        raise StageError(f"{name}: is read from the export, which is not written yet")
