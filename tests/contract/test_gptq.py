"""Every backend of gptq gives the codes and scales of its definition."""

from collections.abc import Iterable

from pipeline.testing.kernel import Case, KernelContract
from plugins.kernels.gptq.cases import cases


class TestGptq(KernelContract):
    def op(self) -> str:
        return "gptq"

    def cases(self) -> Iterable[Case]:
        return cases()
