"""The engine as a plugin node: which families there are, which kernels they use, and in what dtypes they run."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

from pipeline import backends
from pipeline.digest import InputFile
from pipeline.engine import NOTHING, Usage
from pipeline.errors import ConfigError, PlanError, Problem, SourceError, some
from pipeline.hooks import optional
from pipeline.mesh import SINGLE, Mesh, Parameter, Placement
from pipeline.method import Method, MethodHooks
from pipeline.ops import Call, Kernel
from pipeline.planning.fitting import misfits
from pipeline.planning.layout import batch_problems, divided_input, divided_turn, lay_out
from pipeline.running import gang
from pipeline.running.keeper import here
from pipeline.scored import positions
from pipeline.stage import NEUTRAL, Checkpoint, Footprint, Gang
from pipeline.tensors.inputs import InputScales, as_one
from pipeline.tensors.spec import TensorSpec
from pipeline.units import parse_bytes
from plugins.engine import hardware
from plugins.engine.footprint import Running
from plugins.models.calls import calls
from plugins.models.common.ops import Ops
from plugins.models.device import WeightsDtype, device_nbytes, device_spec, left_out, unused
from plugins.models.family import Family, family_of, vocabulary

NO_FOLDER = re.compile(r"\s*|[-+]?[\d.]+")  # what is a number, or nothing, and was hardly meant as a folder's name


class Tokenizers(Protocol):
    """Where tokenizers come from: a plugin node."""

    def check(self, checkpoint: Checkpoint) -> None:
        """Raises SourceError when the checkpoint has none."""
        ...

    def inputs(self, checkpoint: Checkpoint) -> tuple[InputFile, ...]:
        """The files that `load` reads beside those of the checkpoint."""
        ...

    def exists(self, checkpoint: Checkpoint) -> bool:
        """Whether it has one, broken or not."""
        ...

    def load(self, checkpoint: Checkpoint) -> Any:
        """A `plugins.tokenizers.tokenizer.Tokenizer`."""
        ...

    def ends(self, checkpoint: Checkpoint) -> tuple[int, ...]:
        """Ids that end a generation, as far as the checkpoint says without a tokenizer."""
        ...


@dataclass(frozen=True, slots=True)
class Resolved:
    """What an engine's options mean on this machine.

    Attributes:
        device: the platform and the kind of device, whichever of several equal ones.
        dtype: of activations.
        cache: dtype of the KV cache.
        fastest: where backends are chosen by what is fastest on the device, a digest of what these are and their code.
    """

    device: str
    dtype: Literal["bf16", "f32"]
    cache: Literal["bf16", "f32", "fp8", "int8"]
    fastest: str = ""


class Loader(Protocol):
    """What puts models on a device: a plugin node, which knows the framework so that the engine need not."""

    def resolve(self, engine: "Engine") -> Resolved:
        """Raises ConfigError: no such device."""
        ...

    def join(self, engine: "Engine", rank: int, address: str, *, alone: bool) -> None:
        """Make this process the one of that rank of those that the engine's mesh is divided among.

        Args:
            address: HOST:PORT of the first.
            alone: it takes all devices that it sees; else its share of them.
        """
        ...

    def observe(
        self, engine: "Engine", checkpoint: Checkpoint, rows: Any, batch: int, folder: Path, **kept: Any
    ) -> None:
        """See `pipeline.engine.EngineHooks.observe`."""
        ...

    def load(self, engine: "Engine", checkpoint: Checkpoint) -> Any:
        """A `plugins.engine.session.Model`; see `Engine.load`."""
        ...


@dataclass(frozen=True)
class Engine:
    """JAX, on one device or on a mesh of them.

    Attributes:
        families: the first whose `model_types` name the checkpoint's builds the model.
        ops: kernels of the model.
        cast: widens or narrows plain weights that `weights_dtype` wants in another dtype.
        unpack: decodes packed tensors for whoever wants them plain.
        tokenizer: finds the checkpoint's.
        loader: puts the model on the device.
        mesh: how devices are arranged, and what is divided over them; by default one.
        activations: what inputs of packed weights are rounded to, as a method: W8A8, W4A4. None: they stay as they are.
        activations_scales: `dynamic`: each row has scales of its own, made when it is seen; `calibrated`: the
            checkpoint has one for each matrix, or of two levels the second one.
        rounding: the op `quantize_dequantize`, which does it.
        dtype: of activations; `auto`: fp32 on CPU, where bf16 is emulated, bf16 elsewhere.
        weights_dtype: dtype of plain weights on the device; `keep`: as stored. Packed ones stay packed.
        cache: dtype of the KV cache; `auto`: as activations.
        device: `auto` is JAX's default; or `cpu`, `gpu`, `tpu`, with a number: `gpu:1`.
        programs: folder where compiled programs are kept for later runs; `auto`: what JAX_COMPILATION_CACHE_DIR says,
            or else weightmill/jax in the user's cache folder; None: nowhere.
        programs_most: bytes that they may take there; those not used for longest go first. Where
            JAX_COMPILATION_CACHE_DIR says the folder, JAX_COMPILATION_CACHE_MAX_SIZE says this.
    """

    families: tuple[Family, ...]
    ops: Ops
    cast: Kernel
    unpack: Kernel
    tokenizer: Tokenizers
    loader: Loader
    mesh: Mesh = SINGLE
    activations: Method | None = None
    activations_scales: Literal["dynamic", "calibrated"] = "dynamic"
    rounding: Kernel = field(default_factory=partial(Kernel, "quantize_dequantize", ("xla",)))
    dtype: Literal["auto", "bf16", "f32"] = "auto"
    weights_dtype: WeightsDtype = "keep"
    cache: Literal["auto", "bf16", "f32", "fp8", "int8"] = "auto"
    device: str = "auto"
    programs: str | None = field(default="auto", metadata=NEUTRAL)
    programs_most: str = field(default="2GiB", metadata=NEUTRAL)

    def __post_init__(self) -> None:
        parse_bytes(self.programs_most, "engine.programs_most", bare=1 << 20)
        if self.programs is not None and NO_FOLDER.fullmatch(self.programs):
            named = f"; ./{self.programs} is one" if self.programs.strip() else ""
            raise ConfigError(f"engine.programs={self.programs!r}: auto, null (nowhere) or a folder is allowed{named}")
        if not self.device.strip():
            raise ConfigError("engine.device='': auto, cpu, gpu or tpu is allowed, or one with a number: gpu:1")
        if self.activations is not None and (why := self._unrounded(self.activations)):
            raise ConfigError(f"activations: {why}")
        if self.activations is not None and self.activations_scales == "calibrated":
            assert self.activations.scheme is not None
            as_one(self.activations.scheme)

    def _unrounded(self, method: Method) -> str:
        """Why activations cannot be rounded by a method; empty: they can."""
        recipe = optional(method, MethodHooks, "recipe")
        if method.scheme is None or recipe is None:
            return f"{type(method).__name__} has no scheme and recipe of its own"
        shape = (1, method.scheme.block_elems or 8)
        given = {"x": TensorSpec(shape, "F32"), "scheme": method.scheme, **asdict(recipe)}
        choice = self.rounding.choose(given)
        return "" if choice.backend else choice.reasons

    def plan(
        self, checkpoint: Checkpoint, *, text: bool = True, plain: bool = False, usage: Usage = NOTHING
    ) -> Footprint:
        """See `pipeline.engine.Engine.plan`.

        Raises:
            PlanError: no family knows the model, numbers of config.json are not of one, the tensors are not those that
                it describes, (with `text`) there is no tokenizer, or a text is longer than the model knows positions.
        """
        problems: list[Problem] = []
        mute: tuple[Problem, ...] = ()
        code = None
        try:
            weights, ignored = self.weights(checkpoint, plain=plain)
            parameters = self.parameters(checkpoint, plain=plain)
            mute = tuple(self._mute(checkpoint, parameters)) if text or plain else ()
        except PlanError as why:
            problems += why.problems
            code = why.exit_code
        # What has no weights here need not have its tokenizer here either; one that is here is looked at.
        if text and not mute and not (checkpoint.outline and not self.tokenizer.exists(checkpoint)):
            try:
                self.tokenizer.check(checkpoint)
            except SourceError as why:
                problems.append(Problem("tokenizer", str(why)))
                code = code or why.exit_code
        if not problems and not usage.observes:
            problems += self._of_activations(checkpoint)
        if problems := [*problems, *mute]:
            raise PlanError(map(_of_models, problems), exit_code=code)
        beyond = self._beyond(checkpoint, usage)
        mesh = SINGLE if usage.observes else self.mesh  # then every device has a whole block
        placement = self._placed(checkpoint, usage, plain=plain) if mesh.size > 1 else None
        dtype = self._dtype(plain=plain)
        cache = dtype if self.cache == "auto" else self.cache
        native = self.ops.attention.backends[0] == "native" and self.platform == "cpu"
        running = Running(weights, ignored, mesh, placement, dtype, cache, hardware.on_host(self.device), native)
        found = running.footprint(checkpoint, usage)
        found = replace(found, inputs=self.tokenizer.inputs(checkpoint), reads=beyond)
        return replace(found, devices=self.mesh.size // self.mesh.processes) if usage.observes else found

    def _beyond(self, checkpoint: Checkpoint, usage: Usage) -> str:
        """What is to be said where texts may be continued past the positions that the model knows. Their tokens are
        counted only where there may be too many.

        Raises:
            PlanError: a text itself has more tokens than there are positions; or the tokenizer is broken.
        """
        room = positions(checkpoint.config)
        if room is None or not usage.texts or usage.length <= room or not self.tokenizer.exists(checkpoint):
            return ""
        try:
            tokenizer = self.tokenizer.load(checkpoint)
        except SourceError as why:
            raise PlanError([Problem("tokenizer", str(why))], exit_code=why.exit_code) from None
        count = max(len(tokenizer.encode(text, special=True)) for text in usage.texts)
        knows = f"the {room:,} positions that the model knows, by config.json"
        if count > room:
            raise PlanError(
                [Problem("prompt", f"{count:,} tokens, more than {knows}")], exit_code=ConfigError.exit_code
            )
        past = count + usage.tokens - room
        return f"warning: {past:,} of {usage.tokens:,} tokens may be past {knows}" if past > 0 else ""

    def _of_activations(self, checkpoint: Checkpoint) -> Iterator[Problem]:
        """Packed weights whose inputs cannot be cut into blocks."""
        if self.activations is None or (scheme := self.activations.scheme) is None:
            return
        unfit: dict[str, list[str]] = {}
        for name, spec in self._held(checkpoint, self.weights_dtype).items():
            if spec.scheme is not None and (why := scheme.problem((1, spec.shape[-1]))):
                unfit.setdefault(why, []).append(name)
        if self.activations_scales == "calibrated":
            yield from self._of_scales(checkpoint)
        for why, names in unfit.items():
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            yield Problem("activations", f"before {names[0]}{more}: {why}")

    def _of_scales(self, checkpoint: Checkpoint) -> Iterator[Problem]:
        """What is in the way of scales of inputs that were made before."""
        assert self.activations is not None
        assert self.activations.scheme is not None
        found = checkpoint.input_scales
        tied = bool(checkpoint.config.get("tie_word_embeddings", family_of(checkpoint.config, self.families).tied))
        held = self._held(checkpoint, self.weights_dtype).items()
        packed = [n for n, s in held if s.scheme is not None and (tied or not n.endswith("embed_tokens.weight"))]
        if not packed:
            return  # nothing is rounded
        if found is None:
            text = "calibrated, but nothing was: the source has no scales of inputs, and no stage has looked at any; "
            yield Problem("activations_scales", f"{text}calibrate=absmax does, as others that read texts do")
            return
        if not found.fits(self.activations.scheme):
            has, wants = (TensorSpec((), "F32", s).encoding for s in (found.scheme, self.activations.scheme))
            text = f"the source has scales of inputs for {has}, and activations are {wants}"
            yield Problem("activations_scales", f"{text}; calibrate=absmax makes others")
        if names := [n for n in packed if n not in found.values]:
            text = f"nothing is known of the inputs of {some(names)}; only what blocks multiply by is looked at"
            yield Problem("activations_scales", f"{text}. A rule for `keep` leaves them as they are")

    def input_scales(self, checkpoint: Checkpoint) -> InputScales | None:
        """Those that inputs are rounded under, in place of scales that are made when rows are seen."""
        if self.activations is None or self.activations_scales == "dynamic":
            return None
        return checkpoint.input_scales

    def parameters(self, checkpoint: Checkpoint, *, plain: bool = False) -> tuple[Parameter, ...]:
        """Those of the model, which the checkpoint has.

        Args:
            plain: as in `load`.

        Raises:
            PlanError: no family knows it; what the family has against config.json; or the tensors are not those that
                config.json describes. All problems of the first of these at once.
        """
        try:
            found = family_of(checkpoint.config, self.families).parameters(checkpoint.config)
        except SourceError as why:
            where, _, said = str(why).partition(": ")
            raise PlanError([Problem(where, said)], exit_code=why.exit_code) from None
        ignored = self._ignored(checkpoint)
        specs = {name: spec for name, spec in checkpoint.store.specs.items() if name not in ignored}
        dtype: WeightsDtype = "f32" if plain else self.weights_dtype
        held = {name: device_spec(spec, dtype) for name, spec in specs.items()}
        if problems := list(misfits(found, specs, checkpoint.config, held)):
            raise PlanError(problems, exit_code=SourceError.exit_code)
        return found

    def _mute(self, checkpoint: Checkpoint, parameters: Sequence[Parameter]) -> Iterator[Problem]:
        """A problem where the model knows no words."""
        if vocabulary(parameters) is None:
            kind = checkpoint.config.get("model_type")
            yield Problem(
                "model", f"{kind!r} takes rows of numbers and knows no words, so no text is scored or continued"
            )

    @property
    def gang(self) -> Gang | None:
        """See `pipeline.engine.EngineHooks`."""
        return Gang(self.mesh.processes, self.mesh.coordinator, self._join) if self.mesh.processes > 1 else None

    def _join(self, rank: int, address: str, *, alone: bool) -> None:
        self.loader.join(self, rank, address, alone=alone)

    def placement(self, checkpoint: Checkpoint, mesh: Mesh | None = None, *, plain: bool = False) -> Placement:
        """How the weights lie over `mesh`, by default the engine's own. See `pipeline.engine.EngineHooks`.

        Args:
            plain: as in `load`.

        Raises:
            PlanError: no family knows the model, or the mesh does not fit it; all problems at once.
        """
        mesh = mesh or self.mesh
        specs = self._held(checkpoint, "f32" if plain else self.weights_dtype)
        try:
            parameters = self.parameters(checkpoint, plain=plain)
        except PlanError as why:  # in the words of `plan`, whose problem it is as well
            raise PlanError(map(_of_models, why.problems), exit_code=why.exit_code) from None
        return Placement(mesh, parameters, lay_out(mesh, parameters, specs), specs)

    def for_one_device(self) -> list[Problem]:
        """Which options are for one device only."""
        found = []
        if ":" in self.device:
            platform = self.device.partition(":")[0]
            text = f"{self.device!r} is one device, and the mesh has {self.mesh.size}; {platform!r} is all of its kind"
            found.append(Problem("engine.device", text))
        if untraced := {name for name in self.ops.backends if not backends.about(name).traced}:
            text = f"{', '.join(sorted(untraced))} cannot be compiled, and what is not runs on one device"
            found.append(Problem("kernels", f"{text}; kernels=auto, or mesh=single"))
        return found

    def _placed(self, checkpoint: Checkpoint, usage: Usage, *, plain: bool) -> Placement:
        """How the weights lie over the engine's mesh.

        Raises:
            PlanError: as `placement`; the rows of `usage` do not divide, or another mesh was laid out for.
        """
        problems = self.for_one_device()
        problems += [] if usage.generates else batch_problems(self.mesh, {"evaluate.windows.batch": usage.batch})
        if checkpoint.placement is not None and checkpoint.placement.mesh != self.mesh:
            given = checkpoint.placement.mesh.axes
            text = f"is laid out over {dict(given)}, and the engine has {dict(self.mesh.axes)}; mesh= sets both"
            problems.append(Problem("stages.shard.mesh", text))
        try:
            found = self.placement(checkpoint, plain=plain)
        except PlanError as why:
            raise PlanError([*why.problems, *problems], exit_code=why.exit_code) from None
        if problems := [*problems, *([] if plain else self._of_divided_inputs(checkpoint, found))]:
            raise PlanError(problems)
        return found

    def _of_divided_inputs(self, checkpoint: Checkpoint, placed: Placement) -> Iterator[Problem]:
        """Packed weights whose inputs a device would round or rotate by itself, as if its part of them were all."""
        scheme = None if self.activations is None else self.activations.scheme
        known, turned = self.activations_scales == "calibrated", checkpoint.turned
        for p in placed.parameters:
            held, layout = placed.specs.get(p.names[0]), placed.layouts[p.name]
            if held is None or held.scheme is None:
                continue
            if scheme is not None and (why := divided_input(p, layout, scheme, self.mesh.ways, known=known)):
                yield Problem("activations", f"before {p.name}: {why}")
            if turned is None or p.names[0] not in turned.names:
                continue
            if why := divided_turn(p, layout, turned.rotation.block or p.shape[-1], self.mesh.ways):
                yield Problem("activations_rotate", f"before {p.name}: {why}")

    def _dtype(self, *, plain: bool) -> Literal["bf16", "f32"]:
        """Of activations, as far as can be told without JAX."""
        if plain or self.dtype == "auto":
            return "f32" if plain or hardware.on_host(self.device) else "bf16"
        return self.dtype

    def weights(self, checkpoint: Checkpoint, *, plain: bool = False) -> tuple[int, dict[str, str]]:
        """Bytes that the weights will take on the device, and the tensors that the model does not read, with reasons.

        Raises:
            PlanError: no family knows the model.
        """
        ignored = self._ignored(checkpoint)
        return device_nbytes(checkpoint.store.specs, ignored, "f32" if plain else self.weights_dtype), ignored

    def _ignored(self, checkpoint: Checkpoint) -> dict[str, str]:
        tied = bool(checkpoint.config.get("tie_word_embeddings", family_of(checkpoint.config, self.families).tied))
        return left_out(checkpoint.store.specs, unused(tied=tied))

    def _held(self, checkpoint: Checkpoint, dtype: WeightsDtype) -> dict[str, TensorSpec]:
        """Tensor → how it lies on the device, of those that the model reads."""
        ignored = self._ignored(checkpoint)
        return {n: device_spec(s, dtype) for n, s in checkpoint.store.specs.items() if n not in ignored}

    def calls(self, checkpoint: Checkpoint, *, rows: int = 1, device: tuple[str, str] | None = None) -> Iterator[Call]:
        """The kernel calls of one pass of the model over `rows` tokens.

        Args:
            device: its platform and kind, as JAX names them; by default what it looks like without JAX.

        Raises:
            PlanError: no family knows the model.
        """
        platform, kind = device or (self.platform, self._kind)
        dtype = {"bf16": "BF16", "f32": "F32"}.get(self.dtype, "F32" if platform == "cpu" else "BF16")
        specs = self._held(checkpoint, self.weights_dtype)
        yield from calls(specs, checkpoint.config, self.ops.on(platform, kind), dtype, rows)

    @property
    def platform(self) -> str:
        """Of the device, as far as can be told without JAX."""
        return hardware.platform(self.device)

    @property
    def _kind(self) -> str:
        """Of the device, as JAX names it; empty where that cannot be told without JAX, or devices differ."""
        return hardware.kind_of_gpus() if self.platform == "gpu" and self.mesh.processes == 1 else ""

    def identity(self) -> dict[str, Any]:
        """See `pipeline.engine.Engine.identity`; imports JAX, which takes accelerators for its process alone: where
        others are to have them, one of their kind is asked, that ends."""
        if self.mesh.processes > 1 and self.platform != "cpu":
            with gang.started_by(here):
                found: Resolved = gang.run(Gang(1, "auto", _alone), partial(self.loader.resolve, self))
        else:
            found = self.loader.resolve(self)
        return {name: value for name, value in asdict(found).items() if value}

    def load(self, checkpoint: Checkpoint, *, plain: bool = False) -> Any:
        """A `plugins.engine.session.Model`.

        Args:
            checkpoint: whose model.
            plain: hold every tensor that is not packed as fp32, and compute in it.

        Raises:
            PlanError: config.json or the tensors do not fit the model; all problems at once.
            ConfigError: no such device.
        """
        return self.loader.load(replace(self, weights_dtype="f32", dtype="f32") if plain else self, checkpoint)

    def observe(self, checkpoint: Checkpoint, rows: Any, batch: int, folder: Path, **kept: Any) -> None:
        """See `pipeline.engine.EngineHooks.observe`."""
        self.loader.observe(self, checkpoint, rows, batch, folder, **kept)


def _of_models(problem: Problem) -> Problem:
    """The same, with what can be done without a model."""
    return Problem(problem.where, f"{problem.message}; flow=convert needs no model to run")


def _alone(rank: int, address: str, *, alone: bool) -> None:
    """Join nobody."""
