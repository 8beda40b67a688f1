"""What README.md says of the project in figures and promises, as far as no other test of a room shows it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from bench.__main__ import parser
from tests.architecture.test_house import MAX_LINES, files
from tests.loops.kernel_texts import DOUBLE, read
from tests.schedule import scheduling as oracle
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func, Value
from tilewright.ir.types import tensor
from tilewright.loops.edit import body_of, enclosing_loops, find_loop, is_loop, kind_of, loops_in
from tilewright.ops import blocked, contract, index, reduce, scan, view
from tilewright.ops import elementwise as ew
from tilewright.schedule.steps.vectorize import note_scalar_loops
from tilewright.schedule.trace import Schedule

README = (Path(__file__).parent.parent.parent / "README.md").read_text()


def test_the_package_is_as_large_as_it_says() -> None:
    (said, most) = re.findall(r"About ([\d,]+) lines of typed Python, no file above (\d+)", README)[0]
    lines = sum(len(path.read_text().splitlines()) for path in files())
    assert abs(lines / int(said.replace(",", "")) - 1) < 0.05, lines
    assert int(most) == MAX_LINES


def test_the_commands_of_the_suite_exist() -> None:
    lines = [shlex.split(line, comments=True) for line in README.splitlines() if line.startswith("python -m bench ")]
    assert len(lines) >= 7
    for _, _, _, *arguments in lines:
        assert parser().parse_args(arguments).command == arguments[0]


def scalar_loops(kernel: Func) -> int:
    """Innermost loops that store one element at a time."""
    loops = loops_in(kernel.body)
    innermost = [o for o in loops if not any(map(is_loop, body_of(o).walk()))]
    return sum(
        any(op.name == "store" for op in body_of(o).walk())
        and not {kind_of(a) for a in (o, *enclosing_loops(o))} & {"vector", "unroll", "dot"}
        for o in innermost
    )


def unpacked(x: Value) -> Value:
    return ew.mul(y := blocked.unblock_channels(x, channels=18), ew.sigmoid(y))


SOME = {
    "remainders": ((1, 2, 5, 5, 16), unpacked),
    "few elements": ((3, 2), lambda x: ew.sqrt(ew.add(x, 2.0))),
    "columns": ((7, 5), lambda x: view.transpose(ew.exp(x), perm=(1, 0))),
    "rows": ((5, 37), lambda x: ew.sub(x, reduce.reduce_max(x, axes=(1,)))),
    "products": ((5, 7), lambda x: contract.matmul(x, x, transpose_b=True)),
    "totals": ((5, 7), lambda x: scan.cumsum(x, axis=1)),
    "positions that are data": ((40, 3), lambda x: index.gather(x, ew.cast(x, dtype=dt.i64), axis=0)),
}


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("target", ["zen3", "zen4", "neoverse-n1"])
def test_what_is_not_vectorised_has_a_reason(name: str, target: str) -> None:
    shape, body = SOME[name]
    module = oracle.build([tensor(dt.f32, shape)], body)
    remarks = oracle.scheduled(module, target).remarks
    for func in module.funcs.values():
        if func.name != "main" and scalar_loops(func):
            assert any(r.subject.startswith(func.name) and r.stage in ("tiling", "schedule") for r in remarks)


def test_a_loop_that_no_step_vectorised_is_noted() -> None:
    s = Schedule(read(DOUBLE))
    note_scalar_loops(s)
    (said,) = s.missed
    assert said.startswith("loop 'i' of 10 iterations is not vectorised")
    s.vectorize(find_loop(s.func, "i"), 2)
    s.missed.clear()
    note_scalar_loops(s)
    assert s.missed == []
