"""The text of traces, and taking their steps on a kernel."""

from __future__ import annotations

import pytest

from tests.loops.kernel_texts import read
from tilewright.ir.core import Func, Op
from tilewright.ir.diag import ScheduleError, TextError
from tilewright.ir.text import print_func
from tilewright.loops.edit import find_loop, loops_in
from tilewright.loops.primitive import PRIMITIVES, primitive
from tilewright.loops.storage.packing import Packing
from tilewright.schedule.references import References, find_buffer, find_op
from tilewright.schedule.replay import ReplayError, replay
from tilewright.schedule.text import parse_schedules, parse_trace
from tilewright.schedule.trace import Schedule

TWICE = """
kernel @k(x: &f64[n, 12], y: &f64[n, 12]) dims(n) with {outputs=1} {
  alloc t: scratch f64[n, 12]
  for i in 0..n {
    for j in 0..12 {
      t[i, j] = x[i, j] * 2
    }
  }
  for i in 0..n {
    for j in 0..12 {
      if 1 <= j { y[i, j] = t[i, j] + x[i, j - 1] }
      if j < 1 { y[i, j] = t[i, j] }
    }
  }
  return
}
"""
SEVERAL_NAMES = """
kernel @k(x: &f64[4], y: &f64[4]) dims() with {outputs=1} {
  for i in 0..4 {
    alloc t: reg f64[1]
    t[0] = x[i]
    y[i] = t[0]
  }
  return
}
"""


def took(text: str, kernel: str = TWICE) -> str:
    """The kernel after the steps of a trace."""
    return print_func(replay(read(kernel), parse_trace(text)))


def why(text: str, kernel: str = TWICE) -> ScheduleError:
    """The refusal of a trace, whose place is that of the line with an arrow."""
    with pytest.raises(ReplayError) as refused:
        replay(read(kernel), parse_trace(text))
    return refused.value


def not_read(text: str) -> str:
    with pytest.raises(TextError) as error:
        parse_trace(text, file="edited.txt")
    return str(error.value)


# References


def test_loops_of_one_name_are_counted_in_program_order() -> None:
    func = read(TWICE)
    names = [References(func).to(loop) for loop in loops_in(func.body)]
    assert names == ["i", "j", "i@2", "j@2"]
    assert [find_op(name, func) for name in names] == loops_in(func.body)


def test_accesses_are_counted_for_each_buffer() -> None:
    func = read(TWICE)
    accesses = [op for op in func.body.walk() if op.name in ("load", "store")]
    names = [References(func).to(op) for op in accesses]
    assert names == [
        "x.load", "t.store", "t.load", "x.load@2", "y.store", "t.load@2", "y.store@2",
    ]  # fmt: skip
    assert [find_op(name, func) for name in names] == accesses


def test_other_ops_go_by_their_kind() -> None:
    func = read(TWICE)
    conditions = [op for op in func.body.walk() if op.name == "if"]
    assert [References(func).to(op) for op in conditions] == ["op.if", "op.if@2"]
    assert [find_op(name, func) for name in ("op.if", "op.if@2")] == conditions


def test_buffers_of_one_name_are_counted_arguments_first() -> None:
    func = read(SEVERAL_NAMES)
    (alloc,) = [op for op in func.body.walk() if op.name == "alloc"]
    for name, argument, local in (("y", "y", "y@2"), ("layer/1:0", "y", "layer_1_0"), ("", "y", "buffer")):
        alloc.result.name = name
        assert [References(func).to(v) for v in (func.args[1], alloc.result)] == [argument, local]
        assert find_buffer(local, func) is alloc.result


@pytest.mark.parametrize(
    ("reference", "message", "hint"),
    [
        ("i0", "there is no loop 'i0' here; the loops are i, j", "did you mean i?"),
        ("i@3", "there is no loop 'i@3' here: there are 2 of this name", None),
        ("x.lod", "there is no access 'x.lod' here; the accesses are x.load, t.store", "did you mean x.load"),
        ("x.load@3", "there is no op 'x.load@3' here: there are 2 of this name", None),
    ],
)
def test_what_is_not_there_is_told_with_what_is(reference: str, message: str, hint: str | None) -> None:
    with pytest.raises(ScheduleError) as error:
        find_op(reference, read(TWICE))
    assert error.value.what.startswith(message)
    assert hint is None or hint in (error.value.hint or "")


