"""Words of other programs lead to ours: what the error says can be typed."""

import re
from typing import Any

import pytest

from pipeline.api import compose_run
from pipeline.config import synonyms
from pipeline.config.explain import explain
from pipeline.config.options import options

BASE = ["+model=gpt_oss", "quant=int4"]


@pytest.mark.parametrize(
    ("typed", "ours"),
    [
        ("quant.group_size=64", "quant.block_elems=64"), ("group_size=32", "quant.block_elems=32"),
        ("quant.bits=4", "quant=int4"), ("bits=5", "quant=int4, or int2, int3, int8"),
        ("quant.scale_dtype=torch.float16", "quant.scale=f16"), ("sampling.max_new_tokens=9", "sampling.max_tokens=9"),
        ("export.torch_dtype=bfloat16", "export.dtype=bf16"), ("model.model_path=/tmp", "model.source=/tmp"),
        ("evaluate.n_ctx=128", "evaluate.windows.window=128"),
    ],
)  # fmt: skip
@pytest.mark.brief(3)
def test_a_word_of_another_program_is_told_the_override_to_type(typed: str, ours: str) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011  Hydra's, of a class that it does not promise
        compose_run([*BASE, typed])
    said = str(explain(caught.value, [*BASE, typed]))
    assert said == f"{typed}: there is no {typed.partition('=')[0]!r} here; say {ours}"
    if ", or" not in ours:
        compose_run([*[o for o in BASE if o.partition("=")[0] != ours.partition("=")[0]], ours])


def test_it_is_told_after_a_plus_too() -> None:
    with pytest.raises(
        Exception, match=r"quant\.group_size: Blockwise has no field 'group_size'; say quant\.block_elems"
    ):
        compose_run([*BASE, "+quant.group_size=64"])


def test_an_option_of_another_program_is_told_the_nearest() -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        compose_run(["+model=gpt_oss", "quant=W4A16"])
    assert str(explain(caught.value, ["+model=gpt_oss", "quant=W4A16"])) == (
        "quant=W4A16: there is no 'W4A16' in quant; here that is int4"
    )


def test_every_word_leads_somewhere() -> None:
    tree: Any = compose_run([*BASE, "stages=[load,evaluate,generate,quantize,export,train]", "train=lora"]).tree
    for ours in {*synonyms.WORDS.values()} - {"quant"}:
        node = tree
        for part in ours.split("."):
            assert part in node, ours
            node = node[part]
    for group, words in synonyms.CHOICES.items():
        told = {re.split(r"[,; ]| or ", said)[0] for said in words.values()} - {"the"}  # the verb chat
        assert told <= {*options(group)}
        assert not {*words} & {*options(group)}


@pytest.mark.parametrize(
    ("typed", "ours"),
    [
        ("train.updates=5", "train.steps=5"), ("train.lr=1e-4", "train.optimizer.rate=1e-4"),
        ("train.max_length=64", "data.length=64"), ("train.transform.r=8", "train.transform.rank=8"),
        ("train.per_device_train_batch_size=4", "train.micro=4"), ("train.weight_decay=0", "train.optimizer.decay=0"),
        ("train.max_grad_norm=1", "train.optimizer.clip=1"), ("train.eval_steps=9", "train.look.every=9"),
        ("train.save_steps=9", "train.save.every=9"), ("train.transform.lora_alpha=16", "train.transform.alpha=16"),
        ("train.transform.lora_dropout=0.1", "train.transform.dropout=0.1"),
        ("train.transform.target_modules=[*q_proj.weight]", "train.transform.targets=[*q_proj.weight]"),
    ],
)  # fmt: skip
@pytest.mark.brief(4)
def test_a_word_of_another_trainer_is_told_the_override_to_type(typed: str, ours: str) -> None:
    base = ["+model=gpt_oss", "flow=finetune", "data.files=[a.txt]", "train=lora"]
    with pytest.raises(Exception) as caught:  # noqa: PT011  Hydra's, of a class that it does not promise
        compose_run([*base, typed])
    assert str(explain(caught.value, [*base, typed])).endswith(f"here; say {ours}")
    compose_run([*base, ours])
