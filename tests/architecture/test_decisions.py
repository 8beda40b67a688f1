"""One room decides about time: rates of a machine are read in one file of `cost`, those of threads in another, by no
other room, and graph and schedule hold no rates, sizes or shares of their own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import tilewright
from tests.architecture.test_house import nodes, parsed

PACKAGE = Path(tilewright.__file__).parent

RATES = {"caches", "bandwidth", "pipes", "calibration", "cores"}
"""What decides how long something takes. Only `cost/core.py` reads them, and `cost/parallel.py` those of threads."""

FACTS = {*RATES, "LINE_BYTES", "arch", "vector_bits", "vector_registers", "f32_lanes", "embedded_broadcast"}
"""What only the rooms that may know of time read of a target."""

KNOWING = {"target", "cost", "codegen", "asm"}
"""Rooms that describe machines, decide about time, or write for a machine."""

READ_ELSEWHERE = {
    "back_end.py": {"arch": "what machines may be timed"},
    "cli/commands/info.py": dict.fromkeys(("caches", "vector_bits", "vector_registers"), "is printed"),
    "cli/commands/explain.py": {"arch": "what machines may be timed"},
    "loops/storage/nontemporal.py": {"LINE_BYTES": "which stores may go past the caches"},
    "profiling/machine.py": dict.fromkeys(("arch", "caches"), "what is measured"),
    "profiling/meters.py": dict.fromkeys(("caches", "f32_lanes", "vector_bits"), "what is measured"),
    "loops/storage/prefetch.py": {"LINE_BYTES": "what a prefetch fetches"},
}
"""Facts that other rooms read, and for what; none decides."""

ASKING = ("graph", "schedule", "program", "ops", "frontends")
"""Rooms that ask `cost`."""

LIMITS = {
    "schedule/conv/sliding_window.py": {
        "MOST_UNROLLED": "length of code",
        "STRIDES": "what code generation has loads for",
        "MOST_PEELED": "length of code",
    },
    "graph/fusion/refusals.py": {"MOST_BLOCKERS": "length of reports", "TILE_SIDE": "what is told; decides nothing"},
    "schedule/gemm/dequantize.py": {"MOST_UNROLLED": "length of code", "PAIR": "elements of a byte"},
    "schedule/gemm/rounded_rows.py": {"MOST_UNROLLED": "length of code"},
    "schedule/gemm/panels.py": {"LONGEST_STRIDE": "what code generation has loads for"},
    "schedule/steps/blocked_summation.py": dict.fromkeys(("PART", "LEAST_PART", "LONGEST_PART"), "digits of a sum"),
    "schedule/steps/index_set_splitting.py": {
        "SHORTEST": "length of code",
        "MOST_PIECES": "length of code",
        "MULTIPLES": "pieces that are looked for",
    },
    "schedule/sharing/regions.py": {"FEWEST_STARTS": "number of kernels"},
    "schedule/sharing/concurrent_kernels.py": {"MOST_TRIED": "time of compiling"},
    "graph/accesses.py": {"_SMALL_BITS": "range of an integer", "_DEPTH": "bound on a search"},
    "graph/bounds.py": {"MOST_CASES": "bound on a search"},
    "graph/algorithms/gathers.py": {"MOST_INDICES": "time of compiling", "MOST_TERMS": "bound on a search"},
    "graph/algorithms/winograd.py": {"MOST_GROWTH": "rounding errors"},
    "graph/match.py": {"SMALL_ELEMENTS": "time of compiling"},
    "graph/rewrites/duplicates.py": {"COMPARED_BYTES": "time of compiling", "SAMPLED": "time of compiling"},
    "graph/rewrites/fold.py": {"TABLE_WORK": "size of the artefact"},
    "graph/quantised/byte_tables.py": {"VALUES": "range of a byte", "LONGEST": "time of compiling"},
    "graph/quantised/dequantized.py": {"HALF": "range of a byte", "BYTES": "range of a byte"},
    "graph/quantised/exact_division.py": {"SEARCHED": "bound on a search"},
    "graph/integer/fixed.py": {
        "GREATEST": "range of an integer", "SUM_DIGITS": "digits of a sum", "KNOWN_DIGITS": "digits of a constant",
        "LEAST_ERROR": "rounding errors", "HUGE": "what stands for infinity", "INFINITY": "what stands for infinity",
    },
    "graph/integer/obstacles.py": {"SHOWN": "lines of an error"},
    "graph/integer/products.py": {"LEAST_DIGITS": "digits of a factor", "SHORT": "range of an integer"},
    "graph/integer/rows.py": {"LOG_LIMIT": "range of an integer", "MOST_ELEMENTS": "digits of a sum"},
    "graph/integer/sums.py": {"SUMS_BOUND": "digits of a sum"},
    "graph/quantised/weight_only.py": {"LEAST_BYTES": "size of the artefact"},
}
"""Numbers at the head of modules that are no times, and what they bound."""


def trees() -> Iterator[tuple[str, ast.Module]]:
    for room in ASKING:
        for path in sorted((PACKAGE / room).rglob("*.py")):
            yield path.relative_to(PACKAGE).as_posix(), parsed(path)


def read_in(file: Path, facts: set[str]) -> set[str]:
    """The facts of a target that a file reads, or imports."""
    names = {a.name for n in nodes(file) if isinstance(n, ast.ImportFrom) for a in n.names}
    names |= {n.attr for n in nodes(file) if isinstance(n, ast.Attribute) and _is_target(n.value)}
    return names & facts


def _is_target(node: ast.expr) -> bool:
    """Whether an expression names a machine: `target`, `self.machine`, `compilation.setting.target`."""
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name in ("target", "machine", "host")


def test_facts_of_machines_are_read_by_the_rooms_that_may_know_of_time() -> None:
    files = ((p.relative_to(PACKAGE), p) for p in sorted(PACKAGE.rglob("*.py")))
    others = ((path, file) for path, file in files if path.parts[0] not in KNOWING)
    found = {path.as_posix(): read for path, file in others if (read := read_in(file, FACTS))}
    assert found == {file: {*facts} for file, facts in READ_ELSEWHERE.items()}


def test_rates_are_read_in_one_place() -> None:
    files = ((p.relative_to(PACKAGE / "cost"), p) for p in sorted((PACKAGE / "cost").rglob("*.py")))
    found = {path.as_posix(): read_in(p, {*RATES, "arch"}) for path, p in files}
    assert {file: read for file, read in found.items() if read} == {
        "core.py": {"caches", "bandwidth", "pipes", "calibration"},
        "parallel.py": {"cores", "calibration"},
    }


def is_number(node: ast.expr | None) -> bool:
    """Whether an expression holds numbers and nothing but these and operators."""
    if node is None:
        return False
    parts = [n for n in ast.walk(node) if isinstance(n, ast.expr)]
    allowed = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.Tuple, ast.Name)
    numbers = [n for n in parts if isinstance(n, ast.Constant) and type(n.value) in (int, float)]
    return bool(numbers) and all(isinstance(n, allowed) for n in parts)


def test_graph_and_schedule_hold_no_rates_sizes_or_shares() -> None:
    found = {
        f"{file} {target.id}"
        for file, tree in trees()
        if file.startswith(("graph/", "schedule/"))
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and is_number(node.value)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    assert found == {f"{file} {name}" for file, names in LIMITS.items() for name in names}
