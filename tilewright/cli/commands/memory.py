"""`tilewright memory`: a picture of where intermediate results lie, and when."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

import tilewright
from tilewright.cli.inputs.first_calls import first_call
from tilewright.cli.inputs.specs import read_dims
from tilewright.cli.models import compile_fields, force_option, model_argument, model_options, need_source
from tilewright.cli.output import say
from tilewright.cli.progress import compiling
from tilewright.ir.core import Func, Module
from tilewright.options import Options
from tilewright.program.memory.picture import dims_of, picture
from tilewright.program.memory.places import arena_of
from tilewright.program.memory.scratchpad.picture import schedule_picture
from tilewright.program.memory.scratchpad.plan import plan
from tilewright.program.memory.scratchpad.schedule import print_schedule
from tilewright.runtime.errors import InputError, OptionError
from tilewright.runtime.storage.files import check_replaced, replacing
from tilewright.session import Session
from tilewright.simulator.scratchpad import scratchpad_problem
from tilewright.stages import planned_modules
from tilewright.target.machine import Accelerator, Machine

ROUNDS = 20
"""Calls of which the quickest is told."""

HELP = """Draw the plan of memory of MODEL: time to the right, bytes of the arena upwards, a rectangle for each tensor.

\b
Examples:
  tilewright memory model.onnx -o plan.svg
  tilewright memory model.onnx --dim batch=8 --memory-effort search -o plan.svg
  tilewright memory model.onnx --target npu16 --scratchpad ub -o schedule.svg
  tilewright memory model.tflite --shape input=1,96,96,3 --max-memory 48KB -o plan.svg

With --scratchpad, for a machine whose memories programs manage (--target npu16), it plans what is loaded into one of
them, computed, stored and freed, in which order, and draws the schedule of a program: the queues above, bytes over
cycles below. -o schedule.txt writes it as text.

With --max-memory it also says what a call takes, in bytes (inputs, outputs, intermediate results, scratch memory; all
but weights and code) and in time (one thread, random inputs), and what it would take without.
"""


@click.command("memory", help=HELP, short_help="Draw where intermediate results lie, and when.")
@model_argument
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, metavar="FILE.svg", help="The picture.")
@click.option("--dim", "dims", multiple=True, metavar="NAME=SIZE", help="Size of a symbolic dim  [default: 1]")
@click.option("--scratchpad", metavar="MEMORY", help="Plan a memory of the machine that programs manage.")
@force_option
@model_options
def command(
    model: Path, output: Path, dims: Sequence[str], scratchpad: str | None, force: bool, **options: Any
) -> None:
    need_source(model, "memory")
    fields, sizes = compile_fields(**options), read_dims(dims)
    check_replaced(output, "a picture", _is_ours, sources=[model], force=force)
    shapes, constants = fields.pop("shapes"), fields.pop("constants")
    with compiling(model.name):
        modules = planned_modules(model, options=Options.of(None, **fields), constants=constants, shapes=shapes)
    found = [(name, module.main) for name, module in modules]
    _check_dims(found, sizes)
    if scratchpad is not None:
        _write_schedule(modules, Session().machine(Options.of(None, **fields)), scratchpad, sizes, output)
        return
    drawn = picture(found, sizes)
    with replacing(output) as file:
        file.write(drawn.encode())
    for name, main in found:
        say(f"{name}: {arena_of(main)} bytes")
    if fields["max_memory"] is not None:
        within, without = _calls(model, fields | {"shapes": shapes, "constants": constants})
        say(f"a call: {within.bytes:,} bytes and {within.ms:.3g} ms; without --max-memory {without.bytes:,} bytes and "
            f"{without.ms:.3g} ms")  # fmt: skip


def _is_ours(begins: bytes) -> bool:
    return begins.startswith((b"<svg", b"schedule in "))


def _check_dims(found: Sequence[tuple[str, Func]], sizes: Mapping[str, int]) -> None:
    known = {name for _, main in found for name in dims_of(main)}
    if unknown := sizes.keys() - known:
        listed = ", ".join(sorted(known)) or "none"
        raise InputError(f"the model has no symbolic dim '{min(unknown)}'", hint=f"its symbolic dims: {listed}")


def _write_schedule(
    modules: Sequence[tuple[str, Module]], machine: Machine, memory: str, sizes: Mapping[str, int], output: Path
) -> None:
    """Plan a scratchpad for a program, and write the schedule as text or draw it, by the file's suffix."""
    if not isinstance(machine, Accelerator):
        raise OptionError(f"programs manage no memory of {machine.name}", hint="give an accelerator (--target npu16)")
    if len(modules) != 1:
        what = f"the model has {len(modules)} programs, and one is planned"
        raise InputError(what, hint="give a model without parts")
    problem = scratchpad_problem(modules[0][1], machine, memory, sizes)
    made = plan(problem)
    is_text = output.suffix == ".txt"
    drawn = print_schedule(problem, made.actions) if is_text else schedule_picture(problem, made.actions, made.line)
    with replacing(output) as file:
        file.write(drawn.encode())
    above = made.line.cycles / max(made.bound, 1) - 1
    told = "no schedule is shorter" if made.is_best else f"at most {above:.1%} more than the shortest schedule"
    say(f"{made.line.cycles:,} cycles, {told}; {made.line.peak:,} of {problem.capacity:,} bytes of {memory}")


@dataclass(frozen=True)
class _Call:
    """What a call takes: bytes of all but weights and code, and milliseconds."""

    bytes: int
    ms: float


def _calls(model: Path, fields: Mapping[str, Any]) -> tuple[_Call, _Call]:
    """What calls of a model take as it was asked for, and without a limit: each is compiled, and both are called with
    the same random inputs in turns."""
    with compiling(model.name):
        models = [tilewright.compile(model, **{**fields, "threads": 1, "max_memory": most})
                  for most in (fields["max_memory"], None)]  # fmt: skip
    feed = first_call(models[0], ["random"], {}).inputs
    given = sum(np.asarray(array).nbytes for array in feed.values())
    least = [math.inf] * len(models)
    for _ in range(ROUNDS):
        for k, compiled in enumerate(models):
            start = time.perf_counter()
            compiled.run(feed)
            least[k] = min(least[k], time.perf_counter() - start)
    within, without = (m.peak_bytes() + given for m in models)
    return _Call(within, 1000 * least[0]), _Call(without, 1000 * least[1])
