"""rope: rotary position embedding (arXiv 2104.09864).

    rope(x, positions, inv_freq, *, concentration=1.0, interleaved=False) -> array of x's shape and dtype

`x` is `[B, T, H, D]`, `positions` `[B, T]` integers, `inv_freq` float32 `[R / 2]`. The first R dims of every head are
rotated in pairs by the angle position · inv_freq, the others stay as they are; dims i and i + R/2 are a pair
(split-half: Llama, gpt-oss, Gemma as Hugging Face stores them), or, `interleaved`, 2i and 2i + 1 (the paper; GPT-J):

    (a, b) → (a · cos - b · sin, b · cos + a · sin) · concentration

`concentration` is YaRN's factor on cos and sin (arXiv 2309.00071, section 3.4). Angles, cos, sin and the rotation are
float32, one rounding at the end. `frequencies` says what a model's config means as `inv_freq` and `concentration`.
"""