def test_a_buffer_that_is_not_there() -> None:
    with pytest.raises(ScheduleError, match="no buffer 'u' here; the buffers are x, y, t"):
        find_buffer("u", read(TWICE))


# Text


def test_every_argument_is_in_the_text() -> None:
    """Steps with arguments of each type, as they are written down."""
    func = read(TWICE)
    s = Schedule(func, may_specialize=True)
    i, j = find_loop(func, "i"), find_loop(func, "j")
    s.at_least(func.dims[0], 5)
    s.split(j, 4, tail="overlap", remainder=2)
    later = find_op("j", func)
    s.pack(func.args[0], later, Packing(((), (5,)), (1, 0, 2)), only=[find_op("x.load@2", func)])
    s.split_range(i, func.dims[0] - 3)
    s.simplify(i)
    s.simplify()
    s.vectorize(find_op("ji", func))
    assert s.lines() == (
        "specialize(n, least=5)",
        'split(j, factor=4, tail="overlap", remainder=2)',
        "pack(x, j, packing=Packing{factors=((), (5,)), order=(1, 0, 2)}, only=[x.load@2])",
        "split_range(i, n - 3)",
        "simplify(within=i_2)",
        "simplify()",
        "vectorize(ji)",
    )


def test_what_is_read_is_printed_so() -> None:
    text = """
    preload(x.load, j, i)   # of a comment nothing is left
    cache(y@2, i, last=i@2, space="reg")
    reorder(j, i)
    specialize(4*n + max(1, n - 2), least=9)
    vectorize(lanes=none, loop=j)
    prefetch(x.load, i, distance=2, nearest=true)
    pack(x, i, only=[])
    otherwise {
      unroll(i)
    }
    """
    trace = parse_trace(text)
    assert trace.lines() == (
        "preload(x.load, j, i)",
        "cache(y@2, i, last=i@2)",
        "reorder(j, i)",
        "specialize(4*n + max(1, n - 2), least=9)",
        "vectorize(j)",
        "prefetch(x.load, i, distance=2, nearest=true)",
        "pack(x, i)",
        "otherwise {",
        "  unroll(i)",
        "}",
    )
    assert parse_trace("\n".join(trace.lines())) == trace


def test_arguments_of_every_type_that_primitives_have_can_be_read() -> None:
    from tilewright.schedule.text import _READERS

    types = {p.type for primitive in PRIMITIVES.values() for p in primitive.parameters if not p.many}
    assert types <= _READERS.keys()


@pytest.mark.parametrize(
    ("text", "reason", "place"),
    [
        ("splitt(i, factor=2)", "there is no step 'splitt'", "1:1"),
        ("split(i)", "split needs factor", "1:1"),
        ("split(i, factr=2)", "split has no argument 'factr'", "1:10"),
        ("split(i, factor=2, factor=3)", "argument 'factor' is given twice", "1:20"),
        ("split(i, 2, \"guard\", 0, 1)", "split has no further argument", "1:25"),
        ("split(i, factor=two)", "expected an integer", "1:17"),
        ("split(i, factor=2, tail=peel)", "expected text in double quotes", "1:25"),
        ("split(i factor=2)", "expected ','", "1:9"),
        ("split(3, factor=2)", "expected the name of a loop", "1:7"),
        ("split(i@0, factor=2)", "references count from 1", "1:9"),
        ("unroll(i)\nsplit_range(i, position=n +)", "expected a number", "2:28"),
        ("prefetch(x.load, i, nearest=1)", "expected true or false", "1:29"),
        ("pack(x, i, packing=(1, 0))", "expected a Packing", "1:20"),
        ("pack(x, i, packing=Packing{factors=((),), order=(1,)})", "this is no Packing", "1:20"),
        ("unroll(i)\n}", "expected the name of a step", "2:1"),
        ("otherwise { unroll(i) }\nunroll(j)", "nothing follows the steps for other dims", "2:1"),
        ("otherwise { unroll(i)", "expected '}'", "1:22"),
    ],
)  # fmt: skip
def test_text_that_is_no_trace(text: str, reason: str, place: str) -> None:
    said = not_read(text)
    assert said.startswith(reason)
    assert f"where: edited.txt:{place}" in said
    assert "^" in said


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("splt(i, factor=2)", "did you mean split"),
        ("zzz(i)", "the steps are async_copy, barrier"),
        ("split(i, facter=2)", "did you mean factor?"),
        ("split(i)", "it is written split(loop, factor, [tail=], [remainder=])"),
        ("peel(i, 1, 1, 1)", "it is written peel(loop, [first=], [last=])"),
    ],
)
def test_text_that_is_no_trace_comes_with_a_way_out(text: str, hint: str) -> None:
    assert hint in not_read(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("kernel @a { unroll(i) } kernel @a { }", "kernel @a is given twice"),
        ("unroll(i)", "expected 'kernel'"),
        ("kernel a { }", "expected '@'"),
        ("kernel @a digest=12 { }", "expected the digest in double quotes"),
        ("kernel @a { unroll(i)", "expected '}'"),
    ],
)
def test_text_that_is_no_file_of_schedules(text: str, reason: str) -> None:
    with pytest.raises(TextError) as error:
        parse_schedules(text)
    assert str(error.value).startswith(reason)


