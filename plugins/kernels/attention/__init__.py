"""attention: scaled dot products with grouped heads, positions that mask, a sliding window, sinks and a soft cap.

    attention(q, k, v, q_positions, k_positions, *, scale, window=None, sinks=None, softcap=None, causal=True,
              segments=None)
        -> array [B, T, H, Dv] of q's dtype

B batch, T queries, S key slots, H query heads, K key heads (a divisor of H), D and Dv dims of a head. `q` is
`[B, T, H, D]`, `k` `[B, S, K, D]`, `v` `[B, S, K, Dv]`; `q_positions` `[B, T]` and `k_positions` `[B, S]` are integers.
`k` and `v` are arrays of any float, or both QTensors of one scheme, as a cache holds them. They are taken as values of
q's dtype; a backend that reads them as they are may keep what that rounds off.

- Query head h reads key head h // (H / K).
- A query t sees slot s if `k_positions[s] >= 0` (-1 marks an empty slot or padding), and `k_positions[s] <=
  q_positions[t]` (when `causal`), and `k_positions[s] > q_positions[t] - window` (with a window: the query itself and
  the window - 1 positions before it). Slots may be in any order, as in a ring buffer.
- With `segments`, integers `[B, T]`, T = S and slot t is the key of query t: documents that share a row, one after the
  other, each in order of its positions. A query sees slots of its segment only.
- logit = q · k · scale, then softcap · tanh(logit / softcap) where there is one (Gemma 2, arXiv 2408.00118, section 2).
- p = softmax(logits) over the slots seen, beside the head's learned logit `sinks[h]`, which takes its share and is
  dropped; see the op `softmax`. A query that sees nothing gives 0. Queries of negative position are padding: whatever
  they give is finite.
- Products are summed in float32 and the softmax is float32; a backend may round p to v's dtype before it multiplies.

Extra memory is bounded: logits exist for a block of queries at a time, in gradients too, which sinks have as well.
"""
