"""moe: every token goes through the experts chosen for it, and only through those.

    moe(x, chosen, weights, w_in, b_in, w_out, b_out, *, activation, out_dtype=None)
        -> array [N, D_out] of out_dtype, by default x's dtype

N tokens, k experts a token, E experts, F outputs of an expert's input projection, F' of its activation.

    y[n] = Σ_j weights[n, j] · (activation(x[n] · w_in[i][e]ᵀ + b_in[i][e], …) · w_out[e]ᵀ + b_out[e])

where e = chosen[n, j] and the activation has an argument for each i.


- `x` `[N, D_in]`; `chosen` int `[N, k]`; `weights` `[N, k]`, taken as float32.
- `w_in`: one or more of `[E, F, D_in]`, `b_in`: for each of them `[E, F]` or None; `w_out` `[E, D_out, F']`, `b_out`
  `[E, D_out]` or None. Weights are arrays or QTensors, whose experts are decoded one at a time.
- `activation` takes as many arrays `[…, F]` of x's dtype as there are in `w_in` and gives one `[…, F']`; it works on
  the last axis alone (gpt-oss: one, gate and up interleaved; Qwen3-MoE: two).
- Products are those of the op `matmul`: rounded to x's dtype after the projections in, to `out_dtype` after the one
  out; the weighted sum is float32, in the order of j, rounded once to `out_dtype`. float32 rounds nothing on the way
  out: these are sums that devices can add up which hold some of the experts, or a part of each.
- A choice of weight 0 is no choice: its expert is neither read nor decoded on its account. Padding has weights 0.
- Gradients as `matmul` has them, and with respect to `weights`; that of a weight of 0 is 0.
"""
