"""embed: rows of an embedding matrix that may stay packed.

    embed(ids, w, *, dtype) -> array [..., D] of dtype

`ids` `[...]` are int32, `w` `[V, D]` is an array or a QTensor. Only the rows asked for are gathered and decoded, as
`dequantize` says. An id outside 0 … V-1 is the caller's mistake: the reference raises IndexError, where jit takes
the nearest row.
"""
