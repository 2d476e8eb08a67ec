"""What runs a model, as stages see it: an engine loads a checkpoint, and what it gives back scores and continues text.

Stages are handed an engine and know neither its framework nor its models.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from pipeline.errors import ConfigError
from pipeline.hooks import hooks_of, optional
from pipeline.mesh import Mesh, Placement
from pipeline.ops import Call
from pipeline.stage import Checkpoint, Context, Footprint, Gang, Prediction
from pipeline.units import show_bytes


@dataclass(frozen=True, slots=True)
class Windows:
    """How a text is cut for scoring, in tokens.

    Attributes:
        window: tokens the model sees at once.
        stride: new tokens a window scores; less than `window` gives the rest as context.
        tokens: of each text, at most; None: all; auto: as many as take minutes (`pipeline.scored`).
        bos: begin every window with the BOS token, so that its first token is scored too.
        batch: windows at once.
    """

    window: int = 256
    stride: int | None = None
    tokens: int | Literal["auto"] | None = None
    bos: bool = False
    batch: int = 8

    def __post_init__(self) -> None:
        if self.window < 2:
            raise ValueError(f"window={self.window}: at least 2 tokens, one to see and one to score")
        if self.stride is not None and not 1 <= self.stride <= self.window:
            raise ValueError(f"stride={self.stride}: from 1 to the window, {self.window}")
        if isinstance(self.tokens, int) and self.tokens < 2:
            raise ValueError(f"tokens={self.tokens}: at least 2, or null for all, or auto")
        if self.batch < 1:
            raise ValueError(f"batch={self.batch}: at least 1")

    @property
    def limit(self) -> int | None:
        """Tokens of a text, at most.

        Raises:
            ValueError: how many was left to whoever knows the model.
        """
        if self.tokens == "auto":
            raise ValueError("tokens=auto: how many is chosen by pipeline.scored.settled")
        return self.tokens


@dataclass(frozen=True, slots=True)
class Usage:
    """What a model will be asked once it is loaded, as far as that is known before anything is read.

    It needs memory and time beside the weights.

    Attributes:
        batch: sequences at once.
        length: tokens of the longest of them, at most; what is generated included.
        generates: their keys and values are remembered, in a KV cache. Scoring remembers none.
        tokens: how often the weights are gone through: tokens that are scored, steps that are generated.
        keeps: tokens of each text whose hidden states are kept, on disk and until then in memory.
        text_nbytes: of the longest text that is tokenized as a whole.
        observes: what its matrices are multiplied by is looked at, as that is: no activations are rounded.
        texts: that are continued, without what a chat template puts around them.
    """

    batch: int = 0
    length: int = 0
    generates: bool = False
    tokens: int = 0
    keeps: tuple[int, ...] = ()
    text_nbytes: int = 0
    observes: bool = False
    texts: tuple[str, ...] = ()


NOTHING = Usage()
TEXT_BYTES = 4  # of a token, in English text and the vocabularies of today
TEMPLATE_TOKENS = 256  # that a chat template puts around a prompt, at most


def scoring(text_nbytes: Sequence[int], windows: Windows, *, keeps: bool = False) -> Usage:
    """Scoring texts of so many bytes; a token has one at least."""
    limit = windows.limit
    most = [n if limit is None else min(n, limit) for n in text_nbytes]
    likely = [n // TEXT_BYTES + 1 if limit is None else min(n // TEXT_BYTES + 1, limit) for n in text_nbytes]
    again = windows.window / (windows.stride or windows.window)
    padded = [round(n * again) + windows.window * windows.batch for n in most]
    kept = tuple(padded) if keeps else ()
    longest = max(text_nbytes, default=0)
    return Usage(windows.batch, windows.window, tokens=round(sum(likely) * again), keeps=kept, text_nbytes=longest)


def generating(prompts: Sequence[str], max_tokens: int) -> Usage:
    """Continuing texts; a token has one byte at least."""
    longest = max(len(p.encode(errors="surrogatepass")) for p in prompts)
    length = longest + TEMPLATE_TOKENS + max_tokens
    return Usage(len(prompts), length, generates=True, tokens=max_tokens, texts=tuple(prompts))


@dataclass(frozen=True, slots=True)
class Score:
    """How well a model predicts a text.

    Attributes:
        tokens: of the text that were used.
        scored: of those that were predicted.
        nll: mean negative log likelihood of a scored token, in nats.
        kl: mean KL divergence of the next-token distribution from the baseline's, in nats; None without a baseline.
        top1: share of positions at which both find the same token likeliest.
        seconds: without compiling.
        compile_s: compiling.
    """

    tokens: int
    scored: int
    nll: float
    kl: float | None
    top1: float | None
    seconds: float
    compile_s: float


@dataclass(frozen=True, slots=True)
class Against:
    """A baseline that was kept.

    Attributes:
        states: its hidden states of one text, as `Session.score` kept them.
        head: what makes logits of them, as `Session.keep_head` kept it.
    """

    states: Path
    head: Path


@dataclass(frozen=True, slots=True)
class Reply:
    """What came of a turn of a conversation.

    Attributes:
        text: the answer.
        finish: why it ended: end, stop, length, interrupted; or room, that the model has for no more tokens.
        timings: `prompt_tokens` are those that were read; see `plugins.engine.generate.Timings`.
        tokens: of the conversation, before the answer.
        thought: what else was written, where the model has channels.
        left_out: of the messages, so many were not read, the oldest but for a system prompt: there was no room.
    """

    text: str
    finish: str
    timings: Any
    tokens: int
    thought: str | None = None
    left_out: int = 0


class Conversation(Protocol):
    """Turns with a loaded model, which keeps what it has read."""

    chat: bool
    """Whether a chat template writes it; otherwise texts are continued."""

    channels: bool
    """Whether answers come in channels."""

    @property
    def room(self) -> int | None:
        """Tokens that the model reads at most, if it says so."""
        ...

    def reply(
        self, messages: Sequence[Mapping[str, Any]], sampling: Any, *, on_text: Callable[[str, str], None],
        wanted: Callable[[], bool], **variables: Any,
    ) -> Reply:  # fmt: skip
        """The answer to `messages`, all of them from the first on.

        Args:
            sampling: how tokens are chosen.
            on_text: called with (channel, text) as text comes; without channels the first is empty.
            wanted: asked at every token; False ends the answer.
            variables: for the chat template.

        Raises:
            ConfigError: more than there is room for; or what the template refuses.
        """
        ...


class Session(Protocol):
    """A loaded model."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """Device, how many `devices`, dtypes, seconds to load; `device_nbytes`, what the weights take on each, and
        `planned_nbytes`, what the plan said; `ignored`, the tensors that the model does not read, with the reasons."""
        ...

    @property
    def generation(self) -> Mapping[str, Any]:
        """The checkpoint's generation_config.json; empty where it has none."""
        ...

    @property
    def tokenizer(self) -> Any:
        """The checkpoint's tokenizer.

        Raises:
            SourceError: it has none.
        """
        ...

    @property
    def tokenizer_if_any(self) -> Any:
        """The same; None where the checkpoint has none at all. For what can do with token ids alone.

        Raises:
            SourceError: it has one, and that is broken.
        """
        ...

    def score(self, ids: Sequence[int], windows: Windows, *, keep: Path | None, against: Against | None) -> Score:
        """Score a text.

        Args:
            ids: the text's tokens.
            windows: how to cut them.
            keep: a file for the hidden states, of which a later `against` has need.
            against: such a file, of the same text and windows by the baseline, and the baseline's head.
        """
        ...

    def keep_head(self, path: Path | None) -> str:
        """Write what makes logits of hidden states, which is the same for all texts, to the file `path`.

        Args:
            path: None: nowhere.

        Returns:
            What it is known by: equal ones have equal content.
        """
        ...

    def taps(self, ids: Sequence[int]) -> Mapping[str, Any]:
        """Hidden states of one text: `embed`, `layers.0`, …, `norm` [T, D], and `logits` [T, V]; float32."""
        ...

    def replaced(self, tensors: Collection[str], checkpoint: Checkpoint) -> AbstractContextManager[None]:
        """With `tensors` read from `checkpoint` instead."""
        ...

    def generate(
        self, prompt: Any, sampling: Any, *, chat: bool | None, on_text: Callable[[int, str], None]
    ) -> list[Any]:
        """Continue one prompt or several; see `plugins.engine.session.Model.generate`."""
        ...

    def conversation(self, *, chat: bool | None) -> Conversation:
        """A new one.

        Args:
            chat: write it with the chat template; False: continue what was said; None: if there is a template.

        Raises:
            SourceError: no tokenizer, or no chat template where one is asked for.
        """
        ...


