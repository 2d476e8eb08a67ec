"""gptq: the codes of a matrix whose columns make good what earlier ones lost (Frantar et al. 2022, algorithm 1).

    gptq(x, factor, scheme, *, order=None, second=None, **recipe) -> QTensor of x's shape

- x: float32 [rows, n], finite.
- factor: fp64 [n, n], upper: the Cholesky factor of the inverse of the second moments of the inputs, damped, with rows
  and columns in `order` (`feedback.factor`). Of the row of column k no entry before the k-th is read.
- scheme: blocks of columns in one row; no structs of ggml.
- order: int64 [n]: which column is rounded first, second, …. Scales are then those of `x`. None: one after the other,
  and a block's scales are those of what its columns have become when the first of them is rounded.
- second: float32, the second-level scale as stored, where the scheme has one.
- recipe: the options of `quantize`, but for what is not rounded to the nearest finite value. A search for scales weighs
  the square of a column's error by 1 / the square of its entry on the diagonal of `factor`, which is what that adds to
  the loss (Frantar and Alistarh 2022, theorem 2).

In fp64: of column k, w_k [rows], what it is rounded to, q_k, and e = (w_k - q_k) / factor[k, k]; then of every later
column j, w_j -= factor[k, j] · e. Rounding is that of w_k as float32 under its block's scale.

A matrix whose blocks cannot be stored raises ValueRangeError, as in `quantize`; one of which a value decodes to an
infinity does not (`overflow` counts for nothing). Whatever else is no such call raises ConfigError (`given`).
"""
