"""What is measured of a family of cores and stands in no manual: how much of its traffic a core hides behind
multiplications, what of a cache is still there when it is needed again, and what it costs to wake other threads.

The defaults are the means of a Cascade Lake (AVX-512 and AVX2 code) and a Zen 4; `bench/calibrate.py` measures and
fits them, and prints what decisions made by them lose. docs/decisions/0016-cost-model.md has the method,
docs/decisions/0032-one-room-for-costs.md the figures.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Exposed:
    """Of each thing that a contraction makes a core do beside multiplying, the part that adds to its time.

    `load` is of the cycles of the inner loops' loads; `l2`, `l3` and `memory` are of the cycles in which bytes come
    from there (`late_prefetch`: in addition, where a long panel is prefetched too late); `passes` are cycles of reading
    and writing one vector of sums once more; `copied` and `scattered_loads` are cycles of copying an element of the
    rows, and of reading one from a cache line that it shares with no other. `transform` are cycles of a vector of
    transformed, or padded, data of a convolution: written, and read by the products; `image` are those of a vector of
    the images around it, each read or written once (0 where it was not measured apart from `transform`). `one_stream`
    multiplies the time of memory where few rows read all columns as one run of addresses, on a core that follows
    several.
    """

    load: float = 0.49
    l2: float = 0.23
    l3: float = 0.26
    memory: float = 0.92
    late_prefetch: float = 0.21
    passes: float = 3.7
    copied: float = 0.49
    scattered_loads: float = 0.06
    transform: float = 12.8
    image: float = 0.0
    one_stream: float = 1.07


@dataclass(frozen=True, slots=True)
class CacheShares:
    """The part of a cache that data may fill and still be there when they are read again: pages lie anywhere in memory,
    so that some sets are full before others, and what is only passed through takes its place too.

    Of L2: `kept` is what one kernel, or one step of it, leaves for the next; `nest` what the loops around a register
    tile touch; `block` a block of a contraction; `tiles` all that Winograd's kernel holds of a band, and `band` the
    tiles and sums of a band that decide whether it makes them itself; `lines` what several row tiles read in turns;
    `panel` the longest panel that is prefetched in time. Of L1: `near` is what the loops around a register tile touch,
    `near_lines` what several row tiles read in turns, `near_row` the row that is prefetched while another is computed.
    """

    kept: float = 0.5
    nest: float = 0.65
    block: float = 0.635
    tiles: float = 0.75
    band: float = 0.4
    lines: float = 0.25
    panel: float = 1 / 8
    near: float = 1.0
    near_lines: float = 0.5
    near_row: float = 0.25


@dataclass(frozen=True, slots=True)
class FarRows:
    """How rows are read that no cache of a core holds.

    `most` rows at most are interleaved of those with at least `long` elements: each is a stream that is read and one
    that is written, and the prefetchers of a core follow some eight (on Zen 5 a softmax of 4608 rows of 512 takes 1.7
    times as long in fours as in twos, of 384 1.2 times). Of longer ones two neighbours are slower than one. Operands of
    more than `evicted` times L2 are not there any more.
    """

    most: int = 2
    long: int = 256
    evicted: float = 2


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was measured of a family of cores.

    `peak` is the part of the multiply-adds that a core could begin which register tiles reach. `fork_work` are the
    scalar operations that take about as long as waking other threads and waiting for them; `fork_cycles` the cycles
    below which one core does it alone. `requests_stores` says that squares of a transpose gain where the lines that
    they write are prefetched. `rows_of_short_weights` are the rows that a product has at most where weights of 16 bits
    are read as they are (BERT-base of 128 rows takes 1.5 to 2.7 times as long so on Zen 3). `recurrent_weights` are the
    bytes of a recurrent network's weights that groups of entries which take turns still find in L2 (Zen 5; on cores
    with a smaller L2 not measured). `lines_before_bytes` are the cache lines by which weights of fewer than 8 bits are
    requested before one row of bytes multiplies them.
    """

    exposed: Exposed = field(default_factory=Exposed)
    shares: CacheShares = field(default_factory=CacheShares)
    peak: float = 0.85
    fork_work: int = 32_768
    fork_cycles: int = 10_000
    exchange: float = 200
    far_rows: FarRows = field(default_factory=FarRows)
    rows_of_short_weights: int = 16
    recurrent_weights: int = 1 << 20
    lines_before_bytes: int = 128
    requests_stores: bool = True
