"""Cycles of small programs, computed by hand from the facts of a machine."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from tilewright.ir.diag import UnsupportedError
from tilewright.loops.kernel_info import parse_kernel
from tilewright.loops.machine.check_facts import check_machine
from tilewright.machines.families import matrix_unit
from tilewright.simulator import Timed, time_kernel
from tilewright.target.machine import (
    GLOBAL,
    Accelerator,
    Events,
    Intrinsic,
    Memory,
    Route,
    ScalarUnit,
    TargetError,
    VectorUnit,
)

SMALL = Accelerator(
    "small",
    memories=(GLOBAL, Memory("pad", 4096, 4)),
    intrinsics=matrix_unit("mma", ("f32 pad", "f32 pad", "f32 pad"), queue="tensor", tile=(4, 4, 1), most=(8, 8, 8)),
    routes=(Route("global", "pad", "load", unit=16, cycles=2, start=10, partial=True),),
    units=(VectorUnit("lanes", ("pad",), {"f32": 4}, {"add": 1, "mul": 2}, "vector", across=3, start=5),),
    scalar=ScalarUnit(operation=1, load=2, store=3, issue=1),
)

COPY = "run copy on load as {t} {{ for {t}i in 0..8 {{ a[{slot}{t}i] = x[{at} + {t}i] }} }}"
LANES = "run lanes on vector as {t} {{ for {t}i in 0..8 {{ {what} }} }}"


def timed(body: str) -> Timed:
    text = f"kernel @k(x: &f32[64], y: &f32[64]) dims() with {{outputs=1}} {{ {body}\n return\n }}"
    return time_kernel(parse_kernel(text), SMALL)


def copy(t: str, at: int | str = 0, slot: str = "") -> str:
    return COPY.format(t=t, at=at, slot=slot)


def lanes(t: str, what: str) -> str:
    return LANES.format(t=t, what=what.replace("%", f"{t}i"))


PROGRAMS = {
    # 8 iterations of 1, and in each a load of 2, a multiplication of 1 and a store of 3
    "scalar": ("for i in 0..8 { y[i] = x[i] * x[i] }", 8 * (1 + 2 + 2 + 1 + 3), {}),
    # started at 1, 32 bytes are 2 units: 10 + 2 * 2 = 14; the wait is issued at 2, and ends at 15
    "copy": (f"alloc a: pad f32[8] {copy('t')} wait t", 1 + 14, {"load": 14}),
    # the second copy queues behind the first: 15 + 14; a vector run of 5 + 2 * 1 starts at 15 beside it, 22
    "beside": (
        f"alloc a: pad f32[2, 8] alloc b: pad f32[8] {copy('t', slot='0, ')} {copy('u', 8, '1, ')} wait t "
        f"{lanes('v', 'b[%] = a[0, %] + a[0, %]')} wait u, v",
        1 + 14 + 14,
        {"load": 28, "vector": 7},
    ),
    # a vector run behind a token: the copy ends at 15, then 5 + 2 * (1 + 2)
    "chained": (
        f"alloc a: pad f32[8] alloc b: pad f32[8] {copy('t')} "
        "run lanes on vector as v after t { for j in 0..8 { b[j] = a[j] * a[j] + a[j] } } wait v",
        15 + 11,
        {"load": 14, "vector": 11},
    ),
    # 6 iterations: issue of the loop and of the run 2, then 14, the wait being over before: 6 * 16
    "loop": (f"for k in 0..6 {{ alloc a: pad f32[8] {copy('t', '8 * k')} wait t }}", 6 * 16, {"load": 6 * 14}),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_cycles_are_those_computed_by_hand(name: str) -> None:
    body, cycles, busy = PROGRAMS[name]
    found = timed(body)
    assert found.cycles == cycles
    assert {q: n for q, n in found.busy.items() if q != "scalar"} == busy


def test_many_equal_iterations_take_as_long_as_they_do_one_by_one() -> None:
    """A sum of 100 products whose extents say nothing of the iteration, and one whose extents do."""
    body = "for k in 0..100 {{ alloc a: pad f32[8] {0} wait t }}"
    steady = timed(body.format(copy("t")))
    varying = timed(body.format("for z in 0..min(2, k + 1) { y[z] = 0.0 } " + copy("t")))
    assert len(steady.events) < 5 and len(varying.events) == 100
    assert steady.cycles == 100 * 16 and varying.cycles == 100 * 16 + (1 + 99 * 2) * (1 + 3)
    assert steady.bytes == {"global -> pad": 100 * 32}


def test_a_product_takes_the_cycles_of_its_tiles() -> None:
    body = (
        "alloc a: pad f32[6, 3] alloc b: pad f32[3, 5] alloc c: pad f32[6, 5] "
        "run mma on tensor as t { for i in 0..6 { for l in 0..3 { for j in 0..5 { c[i, j] += a[i, l] * b[l, j] } } } } "
        "wait t"
    )
    assert timed(body).busy["tensor"] == 2 * 2 * 3


def test_a_sum_in_lanes_comes_together() -> None:
    body = "alloc a: pad f32[8] alloc b: pad f32[1] run lanes on vector as t { for i in 0..8 { b[0] += a[i] } } wait t"
    assert timed(body).busy["vector"] == 5 + 2 * 1 + 3


def test_sizes_that_are_not_known_are_told() -> None:
    kernel = parse_kernel(
        "kernel @k(x: &f32[n], y: &f32[n]) dims(n) with {outputs=1} { for i in 0..n { y[i] = x[i] }\n return\n }"
    )
    with pytest.raises(UnsupportedError, match="depends on the size 'n'"):
        time_kernel(kernel, SMALL)
    assert time_kernel(kernel, SMALL, {"n": 4}).cycles == 4 * (1 + 2 + 3)


LARGE = Intrinsic("large", "kernel @large(a: pad f32[2048]) dims() with {outputs=1} { a[0] = 0.0\n return\n }")
PRODUCT, CLEAR = SMALL.intrinsics
(UNIT,) = SMALL.units
(WAY,) = SMALL.routes


def products(**changes: object) -> dict[str, object]:
    return {"intrinsics": (dataclasses.replace(PRODUCT, **changes), CLEAR)}  # type: ignore[arg-type]


def lanes_with(**changes: object) -> dict[str, object]:
    return {"units": (dataclasses.replace(UNIT, **changes),)}  # type: ignore[arg-type]


def ways(*more: Route, **changes: object) -> dict[str, object]:
    return {"routes": (dataclasses.replace(WAY, **changes), *more)}  # type: ignore[arg-type]


CONTRADICTIONS: dict[str, dict[str, object]] = {
    "takes operands of 8192 bytes in memory 'pad', which has 4096": {"intrinsics": (LARGE,)},
    "names the memory 'attic'": ways(target="attic"),
    "has no queue": ways(queue=""),
    "takes 10 and 2 cycles for each 0 bytes": ways(unit=0),
    "memory 'pad' has 0 bytes": {"memories": (GLOBAL, Memory("pad", 0))},
    "fewer than the 128 it is aligned to": {"memories": (GLOBAL, Memory("pad", 64, 128))},
    "vector unit 'lanes' names the memory 'attic'": lanes_with(memories=("attic",)),
    "has 0 lanes for f32": lanes_with(lanes={"f32": 0}),
    "vector unit 'lanes' works in no memory": lanes_with(memories=()),
    "vector unit 'lanes' has no lanes": lanes_with(lanes={}),
    "lanes for 'f33', which is no dtype": lanes_with(lanes={"f33": 4}),
    "does 'adds', which is no scalar operation": lanes_with(operations={"adds": 1}),
    "takes -1 cycles for add": lanes_with(operations={"add": -1}),
    "takes -5 cycles for a start": lanes_with(start=-5),
    "lanes is {'f32': '4'}, and no table of whole numbers": lanes_with(lanes={"f32": "4"}),
    "has no dim 'q', of which its cycles speak": products(cycles="q + 1"),
    "takes -1 cycles for m=1": products(cycles="0 - m"),
    "takes sizes from 9 to 3 along dim 'm'": products(sizes={**PRODUCT.sizes, "m": (9, 3)}),
    "takes sizes from 0 to 3 along dim 'm'": products(sizes={**PRODUCT.sizes, "m": (0, 3)}),
    "the text of intrinsic 'mma' cannot be read": products(body="kernel @mma("),
    "two routes from 'global' to 'pad'": ways(Route("global", "pad", "second")),
    "leads to where it begins": ways(Route("pad", "pad", "load")),
    "leads nowhere: no unit, intrinsic or route reads it": {
        **ways(Route("global", "attic", "load")), "memories": (*SMALL.memories, Memory("attic", 64))
    },
    "cycles is nan, and no finite number": ways(cycles=float("nan")),
    "bytes is '4K', and no whole number": {"memories": (GLOBAL, Memory("pad", "4K"))},  # type: ignore[arg-type]
    "its memories are a list, and no tuple": {"memories": [*SMALL.memories]},
    "one of its routes is a Memory, and no Route": {"routes": (Memory("pad"),)},
    "the scalar unit takes -1 cycles for each operation": {"scalar": ScalarUnit(operation=-1)},
    "its clock has 0 cycles a second": {"clock_hz": 0},
    "is no word without commas": {"name": "small,fast"},
    "a vector unit has no name": lanes_with(name=""),
    "queue 'load' has no event for the thread": {"events": (Events("load", "", 0), Events("*", "*", 8))},
    "queue 'tensor' has no event for the thread": {"events": (Events("load", "", 4), Events("vector", "", 4))},
    "from 'attic' to '*': there is no queue 'attic'": {"events": (Events("attic", "*", 4), Events("*", "*", 4))},
    "from '' to 'load': there is no queue ''": {"events": (Events("", "load", 4), Events("*", "*", 4))},
    "from 'load' to 'load': runs on one queue follow": {"events": (Events("load", "load", 4), Events("*", "*", 4))},
    "from 'load' to 'vector': there are -1": {"events": (Events("load", "vector", -1), Events("*", "*", 4))},
    "facts before it speak of all these pairs": {"events": (Events("*", "*", 4), Events("load", "vector", 2))},
    "count is 1.5, and no whole number": {"events": (Events("*", "*", 1.5),)},  # type: ignore[arg-type]
}  # fmt: skip


@pytest.mark.parametrize("message", CONTRADICTIONS)
def test_facts_that_contradict_each_other_are_refused(message: str) -> None:
    check_machine(SMALL)
    with pytest.raises(TargetError, match=r"machine '.*': (.|\n)*" + re.escape(message)):
        check_machine(dataclasses.replace(SMALL, **CONTRADICTIONS[message]))  # type: ignore[arg-type]


def test_the_fact_is_shown_as_it_would_be_written_and_others_are_counted() -> None:
    wrong = dataclasses.replace(SMALL, **ways(Route("attic", "pad", ""), start=-1))  # type: ignore[arg-type]
    with pytest.raises(TargetError) as error:
        check_machine(wrong)
    fact, _, place = str(error.value.where).rpartition(", ")
    assert fact == "Route('global', 'pad', 'load', unit=16, cycles=2, start=-1, partial=True)"
    assert re.fullmatch(re.escape(__file__) + r":\d+ \(from line \d+\)", place), place
    assert "there are 2 more" in error.value.what


FILE = """
from tilewright.machines.families import matrix_unit
from tilewright.target.machine import GLOBAL, Accelerator, Events, Memory, Route

