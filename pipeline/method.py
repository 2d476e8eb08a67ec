"""What a quantization method is: how codes are made. What they mean is its scheme's business."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

from pipeline.hooks import hooks_of, optional
from pipeline.rules import Rule
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import Scheme
from pipeline.tensors.spec import TensorSpec


class Method(Protocol):
    """A plugin node under `quant`. Its fields (scale rule, ties, …) are provenance; files hold only the `scheme`."""

    @property
    def scheme(self) -> Scheme | None:
        """The scheme of what `encode` gives; None when the target is plain bf16."""
        ...

    @property
    def needs_extremes(self) -> bool:
        """Whether a scale depends on whole matrices: then `encode` takes `observed`, the Extremes of the matrices that
        `x` is a part of, or None when `x` holds them whole."""
        ...

    def encode(self, x: Any, **observed: Any) -> Any:
        """Quantize an array `[..., n]` of bf16, fp16 or fp32 to a QTensor. What that loses is measured outside
        (`pipeline.measured`), from what readers will decode.

        Raises:
            ValueRangeError: a value that the scheme cannot hold; says its index within `x`.
        """
        ...

    def recode(self, q: QTensor) -> QTensor:
        """`q` (whole matrices) in this method's scheme with exactly its values.

        Raises:
            NotLossless: the scheme cannot hold them; says where.
        """
        ...

    def decode(self, q: QTensor, dtype: str) -> Any:
        """Values of `q`, whatever its scheme, as an array of `dtype` (BF16, F16 or F32)."""
        ...


@hooks_of(Method)
class MethodHooks:
    """What a method may have beside that."""

    needs_place: bool = False
    """It draws random numbers: `encode` takes `place`, the tensor's name and shape and where `x` starts in it."""

    cuts_rows: bool = False
    """Of rows that share a scale it takes a part as well: `encode` takes `rows`, the Extremes of the whole rows that
    `x` is a part of, or None when `x` holds them whole."""

    needs_statistics: str | None = None
    """What of the inputs of a tensor it wants to know, `mean_square` or `hessian`: `encode` takes `statistics`, the
    `pipeline.calibration.LinearStatistics` of the box. A Hessian is of whole matrices, which `encode` is then given."""

    calls: Callable[[str, TensorSpec], Iterable[Any]] | None = None
    """`calls(name, spec)`: the kernel calls (`pipeline.ops.Call`) that `encode` makes for a tensor."""

    scratch: Callable[[tuple[int, ...]], int] | None = None
    """`scratch(shape)`: bytes that `encode` takes beside what goes in and comes out, for any box of a tensor of this
    shape, where what it must see at once is more than a tile."""

    fitted: Callable[[tuple[int, ...]], Any] | None = None
    """`fitted(shape)`: the method that tensors of this shape take, where no block fits all tensors."""

    mixed: Callable[[Iterable[str], Mapping[str, TensorSpec]], Mapping[str, Any]] | None = None
    """`mixed(names, specs)`: tensor → method, for those of `names`, which are to take this one, that take another;
    `specs` are those of all tensors of the model."""

    rules: tuple[Rule, ...] = ()
    """What becomes of tensors that the model's rules say nothing of, as readers of such files are used to it. Roles
    that the model does not have, and blocks that do not fit, are passed over; an embedding that is the head is one."""

    keeps: bool = False
    """Without a scheme: what is packed stays so, as long as an export can hold it."""

    steps: Mapping[str, Any] = MappingProxyType({})
    """Name → method: what it does step by step, each of them a method of the same scheme. The first is rounding to the
    nearest, and the last is itself, so that a run can say what each gained."""

    recipe: Any = None
    """How `encode` makes codes, as options of the op `quantize` (a dataclass): what training for a quantized export
    does inside compiled programs, and so has to know."""


def fitted(method: Method, shape: tuple[int, ...]) -> Method:
    """`method` as a tensor of `shape` takes it."""
    ask = optional(method, MethodHooks, "fitted")
    found: Method = method if ask is None else ask(shape)
    return found
