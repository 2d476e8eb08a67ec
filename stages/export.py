"""Export: bind a checkpoint to the container and dialect that hold it; `stages.export_work` does the writing."""

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pipeline.coded_store import Unpacked
from pipeline.errors import ConfigError, PlanError, Problem, SourceError, ValueRangeError, did_you_mean, some
from pipeline.files import read_whole, spoken
from pipeline.formats import INPUTS, Container, Dialect, DialectHooks, Layout
from pipeline.hooks import optional
from pipeline.ops import Call, Kernel
from pipeline.planning.holding import Encode, Option, Unheld, choose, hold, unheld
from pipeline.running.target import MARKER
from pipeline.stage import CHOSEN, NEUTRAL, Checkpoint, Context, Exported, ReadBack, Work
from pipeline.strictjson import parse_object
from pipeline.tensors.binding import Binding
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.spec import DTYPE_BITS, FLOAT_DTYPES, TensorSpec, group_of
from pipeline.tensors.store import Index
from pipeline.tensors.views import MappedStore
from pipeline.units import parse_bytes
from stages.export_work import ExportWork

FILES = (".gguf", ".safetensors", ".npy", ".npz", ".bin", ".pt", ".pth", ".json")  # how files are called, and no folder
DTYPES = {"bf16": "BF16", "fp16": "F16", "fp32": "F32"}


