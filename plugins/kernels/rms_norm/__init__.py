"""rms_norm: root mean square normalization of the last axis.

    rms_norm(x, weight, *, eps, plus_one=False) -> array of x's shape and dtype

    y = x / √(mean(x²) + eps) · weight        or · (1 + weight) with plus_one, which is how Gemma stores it

`x` is `[..., D]`, `weight` `[D]` (arXiv 1910.07467, equation 4). float32 throughout and one rounding at the end, as
gpt-oss and Gemma do. Llama in transformers rounds to x's dtype before it multiplies by the weight: the same in float32,
up to an ulp apart in bfloat16.
"""
