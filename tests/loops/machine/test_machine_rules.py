"""What a machine demands of a kernel: each rule broken once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.loops.kernel_texts import read
from tests.loops.machine.machines import COPIED, DOUBLE, MACHINE, MULTIPLY, PAD, orders
from tilewright.codegen.cpu.kernel.emit import kernel_ir
from tilewright.ir.diag import VerifyError
from tilewright.ir.text import print_func
from tilewright.ir.verify import verify_func
from tilewright.loops.analysis.happens_before import Order
from tilewright.loops.machine.check_facts import check_machine
from tilewright.loops.machine.rules import machine_spec
from tilewright.loops.spec import LOOPS_SPEC
from tilewright.target.machine import (
    GLOBAL,
    Intrinsic,
    Level,
    Machine,
    Memory,
    Route,
    TargetError,
)
from tilewright.target.named import parse_target

X = np.arange(16, dtype=np.float32)
Y = X.reshape(2, 8)[:, ::-1].reshape(16) + 1


def test_a_kernel_in_which_all_is_ordered_is_legal_and_computes_the_same_in_each_order() -> None:
    func = read(COPIED)
    verify_func(func, machine_spec(MACHINE))
    assert all(np.array_equal(y, Y) for y in orders(func, [X], Y))


def test_marks_are_text_that_reads_back() -> None:
    text = print_func(read(COPIED))
    assert print_func(read(text)) == text
    assert "run copy on dma as t {" in text and "wait t" in text and "barrier thread" in text


def test_a_kernel_for_another_machine_is_also_code_for_this_one() -> None:
    """Memories are scratch memory there, runs are done in order, and one thread does the loops of inner levels."""
    assert "k.task" in kernel_ir(read(COPIED), parse_target("zen4")).text


REPLACED = {
    "there is no memory": ("alloc a: pad", "alloc a: sram", "gives a buffer in one of pad, acc, not sram f32[8]"),
    "overflow": (
        "alloc a: pad f32[8]",
        "alloc b: pad f32[40]\n    alloc a: pad f32[32]",
        "memory 'pad' has 256 bytes, and 288 are needed here: 'b' (pad f32[40]) takes 160; 'a' (pad f32[32]) takes 128",
    ),
    "copies of threads": (
        "      y[8*c + j] = a[7 - j] + 1",
        "      alloc b: pad f32[16]\n      b[0] = a[7 - j] + 1\n      y[8*c + j] = b[0]",
        "'b' (pad f32[16]) takes 256",
    ),
    "no level": ("core", "die", "there is no level 'die'; the levels of machine 'small' are 'core', 'thread'"),
    "no such level of a barrier": ("barrier thread", "barrier lane", "there is no level 'lane'"),
    "levels the wrong way round": (
        "for j in 0..8 parallel with {level=\"thread\"}",
        "for j in 0..8 parallel with {level=\"core\"}",
        "allocated outside of the loop 'j' of level 'core'",
    ),
    "no queue": ("on dma", "on dma9", "there is no queue 'dma9'; the queues of machine 'small' are dma, out, tensor"),
    "another queue": ("on dma", "on out", "the route runs on queue 'dma', not on queue 'out'"),
    "no intrinsic": ("run copy on dma", "run fly on dma", "there is no intrinsic 'fly'; the intrinsics of machine"),
    "no copy": ("a[i] = x[8*c + i]", "a[i] = x[8*c + i] * 2", "its body is no copy: it does more than to copy"),
    "no route": ("a[i] = x[8*c + i]", "a[i] = a[i]", "has no route from memory 'pad' to memory 'pad'"),
    "unit": ("for i in 0..8", "for i in 0..7", "it copies 28 bytes at a time, which are no multiple of the 16 bytes"),
    "a parallel copy": (
        "for i in 0..8 {",
        "for i in 0..8 vector {",
        "machine 'small' has no vector lanes",
    ),
    "missing barrier": (
        "    barrier thread\n",
        "",
        "threads of level 'thread' may meet in buffer 'a' (pad f32[8]): this load at [-j + 7], and the store at [i] of "
        "another thread, with no barrier between them; put `barrier thread` between",
    ),
    "copy not waited for": (
        "    wait t\n",
        "",
        "the run on queue 'dma' that writes buffer 'a' (pad f32[8]) may not have ended before this load at [-j + 7]; "
        "wait for its token before",
    ),
    "barrier in its loop": (
        "      y[8*c + j] =",
        "      barrier thread\n      y[8*c + j] =",
        "it is in the loop 'j', of which it joins the iterations",
    ),
    "memory of another thread": (
        "alloc a: pad f32[8]",
        "alloc a: acc f32[8]",
        "machine 'small' has no route from memory 'global' to memory 'acc'",
    ),
    "iterations of cores meet": (
        "y[8*c + j] =",
        "y[7*c + j] =",
        "threads of level 'core' may meet in buffer 'y' (&f32[16])",
    ),
}


@pytest.mark.parametrize("name", REPLACED)
def test_what_a_machine_lacks_is_told(name: str) -> None:
    old, new, message = REPLACED[name]
    assert old in COPIED
    with pytest.raises(VerifyError) as error:
        verify_func(read(COPIED.replace(old, new)), machine_spec(MACHINE))
    assert message in str(error.value)


@pytest.mark.parametrize("line", ["    barrier thread\n", "    wait t\n"])
def test_what_the_verifier_misses_shows_in_some_order(line: str) -> None:
    found = orders(read(COPIED.replace(line, "")), [X], Y)
    assert any(np.array_equal(y, Y) for y in found) and not all(np.array_equal(y, Y) for y in found)


MARKS = """
kernel @k(x: &f32[16], y: &f32[16]) dims() with {{outputs=1}} {{
  {body}
  return
}}
"""

ILLEGAL = {
    "for i in 0..4 with {level=\"core\"} {\n y[i] = 0\n }": "a loop of kind serial has no level of parallelism",
    "run copy on q as t {\n run copy on q as u {\n }\n }": "holds no run",
    "run copy on q as t {\n barrier core\n }": "holds no barrier",
    "s: f32 = x[0]\n run copy on q as t {\n y[0] = s\n y[1] = s\n }": "it uses a f32 from outside",
    "run copy {\n for i in 0..4 parallel {\n y[i] = 0\n }\n }": "it is in a run, which one thread starts",
    "for i in 0..4 vector {\n run copy {\n y[i] = 0\n }\n }": "a vector loop holds no run",
    "s: f32 = x[0]\n when s > 0 {\n barrier core\n }": "it is under a condition that is computed from data",
}


@pytest.mark.parametrize("body", ILLEGAL)
def test_marks_where_they_cannot_be(body: str) -> None:
    with pytest.raises(VerifyError) as error:
        verify_func(read(MARKS.format(body=body)), LOOPS_SPEC)
    assert ILLEGAL[body] in str(error.value)


def test_a_run_that_nobody_waits_for() -> None:
    body = "run copy on out as t {\n for i in 0..4 {\n y[i] = s[i]\n }\n }"
    text = MARKS.format(body="alloc s: acc f32[4]\n for z in 0..4 {\n s[z] = 1\n }\n " + body)
    with pytest.raises(VerifyError, match="nobody waits for this run on queue 'out' before the end of the kernel"):
        verify_func(read(text), machine_spec(MACHINE))


IN_TURN = """
kernel @k(x: &f32[8, 4], y: &f32[4]) dims() with {outputs=1} {
  alloc a: pad f32[4]
  alloc b: pad f32[4]
  for k in 0..4 {
    run copy on dma as t {
      for i in 0..4 {
        a[i] = x[k, i]
      }
    }
    run copy on dma as u {
      for j in 0..4 {
        b[j] = x[k + 4, j]
      }
    }
    wait t
  }
  return
}
"""


def test_a_wait_is_for_what_was_started_before_in_this_iteration_and_earlier_ones() -> None:
    """The second copy of an iteration has ended when the first one of the next has, but the last one has not."""
    with pytest.raises(VerifyError, match=r"nobody waits for this run on queue 'dma'[^{]*run copy on dma as u"):
        verify_func(read(IN_TURN), machine_spec(MACHINE))
    verify_func(read(IN_TURN.replace("wait t", "wait u")), machine_spec(MACHINE))


def test_tokens_are_what_is_waited_for() -> None:
    func = read(COPIED.replace("alloc a: pad", "alloc a: scratch"))
    (waits,) = (op for op in func.body.walk() if op.name == "wait")
    (load,) = (op for op in func.body.walk() if op.name == "load" and op.operands[0] is func.args[0])
    waits.set_operands([func.args[0]])
    with pytest.raises(VerifyError, match="waits for one or more tokens"):
        verify_func(func, LOOPS_SPEC)
    (run,) = (op for op in func.body.walk() if op.name == "run")
    run.set_operands([load.operands[0]])
    with pytest.raises(VerifyError, match="waits for tokens and gives one"):
        verify_func(func, LOOPS_SPEC)


def test_memory_without_a_known_size() -> None:
    text = """
    kernel @k(x: &f32[n], y: &f32[n]) dims(n) with {outputs=1} {
      alloc s: pad f32[n]
      for i in 0..n { s[i] = x[i] }
      for j in 0..n { y[j] = s[j] }
      return
    }
    """
    with pytest.raises(VerifyError, match=r"the size of buffer 's' \(pad f32\[n\]\) has no bound; tile the loops"):
        verify_func(read(text), machine_spec(MACHINE))


def test_a_buffer_of_another_core() -> None:
    text = COPIED.replace("    alloc a: pad f32[8]\n", "").replace("  for c", "  alloc a: pad f32[8]\n  for c")
    with pytest.raises(VerifyError, match="each core has a memory 'pad' of its own, and 'a' is allocated outside"):
        verify_func(read(text), machine_spec(MACHINE))


def test_levels_stand_in_the_order_of_the_machine() -> None:
    loops = 'for t in 0..4 parallel with {level="thread"} {\n for c in 0..4 parallel with {level="core"} {\n'
    text = MARKS.format(body=loops + " y[4*t + c] = x[4*t + c]\n }\n }")
    with pytest.raises(VerifyError, match="level 'core' is not within level 'thread' of the loop 't'"):
        verify_func(read(text), machine_spec(MACHINE))


def test_a_parallel_loop_without_a_level() -> None:
    text = MARKS.format(body="for t in 0..16 parallel {\n y[t] = x[t]\n }")
    with pytest.raises(VerifyError, match="a parallel loop needs a level; the levels of machine 'small' are"):
        verify_func(read(text), machine_spec(MACHINE))


PRODUCTS = """
kernel @k(x: &f32[4, 4], y: &f32[4, 4]) dims() with {outputs=1} {
  alloc a: pad f32[4, 4]
  alloc b: pad f32[4, 4]
  alloc c: acc f32[4, 4]
  run mma on tensor as t {
    for i in 0..4 {
      for j in 0..4 {
        for l in 0..4 {
          c[i, j] += a[i, l] * b[l, j]
        }
      }
    }
  }
  wait t
  return
}
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("for l in 0..4", "for l in 0..1", "k is 1, and intrinsic 'mma' takes 2 to 4"),
        ("alloc a: pad f32[4, 4]", "alloc a: pad f32[4, 5]", "intrinsic 'mma' demands sa % 4 == 0, and sa = 5"),
        ("alloc a: pad", "alloc a: acc", "'a' is f32 in memory 'acc' where the intrinsic has 'a', f32 in memory 'pad'"),
        ("a[i, l] * b[l, j]", "a[i, l] + b[l, j]", "it computes a 'add' of f32 where the intrinsic has a 'mul' of f32"),
        ("a[i, l] *", "a[l, i] *", "the stride of 'a' in 'l' is 4, not 1"),
        ("run mma on tensor as t", "run mma on dma as t", "intrinsic 'mma' runs on queue 'tensor', not on queue 'dma'"),
    ],
)
def test_an_intrinsic_does_what_its_body_says(old: str, new: str, message: str) -> None:
    verify_func(read(PRODUCTS), machine_spec(MACHINE))
    with pytest.raises(VerifyError) as error:
        verify_func(read(PRODUCTS.replace(old, new)), machine_spec(MACHINE))
    assert message in str(error.value)


