"""The trainer as a plugin node: what is to become small, by which updates, how many, and what is looked at meanwhile.

It knows no framework: plans are made of specs alone. `plugins.train.loop` does the work, and is imported when there is
some.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Literal, cast

from pipeline.digest import InputFile
from pipeline.engine import EngineHooks
from pipeline.errors import PlanError, Problem
from pipeline.files import placed
from pipeline.hooks import optional
from pipeline.mesh import SINGLE, Parameter
from pipeline.nearby import nearby
from pipeline.planning.layout import batch_problems
from pipeline.planning.mesh_costs import weights_nbytes
from pipeline.running import text_stream
from pipeline.scored import positions
from pipeline.settings import LARGEST
from pipeline.stage import NEUTRAL, Checkpoint, Context, Footprint, Gang, Saves
from pipeline.tensors.spec import FLOAT_DTYPES, TensorSpec
from pipeline.tensors.store import StoreHooks
from pipeline.training import DataPlan, Splits, Trained
from plugins.engine.engine import Engine
from plugins.models.device import device_nbytes, device_spec
from plugins.train import matching
from plugins.train.footprint import BACK, FORTH, ROUNDED, activations_nbytes, host_nbytes, products
from plugins.train.objectives import Objective, ObjectiveHooks
from plugins.train.on_devices import OnDevices
from plugins.train.optimizers import Optimizer, OptimizerHooks, unused
from plugins.train.options import STATES, Looking, Population, Saving
from plugins.train.transform import Freezing, Transform

DTYPES = {"bf16": "BF16", "fp32": "F32"}
SAVED_ENTRIES_NBYTES = 1 << 20  # what a saved state has beside its arrays


@dataclass(frozen=True)
class Trainer:
    """Trains all of a model's parameters, or what is added to them; a `pipeline.training.Trainer`.

    Attributes:
        engine: has the families, the kernels, the tokenizer, the device and the dtype of activations.
        objective: what is to become small.
        optimizer: how parameters change, and how fast.
        transform: what stands between what is trained and what the model computes with: adapters, or rounding as a
            quantized export will; null: nothing.
        population: several models, of which the best comes out; null: one.
        steps: updates.
        batch: examples of an update, on all devices together; of a population of each member.
        micro: of these at once, the others one after another; null: all at once. It divides `batch`.
        recompute: of a block of the model only what goes in is kept for the way back, and the rest computed again: less
            memory, more time.
        dtype: of the weights that come out: `keep`, as the checkpoint has them (what its packed ones decode to); or
            `bf16`, `fp32`. Whatever it is, they are trained as fp32.
        deterministic: the same bits every time on devices that would add up in any order otherwise (GPUs), at a price.
        save: when the state is saved.
        resume: a folder of another training that was not finished, whose latest state is begun with: parameters, the
            optimizer's state, and the number of updates. None: this training's own, where there is one.
        look: what is looked at meanwhile.
        peak_flops: of one device, per second, for the share that training makes use of (MFU); null: what is known of
            the device, or nothing.
    """

    engine: Engine
    objective: Objective
    optimizer: Optimizer
    steps: int
    batch: int
    micro: int | None = None
    transform: Transform | None = None
    population: Population | None = None
    recompute: bool = False
    dtype: Literal["keep", "bf16", "fp32"] = "keep"
    deterministic: bool = False
    save: Saving = field(default_factory=Saving, metadata=NEUTRAL)
    look: Looking = field(default_factory=Looking)
    resume: str | None = None
    peak_flops: float | None = field(default=None, metadata=NEUTRAL)

    def __post_init__(self) -> None:
        if not 1 <= self.steps <= LARGEST:
            raise ValueError(f"steps={self.steps}: at least 1 update is needed, and at most {LARGEST:,}")
        if self.peak_flops is not None and not self.peak_flops > 0:
            raise ValueError(f"peak_flops={self.peak_flops}: more than 0 are needed, or null: what is known")
        if self.batch < 1:
            raise ValueError(f"batch={self.batch}: at least 1 example is needed")
        if self.micro is not None and (self.micro < 1 or self.batch % self.micro):
            legal = ", ".join(str(n) for n in range(1, self.batch + 1) if self.batch % n == 0)
            raise ValueError(f"micro={self.micro}: the {self.batch} examples of an update divide into {legal} at once")

    @property
    def at_once(self) -> int:
        """Examples of a micro-batch."""
        return self.batch if self.micro is None else self.micro

    @property
    def freezing(self) -> Freezing | None:
        """`transform` where the checkpoint's weights stay what they are."""
        return cast(Freezing, self.transform) if self.transform is not None and self.transform.freezes else None

    @property
    def gang(self) -> Gang | None:
        """See `pipeline.stage.StageHooks`."""
        found: Gang | None = optional(self.engine, EngineHooks, "gang")
        return found

    def tokenizer(self, checkpoint: Checkpoint) -> Any | None:
        """See `pipeline.training.Trainer.tokenizer`."""
        return self.engine.tokenizer.load(checkpoint) if self.engine.tokenizer.exists(checkpoint) else None

    def inputs(self, checkpoint: Checkpoint) -> tuple[InputFile, ...]:
        """See `pipeline.training.Trainer.inputs`."""
        return self.engine.tokenizer.inputs(checkpoint)

    def plan(
        self, checkpoint: Checkpoint, data: DataPlan, teacher: Checkpoint | None
    ) -> tuple[Mapping[str, TensorSpec], Footprint]:
        """See `pipeline.training.Trainer.plan`. Masters, what the optimizer keeps and gradients as fp32, the weights in
        the dtype of activations, and what a micro-batch leaves for the way back.

        Raises:
            PlanError: no family knows the model, its tensors are not those that config.json describes, or one is of no
                kind that can be trained; all problems of the first of these at once.
        """
        self.engine.parameters(checkpoint)
        if teacher is not None:
            matching.fits(self.engine, teacher)
        if problems := list(self._problems(checkpoint, data, teacher)):
            raise PlanError(problems)
        lies, mesh, parameters = self.on_devices(checkpoint), self.engine.mesh, self._parameters(checkpoint)
        (values, kept), ways, tokens = lies.amounts(), mesh.size, data.tokens_of_example
        own, members = self.at_once // mesh.ways(mesh.over("batch")), 1  # examples of a micro-batch on each device
        if self.population is not None:
            members = len(self.population.members)
            values, own = values * members // ways, self.at_once * members // ways
        if (teacher := self.teacher(checkpoint, teacher)) is not None:
            kept += self._taught_nbytes(teacher, lies.dtype)
        trained = {p.name: p.shape for p in parameters} if self.freezing is None else self.freezing.trained(parameters)
        asked = optional(self.optimizer, OptimizerHooks, "kept")
        numbers = sum(map(prod, trained.values()))
        moments = 2.0 if asked is None else asked(trained) / numbers
        state = round(4 * values * (1 + moments))
        temporary = 4 * values + activations_nbytes(checkpoint.store.specs, parameters, own * tokens)
        temporary += 2 * values if self.engine.dtype == "bf16" else 0
        rounded = self.transform is not None and self.freezing is None
        temporary += 4 * ROUNDED * values if rounded else 0
        takes = Footprint(
            device_nbytes=state + kept,
            temporary_nbytes=temporary,
            host_nbytes=mesh.processes * host_nbytes(parameters, rounded=rounded)
            + ways * (state + kept + 4 * values + temporary),
            devices=ways,
            ignored=lies.ignored,
            saves=self._saves(round(4 * members * numbers * (1 + moments))),
            moved_nbytes=round(2 * members * self._update_flops(checkpoint, data, teacher)),  # of fp32: 4 bytes, 2 FLOP
            times=self._updates(data),
            rate=self._kind(checkpoint),
            steps=lies.exchanged(self.at_once, self.batch // self.at_once, tokens),
            host_reads=lies.reads(),
            reads=self._warnings(checkpoint, data.specs),
        )
        return self.result_specs(checkpoint), takes

    def _warnings(self, checkpoint: Checkpoint, specs: Mapping[str, tuple[tuple[int, ...], str]]) -> str:
        """What is to be said where what `transform` rounds or freezes are weights that know nothing yet, and where
        rows are longer than what the model knows positions for.

        Args:
            specs: of examples; see `pipeline.training.Examples`.
        """
        said, known = [], positions(checkpoint.config)
        if self.transform is not None and optional(checkpoint.store, StoreHooks, "seeded") is not None:
            what = "freezes" if self.freezing is not None else "rounds"
            said.append(f"{what} weights that are random still (init); train=full comes before that")
        length = prod(specs["tokens"][0]) if "tokens" in specs else 0
        if known is not None and length > known:
            text = f"rows of {length:,} tokens, and config.json says that the model knows {known:,} positions"
            said.append(f"{text}; data.length={known} does without others")
        return f"warning: {'; '.join(said)}" if said else ""

    def _saves(self, state: int) -> Saves:
        """States of so many bytes; while one is written, that which it comes for is there, too."""
        best, most = int(self.look.patience is not None), self.save.keep + 1
        by_updates = min(most, (self.steps - 1) // self.save.every) if self.save.every else 0
        most = by_updates if self.save.seconds is None else most
        return Saves(state + SAVED_ENTRIES_NBYTES, most + best, by_updates + best, self.save.seconds)

    def flops_of_token(self, checkpoint: Checkpoint) -> float:
        """Of products of a token, or a row, with weights, forth and back, without what is computed again: two each. Of
        weights that stay as they are no gradient is taken."""
        forth_and_back = FORTH + (BACK if self.freezing is None else BACK / 2)
        return 2 * forth_and_back * products(self._parameters(checkpoint), checkpoint.config)

    def _update_flops(self, checkpoint: Checkpoint, data: DataPlan, teacher: Checkpoint | None) -> float:
        own = products(self._parameters(checkpoint), checkpoint.config)
        again = 2 * FORTH * own if self.recompute else 0
        theirs = 2 * FORTH * products(self._parameters(teacher), teacher.config) if teacher is not None else 0
        return (self.flops_of_token(checkpoint) + again + theirs) * self.batch * data.tokens_of_example

    def _updates(self, data: DataPlan) -> float:
        """How many there are, with evaluations as so many of them, but for the first, before which it is compiled."""
        looks = 1 + ((self.steps - 1) // self.look.every if self.look.every else 0)
        return self.steps + looks * self.look_share(data.held_out)

    def look_share(self, held_out: int) -> float:
        """What an evaluation takes, in updates, where so many examples are held out."""
        return min(held_out, self.look.examples or held_out) / self.batch * FORTH / (FORTH + BACK)

    def _kind(self, checkpoint: Checkpoint) -> str:
        """What the time of an update goes by, beside its products."""
        parts = self.objective, self.optimizer, self.transform
        names = [type(part).__name__ for part in parts if part is not None]
        axes = [f"{axis}={n}" for axis, n in self.engine.mesh.axes.items() if n > 1]
        kind = str(checkpoint.config.get("model_type"))
        return " ".join([kind, self.engine.platform, self.engine.dtype, *axes, *names])

    def teacher(self, checkpoint: Checkpoint, given: Checkpoint | None) -> Checkpoint | None:
        """Whom the objective learns of: a checkpoint that is given, or else the one that is trained, as it was before.
        None: of nobody."""
        return (given or checkpoint) if optional(self.objective, ObjectiveHooks, "wants_teacher") else None

    def _taught_nbytes(self, teacher: Checkpoint, dtype: Literal["bf16", "f32"]) -> int:
        """Of a teacher's weights on each device, over several of which it lies as it does to be run."""
        if self.engine.mesh.size == 1:
            return device_nbytes(teacher.store.specs, self.engine.weights(teacher)[1], dtype)
        placed = self.engine.placement(teacher)
        held = {name: device_spec(teacher.store.specs[name], dtype) for name in placed.specs}
        return weights_nbytes(placed.mesh, placed.parameters, held, placed.layouts)

    def result_specs(self, checkpoint: Checkpoint) -> dict[str, TensorSpec]:
        """What comes out: every tensor that the model has, plain."""
        _, ignored = self.engine.weights(checkpoint)
        held = {n: s for n, s in checkpoint.store.specs.items() if n not in ignored}
        as_held = DTYPES.get(self.dtype)
        return {n: TensorSpec(s.shape, as_held or s.dtype) for n, s in held.items()}

    def _problems(self, checkpoint: Checkpoint, data: DataPlan, teacher: Checkpoint | None) -> Iterator[Problem]:
        for name, spec in checkpoint.store.specs.items():
            if spec.dtype not in FLOAT_DTYPES:
                yield Problem(name, f"is {spec.dtype}; training takes tensors of floats")
        if self.resume is not None and not self.resume.strip():
            yield Problem("train.resume", "'': a folder is needed, of a training that was not finished, or null")
        elif self.resume is not None and not ((folder := placed(self.resume)) / STATES).is_dir():
            what = "no state of a training is there" if folder.is_dir() else "no such folder"
            yield Problem("train.resume", f"{self.resume}: {what}{nearby(folder, Path.is_dir)}")
        if self.population is not None:
            yield from self._population_problems(self.population)
        elif self.engine.mesh.size > 1:
            yield from self.engine.for_one_device()
            rows = {"train.micro" if self.micro else "train.batch": self.at_once}
            yield from batch_problems(self.engine.mesh, rows)
        if self.transform is not None:
            parameters, specs = self._parameters(checkpoint), self.result_specs(checkpoint)
            wrong = list(self.transform.problems(parameters, specs))
            yield from wrong
            if self.engine.mesh.size > 1 and self.population is None and not wrong:
                layouts = self.on_devices(checkpoint).layouts()
                yield from self.transform.mesh_problems(parameters, specs, layouts, self.engine.mesh.ways)
        if data.specs:
            yield from matching.misfits(self.objective, checkpoint, self._parameters(checkpoint), data)
        if self.look.prompts and not (checkpoint.outline or self.engine.tokenizer.exists(checkpoint)):
            yield Problem("train.look.prompts", "texts need a tokenizer, and the checkpoint has none")
        yield from self._teacher_problems(checkpoint, teacher)
        for problem in self.optimizer.schedule.problems(self.steps):
            yield Problem(f"train.optimizer.schedule.{problem.where}", problem.message)
        table = self._parameters(checkpoint)
        names = [p.name for p in table] if self.freezing is None else [*self.freezing.trained(table)]
        yield from unused("train.optimizer.groups", self.optimizer.groups, names)
        yield from unused("train.look.groups", self.look.groups, names)

    def _teacher_problems(self, checkpoint: Checkpoint, given: Checkpoint | None) -> Iterator[Problem]:
        found = self.teacher(checkpoint, given)
        if found is None and given is not None:
            text = f"{type(self.objective).__name__} learns of no teacher; train/objective=distillation does"
            yield Problem(matching.TEACHER, text)
        if found is checkpoint and not self._rounds(checkpoint):
            text = "needs a teacher other than what is trained: stages=[load,teacher,train,…] +teacher=DIR; train=qat "
            yield Problem("train.objective", f"{text}and train=qlora learn of what they round, without one")
        elif found is not None:
            yield from matching.teaching(self.engine, checkpoint, found)

    def _rounds(self, checkpoint: Checkpoint) -> bool:
        """Whether what is trained computes with other weights than the checkpoint's from the beginning."""
        base = checkpoint if self.freezing is None else self.freezing.base(checkpoint)
        return self.transform is not None and (self.freezing is None or base.store is not checkpoint.store)

    def _population_problems(self, population: Population) -> Iterator[Problem]:
        mesh, count = self.engine.mesh, len(population.members)
        if self.transform is not None:
            kind = type(self.transform).__name__
            yield Problem(
                "train.population", f"all parameters of its members are trained, and {kind} trains others; train=full"
            )
        if optional(self.objective, ObjectiveHooks, "wants_teacher"):
            kind = type(self.objective).__name__
            yield Problem("train.population", f"its members learn of no teacher, and {kind} does; another objective")
        if mesh.processes > 1:
            yield Problem("mesh.processes", f"{mesh.processes}: a population is trained in one process; 1 is needed")
        if count % mesh.size:
            legal = ", ".join(str(n) for n in range(1, count + 1) if count % n == 0)
            yield Problem("train.population", f"{count} members over {mesh.size} devices; {legal} devices divide them")
        for name, unset in (("patience", None), ("prompts", ()), ("groups", ())):
            if getattr(self.look, name) != unset:
                yield Problem(f"train.look.{name}", "is for one model, and here is a population; leave it out")
        if self.resume is not None:
            yield Problem(
                "train.resume", "is for one model; the same command goes on with a population that was stopped"
            )

    def on_devices(self, checkpoint: Checkpoint) -> OnDevices:
        """What lies where while a model of this checkpoint is trained; of a population, of one of its members."""
        _, ignored = self.engine.weights(checkpoint)
        mesh = self.engine.mesh if self.population is None else SINGLE
        dtype: Literal["bf16", "f32"] = "bf16" if self.engine.dtype == "bf16" else "f32"
        how = self.result_specs(checkpoint), self.transform, self.freezing, dtype
        return OnDevices(mesh, self._parameters(checkpoint), checkpoint, ignored, *how)

    def _parameters(self, checkpoint: Checkpoint) -> tuple[Parameter, ...]:
        return matching.parameters(self.engine, checkpoint)

    def train(
        self, ctx: Context, checkpoint: Checkpoint, data: Splits, tokenizer: Any | None, seed: int,
        teacher: Checkpoint | None,
    ) -> Trained:  # fmt: skip
        """See `pipeline.training.Trainer.train`."""
        from plugins.train import start, start_members

        if said := self._warnings(checkpoint, data.train.specs):
            text_stream.write(f"{said}\n")
        if self.population is not None:
            return start_members.train(self, ctx, checkpoint, data)
        return start.train(self, ctx, checkpoint, data, tokenizer, seed, self.teacher(checkpoint, teacher))
