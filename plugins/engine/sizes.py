"""The static sizes that programs are compiled for; known without a framework, so that plans know them too."""

BUCKETS = (16, 32, 64, 128, 256, 512, 1024)  # tokens of a prompt that a program takes; longer ones take several turns
SMALLEST_CACHE = 128
MOST_STEPS = 8  # of decoding, in one program
LOGITS_NBYTES = 32 << 20  # of float32 logits at once, when a text is scored


def bucket(n: int) -> int:
    """The smallest program that takes `n` tokens, or the largest there is."""
    return next((b for b in BUCKETS if n <= b), BUCKETS[-1])


def power_of_two(n: int, least: int = 1) -> int:
    """The smallest power of two that is at least `n` and `least`."""
    return max(least, 1 << (n - 1).bit_length())


def rows(n: int, ways: int = 1) -> int:
    """Rows of a batch of `n` sequences that are divided over devices so many ways: a power of two, or what of their
    multiples comes after it."""
    return -(-power_of_two(n) // ways) * ways
