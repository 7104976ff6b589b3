"""How a model is driven: which tokens, in which pieces, and how many steps follow.

Lengths are chosen around what can go wrong: 37 tokens exceed twice every sliding window of 8, and 37 of them with three experts each
cross the 64 indices from which mlx-lm sorts; a chunk of one token is a decode step inside a prompt; `short` and `decode` let a
ring that is not full yet grow and wrap while decoding; `grow` crosses
the 256 positions by which caches grow, once inside a prompt and once while decoding.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """Prompt lengths (one a row), the pieces the prompt is read in, and steps after it.

    `batch` is `none` for one row, `merge` when each row is read alone and rows are joined to decode together, `padded` when
    rows are read together, shorter ones padded on the right, as mlx-lm's batch generator does.
    """

    name: str
    rows: tuple[int, ...]
    chunks: tuple[int, ...]
    steps: int
    batch: str = "none"
    # Bits of a cache quantized from the first chunk on, in groups of 32; None for a plain one.
    kv_bits: int | None = None


PLANS = {
    p.name: p
    for p in [
        Plan("whole", (37,), (37,), 32),
        Plan("chunks", (37,), (7, 1, 13, 16), 32),
        Plan("decode", (1,), (1,), 40),
        Plan("short", (5,), (5,), 24),
        Plan("grow", (300,), (250, 50), 220),
        Plan("batch-merge", (5, 17, 11), (), 32, "merge"),
        Plan("batch-padded", (5, 17, 11), (17,), 32, "padded"),
        Plan("kv8", (37,), (7, 1, 29), 32, kv_bits=8),
        Plan("kv4", (37,), (37,), 32, kv_bits=4),
    ]
}
