"""`quant=auto` is two runs, and what is typed goes to the one that it is about."""

import pytest

from pipeline.config.auto import two_runs
from pipeline.errors import ConfigError


def test_other_quantizations_are_one_run() -> None:
    assert two_runs(["+model=gpt_oss", "quant=int4", "quant.ties=away"]) is None


def test_what_goes_where() -> None:
    both = two_runs(
        ["+model=gpt_oss", "quant=auto", "quant.bits=4.25", "quant.quants=[int4,int8]", "flow=convert", "export=gguf",
         "export.path=x", "paths.run=here", "paths.outputs=there", "++model.extra_rules=[]"]
    )  # fmt: skip
    assert both is not None
    first, then = both
    assert first == [
        "+model=gpt_oss", "paths.outputs=there", "++model.extra_rules=[]", "flow=allocate", "allocate.bits=4.25",
        "allocate.quants=[int4,int8]",
    ]  # fmt: skip
    assert then("a b/it's") == [
        "+model=gpt_oss", "flow=convert", "export=gguf", "export.path=x", "paths.run=here", "paths.outputs=there",
        "++model.extra_rules=[]", "quant=keep", r"rules_file='a b/it\'s/rules.yaml'",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ((), "no budget; quant.bits=4.25"),
        (("quant.bit=4",), r"quant.bit=4: quant=auto has no setting 'bit'; did you mean 'bits'\?"),
        (("quant.kl=1", "rules_file=r.yaml"), "rules_file=r.yaml: the rules are either chosen or in a file"),
    ],
)
def test_what_cannot_be(more: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        two_runs(["+model=gpt_oss", "quant=auto", *more])
