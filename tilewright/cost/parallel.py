"""The parallel axis: how many iterations threads need, whether their shares are equal, and what is worth sharing."""

from __future__ import annotations

from tilewright.target.target import Target

ITERATIONS_PER_THREAD = 16
"""Iterations that keep the threads' shares equal to a few percent."""

ASSUMED_EXTENT = 128
"""Extent that is assumed of a dim that is not known, such as the height of an image or the length of a sentence."""

UNEVEN = 1.05
"""Largest share of a thread, as a multiple of the mean, that is not worth a remark."""

FEWEST_THREADS = 2
"""Threads that work is divided for at least, also where a target names one core: a model compiled for a kind of
machine runs on any of it."""

COLUMN_TILES_PER_CORE = 4
"""Tiles of columns that let threads share these alone."""

LEAST_REUSE = 2
"""Scalar operations for each byte of operands (constants apart) and results: a call with fewer is bound by memory, and
is best made while its operands are in the caches."""


def tasks_for_all(per_core: int, target: Target) -> int:
    """So many tasks for each core."""
    return per_core * target.cores


def greatest_share(iterations: int, target: Target) -> float:
    """What the core with most of so many equal iterations gets, in the mean of all cores of the machine."""
    return share_of_greatest(iterations, target.cores)


def threads(target: Target) -> int:
    """For how many threads work is cut."""
    return max(FEWEST_THREADS, target.cores)


def enough_iterations(target: Target, per_thread: int = ITERATIONS_PER_THREAD) -> int:
    """Iterations of a parallel loop from which on more make the shares no more equal."""
    return per_thread * threads(target)


def share_of_greatest(iterations: int, cores: int) -> float:
    """What the core with most of so many equal iterations gets, in the mean of all cores."""
    return -(-iterations // cores) * cores / max(1, iterations)


def uneven(iterations: int, target: Target, what: str = "iterations") -> str:
    """Why threads lose time with so many equal iterations; empty where they do not."""
    if share_of_greatest(iterations, target.cores) <= UNEVEN:
        return ""
    return f"{target.cores} threads do not get equal shares of {iterations} {what}"


def exceeds_forks(work: int, forks: float, target: Target) -> bool:
    """Whether so many scalar operations take longer than waking all threads so many times, and not as long."""
    return work > forks * target.calibration.fork_work


def fork_cycles(target: Target) -> float:
    """Cycles below which one core does the work alone."""
    return target.calibration.fork_cycles


def least_shared_work(target: Target) -> float:
    """Scalar operations from which on waking all threads once pays."""
    return target.calibration.fork_work


def is_worth_a_fork(work: int, target: Target, forks: float = 1) -> bool:
    """Whether so many scalar operations take longer than waking all threads so many times."""
    return work >= forks * target.calibration.fork_work


def may_run_beside_others(work: int, moved: int, target: Target) -> bool:
    """Whether a call of so many scalar operations, which moves so many bytes, gains when others run at the same
    time."""
    return is_worth_a_fork(work, target, 2) and work >= LEAST_REUSE * moved


def columns_suffice(tiles: int, target: Target) -> bool:
    """Whether threads may share so many tiles of columns alone, with all rows in each share."""
    return tiles >= tasks_for_all(COLUMN_TILES_PER_CORE, target)


def bands_for_all_cores(parts: int, per_core: int, target: Target) -> int:
    """Into how many bands an axis is cut at least, so that each core finds so many of `parts` times the bands."""
    return -(-tasks_for_all(per_core, target) // parts)
