"""quantize_by_outputs: the codes of a matrix under scales that are chosen by what its products with inputs lose.

    quantize_by_outputs(x, hessian, scheme, *, second=None, **recipe) -> QTensor of x's shape

- x: float32 [rows, n], finite.
- hessian: float32 [n, n], symmetric: the second moments of the inputs, H = E[xxᵀ].
- scheme: blocks of columns in one row; no structs of ggml.
- second: float32, the second-level scale as stored, where the scheme has one.
- recipe: the options of `quantize`, but for what is not rounded to the nearest finite value. Its search says which
  scales are tried; without one that is the usual one alone.

Each row by itself begins with all blocks under their usual scales. Its blocks are then looked at one after another, and
that `search.PASSES` times: with e_b, float32, what the values of block b decode to less what they are, a block takes
that of the scales under which

    e_b H_bb e_bᵀ + 2 e_b Σ_{c≠b} H_bc e_cᵀ

is least, where e_c is of the scale that block c has by then; the first of equals. It is what the block adds to
E‖(ŵ-w)x‖², beside what the others lose. Sums are float32, in any order: of two scales that lose the same to within
their rounding either may be taken.

A matrix whose blocks cannot be stored under their usual scales raises ValueRangeError, as in `quantize`. Other scales
that cannot, or under which a value decodes to an infinity, are not taken; under a usual scale one may (`overflow`
counts for nothing), and it is not said which scales that row's blocks have then. Whatever else is no such call raises
ConfigError (`given`).
"""
