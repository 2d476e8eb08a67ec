"""What a plan says that each device of a mesh takes, against arithmetic by hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.api import compose_run
from pipeline.engine import Usage, Windows, generating, scoring
from pipeline.errors import PlanError
from pipeline.mesh import SINGLE, Mesh
from pipeline.ops import Kernel
from pipeline.planning.memory import plan_run
from pipeline.stage import Checkpoint
from plugins.engine.steps import rows_of_each
from tests.cases import model_runs

TINY = Path(model_runs.__file__).parents[2] / "plugins/models/gpt_oss/tiny"
HIDDEN, INTER, LAYERS, VOCAB, EXPERTS, HEADS_COUNT = 160, 224, 4, 4096, 8, 6
DATA = Mesh({"data": 2}, {"batch": "data"}, replicated_most=1)
EXPERT = Mesh({"expert": 4}, {"experts": "expert", "vocab": "expert"}, replicated_most=1)
FSDP = Mesh({"fsdp": 2}, {"batch": "fsdp"}, {"fsdp": ("experts", "vocab", "mlp", "heads", "kv_heads", "embed")})
HEADS = Mesh({"tensor": 2}, {"heads": "tensor", "kv_heads": "tensor"}, replicated_most=1)


@pytest.fixture(scope="module")
def tiny() -> Checkpoint:
    return model_runs.checkpoint(TINY)


def on(mesh: Mesh) -> Any:
    return replace(model_runs.engine(), mesh=mesh)


def whole(tiny: Checkpoint, part: str = "") -> int:
    return sum(s.nbytes for n, s in tiny.store.specs.items() if part in n)


def test_one_device_is_planned_as_it_was(tiny: Checkpoint) -> None:
    plan = on(SINGLE).plan(tiny, usage=Usage(3, 100, generates=True, tokens=20))
    assert (plan.devices, plan.temporary_nbytes, plan.steps) == (1, 0, ())
    assert plan.device_nbytes - plan.cache_nbytes == whole(tiny)
    assert "=" not in plan.rate


def test_weights_of_each_device(tiny: Checkpoint) -> None:
    """All of them; a quarter of experts and vocabulary; half of all but what is odd (the router's bias, which nothing
    divides)."""
    divided = whole(tiny, ".experts.") + whole(tiny, "embed_tokens") + whole(tiny, "lm_head")
    by_mesh = {
        DATA: whole(tiny),
        EXPERT: whole(tiny) - divided + divided // 4,
        FSDP: (whole(tiny) + whole(tiny, "router.bias")) // 2,
    }
    assert {m: on(m).plan(tiny).device_nbytes for m in by_mesh} == by_mesh


def test_the_cache_is_divided_by_rows_and_heads(tiny: Checkpoint) -> None:
    usage = Usage(4, 100, generates=True, tokens=20)
    alone = on(SINGLE).plan(tiny, usage=usage).cache_nbytes
    assert on(DATA).plan(tiny, usage=usage).cache_nbytes == alone // 2
    positions = 2 * 4 * 4 * 128  # slots of windows and of all, which every device has of its rows
    assert on(HEADS).plan(tiny, usage=usage).cache_nbytes <= (alone + positions) // 2
    assert on(EXPERT).plan(tiny, usage=usage).cache_nbytes == alone


@pytest.mark.parametrize(("batch", "generates", "each"), [(1, True, 1), (3, True, 2), (5, True, 4), (8, False, 4)])
def test_rows_that_are_generated_are_padded(batch: int, generates: bool, each: int) -> None:
    """To a power of two, as on one device, and then until they divide."""
    assert rows_of_each(DATA, Usage(batch, 10, generates=generates)) == each


def test_rows_that_are_scored_divide_or_are_refused(tiny: Checkpoint) -> None:
    with pytest.raises(PlanError, match=r"evaluate\.windows\.batch: 3 rows do not divide over data, 2 ways"):
        on(DATA).plan(tiny, usage=scoring([999], Windows(64, batch=3)))
    plan = on(DATA).plan(tiny, usage=scoring([999], Windows(64, batch=4)))
    assert [(s.name, s.tokens, s.predicted) for s in plan.steps] == [("score", 2 * 64, 2 * 64)]
    assert plan.steps[0].exchanges == ()  # weights whole, rows its own


def test_steps_of_generating(tiny: Checkpoint) -> None:
    """A prompt of at most 3 tokens and a template's 256: a program of 512; then one token of each row at a time."""
    plan = on(EXPERT).plan(tiny, usage=generating(["abc", "d"], 16))
    assert [(s.name, s.tokens, s.predicted) for s in plan.steps] == [("prefill", 2 * 512, 2), ("decode", 2, 2)]
    sent = {e.place: e.nbytes for e in plan.steps[1].exchanges}
    assert sent == {
        "experts": LAYERS * 2 * (2 * HIDDEN * 4) * 3 // 4,
        "embedding": 2 * (2 * HIDDEN * 4) * 3 // 4,
        "logits": 3 * (2 * VOCAB * 4) // 4,
    }


