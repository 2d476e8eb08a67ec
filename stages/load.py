"""Load: a folder or file of weights becomes a handle; only headers, config.json and small leaves are read.

A source that lies elsewhere (`hf://owner/name`) is fetched first, by the remote whose scheme it names.
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pipeline.digest import InputFile, small_input, stamped
from pipeline.errors import PlanError, Problem, SourceError, did_you_mean, some
from pipeline.files import exists, of_source, opened, placed, read_whole, spoken
from pipeline.formats import (
    PEEKED,
    Container,
    ContainerHooks,
    Dialect,
    DialectHooks,
    Fetched,
    Leaves,
    Remote,
    UnreachableError,
)
from pipeline.hooks import optional
from pipeline.nearby import nearby
from pipeline.stage import CHOSEN, NEUTRAL, Checkpoint, Context
from pipeline.strictjson import parse_object
from pipeline.tensors.binding import Binding
from pipeline.tensors.inputs import InputScales, Stated
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.views import JoinedStore
from stages.outline import Family, outlined, published

PEEK_NBYTES = 1 << 20  # a leaf that describes others is smaller
CONFIG = "config.json"
QUANTIZATION = "quantization_config"
OWNER_NAME = re.compile(r"[\w.-]+/[\w.-]+")  # what a model of the hub is called
HUB_PAGE = re.compile(r"https?://(?:www\.)?huggingface\.co/([\w.-]+/[\w.-]+)")
OF_FILES = (".jinja", ".json", ".model", ".tiktoken", ".txt")  # how names of carried files end, and no folder's
UNREAD = (".bin", ".ckpt", ".h5", ".msgpack", ".onnx", ".ot", ".pt", ".pth")  # of weights that no container reads
WEIGHTS = (".gguf", ".safetensors", ".json", ".npy", ".npz", ".zarr", *UNREAD)  # how names of files end, and no model's
SETTINGS_NBYTES = 16 << 20  # config.json and what lies beside it; a list of every module of the largest models has 5


@dataclass(frozen=True)
class Load:
    """Open a checkpoint.

    Attributes:
        source: folder (or file) of the checkpoint, or an address that a remote knows.
        containers: tried in order; the first that recognizes the source opens it.
        dialects: tried in order; the first that recognizes the leaves binds them.
        carry: patterns of files beside the weights that an export takes along.
        remotes: where addresses lead; the one whose scheme the source begins with fetches it.
        families: what knows the tensors of a model by its config.json, for a plan where there are no weights.
        model_types: those of config.json that the chosen model option is for; None: any.
        called: the setting that says the source, as errors name it.
    """

    source: str = field(metadata=NEUTRAL)
    containers: tuple[Container, ...] = field(metadata=CHOSEN)
    dialects: tuple[Dialect, ...] = field(metadata=CHOSEN)
    carry: tuple[str, ...] = ()
    remotes: tuple[Remote, ...] = field(default=(), metadata=NEUTRAL)
    families: tuple[Family, ...] = field(default=(), metadata=NEUTRAL)
    model_types: tuple[str, ...] | None = field(default=None, metadata=NEUTRAL)
    called: str = field(default="model.source", metadata=NEUTRAL)

    def run(self, ctx: Context) -> Checkpoint:
        """Reads headers, and the small leaves that say what others mean; of a source without weights, which can only be
        planned, config.json.

        Raises:
            SourceError: no such folder, no container recognizes it, or a file is malformed or cannot be read.
            PlanError: the leaves do not fit the dialect, all problems at once; or the checkpoint is of another model
                than the chosen one.
        """
        with of_source(f"{self.called}={self.source!r:.300}"):
            return self._run(ctx)

    def _run(self, ctx: Context) -> Checkpoint:
        found = self._found(ctx)
        settings = None if ctx.fetch else self._settings(found.path)
        checkpoint = self._opened(found) if settings is None else self._outlined(found, settings)
        self._of_the_chosen_model(checkpoint.config.get("model_type"))
        return checkpoint

    def _open(self, path: Path) -> Checkpoint:
        """The checkpoint in a folder on this machine, whatever model it is of.

        Raises:
            SourceError, PlanError: as `run`.
        """
        with of_source(str(path)):
            return replace(self, source=str(path), remotes=(), model_types=None)._opened(Fetched(path, ""))

    def _container(self, source: Path) -> Container | None:
        return next((c for c in self.containers if c.recognizes(source)), None)

    def _settings(self, source: Path) -> Path | None:
        """The config.json of a source that has no weights, of whatever kind, and can be planned nevertheless."""
        if not self.families or self._container(source) is not None or _has(source, UNREAD):
            return None
        return next((p for p in (source, source / CONFIG) if p.suffix == ".json" and p.is_file()), None)

    def _outlined(self, found: Fetched, settings: Path) -> Checkpoint:
        """The checkpoint that a config.json describes, without weights."""
        beside = Beside(settings.parent)
        config = beside.config(settings.name)
        outline, dialect = outlined(settings, config, self.families, self.dialects)
        stored = {name: spec.nbytes for name, spec in outline.specs.items()}
        carried = self._carried(settings.parent, set()) if settings.name == CONFIG else {}
        small = {p: small_input(p) for p in dict.fromkeys(carried.values())} | beside.inputs
        weights = InputFile(settings.parent / "*", sum(stored.values()), 0)  # what would be read
        return Checkpoint(
            store=outline,
            config={k: v for k, v in config.items() if k != QUANTIZATION},
            files=carried,
            inputs=(weights, *small.values()),
            stored=stored,
            origin=" · ".join(filter(None, (found.origin, "shapes only, no weights are here", _spoken(dialect)))),
            source=settings.parent.absolute(),
            made_by={"dialect": dialect},
            opener=self._open,
            outline=True,
        )

    def _opened(self, found: Fetched) -> Checkpoint:
        source = found.path
        container = self._container(source)
        if container is None:
            kinds = [optional(c, ContainerHooks, "reads") or type(c).__name__ for c in self.containers]
            raise SourceError(
                f"{self.called}={self.source!r}: is no checkpoint that can be read{self._inside(source)} "
                f"(what can: {'; '.join(kinds)})"
            )
        leaves = container.open(source)
        folder = source if source.is_dir() else source.parent
        beside = Beside(folder)
        config = _checked(dict(leaves.config()), folder / CONFIG) or beside.config(CONFIG)
        for dialect in self.dialects:
            seen = config | beside.objects(dialect.companions)
            if dialect.recognizes(leaves.specs, seen):
                binding = _decoded(dialect, leaves.specs, seen | _peeked(leaves, dialect, found))
                break
        else:
            names = ", ".join(type(d).__name__ for d in self.dialects)
            raise SourceError(f"{self.called}={self.source!r}: no dialect recognizes its tensors (tried: {names})")
        scales = binding.input_scales
        # A file that describes itself (GGUF) has its tokenizer inside; what else lies in its folder is of other models.
        beside_it = {} if leaves.config() and source != folder else self._carried(folder, set(leaves.paths))
        carried = {n: p for n, p in beside_it.items() if n not in binding.files}
        small = {p: small_input(p) for p in {**dict.fromkeys(leaves.metadata_paths), **dict.fromkeys(carried.values())}}
        small |= beside.inputs  # as they were when they were read
        return Checkpoint(
            store=JoinedStore(leaves, binding),
            config=binding.config,
            files={**carried, **binding.files},
            inputs=(*(stamped(p) for p in leaves.paths if p not in small), *small.values()),
            stored=_stored(binding, leaves.specs),
            origin=" · ".join(filter(None, (found.origin, type(container).__name__, _spoken(dialect), *binding.notes))),
            source=source.absolute(),
            ignored=binding.ignored,
            input_scales=None if scales is None else InputScales(scales.scheme, Stated(leaves, scales)),
            made_by={"container": container, "dialect": dialect},
            opener=self._open,
        )

    def _of_the_chosen_model(self, kind: Any) -> None:
        """
        Raises:
            PlanError: the option that was chosen is not for `kind`, the checkpoint's model_type.
        """
        if not self.model_types or kind is None or kind in self.model_types:
            return
        from pipeline.config.model_types import model_types

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
        if scheme is None or os.path.exists(self.source):
            path = placed(self.source)
            if not exists(path):
                where = f"{nearby(path, _can_be_source)}{self._elsewhere()}"
                raise SourceError(f"{self.called}={self.source!r}: no such file or folder{where}")
            return Fetched(path, "")
        remote = next((r for r in self.remotes if r.scheme == scheme), None)
        if remote is None and (page := HUB_PAGE.match(self.source)):
            raise SourceError(
                f"{self.called}={self.source!r}: that is a page; its model is {self.called}=hf://{page[1]}"
            )
        if remote is None:
            known = did_you_mean(scheme, [r.scheme for r in self.remotes])
            raise SourceError(f"{self.called}={self.source!r}: nothing here fetches from {scheme}{known}")
        try:
            return remote.fetch(self.source, whole=ctx.fetch)
        except UnreachableError as why:
            settings = None if ctx.fetch else published(self.families, self.source)
            if settings is None:
                raise
            reason = str(why).removeprefix(f"{self.source}: ").partition(";")[0]
            return Fetched(settings, f"config.json of {self.source} as Weightmill has it: {reason}", whole=False)

    def _elsewhere(self) -> str:
        """Where something of such a name may be, if it is no path."""
        typed = self.source.lower()
        of_hub = OWNER_NAME.fullmatch(self.source) and not typed.startswith((".", "~")) and not typed.endswith(WEIGHTS)
        return f"; the hub's is {self.called}=hf://{self.source}" if of_hub else ""

    def _inside(self, source: Path) -> str:
        """Where a folder that is no checkpoint has some: a run has its export beside its records."""
        if source.suffix in UNREAD or _has(source, UNREAD):
            return "; of weights of PyTorch and the like, safetensors are read, which run no code"
        if not source.is_dir():
            return ""
        if (source / CONFIG).is_file():
            return "; it has settings, and no weights"
        found = sorted(p.name for p in source.iterdir() if p.suffix == ".gguf" or (p / CONFIG).is_file())
        if "model" in found:
            return f"; it is the folder of a run, whose export is {Path(self.source) / 'model'}"
        return f"; there are checkpoints in it: {some([str(Path(self.source) / n) for n in found])}" if found else ""

    def _carried(self, folder: Path, weights: set[Path]) -> dict[str, Path]:
        found = {
            p.name: p
            for p in sorted(folder.iterdir())
            if p not in weights
            and any(fnmatchcase(p.name, c) for c in self.carry)
            and (p.suffix in OF_FILES or not p.is_dir())  # `tokenizer/` is of other libraries' checkpoints
        }
        for path in found.values():
            with opened(path):  # a pipe, a dangling link or a folder in a file's place is not left out in silence
                pass
        return found


def _stored(binding: Binding, leaves: Mapping[str, TensorSpec]) -> dict[str, int]:
    """Bytes that each tensor takes in the files; of a leaf that several share, by how many values each has."""
    parts = {name: dict.fromkeys(part.leaf for part in bound.parts) for name, bound in binding.tensors.items()}
    values: dict[str, int] = {}
    for name, held in parts.items():
        for leaf in held:
            values[leaf] = values.get(leaf, 0) + binding.tensors[name].spec.size
    return {
        name: sum(leaves[leaf].nbytes * binding.tensors[name].spec.size // max(1, values[leaf]) for leaf in held)
        for name, held in parts.items()
    }


def _decoded(dialect: Dialect, leaves: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> Binding:
    """
    Raises:
        PlanError: the checkpoint is not what `dialect` says that one is; with the exit code of such.
    """
    try:
        return dialect.decode(leaves, config)
    except PlanError as why:
        raise PlanError(why.problems, exit_code=SourceError.exit_code) from None


def _peeked(leaves: Leaves, dialect: Dialect, found: Fetched) -> dict[str, Any]:
    """The leaves that `dialect` must look into, read whole; nothing for most dialects.

    Raises:
        SourceError: there are some, and only an outline of them is here.
    """
    patterns = optional(dialect, DialectHooks, "peeks")
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


@dataclass(frozen=True, slots=True)
class Beside:
    """The JSON files of a folder.

    Attributes:
        folder: it.
        inputs: those that were read, by path, as they were then.
    """

    folder: Path
    inputs: dict[Path, InputFile] = field(default_factory=dict)

    def config(self, name: str) -> dict[str, Any]:
        """The config.json that is called `name`; an empty one where there is none.

        Raises:
            SourceError: it cannot be read, or is malformed.
        """
        return _checked(self.objects([name]).get(name, {}), self.folder / name)

    def objects(self, names: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Of `names` those that are there, each a JSON object.

        Raises:
            SourceError: one cannot be read, or holds something else.
        """
        return {n: self._object(self.folder / n) for n in names if exists(self.folder / n)}

    def _object(self, path: Path) -> dict[str, Any]:
        content = read_whole(path, SETTINGS_NBYTES)
        self.inputs[path] = small_input(path, content)
        return parse_object(content, spoken(path))


def _has(source: Path, suffixes: tuple[str, ...]) -> bool:
    return source.is_dir() and any(p.suffix in suffixes for p in source.iterdir())


def _checked(config: dict[str, Any], path: Path) -> dict[str, Any]:
    given = config.get(QUANTIZATION)
    if given is not None and not isinstance(given, dict):
        raise SourceError(f"{path}: {QUANTIZATION} is {given!r:.60}; an object is expected")
    return config


def _can_be_source(path: Path) -> bool:
    return path.suffix in (".gguf", ".safetensors") or path.is_dir()
