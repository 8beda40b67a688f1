"""An artefact for a page: what its file says, without the model that it was made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tilewright.runtime.artifact import Artifact
from tilewright.runtime.profile import KernelTime
from tilewright.viewer.collect import remark_views
from tilewright.viewer.records import CallView, CodeView, ModelView

NOT_HELD = (
    "this is a compiled model: its file has no graph, no loop programs, no schedules, no LLVM IR and no plan of "
    "memory, so that kernels stand in the order of their calls; a report of the model that it was made of has them"
)


def artefact_view(path: Path, artifact: Artifact, times: Sequence[KernelTime]) -> ModelView:
    """What is shown of a loaded artefact, with times of its kernels where they were taken."""
    report = artifact.summary()
    names = list(dict.fromkeys(call.kernel for call in report.calls))
    numbers = {name: number for number, name in enumerate(names)}
    seconds: Sequence[float | None] = [found.seconds for found in times]
    if [found.kernel for found in times] != [call.kernel for call in report.calls]:
        seconds = [None] * len(report.calls)
    calls = tuple(
        CallView(
            numbers[call.kernel], call.node or call.kernel, -1, (number - 1,) if number else (), (), (), call.results,
            _number(call.flops), _number(call.touched_bytes or call.bytes), None, taken,
        )
        for number, (call, taken) in enumerate(zip(report.calls, seconds, strict=True))
    )  # fmt: skip
    types = {found.kernel: found for found in report.types}
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
        "kernels with types": len(types),
    }
    shown = tuple((name, str(value)) for name, value in facts.items() if value not in (None, "", 0))
    return ModelView(
        path.name, "artefact", shown, (NOT_HELD,), calls=calls, codes=codes, remarks=remark_views(report.remarks)
    )


def _number(amount: str | None) -> int | None:
    """None for an amount that depends on dims, or was not counted."""
    return int(amount) if amount is not None and amount.isdecimal() else None
