"""The records that a profile is made of. Times are milliseconds, rates billions a second (GFLOP/s, GB/s); what is not
known is None. JSON data has a record as an object of its fields by name, and a tuple as an array."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from tilewright.runtime.errors import InputError
from tilewright.runtime.storage.records import plain, record

VERSION = 1


@dataclass(frozen=True, slots=True)
class PeakRate:
    """Multiply-adds in registers, each of which counts as two operations: of which dtype, by which instruction, by one
    thread and by all of them at once."""

    dtype: str
    instruction: str
    one: float
    every: float


@dataclass(frozen=True, slots=True)
class ReadRate:
    """Reading from a level of memory, such as "L2": what lies in it has at most so many bytes (None: there is no limit)
    for one thread; the rates of one thread and of all of them at once."""

    level: str
    bytes: int | None
    one: float
    every: float


@dataclass(frozen=True, slots=True)
class MachineRates:
    """What a machine was measured to do. `facts` name it, `measured` is the date (ISO 8601), `share` the share of their
    time that threads were on a core (below 1 where other programs ran; the mean over what was measured)."""

    facts: Mapping[str, str]
    threads: int
    peaks: tuple[PeakRate, ...]
    reads: tuple[ReadRate, ...]
    measured: str
    version: int = VERSION
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class KernelProfile:
    """A call of a kernel in the order of execution.

    `nodes` are the nodes of the model that it computes, the main one first, `path` is the module of that one. `count`
    is how often a call of the model runs it, all of which the other fields tell together. `share` is that of the sum of
    all kernels. `flops` are operations on floats, or on integers in sums of products of integers; `bytes` those of
    arguments that are touched. `bound_ms` is the least time on this machine, `bound` what sets it: the name of a dtype
    or of a level of memory; `percent` is what share of that speed the kernel reaches. `busy_ms` are the means of the
    threads, `balance` their mean over the longest (1: all have the same work).
    """

    kernel: str
    nodes: tuple[str, ...]
    path: str
    count: int
    least_ms: float
    median_ms: float
    share: float
    flops: int | None = None
    bytes: int | None = None
    gflops: float | None = None
    gbytes: float | None = None
    bound: str = ""
    bound_ms: float | None = None
    percent: float | None = None
    busy_ms: tuple[float, ...] = ()
    balance: float | None = None


@dataclass(frozen=True, slots=True)
class LayerProfile:
    """The kernels whose main nodes are in one module, together; `kernels` are their positions in the profile."""

    path: str
    kernels: tuple[int, ...]
    least_ms: float
    median_ms: float
    share: float
    flops: int | None
    bytes: int | None
    gflops: float | None
    gbytes: float | None
    percent: float | None


@dataclass(frozen=True, slots=True)
class BlockProfile:
    """A part of the model that repeats: its copies, of which the first `variants` are somewhat different, the median
    times of their kernels, and what share of the sum all of them have."""

    block: str
    copies: int
    variants: int
    median_ms: tuple[float, ...]
    share: float


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """A median call on so many threads; `size` is that of the batch, where it grows with them."""

    threads: int
    median_ms: float
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Scaling:
    """How calls become faster with threads: `points` of the same call, the share of its time on one thread that does
    not become less (`serial`, fitted by least squares), and the speed-up that this allows at most (`limit`; None: it
    has none). Where a dim is symbolic, `batch` names it, and `growing` are calls of which each thread has as much work
    as one thread alone; `scaled` are their speed-ups."""

    points: tuple[ScalingPoint, ...]
    serial: float
    limit: float | None
    batch: str = ""
    growing: tuple[ScalingPoint, ...] = ()
    scaled: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """How long a model takes, and what of it. `latency_ms` is the median call without timers, `least_ms` the least, and
    `kernels_ms` what the kernels of a median call with timers come to. `counters` are events of the hardware for a
    call; where there are none, `notes` say why. `sizes` are those of the symbolic dims of inputs."""

    model: str
    threads: int
    sizes: Mapping[str, int]
    variant: str
    runs: int
    latency_ms: float
    least_ms: float
    kernels_ms: float
    kernels: tuple[KernelProfile, ...]
    layers: tuple[LayerProfile, ...]
    machine: MachineRates | None = None
    scaling: Scaling | None = None
    counters: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    blocks: tuple[BlockProfile, ...] = ()
    version: int = VERSION

    def as_dict(self) -> dict[str, Any]:
        """All of it as JSON data."""
        found: dict[str, Any] = plain(self)
        return found

    def to_json(self) -> str:
        """The text of `as_dict`."""
        return json.dumps(self.as_dict(), separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What `to_json` gave; InputError for another text."""
        try:
            return record(cls, json.loads(text))
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"this is no profile: {error}", hint="give what `tilewright profile MODEL --json` prints"
            ) from error