def weights_rows(facts: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> list[tuple[str, str]]:
    """What a `Table` says of the weights of a session with these `facts`.

    Args:
        before: facts of the model that this one is compared with.
    """
    nbytes, planned = facts["device_nbytes"], facts.get("planned_nbytes")
    was = f", {show_bytes(before['device_nbytes'])} before" if before else ""
    where = "each device" if facts.get("devices", 1) > 1 else "the device"
    rows = [(f"weights on {where}", f"{show_bytes(nbytes)}{was} ({facts['device']})")]
    if planned not in (None, nbytes):
        rows.append(("but planned were", f"{show_bytes(planned)}; please report it"))
    return rows


class Engine(Protocol):
    """A plugin node."""

    def plan(
        self, checkpoint: Checkpoint, *, text: bool = True, plain: bool = False, usage: Usage = NOTHING
    ) -> Footprint:
        """What `load`, and what is then asked of the model, will take.

        Raises:
            PlanError: the model cannot be run, or (with `text`) there is no tokenizer.
        """
        ...

    def identity(self) -> Mapping[str, Any]:
        """What options come to on this machine, JSON-able, by their names: which kind of device, which dtypes. Asked in
        the run only, as it imports the framework; until then the options stand for it.

        Raises:
            ConfigError: no such device.
        """
        ...

    def calls(self, checkpoint: Checkpoint, *, rows: int = 1) -> Iterable[Call]:
        """The kernel calls of one pass of the model over `rows` tokens, for the plan.

        Raises:
            PlanError: the model cannot be run.
        """
        ...

    def load(self, checkpoint: Checkpoint, *, plain: bool = False) -> Session:
        """Put the weights on the device. The model is the caller's; stages load through `Context.models`, which keeps
        it for the next.

        Args:
            checkpoint: whose model.
            plain: hold tensors that are not packed as fp32, and compute in it; `replaced` can then put values of any
                scheme in their place, exactly.

        Raises:
            PlanError: config.json or the tensors do not fit the model; all problems at once.
            ConfigError: no such device.
        """
        ...


@hooks_of(Engine)
class EngineHooks:
    """What an engine may have beside that."""

    placement: Callable[[Checkpoint, Mesh], Placement] | None = None
    """`placement(checkpoint, mesh)`: how the weights would lie over `mesh`; raises PlanError with all that does not
    fit. None: the engine runs models on one device."""

    gang: Gang | None = None
    """The processes that a model of its lies over; None: one."""

    observe: Callable[..., None] | None = None
    """`observe(checkpoint, rows, batch, folder, hessian=…, samples=…)`: run a model over rows of token ids, `batch` at
    once, and write what its matrices are multiplied by into `folder`, a file `layers.N.npz` a block and with `hessian`
    others beside it, `layers.N.*.npy`; see `plugins.engine.observe`. What an earlier call had finished there is not
    done again. With `rounded=…`, `coded=…`, `names=…` and `within=…` each block is quantized before the next one is
    looked at; see `plugins.engine.successive`."""


def gang_of(engine: Engine) -> Gang | None:
    """The processes in which a stage is to run that loads a model with `engine`."""
    found: Gang | None = optional(engine, EngineHooks, "gang")
    return found


def observer(engine: Engine) -> Callable[..., None]:
    """`observe` of an engine.

    Raises:
        ConfigError: it has none.
    """
    found: Callable[..., None] | None = optional(engine, EngineHooks, "observe")
    if found is None:
        raise ConfigError(f"calibrate: {type(engine).__name__} does not tell what models multiply")
    return found


@dataclass(frozen=True)
class Loads:
    """The stage that `pipeline.load_model` ends with.

    Attributes:
        text: whether a checkpoint without a tokenizer is an error; a model still continues token ids.
    """

    engine: Engine
    text: bool = False

    def plan(self, checkpoint: Checkpoint) -> Prediction:
        return Prediction(None, self.engine.plan(checkpoint, text=self.text))

    def run(self, ctx: Context, checkpoint: Checkpoint) -> Any:
        return self.engine.load(checkpoint)
