"""README.md: which `export=` holds which `quant=`, as planning each of them says it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from pipeline.api import compose_run
from pipeline.planning.memory import plan_run
from tests.cases import my_llama
from tests.cases.model_runs import QUANTIZING, STRUCTS

PAGE = Path(__file__).parents[2] / "README.md"
BEGIN, END = "<!-- begin: make golden -->\n", "<!-- end: make golden -->\n"
EXPORTS = ("hf", "compressed_tensors", "modelopt", "bitsandbytes", "gguf", "orbax")  # those that keep what is packed
AS_EXPORTED = ("nvfp4", "q4_0", "q4_1", "q8_0", *STRUCTS)  # whose second scale, or embedding, is as the export has it
YES, GPT_OSS, NO = "●", "○", ""


def table() -> str:
    """A row for each scheme. ● a Llama's weights stay packed, and most often gpt-oss's too, ○ gpt-oss's only."""
    heads = [("`quant=`", *(f"`{export}`" for export in EXPORTS)), ("---", *(":-:" for _ in EXPORTS))]
    return "".join(f"| {' | '.join(line)} |\n" for line in heads) + "".join(rows([*QUANTIZING, *STRUCTS]))


def rows(quants: Sequence[str]) -> list[str]:
    """The lines of `quants`."""
    with TemporaryDirectory() as folder:
        my_llama.write(Path(folder))
        found = []
        for quant in quants:
            llama = _held(f"model.source={folder}/my-llama", quant, EXPORTS)
            gpt_oss = _held("+model=gpt_oss", quant, ["hf"]) - llama
            cells = [YES if e in llama else GPT_OSS if e in gpt_oss else NO for e in EXPORTS]
            found.append(f"| {' | '.join([f'`{quant}`', *cells])} |\n")
    return found


def _held(source: str, quant: str, exports: Sequence[str]) -> set[str]:
    """Those of `exports` whose plan has no problem."""
    asked = [source, f"quant={quant}", "flow=convert"]
    held = set()
    run = compose_run([*asked, "export=auto"])
    for export in exports:
        if quant in AS_EXPORTED:
            run = compose_run([*asked, f"export={export}"])
        stage = run.stages["export"]
        option = stage.options[export]
        chosen = replace(stage, dialect=option.dialect, container=option.container, max_shard_size=None)
        plan = plan_run(replace(run, stages={**run.stages, "export": chosen}), Path("nowhere").absolute())
        others = [p for p in plan.problems if "export" not in f"{p.where} {p.message}"]
        assert all("is not a multiple of the block" in p.message for p in others), others  # a mistake of this table
        held |= set() if plan.problems else {export}
    return held


def page() -> str:
    """README.md with the table as it is now."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}{table()}{END}{rest.partition(END)[2]}"
