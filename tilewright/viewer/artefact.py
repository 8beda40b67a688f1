"""An artefact for a page: what its file says, without the model that it was made of."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tilewright.profiling.records import ModelProfile
from tilewright.runtime.artifact import Artifact
from tilewright.viewer.collect import remark_views
from tilewright.viewer.records import CallView, CodeView, ModelView
from tilewright.viewer.roofline import measured_roofline
from tilewright.viewer.times import facts_of, timed

NOT_HELD = (
    "this is a compiled model: its file has no graph, no loop programs, no schedules, no LLVM IR and no plan of "
    "memory, so that kernels stand in the order of their calls; a report of the model that it was made of has them"
)


def artefact_view(path: Path, artifact: Artifact, profile: ModelProfile | None) -> ModelView:
    """What is shown of a loaded artefact, with times of its kernels where they were taken."""
    report = artifact.summary()
    names = list(dict.fromkeys(call.kernel for call in report.calls))
    numbers = {name: number for number, name in enumerate(names)}
    calls = [
        CallView(
            numbers[call.kernel], call.node or call.kernel, -1, (number - 1,) if number else (), (), (), call.results,
            _number(call.flops), _number(call.touched_bytes or call.bytes),
        )
        for number, call in enumerate(report.calls)
    ]  # fmt: skip
    codes = tuple(CodeView(name, {}, None, "") for name in names)
    facts: Mapping[str, object] = {
        "machine": f"{artifact.target.cpu} ({artifact.target.triple or artifact.target.kind})",
        "numerics": report.numerics,
        "operators": report.nodes,
        "code": f"{report.object_bytes:,} bytes",
        "weights": f"{report.constant_bytes:,} bytes",
        "intermediate results": f"{report.arena} bytes",
        "inputs": ", ".join(report.inputs),
        "outputs": ", ".join(report.outputs),
        "products": ", ".join(map(str, report.products)),
    }
    shown = tuple((name, str(value)) for name, value in facts.items() if value not in (None, "", 0))
    timed_calls, said = timed(calls, codes, profile)
    rates = None if profile is None or profile.machine is None else measured_roofline(profile.machine, profile.threads)
    return ModelView(
        path.name, "artefact", (*shown, *facts_of(profile)), (NOT_HELD, *said), calls=timed_calls, codes=codes,
        remarks=remark_views(report.remarks), roofline=rates,
    )  # fmt: skip


def _number(amount: str | None) -> int | None:
    """None for an amount that depends on dims, or was not counted."""
    return int(amount) if amount is not None and amount.isdecimal() else None