@dataclass(frozen=True)
class Export:
    """Write a checkpoint.

    Attributes:
        dialect: naming and packing; None: of the first of `prefer` that can hold everything.
        container: bytes in files; None, with the dialect: that option's.
        path: target folder; None for `model` in the run's folder.
        max_shard_size: largest file, such as `5GB`; None for a single file; `auto`, without a dialect: that option's.
        dtype: `keep` writes quantized tensors packed and the rest as they come; `bf16`, `fp16` and `fp32` write
            plain values only.
        overflow: what happens to a finite value beyond fp16's range: `error`, or `clamp` to ±65504. Never infinity.
        unpack: turns packed tensors into values.
        cast: the cast kernel.
        options: name → what else could be written.
        prefer: names of `options`, in the order in which they are asked.
    """

    dialect: Dialect | None = field(metadata=CHOSEN)
    container: Container | None = field(metadata=CHOSEN)
    unpack: Kernel
    cast: Kernel
    path: str | None = field(default=None, metadata=NEUTRAL)
    max_shard_size: str | None = field(default="5GB", metadata=CHOSEN)
    dtype: Literal["keep", "bf16", "fp16", "fp32"] = "keep"
    overflow: Literal["error", "clamp"] = "error"
    options: Mapping[str, Option] = field(default_factory=dict, metadata=CHOSEN)
    prefer: tuple[str, ...] = field(default=(), metadata=CHOSEN)

    def __post_init__(self) -> None:
        if (self.dialect is None) != (self.container is None):
            raise ConfigError("dialect and container are chosen together: both or neither is null")
        if self.dialect is None and not self.prefer:
            raise ConfigError("without a dialect, prefer says which options are asked")
        if unknown := [name for name in self.prefer if name not in self.options]:
            raise ConfigError(f"prefer names {unknown[0]!r}{did_you_mean(unknown[0], self.options)}")
        if self.path is not None and not self.path.strip():
            raise ConfigError(f"export.path={self.path!r}: a folder is expected, or null: model in the run's folder")
        if self.max_shard_size is not None and (self.dialect is not None or self.max_shard_size != "auto"):
            _nbytes(self.max_shard_size)

    def run(self, ctx: Context, checkpoint: Checkpoint) -> Work[Exported]:
        """
        Raises:
            PlanError: the dialect cannot express a tensor, a scheme or the mixture.
        """
        if checkpoint.turned is not None:
            text = "is for evaluating and generating: no file says that inputs are to be rotated; calibrate=rotate goes"
            raise PlanError([Problem("activations_rotate", f"{text} into weights alone")])
        store, encode = checkpoint.store, _encoder(checkpoint)
        if self.dtype != "keep":
            store = MappedStore(store, AsValues(DTYPES[self.dtype], self.unpack, self.cast, self.overflow))
        unpacked = self._unheld(checkpoint)
        if unpacked.names:
            store = MappedStore(store, Unpacked(unpacked.names, self.unpack, "BF16"))
        dialect, container, shard_size, chosen = self.dialect, self.container, self.max_shard_size, ""
        try:
            if dialect is None or container is None:
                name, binding, chosen = choose(self.prefer, self.options, store.specs, encode)
                dialect, container = self.options[name].dialect, self.options[name].container
                shard_size = self.options[name].max_shard_size if shard_size == "auto" else shard_size
            else:
                binding = hold(dialect, self.options, store.specs, encode)
        except PlanError as why:
            raise self._said(self._bare(why, checkpoint, unpacked), checkpoint, store.specs) from None
        notes = self._rounded(checkpoint)
        if unpacked.names:
            notes.append(unpacked.said(self.options, checkpoint.store.specs, encode))
        binding = replace(binding, notes=(*notes, *binding.notes))
        max_shard = None if shard_size is None else _nbytes(shard_size)
        layout = container.layout(binding.leaves, {"format": "pt", **binding.metadata}, max_shard)
        self._check_path(layout)
        files = {n: p for n, p in checkpoint.files.items() if n not in (*binding.drop, *binding.files, MARKER)}
        return ExportWork(
            store=store,
            binding=binding,
            container=container,
            layout=layout,
            target=Path(os.path.abspath(os.path.expanduser(self.path))) if self.path else ctx.run_dir / "model",
            companions=files,
            inputs=checkpoint.inputs,
            stored=checkpoint.stored,
            chunk_nbytes=ctx.chunk_nbytes,
            key=ctx.key,
            run_dir=ctx.run_dir,
            overwrite=ctx.overwrite,
            chosen=chosen,
            read_back=_read_back(checkpoint, store.specs, binding),
            made_by={"dialect": dialect, "container": container, "max_shard_nbytes": max_shard},
        )

    def _rounded(self, checkpoint: Checkpoint) -> list[str]:
        """What is said of values that are written with fewer digits than the source has, where nobody asked for it."""
        if self.dtype != "keep":
            return []
        now = {n: s for n, s in checkpoint.store.specs.items() if s.scheme is None and s.dtype == "BF16"}
        found = {n: was for n, was in checkpoint.rounded.items() if n in now}
        plain = {n: was for n, was in found.items() if was in DTYPE_BITS}
        packed = {n: was for n, was in found.items() if n not in plain}
        notes = []
        for of, instead in (
            (plain, "stages.decode.dtype=keep leaves them as they are"),
            (packed, "export.dtype=fp16 or fp32 has more digits"),
        ):
            groups, stored = some(list(dict.fromkeys(map(group_of, of))), most=2), ", ".join(sorted({*of.values()}))
            notes += [f"{groups} ({stored} in the source) rounded to bf16; {instead}"] if of else []
        return notes

    def _unheld(self, checkpoint: Checkpoint) -> Unheld:
        """What is written as values although it came packed, because nobody asked that it stay so."""
        specs = checkpoint.store.specs
        may = checkpoint.may_unpack & {n for n, s in specs.items() if s.scheme is not None}
        if self.dtype != "keep" or not may:
            return Unheld()
        return unheld(self._asked, specs, may, _encoder(checkpoint))

    @property
    def _asked(self) -> list[Dialect]:
        """The dialects that may be written, in order."""
        return [self.dialect] if self.dialect is not None else [self.options[name].dialect for name in self.prefer]

    def _bare(self, why: PlanError, checkpoint: Checkpoint, unpacked: Unheld) -> PlanError:
        """Why a dialect that takes no plain values alone has none: all that came packed was unpacked, for it."""
        encode, specs = _encoder(checkpoint), checkpoint.store.specs
        plain = _as_values(specs, unpacked.names)
        if self.dialect is None or not unpacked.names or any(s.scheme is not None for s in plain.values()):
            return why
        try:
            encode(self.dialect, plain)
        except PlanError as refused:
            if {p.where for p in refused.problems} != {"export.dialect"}:
                return why
        else:
            return why
        text = (
            f"{unpacked.said(self.options, specs, encode)}; and plain values alone it does not hold either. Begin with "
            "the unquantized checkpoint and quant=NAME, or quantize this once more, which loses twice: quant=NAME "
            "allow_requantize=true"
        )
        return PlanError([Problem("export", text)])

    def _said(self, why: PlanError, checkpoint: Checkpoint, specs: Mapping[str, TensorSpec]) -> PlanError:
        """Why nothing holds this. Where norms and biases are to be quantized, as by a rule for all of a layer, and all
        else could be written: how these are left out."""
        names = [n for n, spec in specs.items() if spec.scheme is not None and len(spec.shape) < 2]
        if not names or checkpoint.keeping is None:
            return why
        text = f"vectors, as norms and biases are, which hardly any format has quantized; {checkpoint.keeping(names)}"
        problem = Problem(some(list(dict.fromkeys(map(group_of, names)))), text)
        for dialect in self._asked:
            with suppress(PlanError):
                _encoder(checkpoint)(dialect, _as_values(specs, names))
                return PlanError([problem])
        return PlanError([*why.problems, problem])

    def _check_path(self, layout: Layout) -> None:
        """
        Raises:
            PlanError: the folder to write to is called like a file.
        """
        folder = Path(self.path or "")
        if folder.suffix in FILES and not folder.is_dir():
            file = next((f.name for f in layout.files), "its files")
            text = (
                f"{self.path}: a folder is written, and this is the name of a file; "
                f"export.path={folder.with_suffix('')} writes {folder.with_suffix('') / file}"
            )
            raise PlanError([Problem("export.path", text)])

    def calls(self, checkpoint: Checkpoint) -> Iterator[Call]:
        """The kernel calls that `dtype` makes."""
        for name in self._unheld(checkpoint).names:
            yield Call(self.unpack, name, {"q": checkpoint.store.specs[name], "dtype": "BF16"})
        held = DTYPES[self.dtype] if self.dtype != "keep" else ""
        for name, spec in checkpoint.store.specs.items() if held else ():
            if spec.scheme is not None:
                dtype = "F32" if held == "F16" else held
                yield Call(self.unpack, name, {"q": spec, "dtype": dtype})
                spec = replace(spec, dtype=dtype, scheme=None)
            if spec.dtype in FLOAT_DTYPES and spec.dtype != held:
                yield Call(self.cast, name, {"x": spec, "dtype": held, "overflow": self.overflow})