def way(source, target):
    return Route(source, target, "load")

MACHINE = Accelerator(
    "mine",
    memories=(GLOBAL, Memory("pad", 4096)),
    intrinsics=matrix_unit("mma", ("f32 pad", "f32 pad", "f32 pad"), queue="array",
                           tile=(4, 4, 1), most=(8, 8, 8)),
    routes=(way("global", "pad"),
            Route("pad", "global", "store")),
    events=(Events("*", "*", 8),),
)
"""

WRONG_LINES = {
    "a memory": ('Memory("pad", 4096)', 'Memory("pad", 0)', "Memory('pad', 0), {}:10"),
    "a route": ('"global", "store"', '"attic", "store"', "Route('pad', 'attic', 'store'), {}:14"),
    "a route by a function": ('"load"', '""', "Route('global', 'pad', ''), {}:6 (from line 13)"),
    "an intrinsic of a family": ("f32 pad", "f32 attic", "{}:11"),
    "events": ("8),)", "0),)", "Events('*', '*', 0), {}:15"),
    "the machine": ('"mine"', '"my, own"', "{}:8"),
}


@pytest.mark.parametrize("case", WRONG_LINES)
def test_facts_that_contradict_each_other_are_refused_with_their_line(case: str, tmp_path: Path) -> None:
    old, new, where = WRONG_LINES[case]
    path = tmp_path / "mine.py"
    assert old in FILE
    made: dict[str, object] = {"__name__": "mine"}
    exec(compile(FILE.replace(old, new), str(path), "exec"), made)
    with pytest.raises(TargetError) as error:
        check_machine(made["MACHINE"])  # type: ignore[arg-type]
    assert str(error.value.where).endswith(where.format(path)), error.value.where
