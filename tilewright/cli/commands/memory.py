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
from tilewright.options import Options
from tilewright.program.memory.picture import dims_of, picture
from tilewright.program.memory.places import arena_of
from tilewright.runtime.errors import InputError
from tilewright.runtime.storage.files import check_replaced, replacing
from tilewright.stages import planned_programs

ROUNDS = 20
"""Calls of which the quickest is told."""

HELP = """Draw the plan of memory of MODEL: time to the right, bytes of the arena upwards, a rectangle for each tensor.

\b
Examples:
  tilewright memory model.onnx -o plan.svg
  tilewright memory model.onnx --dim batch=8 --memory-effort search -o plan.svg
  tilewright memory model.tflite --shape input=1,96,96,3 --max-memory 48KB -o plan.svg

With --max-memory it also says what a call takes, in bytes (inputs, outputs, intermediate results, scratch memory; all
but weights and code) and in time (one thread, random inputs), and what it would take without.
"""


@click.command("memory", help=HELP, short_help="Draw where intermediate results lie, and when.")
@model_argument
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, metavar="FILE.svg", help="The picture.")
@click.option("--dim", "dims", multiple=True, metavar="NAME=SIZE", help="Size of a symbolic dim  [default: 1]")
@force_option
@model_options
def command(model: Path, output: Path, dims: Sequence[str], force: bool, **options: Any) -> None:
    need_source(model, "memory")
    fields, sizes = compile_fields(**options), read_dims(dims)
    check_replaced(output, "a picture", lambda begins: begins.startswith(b"<svg"), sources=[model], force=force)
    shapes, constants = fields.pop("shapes"), fields.pop("constants")
    with compiling(model.name):
        found = planned_programs(model, options=Options.of(None, **fields), constants=constants, shapes=shapes)
    known = {name for _, main in found for name in dims_of(main)}
    if unknown := sizes.keys() - known:
        listed = ", ".join(sorted(known)) or "none"
        raise InputError(f"the model has no symbolic dim '{min(unknown)}'", hint=f"its symbolic dims: {listed}")
    drawn = picture(found, sizes)
    with replacing(output) as file:
        file.write(drawn.encode())
    for name, main in found:
        say(f"{name}: {arena_of(main)} bytes")
    if fields["max_memory"] is not None:
        within, without = _calls(model, fields | {"shapes": shapes, "constants": constants})
        say(f"a call: {within.bytes:,} bytes and {within.ms:.3g} ms; without --max-memory {without.bytes:,} bytes and "
            f"{without.ms:.3g} ms")  # fmt: skip


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