@dataclass(frozen=True, slots=True)
class AsValues:
    """The lazy transform behind `export.dtype`."""

    dtype: str
    unpack: Kernel
    cast: Kernel
    overflow: str

    def spec(self, name: str, spec: TensorSpec) -> TensorSpec:
        if spec.scheme is None and spec.dtype not in FLOAT_DTYPES:
            return spec
        return replace(spec, dtype=self.dtype, scheme=None)

    def apply(self, name: str, value: Any, index: Index) -> Any:
        if isinstance(value, QTensor):
            value = self.unpack(value, "F32" if self.dtype == "F16" else self.dtype)
        elif value.dtype.kind in "iub":
            return value
        try:
            return self.cast(value, self.dtype, overflow=self.overflow)
        except ValueRangeError as why:
            raise ValueRangeError(f"{name}: {why}; export.overflow=clamp writes the nearest finite value") from None


def _nbytes(shard_size: str) -> int:
    return parse_bytes(shard_size, "export.max_shard_size", bare=1 << 20)


def _as_values(specs: Mapping[str, TensorSpec], names: Collection[str]) -> dict[str, TensorSpec]:
    """`specs` with `names` as plain bf16, whatever they are packed as."""
    return {n: replace(s, dtype="BF16", scheme=None) if n in names else s for n, s in specs.items()}


def _encoder(checkpoint: Checkpoint) -> Encode:
    """How a dialect binds tensors of the checkpoint."""

    def encode(dialect: Dialect, specs: Mapping[str, TensorSpec]) -> Binding:
        wants = optional(dialect, DialectHooks, "writes_inputs") and checkpoint.input_scales is not None
        scales = {INPUTS: checkpoint.input_scales} if wants else {}
        return dialect.encode(specs, {**checkpoint.config, **_taken(dialect, checkpoint.files), **scales})

    return encode


def _read_back(checkpoint: Checkpoint, written: Mapping[str, TensorSpec], binding: Binding) -> ReadBack:
    """What the export holds, and why it does not stand for the checkpoint where it does not.

    Plain tensors may come back wider than they were (norms in GGUF), packed ones in nothing but their scheme.
    """
    specs = {}
    for name, bound in binding.tensors.items():
        stored = binding.leaves[bound.parts[0].leaf].dtype
        as_it_is = bound.spec.scheme is not None or bound.spec.dtype == stored
        specs[name] = bound.spec if as_it_is else replace(bound.spec, dtype=stored)
    why_not = ""
    if other := next((n for n, s in checkpoint.store.specs.items() if written[n] != s), None):
        was = checkpoint.store.specs[other].encoding
        why_not = f"the export has {group_of(other)} as {written[other].encoding}, not as {was}"
    elif checkpoint.opener is None:
        why_not = "what gave the checkpoint opens no other folder"
    return ReadBack(checkpoint.store, specs, checkpoint.opener, why_not)


def _taken(dialect: Dialect, files: Mapping[str, Path | bytes]) -> dict[str, Any]:
    """The companion files that the dialect's `takes` names, JSON parsed, the rest as text."""
    found: dict[str, Any] = {}
    for name in optional(dialect, DialectHooks, "takes"):
        if (file := files.get(name)) is not None:
            content, where = (file, name) if isinstance(file, bytes) else (read_whole(file), spoken(file))
            try:
                found[name] = parse_object(content, where) if name.endswith(".json") else content.decode()
            except UnicodeDecodeError as why:
                raise SourceError(f"{where}: not UTF-8: {why.reason} at byte {why.start}") from None
    return found
