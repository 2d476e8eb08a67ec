"""Load: a folder or file of weights becomes a handle; only headers, config.json and small leaves are read.

A source that lies elsewhere (`hf://owner/name`) is fetched first, by the remote whose scheme it names.
"""

import json
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pipeline.errors import PlanError, Problem, SourceError, did_you_mean
from pipeline.formats import PEEKED, Container, Dialect, Fetched, Leaves, Remote
from pipeline.stage import Checkpoint, Context, InputFile
from pipeline.tensors.views import JoinedStore

PEEK_NBYTES = 64 << 10  # a leaf that describes others is smaller


@dataclass(frozen=True)
class Load:
    """Open a checkpoint.

    Attributes:
        source: folder (or file) of the checkpoint, or an address that a remote knows.
        containers: tried in order; the first that recognizes the source opens it.
        dialects: tried in order; the first that recognizes the leaves binds them.
        carry: patterns of files beside the weights that an export takes along.
        remotes: where addresses lead; the one whose scheme the source begins with fetches it.
        model_types: those of config.json that the chosen model option is for; None: any.
    """

    source: str
    containers: tuple[Container, ...]
    dialects: tuple[Dialect, ...]
    carry: tuple[str, ...] = ()
    remotes: tuple[Remote, ...] = ()
    model_types: tuple[str, ...] | None = None

    def run(self, ctx: Context) -> Checkpoint:
        """Reads headers, and the small leaves that say what others mean.

        Raises:
            SourceError: no such folder, no container recognizes it, or a file is malformed.
            PlanError: the leaves do not fit the dialect, all problems at once; or the checkpoint is of another model
                than the chosen one.
        """
        found = self._found(ctx)
        source = found.path
        container = next((c for c in self.containers if c.recognizes(source)), None)
        if container is None:
            names = ", ".join(type(c).__name__ for c in self.containers)
            raise SourceError(f"model.source={self.source!r}: no container recognizes it (tried: {names})")
        leaves = container.open(source)
        folder = source if source.is_dir() else source.parent
        config = dict(leaves.config()) or _json_object(folder / "config.json")
        if not isinstance(config.get("quantization_config", {}), dict | None):
            given = config["quantization_config"]
            raise SourceError(f"{folder / 'config.json'}: quantization_config is {given!r:.60}; an object is expected")
        for dialect in self.dialects:
            seen = config | {n: _json_object(folder / n) for n in dialect.companions if (folder / n).exists()}
            if dialect.recognizes(leaves.specs, seen):
                binding = dialect.decode(leaves.specs, seen | _peeked(leaves, dialect, found))
                break
        else:
            names = ", ".join(type(d).__name__ for d in self.dialects)
            raise SourceError(f"model.source={self.source!r}: no dialect recognizes its tensors (tried: {names})")
        self._of_the_chosen_model(binding.config.get("model_type"))
        return Checkpoint(
            store=JoinedStore(leaves, binding),
            config=binding.config,
            files={**self._carried(folder, set(leaves.paths)), **binding.files},
            inputs=tuple(_input_file(p) for p in leaves.paths),
            stored={name: bound.spec.nbytes for name, bound in binding.tensors.items()},
            origin=" · ".join(filter(None, (found.origin, type(container).__name__, _spoken(dialect), *binding.notes))),
        )

    def _of_the_chosen_model(self, kind: Any) -> None:
        """
        Raises:
            PlanError: the option that was chosen is not for `kind`, the checkpoint's model_type.
        """
        if not self.model_types or kind is None or kind in self.model_types:
            return
        from pipeline.overrides import model_types

        right = f"no option is for that, and model.model_types=[{kind}] applies the chosen one's rules to it"
        if option := model_types().get(str(kind)):
            right = f"model={option} is for it, and is chosen when model= is left out"
        text = (
            f"the option that was chosen is for model_type {' and '.join(self.model_types)}, and the config.json of "
            f"{self.source} says {kind!r}; {right}"
        )
        raise PlanError([Problem("model", text)], exit_code=SourceError.exit_code)

    def _found(self, ctx: Context) -> Fetched:
        """The source on this machine.

        Raises:
            SourceError: there is none; or as `Remote.fetch`.
        """
        scheme = self.source.partition("://")[0] + "://" if "://" in self.source else None
        if scheme is None or Path(self.source).exists():
            path = Path(self.source).expanduser().absolute()
            if not path.exists():
                raise SourceError(f"model.source={self.source!r}: no such file or folder{_neighbours(path)}")
            return Fetched(path, "")
        remote = next((r for r in self.remotes if r.scheme == scheme), None)
        if remote is None:
            known = did_you_mean(scheme, [r.scheme for r in self.remotes])
            raise SourceError(f"model.source={self.source!r}: nothing here fetches from {scheme}{known}")
        return remote.fetch(self.source, whole=ctx.fetch)

    def _carried(self, folder: Path, weights: set[Path]) -> dict[str, Path]:
        return {
            p.name: p
            for p in sorted(folder.iterdir())
            if p.is_file() and p not in weights and any(fnmatchcase(p.name, c) for c in self.carry)
        }


def _peeked(leaves: Leaves, dialect: Dialect, found: Fetched) -> dict[str, Any]:
    """The leaves that `dialect` must look into, read whole; nothing for most dialects.

    Raises:
        SourceError: there are some, and only an outline of them is here.
    """
    patterns = getattr(dialect, "peeks", ())
    small = [n for n, spec in leaves.specs.items() if spec.nbytes <= PEEK_NBYTES]
    names = [n for n in small if any(fnmatchcase(n, p) for p in patterns)]
    if names and not found.whole:
        raise SourceError(
            f"{found.origin}: {_spoken(dialect)} has to read {names[0]} before this can be planned; the same command "
            "without `plan` downloads it and goes on, and with stages=[load] it downloads it only"
        )
    return {PEEKED: {n: leaves.read(n) for n in names}} if patterns else {}


def _spoken(dialect: Dialect) -> str:
    return f"{type(dialect).__module__.rpartition('.')[2]}.{type(dialect).__name__}"


def _input_file(path: Path) -> InputFile:
    stat = path.stat()
    return InputFile(path, stat.st_size, stat.st_mtime_ns)


def _json_object(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        config = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as why:
        raise SourceError(f"{path}: not valid JSON: {why}") from None
    if not isinstance(config, dict):
        raise SourceError(f"{path}: a JSON object is expected, found {type(config).__name__}")
    return config


def _neighbours(path: Path) -> str:
    parent = path.parent
    while not parent.exists():
        path, parent = parent, parent.parent
    return f" in {parent}{did_you_mean(path.name, sorted(p.name for p in parent.iterdir()))}"
