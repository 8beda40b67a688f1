"""What a profile says of calls of kernels, for a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.profiling.records import ModelProfile
from tilewright.viewer.records import CallView, CodeView

_MS = 1e-3
_OTHER = "the times are of another program than the one that is shown, and are left out"


def timed(
    calls: Sequence[CallView], codes: Sequence[CodeView], profile: ModelProfile | None
) -> tuple[tuple[CallView, ...], tuple[str, ...]]:
    """The calls with their times, where these are of the same program, and else why they have none."""
    if profile is None:
        return tuple(calls), ()
    if [codes[call.code].name for call in calls] != [found.kernel for found in profile.kernels]:
        return tuple(calls), (_OTHER,)
    return tuple(
        replace(
            call, seconds=_MS * found.median_ms, least=_MS * found.least_ms, percent=found.percent, bound=found.bound,
            balance=found.balance, flops=call.flops if found.flops is None else found.flops,
            bytes=call.bytes if found.bytes is None else found.bytes,
        )
        for call, found in zip(calls, profile.kernels, strict=True)
    ), profile.notes  # fmt: skip


def facts_of(profile: ModelProfile | None) -> tuple[tuple[str, str], ...]:
    """What a profile says of all of a call."""
    if profile is None:
        return ()
    explained = profile.kernels_ms / profile.latency_ms if profile.latency_ms else 0.0
    found = {
        "a call takes": f"{profile.latency_ms:.3f} ms (median of {profile.runs}), {profile.least_ms:.3f} ms at least",
        "kernels explain": f"{100 * explained:.1f} % of it",
    }
    return tuple(found.items())
