"""Bench quality: what weights lose at how many bits, by every method of ours and by those of others."""

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from pipeline import scored, texts
from pipeline.bench import quality
from pipeline.bench.cell import Export
from pipeline.bench.measuring import WRITES, Benched, Measuring
from pipeline.bench.process import done
from pipeline.bench.quality import Given, Ours, Rounder, Theirs
from pipeline.bench.rows import unmeasured
from pipeline.bench.turns import LOGS, Turns
from pipeline.engine import Engine, Windows, scoring
from pipeline.errors import ConfigError, PlanError, Problem, StageError, did_you_mean
from pipeline.ops import Kernel
from pipeline.stage import Checkpoint, Context, Footprint, Prediction
from stages.calibrate import rows_of

HOST_NBYTES = 1 << 30  # of a process, with its libraries and programs
HELD = 6  # times the values in fp32: the model, what is exchanged in it, and the GGUF file that is written
BENCHMARK = "quality"
ROOM, CELLS, SOURCE = "rounded", "cells", "source"
USUAL = ("attention", "mlp", "experts", "embedding", "head")  # roles that a model may lack: it has experts, or an MLP
MORE, OTHERS = "as named", "others"  # the second half of the name of a cell that has none


@dataclass(frozen=True)
class BenchQuality:
    """Quantize and evaluate, cell by cell, each in a process of its own; and the same matrices rounded by others.

    Attributes:
        engine: runs the model, in fp32.
        quants: quant options.
        calibrates: calibrate options, each with each of `quants`.
        more: further cells of ours, by name: overrides.
        peers: others, by name.
        roles: role → name patterns.
        rounds_of: roles that are rounded in every cell.
        keeps: roles that stay as they are in every cell.
        overrides: which weights, and how they are calibrated and evaluated.
        evaluated: texts, UTF-8.
        calibrated: other texts; on the first of them `quant=auto` chooses.
        windows: how those that are evaluated are cut.
        calibrated_windows: how the others are.
        unpack: decodes what others packed.
        measuring: on how many cores, against what.
    """

    engine: Engine
    quants: tuple[str, ...]
    calibrates: tuple[str, ...]
    more: Mapping[str, tuple[str, ...]]
    peers: Mapping[str, Rounder]
    roles: Mapping[str, tuple[str, ...]]
    rounds_of: tuple[str, ...]
    keeps: tuple[str, ...]
    overrides: tuple[str, ...]
    evaluated: tuple[str, ...]
    calibrated: tuple[str, ...]
    windows: Windows
    calibrated_windows: Windows
    unpack: Kernel
    measuring: Measuring
    outputs: str = field(default="outputs")

    writes: ClassVar[tuple[str, ...]] = (*WRITES, quality.PICTURE)

    def __post_init__(self) -> None:
        if not (self.quants and self.calibrates) and not self.more:
            raise ConfigError("bench.quants, bench.calibrates, bench.more: no cell of ours is asked for")
        if self.measuring.rounds != 1:
            raise ConfigError(f"bench.rounds={self.measuring.rounds}: the same cell loses the same; 1 is allowed")
        for text in self.evaluated:
            texts.check(text, "evaluate.texts")

    def plan(self, checkpoint: Checkpoint) -> Prediction:
        self.measuring.baseline(BENCHMARK)
        files = [texts.input_file(text) for text in self.evaluated]
        windows = self._windows(checkpoint)
        usage = scoring([f.nbytes for f in files], windows, keeps=True)
        self._some(checkpoint)
        takes = self.engine.plan(checkpoint, plain=True, usage=usage)
        values = sum(s.size for s in checkpoint.store.specs.values())
        return Prediction(None, Footprint(
            host_nbytes=HOST_NBYTES + takes.host_nbytes + 4 * HELD * values, disk_nbytes=takes.disk_nbytes + 8 * values,
            moved_nbytes=len(self._cells()) + len(self.peers), inputs=(*takes.inputs, *files),
            rate=f"quality {values} {usage.tokens}", reads=scored.said(windows, self.windows),
        ))  # fmt: skip

    def run(self, ctx: Context, checkpoint: Checkpoint) -> Benched:
        """
        Raises:
            ConfigError: the baseline is of other weights.
        """
        self.measuring.baseline(BENCHMARK, run=ctx.run_dir)
        turns = Turns(ctx.run_dir, ctx.key, self.measuring.cores)
        room = ctx.run_dir / ROOM
        jobs: dict[str, Any] = {name: self._ours(ctx, checkpoint, name, set_) for name, set_ in self._cells().items()}
        apart = dict(self._apart(checkpoint))
        try:
            turns.rounds(jobs, 1, quality.said)
            left = {
                name: peer for name, peer in self.peers.items() if name not in apart and not turns.notes.has(name, 0)
            }
            shutil.rmtree(room, ignore_errors=True)  # of one that was interrupted
            room.mkdir()
            for form in {peer.reads: None for peer in left.values() if peer.reads is not None}:
                log = ctx.run_dir / LOGS / f"{form}.txt"
                written = done(self._written(checkpoint, room, form), self.measuring.cores, log)
                if written.failed:
                    raise StageError(f"bench: the model as {form}: {written.failed}")
            rows = rows_of(self.engine, checkpoint, self.calibrated, self.calibrated_windows) if left else []
            made = {n: self._theirs(checkpoint, i, peer, rows, room) for i, (n, peer) in enumerate(left.items())}
            turns.rounds(made, 1, quality.said)
        finally:
            shutil.rmtree(room, ignore_errors=True)
        shown = [self._row(name, turns, apart) for name in (*self._cells(), *self.peers)]
        asked = self._windows(checkpoint).tokens
        quality.draw(ctx.run_dir / quality.PICTURE, f"{asked:,} tokens of each text" if asked else "whole texts", shown)
        return self.measuring.record(
            ctx.run_dir, BENCHMARK, shown, quality.tables, quality.figures(shown), **turns.took,
            workload={"texts": [Path(t).name for t in self.evaluated], "tokens": asked},
        )  # fmt: skip

    def _cells(self) -> dict[str, tuple[str, ...]]:
        """Name, `QUANT CALIBRATE`, → overrides."""
        found = {f"{q} {c}": (f"quant={q}", f"calibrate={c}") for q in self.quants for c in self.calibrates}
        return found | {f"{name} {MORE}": set_ for name, set_ in self.more.items()}

    def _ours(self, ctx: Context, checkpoint: Checkpoint, name: str, set_: tuple[str, ...]) -> Ours:
        from pipeline.config.overrides import quoted  # Hydra's grammar, which no other worker needs

        specs = checkpoint.store.specs
        own = ctx.run_dir / CELLS / (name.strip().replace(" ", "-").replace("+", "-"))
        tied = [s.nbytes for n, s in specs.items() if n.endswith("embed_tokens.weight")] if not any(
            n.endswith("lm_head.weight") for n in specs) else []  # fmt: skip
        return Ours(
            overrides=(
                *self._common(checkpoint), *set_, *self._chosen_on(set_), "flow=evaluate",
                f"paths.run={quoted(str(own))}", f"paths.outputs={quoted(self.outputs)}",
            ),
            plain={n: s.nbytes for n, s in specs.items()}, head=sum(tied), values=sum(s.size for s in specs.values()),
        )  # fmt: skip

    def _chosen_on(self, set_: tuple[str, ...]) -> Iterator[str]:
        """The text that `quant=auto` sees, which is none of those that it is judged by."""
        from pipeline.config.auto import AUTO
        from pipeline.config.overrides import quoted

        if AUTO in set_ and self.calibrated and not any(o.startswith("quant.text=") for o in set_):
            yield f"quant.text={quoted(self.calibrated[0])}"

    def _common(self, checkpoint: Checkpoint) -> Iterator[str]:
        """What every cell is asked, first."""
        from pipeline.config.overrides import quoted

        assert checkpoint.source is not None  # it was loaded
        yield from ("stages.decode.dtype=keep", "export.dtype=fp32", "allow_requantize=true")
        there = [role for role in (*self.rounds_of, *self.keeps) if self._names(checkpoint, (role,))]
        rules = ",".join(f"{{role: {role}, to: {'keep' if role in self.keeps else 'quant'}}}" for role in there)
        yield f"model.rules=[{rules}]"  # not extra_rules, which decide before those that quant=auto writes
        yield from (o for o in self.overrides if not o.startswith(("allow_requantize", "model.source")))
        yield f"model.source={quoted(str(checkpoint.source))}"

    def _some(self, checkpoint: Checkpoint) -> None:
        """
        Raises:
            PlanError: there is nothing to be rounded, or a role is called what no model has.
        """
        for setting, roles in (("bench.rounded", self.rounds_of), ("bench.kept", self.keeps)):
            for role in roles:
                if role not in self.roles and role not in USUAL:
                    known = dict.fromkeys((*self.roles, *USUAL))
                    text = f"{role!r}: no such role{did_you_mean(role, known)}; allowed: {', '.join(known)}"
                    raise PlanError([Problem(setting, text)])
        if not self._names(checkpoint, self.rounds_of):
            text = f"[{', '.join(self.rounds_of)}]: no tensor of the model has such a role; it has"
            raise PlanError([Problem("bench.rounded", f"{text} {', '.join(self.roles)}")])

    def _names(self, checkpoint: Checkpoint, roles: tuple[str, ...]) -> tuple[str, ...]:
        patterns = [p for role in roles for p in self.roles.get(role, ())]
        return tuple(n for n in checkpoint.store.specs if any(fnmatchcase(n, p) for p in patterns))

    def _written(self, checkpoint: Checkpoint, room: Path, form: str) -> Export:
        """A process of ours that writes the model in fp32, for those who read it in this form."""
        from pipeline.config.overrides import quoted

        of_model = [o for o in self._common(checkpoint) if not o.startswith(("evaluate", "calibrate", "model.rules"))]
        out = room / SOURCE / form
        places = {"export.path": out, "paths.run": room / f"run-{form}", "paths.outputs": room}
        set_ = [f"{key}={quoted(str(path))}" for key, path in places.items()]
        return Export((*of_model, "flow=convert", "quant=none", f"export={form}", *set_), out)

    def _theirs(self, checkpoint: Checkpoint, number: int, peer: Rounder, rows: list[list[int]], room: Path) -> Theirs:
        place = room / str(number)
        place.mkdir(parents=True, exist_ok=True)
        return Theirs(
            rounder=peer, engine=self.engine, checkpoint=replace(checkpoint, keeping=None),
            names=self._names(checkpoint, self.rounds_of), texts={Path(t).name: texts.read(t) for t in self.evaluated},
            windows=self._windows(checkpoint),
            given=Given(None if peer.reads is None else room / SOURCE / peer.reads, rows), place=place,
            unpack=self.unpack,
        )  # fmt: skip

    def _apart(self, checkpoint: Checkpoint) -> Iterator[tuple[str, tuple[str, str]]]:
        """Others that are not measured: state, and why."""
        for name, peer in self.peers.items():
            if how := [how for module, how in peer.needs.items() if find_spec(module) is None]:
                yield name, ("missing", f"not installed; {'; '.join(dict.fromkeys(how))}")
            elif why := peer.why_not(checkpoint):
                yield name, ("unsupported", why)

    def _row(self, name: str, turns: Turns, apart: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
        quant, _, by = name.partition(" ") if name in self._cells() else (OTHERS, "", name)
        if name in apart:
            return unmeasured(by, quant, *apart[name])
        if name in turns.failed:
            return unmeasured(by, quant, "failed", turns.failed[name])
        return quality.row(by, quant, turns.found(name)[0], turns.others(name), theirs=name in self.peers)

    def _windows(self, checkpoint: Checkpoint) -> Windows:
        return scored.settled(self.windows, checkpoint, 2, "evaluate.windows")
