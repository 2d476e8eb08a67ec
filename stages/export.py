"""Export: bind a checkpoint to the container and dialect that hold it; `stages.export_work` does the writing."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pipeline.errors import ConfigError, SourceError, ValueRangeError, did_you_mean
from pipeline.files import read_whole, spoken
from pipeline.formats import Container, Dialect, DialectHooks
from pipeline.hooks import optional
from pipeline.ops import Call, Kernel
from pipeline.planning.holding import Option, choose, hold
from pipeline.running.target import MARKER
from pipeline.stage import CHOSEN, NEUTRAL, Checkpoint, Context, Exported, ReadBack, Work
from pipeline.strictjson import parse_object
from pipeline.tensors.binding import Binding
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.spec import FLOAT_DTYPES, TensorSpec, group_of
from pipeline.tensors.store import Index
from pipeline.tensors.views import MappedStore
from pipeline.units import parse_bytes
from stages.export_work import ExportWork

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

    def run(self, ctx: Context, checkpoint: Checkpoint) -> Work[Exported]:
        """
        Raises:
            PlanError: the dialect cannot express a tensor, a scheme or the mixture.
        """
        store = checkpoint.store
        if self.dtype != "keep":
            store = MappedStore(store, AsValues(DTYPES[self.dtype], self.unpack, self.cast, self.overflow))

        def encode(dialect: Dialect) -> Binding:
            return dialect.encode(store.specs, {**checkpoint.config, **_taken(dialect, checkpoint.files)})

        dialect, container, shard_size, chosen = self.dialect, self.container, self.max_shard_size, ""
        if dialect is None or container is None:
            name, binding, chosen = choose(self.prefer, self.options, store.specs, encode)
            dialect, container = self.options[name].dialect, self.options[name].container
            shard_size = self.options[name].max_shard_size if shard_size == "auto" else shard_size
        else:
            binding = hold(dialect, self.options, encode)
        max_shard = parse_bytes(shard_size, "export.max_shard_size", bare=1 << 20) if shard_size else None
        layout = container.layout(binding.leaves, {"format": "pt", **binding.metadata}, max_shard)
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

    def calls(self, checkpoint: Checkpoint) -> Iterator[Call]:
        """The kernel calls that `dtype` makes."""
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


def _read_back(checkpoint: Checkpoint, written: Mapping[str, TensorSpec], binding: Binding) -> ReadBack:
    """What the export holds, and why it does not stand for the checkpoint where it does not.

    Plain tensors may come back wider than they were (norms in GGUF), packed ones in nothing but their scheme.
    """
    specs = {}
    for name, bound in binding.tensors.items():
        stored = binding.leaves[bound.parts[0].leaf].dtype
        specs[name] = replace(bound.spec, dtype=stored) if bound.spec.scheme is None else bound.spec
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