def test_what_depends_on_data_is_done_in_order() -> None:
    text = "s: f32 = x[1]\n when s > 0 {\n run copy on q as t {\n y[0] = x[1]\n }\n wait t\n }"
    assert all(y[0] == X[1] for y in orders(read(MARKS.format(body=text)), [X], X))


WRONG_FACTS = {
    "has two of the memory 'pad'": {"memories": (GLOBAL, PAD, PAD)},
    "has no memory 'global'": {"memories": (PAD,)},
    "memory 'pad' belongs to the level 'core', which it does not have": {"levels": (Level("thread", 2),)},
    "names the memory 'sram', which it does not have; its memories are acc, global, pad": {
        "routes": (Route("global", "sram", "dma"),)
    },
    "has the name of what moves data along routes": {"intrinsics": (replace(DOUBLE, name="copy"),)},
    "the text of intrinsic 'odd' cannot be read": {"intrinsics": (Intrinsic("odd", "kernel @odd("),)},
    "intrinsic 'mma' has no dim 'q'": {"intrinsics": (replace(MULTIPLY, sizes={"q": (1, 2)}),)},
}


@pytest.mark.parametrize("message", WRONG_FACTS)
def test_facts_that_contradict_each_other(message: str) -> None:
    check_machine(MACHINE)
    with pytest.raises(TargetError) as error:
        check_machine(replace(MACHINE, **WRONG_FACTS[message]))
    assert message in str(error.value)


def test_facts_are_found_by_name() -> None:
    assert isinstance(MACHINE, Machine) and MACHINE.memory("pad") == PAD and MACHINE.memory("x") is None
    assert (MACHINE.level("thread"), MACHINE.level("x")) == (1, None)
    assert MACHINE.queues() == ("dma", "out", "tensor")
    assert Memory("m").bytes is None


TWICE = """
kernel @twice(x: &f64[5], y: &f64[5]) dims() with {outputs=1} {
  for io <= 1 in 0..2 parallel with {overlap=true, level="thread"} {
    for ii <= 2 in 0..3 {
      y[ii + min(2, 3*io)] = x[ii + min(2, 3*io)] * 2.0
    }
  }
  return
}
"""


def test_threads_may_write_the_same_twice_where_a_step_has_proved_that_it_is() -> None:
    assert Order(read(TWICE), ["thread"]).why_not() is None
    assert Order(read(TWICE.replace("overlap=true, ", "")), ["thread"]).why_not() is not None
    other = TWICE.replace("* 2.0\n", "* 2.0\n      y[ii + min(2, 3*io)] = x[ii] * 3.0\n")
    assert Order(read(other), ["thread"]).why_not() is not None
