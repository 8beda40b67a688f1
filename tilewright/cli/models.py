"""What commands share about models: their options, and getting one from a file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import click
import numpy as np

import tilewright
from tilewright.cli.amounts import Bytes
from tilewright.cli.frequent import read_frequent
from tilewright.cli.inputs.specs import numbers
from tilewright.cli.output import say
from tilewright.cli.progress import compiling
from tilewright.runtime import Model
from tilewright.runtime.errors import InputError, Remark
from tilewright.runtime.report.kept import urgent
from tilewright.runtime.storage.container import is_container_file
from tilewright.runtime.values.recorded import load_array

ARTEFACT_SUFFIX = ".tw"
TEXT_SUFFIX = ".txt"
"""Of the text of a stage, as `tilewright show --stage` prints it."""

force_option = click.option(
    "--force", is_flag=True, help="Replace also a file that is the model itself, or of another kind."
)

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

model_argument = click.argument("model", type=click.Path(path_type=Path))
threads_option = click.option(
    "--threads", type=click.IntRange(min=1), help="Threads that run the model  [default: all it may use]"
)
constant_option = click.option(
    "--constant", "constants", multiple=True, metavar="NAME=VALUE",
    help="Bind an input to a number, a list such as 1,2,3 or [[1,2],[3,4]], or FILE.npy; or inputs to all tensors of a "
    "FILE.safetensors.",
)  # fmt: skip
shape_option = click.option(
    "--shape", "shapes", multiple=True, metavar="NAME=DIMS", help="Fix dims of an input: x=1,3,n,n."
)


def compile_options(command: F) -> F:
    """The options that say how to compile."""
    for decorate in (
        click.option("--no-cache", is_flag=True, help="Neither use nor fill the cache of compiled models."),
        model_options,
        click.option("--schedule", type=click.Path(path_type=Path), metavar="FILE",
                     help="Schedules of kernels in place of the compiler's own (see `tilewright show --help`)."),
    ):  # fmt: skip
        command = decorate(command)
    return command


def validate_options(command: F) -> F:
    """Whether each step of the compiler is replayed, and on which real inputs."""
    for decorate in (
        click.option("--recorded", type=click.Path(path_type=Path), metavar="FOLDER",
                     help="Inputs of real calls for --validate, as `tilewright record` keeps them."),
        click.option("--validate", is_flag=True,
                     help="Replay what each pass and each kernel computes, and leave out what changes the meaning."),
    ):  # fmt: skip
        command = decorate(command)
    return command


guarded_option = click.option(
    "--guarded", is_flag=True,
    help="Put pages that nobody may touch around each buffer, and look after each kernel whether it has stayed within "
    "(Linux on x86-64).",
)  # fmt: skip
activations_option = click.option(
    "--activations", type=click.Choice(["float32", "int16", "int8"]),
    help="What rows are rounded to, in groups, for products of many of them by weights of integers  "
    "[default: int16 for language models and with fast numerics, float32 otherwise]",
)  # fmt: skip


LEVELS = ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4", "x86-64-v4-vnni")
"""Of x86-64, that `--multi` has."""

multi_option = click.option(
    "--multi", is_flag=False, flag_value=";".join(LEVELS), metavar="TARGETS",
    help=f"Code for several targets, between ';'; of these the best is taken that a CPU can run  [if no TARGETS are "
    f"given, where it stands behind MODEL: {'; '.join(LEVELS)}]",
)


def with_levels(options: Mapping[str, Any], multi: str | None) -> dict[str, Any]:
    """The options with the targets of `--multi`."""
    if multi is not None and options["target"] is not None:
        raise click.UsageError("--multi says for which targets code is made: leave --target out")
    return dict(options) if multi is None else {**options, "target": multi}


def model_options(command: F) -> F:
    """The options that say what becomes of the graph."""
    for decorate in (
        constant_option,
        shape_option,
        click.option("--state", "states", multiple=True, metavar="INPUT=OUTPUT",
                     help="Keep this input from call to call: it becomes that output; or `all` for the variables that "
                     "the model declares, or with --capacity for its caches, too."),
        click.option("--capacity", type=click.IntRange(min=1), metavar="N",
                     help="Room of caches that are states, along the axis on which they grow from call to call."),
        click.option("--frequent", multiple=True, metavar="NAME=SIZE,...",
                     help="Sizes of dims that calls often have, which get a program of their own; or FILE.json, as "
                     "`tilewright run --sizes-seen` writes it."),
        click.option("--numerics", type=click.Choice(["default", "strict", "fast"]), default="default",
                     show_default=True,
                     help="strict folds no factors, uses no Winograd convolutions, and keeps denormals; fast may round "
                     "operands of products to bfloat16."),
        activations_option,
        click.option("--memory-effort", type=click.Choice(["fast", "search"]), default="fast", show_default=True,
                     help="How long a plan of memory is looked for that needs less than the first one."),
        click.option("--placement", type=click.Choice(["cost", "device"]), default="cost", show_default=True,
                     help="Where a model runs that a device does not take in one piece: by time on the device or the "
                     "CPU beside it, or on the device all that it takes."),
        click.option("--max-memory", type=Bytes(), metavar="SIZE",
                     help="Bytes that a call may take, all but weights and code, such as 48KB: where it takes more, "
                     "chains of layers are computed some rows at a time."),
        click.option("--integer-only", is_flag=True,
                     help="Compute a quantised model without floating-point instructions; floats that go in or out "
                     "become integers."),
        click.option("--strict", is_flag=True,
                     help="Fail where an optimisation fails unexpectedly, and do not go on without it."),
        click.option("--target", metavar="NAME",
                     help="Machine to compile for: one that `tilewright info` lists  [default: this one]"),
    ):  # fmt: skip
        command = decorate(command)
    return command


def compile_fields(
    target: str | None,
    numerics: str,
    shapes: Sequence[str],
    constants: Sequence[str],
    frequent: Sequence[str] = (),
    states: Sequence[str] = (),
    schedule: Path | None = None,
    no_cache: bool = False,
    integer_only: bool = False,
    strict: bool = False,
    capacity: int | None = None,
    activations: str | None = None,
    memory_effort: str = "fast",
    placement: str = "cost",
    max_memory: int | None = None,
    validate: bool = False,
    recorded: Path | None = None,
    guarded: bool = False,
) -> dict[str, Any]:
    """The keywords of `tilewright.compile` for those options."""
    if recorded is not None and not validate:
        raise click.UsageError("--recorded is for --validate")
    validated = {"validate": validate if recorded is None else str(recorded)} if validate else {}
    return {
        **validated,
        **({"guarded": True} if guarded else {}),
        "target": target,
        "numerics": numerics,
        "integer_only": integer_only,
        "strict": strict,
        "schedule": schedule,
        "frequent": read_frequent(frequent),
        "states": _states(states),
        "capacity": capacity,
        "activations": activations,
        "memory_effort": memory_effort,
        "placement": placement,
        "max_memory": max_memory,
        "cache": not no_cache,
        **named_inputs(shapes, constants),
    }


def named_inputs(shapes: Sequence[str], constants: Sequence[str]) -> dict[str, Any]:
    """The keywords for `--shape` and `--constant`."""
    return {
        "shapes": unique("--shape", map(_shape, shapes)),
        "constants": unique("--constant", chain.from_iterable(map(_bound, constants))),
    }


def _states(texts: Sequence[str]) -> dict[str, str] | bool:
    """Pairs of an input and an output, or True for all that the model declares."""
    if "all" in texts:
        if len(texts) > 1:
            raise click.UsageError("--state all: give no other --state beside it")
        return True
    wrong = next((text for text in texts if not all(text.partition("=")[::2])), None)
    if wrong is not None:
        raise click.UsageError(f"--state {wrong}: give the names of an input and an output, such as --state h=hn")
    return unique("--state", (text.partition("=")[::2] for text in texts))


def is_artefact(path: Path) -> bool:
    """Whether a file is compiled code, whatever its suffix; what is no file counts by that."""
    found = is_container_file(path)
    return path.suffix == ARTEFACT_SUFFIX if found is None else found


def open_model(path: Path, threads: int | None, **fields: Any) -> Model:
    """A model from an artefact, or compiled from any other file."""
    if is_artefact(path):
        need_no_options(path, fields)
        return tilewright.load(path, threads)
    with compiling(path.name) as progress:
        model = tilewright.compile(path, threads=threads, progress=progress, **fields)
    warn_of_failures(model.artifact.urgent)
    return model


def warn_of_failures(remarks: Iterable[Remark]) -> None:
    """Tell on the standard error stream which plugins and optimisations were left out and why, and of much memory."""
    for remark in urgent(remarks):
        say(f"warning: {remark.subject}: {remark.message}", err=True)


_HOW = ("target", "shapes", "constants", "schedule", "frequent", "states", "capacity", "integer_only", "strict",
        "activations", "guarded")  # fmt: skip


def need_no_options(path: Path, fields: Mapping[str, Any]) -> None:
    """UsageError where an option says how to compile what is compiled."""
    changed = any(fields.get(name) for name in _HOW)
    if changed or fields["numerics"] != "default":
        raise click.UsageError(
            f"{path} is compiled already: --target, --numerics, --activations, --integer-only, --shape, --constant, "
            "--frequent, --state, --strict, --guarded and --schedule need the model it came from"
        )


def read_text(file: Path) -> str:
    """IR text of a file, or of the standard input (-)."""
    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        return data.decode()
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"cannot read {file}: {reason}",
            hint="give IR text, as `tilewright show MODEL --level import` prints it",
        ) from error


def need_source(path: Path, why: str) -> None:
    """Refuse an artefact where the model itself is needed."""
    if is_artefact(path):
        raise click.UsageError(f"{path} is compiled code: {why} needs the model it came from")


def unique(option: str, pairs: Iterable[tuple[str, T]]) -> dict[str, T]:
    """Values by name; UsageError for a name that is given twice."""
    found: dict[str, T] = {}
    for name, value in pairs:
        if name in found:
            raise click.UsageError(f"{option} is given twice for {name}")
        found[name] = value
    return found


def _bound(text: str) -> Iterable[tuple[str, Any]]:
    """Names and values of `FILE.safetensors`, or of `sr=16000`."""
    if not text.endswith(".safetensors"):
        return (_constant(text),)
    from tilewright.frontends.weights.safetensors import read_safetensors

    return read_safetensors(Path(text)).items()


def _constant(text: str) -> tuple[str, Any]:
    """Name and value of `sr=16000`; a value that is no file has the dtype of its input."""
    name, equals, value = text.rpartition("=")
    if not equals or not name:
        raise click.UsageError(f"--constant {text}: write NAME=VALUE, such as sr=16000")
    if value.endswith((".npy", ".npz")):
        return name, load_array(Path(value), f"--constant {name}", name)
    try:
        found = numbers(value)
        if np.asarray(found).dtype == np.object_:  # integers beyond those of any input
            raise ValueError(value)
        return name, found
    except (ValueError, RecursionError):
        raise click.UsageError(
            f"--constant {text}: the value is no number, no list such as 1,2,3 or [[1,2],[3,4]], and no FILE.npy"
        ) from None


def _shape(text: str) -> tuple[str, list[int | str]]:
    name, equals, dims = text.rpartition("=")
    texts = [text.strip() for text in dims.split(",")] if dims.strip() else []
    sizes = [int(d) if d.isascii() and d.isdecimal() else d for d in texts]
    if not equals or not name or not all(isinstance(d, int) or d.isidentifier() for d in sizes):
        raise click.UsageError(
            f"--shape {text}: write NAME=DIMS, the dims numbers or names, such as x=1,3,n,n"
        )
    return name, sizes
