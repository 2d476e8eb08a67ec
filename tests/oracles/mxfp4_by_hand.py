"""MXFP4 decoded element by element from the OCP Microscaling Formats specification v1.0 (E2M1 5.3.3, E8M0 5.4.1).

Slow on purpose, NumPy only, and nothing of Weightmill: a judge of codecs and layouts must not share code with them.
"""

import numpy as np

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def decode(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """float64 [..., n] from uint8 codes [..., n/2] (low nibble first) and uint8 E8M0 scales [..., n/32]."""
    rows, groups = codes.reshape(-1, codes.shape[-1]), scales.reshape(-1, scales.shape[-1])
    out = np.empty((rows.shape[0], rows.shape[1] * 2), np.float64)
    for r in range(out.shape[0]):
        for i in range(out.shape[1]):
            nibble = int(rows[r, i // 2]) >> (4 * (i % 2)) & 0xF
            magnitude = E2M1[nibble & 7] * 2.0 ** (int(groups[r, i // 32]) - 127)
            out[r, i] = -magnitude if nibble & 8 else magnitude
            if groups[r, i // 32] == 0xFF:
                out[r, i] = np.nan
    return out.reshape(*codes.shape[:-1], -1)
