"""States of a training on disk, from which one that was killed goes on: Orbax's, written beside the work.

Orbax writes a state under another name and puts it in place when it is whole, so what a killed process leaves half
written is nobody's. Each has `progress` beside it: what the loop knows that is no array.
"""

import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp  # type: ignore[import-untyped]

from pipeline import tracing
from pipeline.digest import digest, identity
from pipeline.errors import StorageError, some
from pipeline.running import text_stream

logging.getLogger("absl").setLevel(logging.CRITICAL)  # Orbax logs with a traceback what it raises, too

HALF = ".orbax-checkpoint-tmp"  # in the name of what Orbax is writing
STATE, PROGRESS, DIGESTS, OWN = "state", "progress", "digests", "own"  # the last: digest of all that is beside a state


class Checkpoints:
    """The states of one training in a folder; to be closed, which waits for the last of them."""

    def __init__(self, folder: Path, keep: int | None):
        """
        Args:
            keep: how many of the latest; None: nothing there is touched.
        """
        self.folder, self._mine = folder, keep is not None
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep, cleanup_tmp_directories=self._mine, create=self._mine, read_only=not self._mine
        )
        try:
            self._manager = ocp.CheckpointManager(folder, options=options)
        except OSError as why:
            raise self._said(why) from None

    def save(self, step: int, state: Any, progress: Mapping[str, Any]) -> None:
        """Begin to save the state after `step` updates; what was begun before is waited for.

        Raises:
            StorageError: that, or the one before it, cannot be written.
        """
        if step in self._manager.all_steps():
            return  # it was gone on from, and nothing has changed since
        said = {**progress, DIGESTS: _digests(state)}
        said |= {OWN: identity(said)}
        args = ocp.args.Composite(**{STATE: ocp.args.StandardSave(state), PROGRESS: ocp.args.JsonSave(said)})
        start = tracing.clock() if tracing.active else 0.0
        try:
            self._manager.save(step, args=args, force=True)
        except (OSError, ValueError) as why:
            raise self._said(why) from None
        tracing.done(f"save {self.folder.name}", "checkpoint", start, step=step)

    def latest(self, like: Any) -> tuple[Any, dict[str, Any]] | None:
        """The latest state that can be read, and its progress; None: there is none.

        Args:
            like: a state of the same shapes, dtypes and devices; arrays, or what describes them.

        Raises:
            StorageError: there are some, and none can be read as that.
        """
        steps = sorted(self._manager.all_steps(), reverse=True)
        template = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        said = ""
        for step in steps:
            args = ocp.args.Composite(**{STATE: ocp.args.StandardRestore(template), PROGRESS: ocp.args.JsonRestore()})
            start = tracing.clock() if tracing.active else 0.0
            try:
                found = self._manager.restore(step, args=args)
                state, progress = found[STATE], dict(found[PROGRESS])
                if progress.pop(OWN, None) != identity(progress):  # or it would say what to cut from the metrics
                    raise ValueError(f"{PROGRESS} is not what was saved")
                if changed := _changed(progress.pop(DIGESTS, {}), _digests(state)):
                    raise ValueError(f"{changed} is not what was saved")
            except Exception as why:  # whatever the libraries below make of files that are damaged
                kind, text = type(why).__name__, (str(why).splitlines() or [""])[0]
                said = f"{self.folder / str(step)}: cannot be gone on from: {kind}: {text}"
                if jax.process_count() > 1:  # others may have read their parts of it, and all have to take the same
                    break
                text_stream.write(f"{said}\n")
                continue
            tracing.done(f"restore {self.folder.name}", "checkpoint", start, step=step)
            for damaged in (s for s in steps if s > step and self._mine):  # or nothing could be saved in their places
                self._manager.delete(damaged)
            return state, progress
        if said:
            instead = f"overwrite=true, or removing {self.folder}, begins anew" if self._mine else "it is another's"
            raise StorageError(f"{said}; {instead}")
        return None

    def unlike(self, like: Any) -> str | None:
        """In what the latest state is of other arrays than `like`, for people; None: it is of the same ones, or nothing
        can be said."""
        step = max(self._manager.all_steps(), default=None)
        try:
            saved = ocp.StandardCheckpointHandler().metadata(self.folder / str(step) / STATE).tree
        except Exception:  # damaged, which reading it says
            return None
        there, here = _shapes(saved), _shapes(like)
        if there == here:
            return None
        for more, less, where in ((there, here, "not here"), (here, there, "not there")):
            if lacking := [name for name in more if name not in less]:
                return f"{some(lacking, most=3)} {'is' if len(lacking) == 1 else 'are'} {where}"
        name = next(name for name in here if there[name] != here[name])
        return f"{name} is {there[name]} there and {here[name]} here"

    def wait(self) -> None:
        """Until what was begun is whole.

        Raises:
            StorageError: it cannot be written.
        """
        start = tracing.clock() if tracing.active else 0.0
        try:
            self._manager.wait_until_finished()
        except (OSError, ValueError) as why:
            raise self._said(why) from None
        tracing.done(f"wait for {self.folder.name}", "checkpoint", start)

    def close(self) -> None:
        start = tracing.clock() if tracing.active else 0.0
        self._manager.close()
        tracing.done(f"wait for {self.folder.name}", "checkpoint", start)

    def _said(self, why: Exception) -> StorageError:
        """What was begun and failed is nobody's, and may be what fills the disk."""
        for half in self.folder.glob(f"*{HALF}*") if self._mine else ():
            shutil.rmtree(half, ignore_errors=True)
        said = (why.strerror if isinstance(why, OSError) else None) or str(why).splitlines()[0]
        free = shutil.disk_usage(self.folder.parent).free
        return StorageError(f"{self.folder}: the state of the training cannot be saved: {said} ({free:,} bytes free)")


def _digests(state: Any) -> dict[str, str]:
    """Of the bytes of each array that lies here whole: what Orbax writes uncompressed it reads back whatever it is."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    here = {jax.tree_util.keystr(at): leaf for at, leaf in leaves if getattr(leaf, "is_fully_addressable", True)}
    return {name: digest(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8).data) for name, leaf in here.items()}


def _shapes(state: Any) -> dict[str, tuple[int, ...]]:
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {jax.tree_util.keystr(at, simple=True, separator="."): tuple(leaf.shape) for at, leaf in leaves}


def _changed(saved: Mapping[str, str], read: Mapping[str, str]) -> str | None:
    """The first array that is not as it was; None: all are, as far as is known."""
    return next((name for name, was in saved.items() if read.get(name, was) != was), None)
