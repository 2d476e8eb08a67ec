"""softmax: along one axis, with a mask and with attention sinks.

    softmax(x, *, axis=-1, sinks=None, where=None) -> array of x's shape and dtype

    p = exp(x) / (Σ exp(x) + exp(sinks))

over the elements where `where` is True (everywhere by default); the others give 0 and take no part. `sinks`, of x's
rank and of length 1 along `axis`, are logits that take their share and are dropped (Attention Sinks, arXiv 2309.17453;
gpt-oss learns one a head); without them there is no second term. float32 throughout, with the maximum subtracted first;
the result is rounded once. Where nothing takes part, all is 0. `where` broadcasts to x's shape and has its rank.
"""
