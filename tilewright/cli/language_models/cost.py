"""`tilewright cost`: what a generation costs as formulas of its length, and how long it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from tilewright.checks.lengths import SequenceCosts, sequence_costs
from tilewright.cli.inputs.specs import read_dims
from tilewright.cli.language_models.cost_shown import show
from tilewright.cli.language_models.cost_table import CostTable
from tilewright.cli.language_models.options import caches_option, source_argument
from tilewright.cli.models import need_source
from tilewright.cli.output import console, json_option, print_json
from tilewright.cli.progress import compiling
from tilewright.frontends.decoders import DecoderFrontEnd
from tilewright.frontends.decoders.source import STORED, DecoderSource
from tilewright.llm.loading import load_decoder
from tilewright.llm.pace import measured_pace
from tilewright.runtime.errors import InputError, OptionError

HELP = """Say what text from the model at PATH costs as formulas of its length n: floating-point operations, bytes,
time, with a cache of keys and values and without.

PATH is a GGUF file, a folder of Hugging Face, or another model whose past is in caches or states; of a model without
any, the costs of whole sequences are told. The formulas are counted in the model's graph, and no code is made, but
with --measure. Masked scores count as the others do.

\b
Examples:
  tilewright cost model.gguf --prompt 512 --new 128
  tilewright cost model.gguf --weights int8 --threads 1 --measure
  tilewright cost encoder.onnx --length sequence --dim batch=8 --json
"""


@click.command("cost", help=HELP, short_help="Say what text of some length costs.")
@source_argument
@click.option("--prompt", type=click.IntRange(min=1), default=512, show_default=True, help="Tokens of the prompt.")
@click.option("--new", type=click.IntRange(min=1), default=128, show_default=True, help="Tokens of the answer.")
@click.option("--measure", is_flag=True, help="Compile the model, and time tokens at several lengths, too.")
@click.option("--at", "lengths", type=click.IntRange(min=1), multiple=True, metavar="N",
              help="Lengths for which times are told  [default: powers of 2 up to the whole]")
@click.option("--context", type=click.IntRange(min=1), metavar="POSITIONS",
              help="Room of the caches  [default: what the model was trained for]")
@click.option("--weights", metavar="TYPE",
              help="float32, float16, bfloat16, int8 or int4 (also int4:64, int8:row, int4:32:min) for weights that "
                   "are stored in more bits.")
@caches_option
@click.option("--length", metavar="DIM", help="The symbolic dim that is the length, of a model without caches.")
@click.option("--dim", "dims", multiple=True, metavar="NAME=SIZE", help="Size of another symbolic dim  [default: 1]")
@click.option("--threads", type=click.IntRange(min=1), help="Threads that run the model  [default: all it may use]")
@click.option("--no-cache", is_flag=True, help="With --measure: neither use nor fill the cache of compiled models.")
@json_option
def command(
    path: Path,
    prompt: int,
    new: int,
    measure: bool,
    lengths: Sequence[int],
    as_json: bool,
    **options: Any,
) -> None:  # fmt: skip
    costs = _counted(path, options)
    _check_lengths(costs, prompt + new - 1, lengths)
    table = CostTable.of(costs, prompt, new, lengths)
    if measure:
        table = replace(table, measured=_measured(path, costs, table.lengths, options))
    if as_json:
        print_json(table.record())
    else:
        show(table, console())


def _counted(path: Path, options: Mapping[str, Any]) -> SequenceCosts:
    model, fields = _source(path, options)
    sizes = read_dims(options["dims"])
    with compiling(path.name) as progress:
        return sequence_costs(
            model, length=options["length"], sizes=sizes, name=path.name, threads=options["threads"],
            progress=progress, **fields,
        )  # fmt: skip


def _source(path: Path, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The model as it is imported, and the options that go with it."""
    context, weights, caches = (options[name] for name in ("context", "weights", "caches"))
    if DecoderFrontEnd().accepts(path):
        return DecoderSource(path, capacity=context, weights=weights, caches=caches or STORED), {}
    need_source(path, "cost")
    if weights is not None or caches is not None:
        name = "--weights" if weights is not None else "--caches"
        raise OptionError(
            f"{name} needs a GGUF file or a folder with config.json: {path} says by itself what it is",
            hint=f"leave {name} out",
        )
    return path, {} if context is None else {"states": True, "capacity": context}


def _check_lengths(costs: SequenceCosts, positions: int, lengths: Sequence[int]) -> None:
    """InputError for more than the context."""
    longest = max((positions, *lengths))
    if costs.context is not None and longest > costs.context:
        raise InputError(
            f"a sequence of {longest} positions is longer than the context of {costs.context}",
            hint="ask for a smaller --prompt, --new or --at, or for a larger --context",
        )


def _measured(path: Path, costs: SequenceCosts, lengths: Sequence[int], options: Mapping[str, Any]) -> Any:
    if not costs.has_cache:
        raise OptionError(
            "--measure takes decoders, and this model keeps nothing from call to call",
            hint="`tilewright bench` measures calls of any model",
        )
    model, fields = _source(path, options)
    of_file = isinstance(model, DecoderSource)
    asked = {name: options[name] for name in ("context", "weights", "caches")}
    room = asked if of_file else {"states": True, **fields}
    if not of_file and costs.flops.past is not None:
        room.setdefault("capacity", max(lengths))
    with compiling(path.name) as progress:
        decoder = load_decoder(
            path, threads=options["threads"], cache=not options["no_cache"], progress=progress, **room
        )
    return tuple(measured_pace(decoder, lengths))
