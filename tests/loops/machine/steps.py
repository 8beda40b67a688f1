"""Steps for machines with queues and levels, with random arguments (see `steps`)."""

from __future__ import annotations

from collections.abc import Callable

from tests.loops.chance import Chance
from tilewright.ir.core import Op
from tilewright.loops.analysis.deps import accesses
from tilewright.loops.edit import body_of, buffer_type, extent_of, is_loop, kind_of, loops_in
from tilewright.loops.machine.copies import Copy, copy_in, route_of
from tilewright.loops.machine.match_intrinsic import IntrinsicMatch, match_intrinsic
from tilewright.schedule.trace import Schedule
from tilewright.target.machine import Intrinsic, Machine, Route

LEVELS = ("core", "thread")

_BODY = """
kernel @x({args}) dims(n, s, r, q) with {{outputs=1}} {{
  for i in 0..n {{
    {body}
  }}
  return
}}
"""
SIZES = {"n": (1, 64)}
_SPACES = ("global", "scratch", "reg")


def _intrinsics(dtype: str, space: str) -> list[Intrinsic]:
    """A few instructions on one row of a memory, some on a queue."""

    def row(name: str, stride: str) -> str:
        return f"{name}: {'&' if space == 'global' else f'{space} '}{dtype}[n] strides({stride})"

    bodies = {
        "fill": ([row("y", "s")], "y[i] = 0"),
        "move": ([row("x", "r"), row("y", "s")], "y[i] = x[i]"),
        "add": ([row("x", "r"), row("y", "s")], "y[i] += x[i]"),
        "mad": ([row("x", "r"), row("w", "q"), row("y", "s")], "y[i] += x[i] * w[i]"),
    }
    return [
        Intrinsic(f"{name}_{dtype}_{space}_{queue}", _BODY.format(args=", ".join(args), body=body), queue, SIZES)
        for name, (args, body) in bodies.items()
        for queue in ("", "unit")
    ]


MACHINE = Machine(
    "fuzzed",
    intrinsics=tuple(i for dtype in ("f64", "i32") for space in _SPACES for i in _intrinsics(dtype, space)),
    routes=tuple(
        Route(a, b, "dma" if a == "global" else "dma2", unit=8 if a == b else 1) for a in _SPACES for b in _SPACES
    ),
)


def tensorize(c: Chance) -> None:
    loops = loops_in(c.func.body)
    pairs = [
        (loop, found)
        for loop in loops
        for type in {buffer_type(a.buffer): None for a in accesses(loop)}
        for found in MACHINE.intrinsics
        if found.name.split("_")[1:3] == [str(type.dtype), type.space]
        and isinstance(match_intrinsic(found, loop), IntrinsicMatch)
    ]
    if pairs and c.r.random() < 0.8:
        c.s.tensorize(*c.r.choice(pairs))
    else:
        c.s.tensorize(c.loop(), c.r.choice(MACHINE.intrinsics))


def async_copy(c: Chance) -> None:
    loops = [o for o in loops_in(c.func.body) if isinstance(copy_in([o]), Copy)]
    loop = c.loop(*loops)
    copy = copy_in([loop])
    route = c.r.choice(MACHINE.routes)
    if isinstance(copy, Copy) and c.r.random() < 0.9:
        route = route_of(copy, MACHINE) or route
    c.s.async_copy(loop, route)


def wait(c: Chance) -> None:
    run = c.one_of(c.ops("run"), "run")
    anchor = c.one_of([run, *c.ops("for", "run", "store", "return")], "op")
    place = c.r.choice(["before", "after"])
    c.s.wait(run, run if c.r.random() < 0.5 else anchor, "after" if c.r.random() < 0.5 else place)


def barrier(c: Chance) -> None:
    anchor = c.one_of(c.ops("for", "run", "store", "return"), "op")
    c.s.barrier(anchor, c.r.choice(LEVELS), c.r.choice(["before", "after"]))


def parallel(c: Chance) -> None:
    c.s.parallel(c.loop(), c.r.choice(["", *LEVELS]))


def pipeline(c: Chance) -> None:
    """Of a loop as it is, or of one that copies what it reads."""
    if c.r.random() < 0.2:
        c.s.pipeline(c.loop())
        return
    on_a_clone_first(c, cached_and_pipelined)