def test_temporaries_by_hand(tiny: Checkpoint) -> None:
    """Two experts of a token, whose products are the most in a layer; and keys and values of all layers, which go into
    the cache last. Or logits, with what is gathered of the head."""
    kept = LAYERS * 2 * 2 * 32
    inside = 2 * (2 * INTER + HIDDEN + INTER) + EXPERTS + 2 * HIDDEN  # EXPERTS: the router
    prompt = Usage(2, 256, generates=True, tokens=1)
    rows, both = 256 * 4, 2 * 256 * 4  # a number of each token, in fp32
    head, gate_up = 2 * VOCAB * HIDDEN, 2 * EXPERTS * 2 * INTER * HIDDEN
    native = {
        (DATA, prompt): rows * (inside + kept),
        (EXPERT, prompt): both * (inside + kept),
        (FSDP, prompt): rows * (inside + kept) + gate_up,
        (FSDP, replace(prompt, length=2)): 2 * head,  # 16 tokens of a prompt
        (DATA, scoring([999], Windows(64, batch=8))): 4 * 64 * 4 * VOCAB,
        (EXPERT, scoring([999], Windows(64, batch=8))): 2 * 8 * 64 * 4 * VOCAB,
    }
    kernels = replace(model_runs.engine().ops, attention=Kernel("attention", ("native",)))
    found = {key: replace(on(key[0]), ops=kernels).plan(tiny, usage=key[1]).temporary_nbytes for key in native}
    assert found == native
    scores = 2 * HEADS_COUNT * 256 * 256 * 4  # once as they are, and once as they are weighed
    attention = 2 * HEADS_COUNT * 32 + 2 * 2 * 32 + HIDDEN + 2 * HIDDEN
    assert on(DATA).plan(tiny, usage=prompt).temporary_nbytes == scores + rows * (attention + kept)


def test_devices_that_are_the_host_take_its_memory(tiny: Checkpoint) -> None:
    """Make-believe devices of a CPU: together."""
    usage = Usage(2, 100, generates=True, tokens=20)
    one, two = (replace(on(m), device="cpu").plan(tiny, usage=usage) for m in (SINGLE, DATA))
    assert two.host_nbytes - one.host_nbytes == 2 * (two.device_nbytes + two.temporary_nbytes) - one.device_nbytes
    away = replace(on(DATA), device="gpu").plan(tiny, usage=usage)
    assert away.host_nbytes < two.host_nbytes - 2 * two.device_nbytes


def test_gpt_oss_120b_on_64_devices_by_hand() -> None:
    """fsdp 32 × tensor 2, in MXFP4 as it is published; the shapes of its config.json, no weights."""
    fsdp, both, hidden, inter, experts, vocab = 32, 64, 2880, 2880, 128, 201088
    overrides = ["+model=gpt_oss_120b", "flow=generate", "quant=mxfp4", "mesh=fsdp_tensor", "engine.device=gpu"]
    run = compose_run([*overrides, f"mesh.axes={{fsdp: {fsdp}, tensor: 2}}"])
    plan = plan_run(run, Path("/nowhere"), fetch=False)
    assert not plan.problems
    mxfp4 = 3 * experts * hidden * inter * 17 // 32  # gate, up and down: 4 bits a number, and 8 for 32 of them
    matrices = 2 * 64 * 64 * hidden  # q and o, over heads by both
    narrow = 2 * 8 * 64 * hidden  # k and v: heads over tensor, of which there are too few for fsdp as well
    by_both = matrices + narrow + 64 * 64 + 64 + experts * 2 * inter  # with q's bias, sinks, and gate and up's
    by_fsdp = 2 * hidden + hidden + experts * hidden + experts * hidden  # norms, o's bias, router, down's bias
    by_tensor = 2 * 8 * 64  # k's bias and v's
    layer = mxfp4 // both + 2 * (by_both // both + by_fsdp // fsdp + by_tensor // 2 + experts)  # the router's bias
    total = 36 * layer + 2 * (2 * vocab * hidden // both + hidden // fsdp)
    takes = plan.takes["generate"]
    assert takes.device_nbytes - takes.cache_nbytes == total
    assert takes.devices == both
