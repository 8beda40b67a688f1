"""Schedules of a scratchpad: what is loaded, run, stored and freed, by hand, by brute force and by drawn problems."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.machines.test_toy import model
from tilewright.cli.app import commands
from tilewright.program.memory.scratchpad.bound import in_a_row, least_cycles
from tilewright.program.memory.scratchpad.exact import best_actions
from tilewright.program.memory.scratchpad.listing import list_actions
from tilewright.program.memory.scratchpad.overlap import most_beside
from tilewright.program.memory.scratchpad.picture import schedule_picture
from tilewright.program.memory.scratchpad.plan import Plan, plan
from tilewright.program.memory.scratchpad.problem import (
    Operation,
    ScratchpadProblem,
    ScratchTensor,
    Transfer,
    check,
    least_capacity,
)
from tilewright.program.memory.scratchpad.schedule import (
    Action,
    ScheduleFault,
    parse_schedule,
    print_schedule,
    simulate,
)
from tilewright.runtime.errors import InputError

X, W, Y, V, Z = (
    ScratchTensor("x", 4, given=True),
    ScratchTensor("w", 4, given=True),
    ScratchTensor("y", 2),
    ScratchTensor("v", 6, given=True),
    ScratchTensor("z", 2, wanted=True),
)
TWO = ScratchpadProblem((X, W, Y, V, Z), (Operation("f", (0, 1), (2,), 10), Operation("g", (2, 3), (4,), 5)), 16)
"""Two products in a row, each with a weight of its own."""


def test_a_time_line_by_hand() -> None:
    """f runs from 8, when x and w are loaded, and v comes meanwhile; g from 18, and its result is stored from 23."""
    text = """
    schedule in 16 bytes {
      L x at 0
      L w at 4
      R f -> y at 8
      F x
      F w
      L v at 10
      R g -> z at 0
      F y
      F v
      S z
    }
    """
    actions = parse_schedule(TWO, text.replace("\n    ", "\n").strip())
    line = simulate(TWO, actions)
    at = {(a.kind, a.index): (s, e) for a, s, e in zip(actions, line.starts, line.ends, strict=True)}
    assert at["R", 0] == (8, 18) and at["L", 3] == (8, 14)
    assert at["R", 1] == (18, 23) and at["S", 4] == (23, 25)
    assert (line.cycles, line.peak) == (25, 16)
    assert plan(TWO).line.cycles == plan(TWO).bound == 25, "nothing can end sooner"


def test_a_load_waits_for_the_bytes_that_it_fills() -> None:
    """Where v takes the place of x and w, it comes only when f has read them."""
    tight = dataclasses.replace(TWO, capacity=10)
    made = plan(tight)
    (load,) = [n for n, a in enumerate(made.actions) if a == Action("L", 3, a.offsets)]
    (run,) = [n for n, a in enumerate(made.actions) if a.kind == "R" and a.index == 0]
    assert run in made.line.tokens[load] and made.line.starts[load] == 18
    assert made.line.cycles == 18 + 6 + 5 + 2 and made.is_best


def test_what_does_not_fit_leaves_and_comes_back() -> None:
    """a is read by the first and the last operation, and between them the scratchpad has no room for it."""
    tensors = (
        ScratchTensor("a", 4, given=True),
        ScratchTensor("b", 6),
        ScratchTensor("c", 6),
        ScratchTensor("d", 2, wanted=True),
    )
    operations = (Operation("f", (0,), (1,), 3), Operation("g", (1,), (2,), 3), Operation("h", (0, 2), (3,), 3))
    made = plan(ScratchpadProblem(tensors, operations, 12))
    assert [a.index for a in made.actions if a.kind == "L"] == [0, 0]
    roomy = plan(ScratchpadProblem(tensors, operations, 16))
    assert [a.index for a in roomy.actions if a.kind == "L"] == [0]


FAULTS = {
    "use before a load": ("L x at 0\nR f -> y at 8", "which is not in the scratchpad"),
    "use after a free": ("L x at 0\nL w at 4\nF x\nR f -> y at 8", "runs 'f' on 'x', which is not in the scratchpad"),
    "over capacity": ("L x at 14", "to bytes 14 to 18 of 16"),
    "in each other's place": ("L x at 0\nL w at 2", "where 'x' is: 0 to 4"),
    "a load of what was never stored": ("L y at 0", "which was never stored"),
    "a second load": ("L x at 0\nL x at 4", "in the scratchpad already"),
    "an operation left out": ("L x at 0", "never runs operation 'f'"),
    "a store left out": (
        "L x at 0\nL w at 4\nR f -> y at 8\nF x\nF w\nL v at 0\nR g -> z at 6", "never stores 'z', which is wanted",
    ),
    "an operation twice": ("L x at 0\nL w at 4\nR f -> y at 8\nR f -> y at 8", "a second time"),
}  # fmt: skip


@pytest.mark.parametrize("what", FAULTS)
def test_broken_schedules_are_refused(what: str) -> None:
    lines, message = FAULTS[what]
    with pytest.raises(ScheduleFault, match=message.replace("(", r"\(")):
        simulate(TWO, parse_schedule(TWO, f"schedule in 16 bytes {{\n{lines}\n}}"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("L q at 0", "names tensor 'q', which there is not"),
        ("R f -> z at 0", "lacks the result 'y'"),
        ("L x at here", "'here' in the place of an address"),
        ("M x", "begins with none of"),
        ("F x y", "has 'y' behind its end"),
    ],
)
def test_lines_that_are_no_actions(line: str, message: str) -> None:
    with pytest.raises(InputError, match=f"line 2, '{line}', .*{message}"):
        parse_schedule(TWO, f"schedule in 16 bytes {{\n{line}\n}}")


def test_an_operation_that_does_not_fit_says_what_is_missing() -> None:
    with pytest.raises(InputError, match=r"'f' needs 10 bytes of the scratchpad at once, 1 more than its 9"):
        plan(dataclasses.replace(TWO, capacity=9))
    assert least_capacity(TWO) == 10


def test_operations_that_contradict_each_other() -> None:
    backwards = dataclasses.replace(TWO, operations=TWO.operations[::-1])
    with pytest.raises(InputError, match="'g' reads 'y', which nothing before it writes"):
        check(backwards)
    with pytest.raises(InputError, match="'z' is wanted, and no operation writes it"):
        check(dataclasses.replace(TWO, operations=TWO.operations[:1]))


def test_nothing_to_do() -> None:
    made = plan(ScratchpadProblem((), (), 0))
    assert made.actions == () and made.line.cycles == 0 and made.is_best


# Drawn problems


def drawn(rng: random.Random, count: int, most_bytes: int) -> ScratchpadProblem:
    """Operations that read one or two of the last results, most with a weight, in a scratchpad that is hardly large
    enough or has some room."""
    tensors = [ScratchTensor("x 0", rng.randint(0, most_bytes), given=True)]
    operations, recent = [], [0]
    for k in range(count):
        reads = rng.sample(recent, min(len(recent), rng.choice([1, 1, 2])))
        if rng.random() < 0.6:
            tensors.append(ScratchTensor(f"w{k}", rng.randint(0, most_bytes), given=True))
            reads.append(len(tensors) - 1)
            if rng.random() < 0.2:
                recent.append(len(tensors) - 1)
        tensors.append(ScratchTensor(f"t{k}", rng.randint(1, most_bytes), wanted=rng.random() < 0.2))
        operations.append(Operation(f"op{k}", tuple(reads), (len(tensors) - 1,), rng.randint(0, 2 * most_bytes)))
        recent = [*recent, len(tensors) - 1][-4:]
    read = {t for op in operations for t in op.reads}
    ends = [dataclasses.replace(t, wanted=t.wanted or not (t.given or n in read)) for n, t in enumerate(tensors)]
    rates = [Transfer(rng.choice([1, 4]), rng.randint(1, 2), rng.randint(0, 3)) for _ in range(2)]
    problem = ScratchpadProblem(tuple(ends), tuple(operations), 0, rng.choice([1, 4]), *rates)
    return dataclasses.replace(problem, capacity=int(least_capacity(problem) * rng.choice([1, 1.3, 2, 4])))


@pytest.mark.fresh_seeds(12)
def test_drawn_schedules_keep_all_rules(fresh_seed: int) -> None:
    rng = random.Random(fresh_seed)
    problem = drawn(rng, rng.choice([1, 3, 8, 30]), 40)
    made = plan(problem, tries=10, states=100)
    assert parse_schedule(problem, print_schedule(problem, made.actions)) == made.actions
    assert made.line == simulate(problem, made.actions) and made.line.cycles >= made.bound
    assert least_cycles(problem) <= made.line.cycles and made.line.peak <= problem.capacity
    assert_tokens_suffice(problem, made.actions, rng)
    assert schedule_picture(problem, made.actions, made.line).count("<rect") > 1


def assert_tokens_suffice(problem: ScratchpadProblem, actions: tuple[Action, ...], rng: random.Random) -> None:
    """In any times that queues and tokens allow, no bytes belong to two tensors at once."""
    line = simulate(problem, actions)
    ends: list[int] = []
    starts: list[int] = []
    last: dict[str, int] = {}
    for n, action in enumerate(actions):
        before = [ends[k] for k in line.tokens[n]] + ([ends[last[action.kind]]] if action.kind in last else [])
        if action.kind != "F":
            last[action.kind] = n
        starts.append(max(before, default=0) + (rng.randint(0, 50) if action.kind != "F" else 0))
        ends.append(starts[-1] + (rng.randint(0, 50) if action.kind != "F" else 0))
    held: dict[int, tuple[int, int, int]] = {}
    stays = []
    for n, action in enumerate(actions):
        made = problem.operations[action.index].writes if action.kind == "R" else (action.index,) * (action.kind == "L")
        for tensor, offset in zip(made, action.offsets, strict=True):
            held[tensor] = offset, offset + problem.bytes_of(tensor), starts[n]
        if action.kind == "F":
            stays.append((*held.pop(action.index), ends[n]))
    stays += [(*rest, 1 << 60) for rest in held.values()]
    for (a, b, since, until), (c, d, other, end) in itertools.combinations(stays, 2):
        assert not (a < d and c < b) or until <= other or end <= since


def without_one(actions: tuple[Action, ...]) -> Iterator[tuple[Action, tuple[Action, ...]]]:
    for n, action in enumerate(actions):
        yield action, actions[:n] + actions[n + 1 :]


@pytest.mark.fresh_seeds(2)
def test_each_action_is_needed(fresh_seed: int) -> None:
    """Without one load, operation or store a schedule is refused; without a free only where its bytes are filled."""
    rng = random.Random(fresh_seed)
    problem = drawn(rng, 8, 40)
    made = plan(problem, tries=5, states=0)
    for action, rest in without_one(made.actions):
        if action.kind == "F" or (action.kind == "L" and not problem.readers[action.index]):
            continue
        with pytest.raises(ScheduleFault):
            simulate(problem, rest)


# The shortest one


@pytest.mark.fresh_seeds(3)
def test_the_exact_search_is_never_behind(fresh_seed: int) -> None:
    problem = drawn(random.Random(fresh_seed), 4, 40)
    listed, exact = plan(problem, tries=30, states=0), plan(problem, tries=1, states=20_000)
    assert exact.bound <= listed.line.cycles, "the bound holds for all schedules"
    assert not exact.is_best or exact.line.cycles <= listed.line.cycles


@pytest.mark.fresh_seeds(6)
def test_no_schedule_is_shorter_than_the_bound(fresh_seed: int) -> None:
    """The search knows the bound of its own states alone, so that it would find such a schedule."""
    rng = random.Random(fresh_seed)
    problem = drawn(rng, rng.choice([2, 3, 4, 5]), 40)
    exact = best_actions(problem, None, 20_000)
    if exact.actions is not None:
        assert least_cycles(problem) <= simulate(problem, exact.actions).cycles


def test_loads_do_not_overlap_with_what_they_have_no_room_beside() -> None:
    """w1 has no room beside f0, nor w2 beside f1, and neither can come before: an operation between leaves no room."""
    small = chain(3, 50)
    line = plan(small).line
    assert least_cycles(small) >= sum(op.cycles for op in small.operations) + 30 + 31 + 32
    assert line.cycles >= least_cycles(small)


def test_how_much_runs_beside() -> None:
    assert most_beside([5, 5], [4, 10], [[0, 1], [0]]) == 9
    assert most_beside([5, 5], [4, 10], [[], [0]]) == 4
    assert most_beside([3, 4, 5], [6, 6], [[0], [0, 1], [0, 1]]) == 12 and most_beside([], [3], []) == 0


def test_an_operation_whose_operands_are_there_does_not_wait_for_loads() -> None:
    """The first machine is busy until 236, and two of three jobs need nothing of it."""
    assert in_a_row([(0, 28), (0, 1), (0, 35)], 236, 168) == 168 + 64
    assert in_a_row([(4, 28), (0, 1)], 236, 168) == 240 + 28
    problem = drawn(random.Random(690741675), 4, 40)
    assert plan(problem, tries=1, states=20_000).bound <= plan(problem, tries=30, states=0).line.cycles


def chain(count: int, capacity: int) -> ScratchpadProblem:
    """Products in a row, each with a weight of its own."""
    tensors = [ScratchTensor("t0", 8, given=True)]
    operations = []
    for n in range(count):
        tensors += [ScratchTensor(f"w{n}", 30 + n, given=True), ScratchTensor(f"t{n + 1}", 8, wanted=n == count - 1)]
        operations.append(Operation(f"f{n}", (max(0, 2 * n), 2 * n + 1), (2 * n + 2,), 25 + 3 * (n % 4)))
    return ScratchpadProblem(tuple(tensors), tuple(operations), capacity)


def test_the_next_weight_is_loaded_beside_each_product() -> None:
    made = plan(chain(12, 150))
    assert made.is_best and made.line.cycles < 1.1 * sum(made.line.ends[n] - made.line.starts[n] for n in loads(made))


def loads(made: Plan) -> list[int]:
    return [n for n, action in enumerate(made.actions) if action.kind == "L"]


def test_few_operations_are_proved_where_memory_is_tight() -> None:
    """A listing that finds no room in a row lets all leave; the shortest schedule has other addresses."""
    tight = chain(5, 50)
    made = plan(tight)
    assert made.is_best and made.line.cycles < plan(tight, tries=1, states=0).line.cycles


def weights_between(capacity: int) -> ScratchpadProblem:
    """A long operation, beside which one of three weights has room, and then a short one for each of these."""
    tensors = [ScratchTensor("t", 10, given=True), ScratchTensor("m", 10)]
    operations = [Operation("long", (0,), (1,), 200)]
    for n in range(3):
        tensors += [ScratchTensor(f"w{n}", 40, given=True), ScratchTensor(f"r{n}", 10, wanted=n == 2)]
        operations.append(Operation(f"short{n}", (2 * n + 1, 2 * n + 2), (2 * n + 3,), 5))
    return ScratchpadProblem(tuple(tensors), tuple(operations), capacity)


def test_what_comes_beside_an_operation_has_room_there_together() -> None:
    """Each weight has room beside the long operation, where 40 bytes are left; the other two come behind it, of which
    one operation of 5 hides a part: 10 for t, 200, 40, 5, 40 - 5, 5 and 5 for the third, and its store."""
    made = plan(weights_between(60))
    assert made.is_best and made.line.cycles >= 10 + 200 + 2 * 40
    assert plan(weights_between(140)).line.cycles == 10 + 200 + 3 * 5 + 10, "all three have room"


def test_tensors_on_the_other_side_leave_bytes_in_one_piece() -> None:
    """The weight of 60 bytes has room beside g where what g reads does not lie in the midst of what is free."""
    problem = ScratchpadProblem(
        (
            ScratchTensor("a", 40, given=True), ScratchTensor("b", 4), ScratchTensor("w", 20, given=True),
            ScratchTensor("c", 4), ScratchTensor("v", 60, given=True), ScratchTensor("d", 4, wanted=True),
        ),
        (Operation("f", (0,), (1,), 50), Operation("g", (1, 2), (3,), 50), Operation("h", (3, 4), (5,), 50)),
        100,
    )  # fmt: skip
    cycles = {high: simulate(problem, list_actions(problem, range(3), 0, high)).cycles for high in ((), (1, 2, 3))}
    assert cycles[1, 2, 3] < cycles[()]
    assert plan(problem, states=0).line.cycles == cycles[1, 2, 3]


def test_a_large_load_that_comes_early_is_ahead_of_small_ones() -> None:
    """The large weight has room beside the first operation, and the small one beside the second alone where it is
    there."""
    problem = ScratchpadProblem(
        (
            ScratchTensor("x", 8, given=True), ScratchTensor("y", 8), ScratchTensor("s", 12, given=True),
            ScratchTensor("z", 8), ScratchTensor("l", 64, given=True), ScratchTensor("o", 8, wanted=True),
        ),
        (Operation("f", (0,), (1,), 70), Operation("g", (1, 2), (3,), 20), Operation("h", (3, 4), (5,), 30)),
        92,
    )  # fmt: skip
    late, early = (simulate(problem, list_actions(problem, range(3), 2, (), e)).cycles for e in ((), (4,)))
    assert early < late and plan(problem, states=0).line.cycles <= early


# Models


def memory_of(tmp_path: Path, name: str, output: str, *more: str) -> str:
    path = tmp_path / "model.onnx"
    path.write_bytes(model(name))
    result = CliRunner().invoke(commands, ["memory", str(path), "-o", str(tmp_path / output), *more])
    return result.output if result.exit_code == 0 else f"{result.exit_code}: {result.output}"


def test_models_have_schedules(tmp_path: Path) -> None:
    on_npu = ["--target", "npu16", "--scratchpad", "ub"]
    assert "no schedule is shorter" in memory_of(tmp_path, "rows", "s.txt", *on_npu)
    text = (tmp_path / "s.txt").read_text()
    assert text.startswith("schedule in 262144 bytes {") and [line[2] for line in text.splitlines()[1:3]] == ["L", "R"]
    memory_of(tmp_path, "rows", "s.svg", *on_npu)
    assert (tmp_path / "s.svg").read_text().startswith("<svg")


def test_machines_without_the_memory(tmp_path: Path) -> None:
    assert "has no scratchpad 'l9'" in memory_of(tmp_path, "double", "s.svg", "--target", "npu16", "--scratchpad", "l9")
    assert "programs manage no memory of" in memory_of(tmp_path, "double", "s.svg", "--scratchpad", "ub")
