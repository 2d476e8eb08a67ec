"""Recoding that changes no value: encode again, decode, compare."""

from typing import Any

import numpy as np

from pipeline.errors import NotLossless, ValueRangeError
from pipeline.tensors.qtensor import QTensor


def recode_exactly(method: Any, q: QTensor) -> QTensor:
    """`q` in the scheme of `method`, made by `method`, if that gives exactly the values of `q`.

    Raises:
        NotLossless: it does not; says how many values would change and names the first.
    """
    if q.scheme == method.scheme:
        return q
    before = method.decode(q, "F32")
    try:
        recoded: QTensor = method.encode(before)
    except ValueRangeError as why:
        raise NotLossless(str(why)) from None
    after = method.decode(recoded, "F32")
    changed = before.view(np.uint32) != after.view(np.uint32)
    if count := int(np.count_nonzero(changed)):
        first = int(np.argmax(changed))
        raise NotLossless(
            f"{count:,} of {before.size:,} values would change, the first at flat index {first}: "
            f"{before.flat[first]} → {after.flat[first]}"
        )
    return recoded
