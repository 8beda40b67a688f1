"""Events of pairs of queues: numbers that tokens get, what is done where there are too few, and what is refused."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from tests.loops.interleave import run_interleaved
from tests.loops.kernel_texts import read
from tests.loops.machine.machines import orders
from tilewright.ir.core import Func
from tilewright.ir.diag import VerifyError
from tilewright.ir.text import print_func
from tilewright.ir.verify import verify_func
from tilewright.loops.machine.rules import machine_spec
from tilewright.loops.queues.events import assign_events, events_used
from tilewright.loops.queues.waits import finish_queues
from tilewright.target.machine import GLOBAL, Events, Intrinsic, Machine, Memory, Route

DOUBLE = Intrinsic(
    "double",
    "kernel @double(x: pad f32[8], y: pad f32[8]) dims() with {outputs=1} {"
    " for i in 0..8 { y[i] = x[i] * 2 }\n return\n }",
    "engine",
)
PLAIN = Machine(
    "small",
    memories=(GLOBAL, Memory("pad", 4096, 16)),
    intrinsics=(DOUBLE,),
    routes=(Route("global", "pad", "load"), Route("pad", "global", "store")),
)


def machine(*counts: tuple[str, str, int]) -> Machine:
    return replace(PLAIN, events=tuple(Events(*each) for each in counts))


def copy(token: str, queue: str, into: str, of: str, after: str = "") -> str:
    return f"run copy on {queue} as {token}{after} {{ for {token}i in 0..8 {{ {into} = {of} }} }}".replace(
        "$", f"{token}i"
    )


def doubled(token: str, into: str, of: str, after: str = "") -> str:
    work = f"{into}[$] = {of}[$] * 2".replace("$", f"{token}i")
    return f"run double on engine as {token}{after} {{ for {token}i in 0..8 {{ {work} }} }}"


def kernel(*lines: str) -> Func:
    body = "\n  ".join(lines)
    return read(f"kernel @k(x: &f32[64], y: &f32[64]) dims() with {{outputs=1}} {{\n  {body}\n  return\n}}")


def both() -> Func:
    """Two parts come, are doubled and leave, each behind the token of its own."""
    return kernel(
        *(f"alloc {name}: pad f32[8]" for name in "abcd"),
        copy("t", "load", "a[$]", "x[$]"),
        copy("u", "load", "b[$]", "x[8 + $]"),
        doubled("v", "c", "a", " after t"),
        doubled("w", "d", "b", " after u"),
        copy("p", "store", "y[$]", "c[$]", " after v"),
        copy("q", "store", "y[8 + $]", "d[$]", " after w"),
        "wait p, q",
    )


def steady() -> Func:
    """In a loop the copy of the next part runs beside the work on this one."""
    return kernel(
        "alloc a: pad f32[2, 8]", "alloc c: pad f32[8]",
        copy("s", "load", "a[0, $]", "x[$]"), "wait s",
        "for k in 0..7 {",
        copy("t", "load", "a[1 - k % 2, $]", "x[8*k + 8 + $]"),
        doubled("v", "c", "a", "").replace("a[vi]", "a[k % 2, vi]"),
        copy("p", "store", "y[8*k + $]", "c[$]", " after v"),
        "wait p, t", "}",
        doubled("z", "c", "a", "").replace("a[zi]", "a[1, zi]"),
        copy("e", "store", "y[56 + $]", "c[$]", " after z"), "wait e",
    )  # fmt: skip


X = np.arange(64, dtype=np.float32)


def check(func: Func, made: Machine, want: np.ndarray) -> None:
    """It is legal, reads back, and events alone keep its order."""
    verify_func(func, machine_spec(made))
    text = print_func(func)
    assert print_func(read(text)) == text
    assert all(np.array_equal(y, want) for y in orders(func, [X], np.zeros_like(X)))


BOTH = np.where(np.arange(64) < 16, 2 * X, 0).astype(np.float32)


def test_tokens_that_are_waited_for_at_the_same_time_have_numbers_of_their_own() -> None:
    func, made = both(), machine(("*", "*", 8))
    finish_queues(func, made)
    check(func, made, BOTH)
    text = print_func(func)
    assert "run copy on load as t sets 0 for engine {" in text
    assert "run copy on load as u sets 1 for engine {" in text
    assert "run copy on store as q sets 0 after w {" in text and "wait q" in text, "the last copy is enough"
    assert events_used(func) == {"engine -> store": 2, "load -> engine": 2, "store -> thread": 1}


def test_without_facts_of_events_there_are_no_numbers() -> None:
    func = both()
    finish_queues(func, PLAIN)
    check(func, PLAIN, BOTH)
    assert "sets" not in print_func(func)


def test_a_number_serves_again_once_the_thread_knows_that_who_waited_has_ended() -> None:
    func, made = steady(), machine(("*", "*", 8))
    finish_queues(func, made)
    check(func, made, 2 * X)
    assert set(events_used(func).values()) == {1}


@pytest.mark.parametrize("counts", [(("*", "*", 1),), (("load", "", 1), ("engine", "", 1), ("*", "", 2))])
def test_where_there_are_too_few_the_thread_waits_earlier(counts: tuple[tuple[str, str, int], ...]) -> None:
    for func, want in ((both(), BOTH), (steady(), 2 * X)):
        made = machine(*counts)
        finish_queues(func, made)
        check(func, made, want)
        used = {tuple(pair.split(" -> ")): n for pair, n in events_used(func).items()}
        assert all(n <= (made.event_count(a, b.replace("thread", "")) or 0) for (a, b), n in used.items())


def test_a_wait_is_put_in_for_a_number_that_is_taken() -> None:
    """Both loads are waited for by the thread, in another order than they were started."""
    func = kernel(
        "alloc a: pad f32[8]", "alloc b: pad f32[8]",
        copy("t", "load", "a[$]", "x[$]"), copy("u", "load", "b[$]", "x[8 + $]"),
        "wait t", "for i in 0..8 { y[i] = a[i] * 2 }",
        "wait u", "for j in 0..8 { y[8 + j] = b[j] * 2 }",
    )  # fmt: skip
    made = machine(("load", "", 1), ("*", "", 1))
    finish_queues(func, made)
    check(func, made, BOTH)
    lines = [line.strip() for line in print_func(func).splitlines()]
    waits = [k for k, line in enumerate(lines) if line.startswith("wait")]
    assert lines[waits[0]] == "wait t" and lines[waits[0] + 1].startswith("run copy on load as u")
    assert len(waits) == 2 and lines[waits[1]] == "wait u"


BROKEN = {
    "queue 'engine' waits for it, and it sets no event": (" sets 1 for engine", ""),
    "it sets event 8 for queue 'engine', and there are 8 from queue 'load'": ("sets 1 for engine", "sets 8 for engine"),
    "it sets event 0 for queue 'engine', which may still wait": ("sets 1 for engine", "sets 0 for engine"),
    "it sets an event for queue 'store', which does not wait": ("sets 1 for engine", "sets 1 for engine, 0 for store"),
    "the thread waits for it, and it sets no event": ("as q sets 0 after w", "as q after w"),
    "its events are numbers by the queues": ("sets 1 for engine", "sets 1 for engine, 2 for engine"),
}


@pytest.mark.parametrize("message", BROKEN)
def test_numbers_that_are_wrong_are_refused(message: str) -> None:
    func, made = both(), machine(("*", "*", 8))
    finish_queues(func, made)
    text = print_func(func)
    assert BROKEN[message][0] in text
    with pytest.raises(VerifyError, match=message):
        verify_func(read(text.replace(*BROKEN[message])), machine_spec(made))


def test_a_machine_without_events_refuses_numbers() -> None:
    func = both()
    finish_queues(func, machine(("*", "*", 8)))
    with pytest.raises(VerifyError, match="machine 'small' has no events"):
        verify_func(func, machine_spec(PLAIN))


def test_an_event_that_is_cleared_too_early_keeps_others_waiting_or_lets_them_go_too_early() -> None:
    """What the check refuses goes wrong in some order: then somebody waits for ever, or reads what is not there."""
    func = both()
    finish_queues(func, machine(("*", "*", 8)))
    wrong = read(print_func(func).replace("sets 1 for engine", "sets 0 for engine"))
    outcomes = set()
    for seed in range(60):
        y = np.zeros_like(X)
        try:
            run_interleaved(wrong, [X, y], {}, random.Random(seed))
            outcomes.add(bool(np.array_equal(y, BOTH)))
        except AssertionError as error:
            assert "all wait" in str(error)
            outcomes.add(False)
    assert outcomes == {True, False}


def test_a_run_that_is_started_again_before_who_waits_for_it_has_begun_is_waited_for() -> None:
    """In the loop the thread learns nothing of the engine, which waits for each load."""
    func = kernel(
        "alloc a: pad f32[8]", "alloc b: pad f32[8]", "alloc c: pad f32[8]",
        copy("s", "load", "b[$]", "x[$]"), "wait s",
        "for k in 0..8 {", copy("t", "load", "a[$]", "x[8*k + $]"), doubled("v", "c", "b", " after t"), "}",
        doubled("z", "c", "b"), "wait z",
        copy("e", "load", "a[$]", "x[$]"), "wait e",
        copy("o", "store", "y[$]", "c[$]"), "wait o",
    )  # fmt: skip
    made = machine(("*", "*", 8))
    verify_func(func, machine_spec(PLAIN))
    assign_events(func, made)
    check(func, made, np.where(np.arange(64) < 8, 2 * X, 0).astype(np.float32))
    assert "wait t" in print_func(func) and "after t" not in print_func(func)