def cached_and_pipelined(c: Chance) -> None:
    loop = c.loop(*(o for o in loops_in(c.func.body) if kind_of(o) == "serial"))
    inner = c.one_of([o for o in body_of(loop).ops if is_loop(o)], "loop in a loop")
    read = {a.buffer: None for a in accesses(inner) if not a.write}
    made = c.s.cache(c.one_of(list(read), "buffer"), inner, space="scratch")
    fill = c.one_of([o for o in made.fill[:1] if is_loop(o)], "copy")
    copy = copy_in([fill])
    route = route_of(copy, MACHINE) if isinstance(copy, Copy) else None
    c.s.async_copy(fill, route or MACHINE.routes[0])
    c.s.pipeline(loop)


def overlap(c: Chance) -> None:
    """Of a loop as it is, or of one that copies what it reads and what it writes."""
    if c.r.random() < 0.2:
        c.s.overlap(c.loop(), c.one_of(c.ops("run", "for"), "op"))
        return
    on_a_clone_first(c, cached_and_overlapped)


def cached_and_overlapped(c: Chance) -> None:
    loop = c.loop(*(o for o in loops_in(c.func.body) if kind_of(o) == "serial"))
    inner = c.one_of([o for o in body_of(loop).ops if is_loop(o)], "loop in a loop")
    touched = accesses(inner)
    read = {a.buffer: None for a in touched if not a.write}
    written = {a.buffer: None for a in touched if a.write and a.buffer not in read}
    fills = c.s.cache(c.one_of(list(read), "buffer"), inner, space="scratch").fill
    drains = c.s.cache(c.one_of(list(written), "buffer that is only written"), inner, space="scratch").drain
    runs = []
    for nests in (fills, drains):
        nest = c.one_of([o for o in nests[:1] if is_loop(o)], "copy")
        copy = copy_in([nest])
        route = route_of(copy, MACHINE) if isinstance(copy, Copy) else None
        runs.append(c.s.async_copy(nest, route or MACHINE.routes[0]))
    c.s.wait(runs[1], runs[1], "after")
    c.s.overlap(loop, runs[1])


def split_run(c: Chance) -> None:
    """Of a run as it is, or of one that copies what a loop reads."""
    if c.r.random() < 0.2:
        run = c.one_of(c.ops("run"), "run")
        c.s.split_run(run, c.one_of(loops_in(body_of(run)), "loop"), c.r.randint(0, 3))
        return
    on_a_clone_first(c, copied_and_split)


def copied_and_split(c: Chance) -> None:
    run, _ = copied(c)
    c.s.wait(run, run, "after")
    loops = [o for o in loops_in(body_of(run)) if extent_of(o).is_const and extent_of(o).value > 1]
    c.s.split_run(run, c.one_of(loops, "loop of two iterations"), 1)


def wait_later(c: Chance) -> None:
    """Of a wait as it is, or of one for what a loop reads."""
    if c.r.random() < 0.2:
        waiting = c.one_of([o for o in c.ops("wait", "run") if o.operands], "wait")
        run = c.one_of([v.op for v in waiting.operands if v.op is not None], "run")
        c.s.wait_later(waiting, run, c.one_of(c.ops("for", "run", "store", "wait", "return"), "op"))
        return
    on_a_clone_first(c, copied_and_waited_for)


def copied_and_waited_for(c: Chance) -> None:
    run, reader = copied(c)
    c.s.wait_later(c.s.wait(run, run, "after"), run, reader)


def copied(c: Chance) -> tuple[Op, Op]:
    """A run that copies what a loop reads, and the loop."""
    loop = c.loop()
    read = {a.buffer: None for a in accesses(loop) if not a.write}
    made = c.s.cache(c.one_of(list(read), "buffer"), loop, space="scratch")
    fill = c.one_of([o for o in made.fill[:1] if is_loop(o)], "copy")
    copy = copy_in([fill])
    route = route_of(copy, MACHINE) if isinstance(copy, Copy) else None
    return c.s.async_copy(fill, route or MACHINE.routes[0]), loop


def on_a_clone_first(c: Chance, steps: Callable[[Chance], None]) -> None:
    """Several steps of which any may be refused: then none is done."""
    state = c.r.getstate()
    steps(Chance(Schedule(c.func.clone(), c.s.may_specialize), c.r, c.env))
    c.r.setstate(state)
    steps(c)


def set_space(c: Chance) -> None:
    c.s.set_space(c.buffer(*c.buffers()), c.r.choice(["scratch", "reg", "scratch", "reg", "global"]))


MACHINE_STEPS: dict[str, Callable[[Chance], None]] = {
    "tensorize": tensorize,
    "async_copy": async_copy,
    "wait": wait,
    "barrier": barrier,
    "parallel": parallel,
    "pipeline": pipeline,
    "overlap": overlap,
    "split_run": split_run,
    "wait_later": wait_later,
    "set_space": set_space,
}