def test_a_file_of_schedules() -> None:
    text = '# all of it\nkernel @k0_x digest="12ab" {  # 2 calls\n  unroll(i)\n}\nkernel @"k 1" {\n}\n'
    found = parse_schedules(text)
    assert {name: (t.digest, t.trace.lines()) for name, t in found.items()} == {
        "k0_x": ("12ab", ("unroll(i)",)),
        "k 1": ("", ()),
    }


# Replay


def test_a_kernel_for_large_dims_and_one_for_all_others() -> None:
    text = 'specialize(n, least=5)\nsplit(i, factor=4, tail="overlap")\notherwise {\n  unroll(j)\n}'
    found = took(text)
    large, small = found.index("if n >= 5 {"), found.index("if n < 5 {")
    assert large < found.index("in 0..4 {") < small < found.index(" unroll {")


def test_a_kernel_of_one_thread_is_one_iteration_beside_one_of_several() -> None:
    found = took("specialize(n, least=4)\ncompute_at(t, i@2)\nparallel(i)\notherwise { }")
    other = found[found.index("if n < 4 {") :]
    assert "in 0..1 parallel {" in other


@pytest.mark.parametrize(
    ("text", "reason", "place"),
    [
        ("unroll(j)\nsplit(k, factor=2)", "there is no loop 'k' here", 10),
        ("split(j, factor=0)", "the factor is 0, it must be at least 1", 0),
        ("simplify()\n  unroll(i)", "its extent is not a constant", 13),
        ("split(x.load, factor=2)", "split(x.load, factor=2) does not fit the kernel: KeyError", 0),
        ("split_range(i, position=m)", "there is no dim or loop variable 'm' here; those of the kernel are n, i, j", 0),
        ("split_range(i, position=n // 0)", None, 0),
        ("specialize(n, least=4)", "the kernel is right only for n >= 4", 0),
        ("unroll(j)\notherwise { unroll(j) }", "the steps before 'otherwise' specialise for no dims", 22),
    ],
)  # fmt: skip
def test_steps_that_are_refused(text: str, reason: str | None, place: int) -> None:
    if reason is None:
        assert "division by zero" in not_read(text)
        return
    error = why(text)
    assert isinstance(error, ReplayError)
    assert reason in error.what
    assert error.place == place


def test_the_kernel_before_the_steps_stays_as_it_is() -> None:
    naive = read(TWICE)
    before = print_func(naive)
    replay(naive, parse_trace("unroll(j)"))
    assert print_func(naive) == before


def test_a_primitive_of_another_module_does_not_take_a_name() -> None:
    def split(func: Func, loop: Op) -> None:
        raise AssertionError

    with pytest.raises(ValueError, match=r"primitive 'split' exists already, in tilewright\.loops\.order\.split"):
        primitive(split)
