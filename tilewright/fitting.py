"""A program that fits into the memory that was asked for, or the least that it takes.

The plan as it is comes first; then kernels store narrower values (`graph/cascades/narrow.py`), and chains of kernels
are computed by rows (`graph/cascades`), as cheaply as the limit allows. What a plan really takes (views, offsets,
results in the place of arguments, scratch memory of kernels) is known when its kernels are there, so each is tried on
a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

from tilewright.graph.cascades.choose import FusedProgram, Need, fitted, least
from tilewright.graph.cascades.fit import Cascades, is_static
from tilewright.graph.cascades.narrow import NarrowStores
from tilewright.ir.core import Func, Module
from tilewright.ir.diag import UnsupportedError
from tilewright.passes import Pass
from tilewright.program.memory.of_call import bytes_of_call
from tilewright.program.memory.picture import dims_of
from tilewright.program.memory.views import bytes_of
from tilewright.runtime.errors import OptionError

if TYPE_CHECKING:
    from tilewright.compilation import Compilation, Setting

MOST_TRIES = 6
"""Plans that are tried: each takes as long as scheduling the program."""

MOST_NAMED = 4
"""Tensors that an error names."""


def refuse_unknown_sizes(main: Func, max_memory: int | None) -> None:
    """UnsupportedError where sizes are not known that a limit must be held for."""
    if max_memory is not None and not is_static(main):
        names = ", ".join(f"'{name}'" for name in sorted(dims_of(main))) or "some"
        raise UnsupportedError(
            f"max_memory= is for programs of known sizes, and the dims {names} are not known",
            hint="fix the shapes of the inputs: shapes=, or --shape NAME=DIMS",
        )


def passes_that_fit(compilation: Compilation, remade: Callable[[Module, Setting], Compilation]) -> list[Pass]:
    """The passes on the fused program of `compilation` with which it takes no more memory than its options allow; ()
    where it does as it is. OptionError with the least that was found, where none does."""
    setting, module = compilation.setting, compilation.module
    most = setting.options.max_memory
    if most is None:
        return []
    refuse_unknown_sizes(module.main, most)
    given = sum(bytes_of(v).value for v in (*module.main.args, *module.main.returns))
    quiet = replace(
        setting,
        options=replace(setting.options, max_memory=None),
        progress=None,
        observe=None,
        numbers=count(),
    )
    narrowed = remade(module.copy(), quiet).apply([NarrowStores()]).module
    program = FusedProgram(narrowed.main)
    choices: list[list[Pass]] = [[], [NarrowStores()]]
    limit, best = most - given, 0
    for k in range(MOST_TRIES):
        passes = choices[k]
        trial = remade(module.copy(), quiet).with_views(passes).run("planned")
        found = bytes_of_call(trial.module, setting.options.threads or 1).value
        if found <= most:
            return passes
        best = min(best or found, found)
        limit -= found - most if len(passes) > 1 else 0
        if k + 1 == len(choices):
            plan = fitted(program, limit) if limit > 0 else None
            choices.append([NarrowStores(), Cascades((plan or least(program, max(limit, 0))).cascades)])
        if choices[k + 1] == passes:
            break
    raise OptionError(
        f"max_memory={most:,}: the least found is {best:,} bytes, {_told(program, given)}",
        hint="this counts inputs, outputs, intermediate results and scratch memory, no weights and no code; other "
        "shapes of inputs, or smaller types (`tilewright quantize`), take less",
    )


def _told(program: FusedProgram, given: int) -> str:
    need: Need = least(program, 0).need
    makers = dict.fromkeys(str(v.op.loc) for v in need.values if v.op is not None)
    named = ", ".join(list(makers)[:MOST_NAMED])
    more = f" and {len(makers) - MOST_NAMED} more" if len(makers) > MOST_NAMED else ""
    return f"{given:,} of them inputs and outputs, for the tensors of {named}{more} at {need.op.loc}"
