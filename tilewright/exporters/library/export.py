"""`tilewright.export`: a model becomes a library in C, with its kernels and nothing else."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from tilewright.api import tell_of_failures, with_examples
from tilewright.codegen.cpu.assemble import ObjectFile
from tilewright.compiler import compile_request
from tilewright.exporters.library.browser import BEGINS, PAGE, PAGE_BEGINS, SCRIPT, write_module, write_page
from tilewright.exporters.library.build import WEIGHTS_MAGIC, Build, TargetCode, is_taken, is_wasm
from tilewright.exporters.library.source import LARGEST_ARRAYS, write_source
from tilewright.exporters.library.tables import check_exportable
from tilewright.exporters.library.toolchain import Toolchain
from tilewright.ir.diag import UnsupportedError
from tilewright.options import OnProgress, Options, Request
from tilewright.runtime.artifact import Artifact
from tilewright.runtime.errors import OptionError
from tilewright.runtime.storage.files import check_file, check_replaced, replacing
from tilewright.session import Session
from tilewright.target.gpu.webgpu import WEBGPU
from tilewright.target.named import C_TARGET
from tilewright.target.target import arch_of, system_of

SOURCE = ".c"
KINDS = (".so", ".a", ".o", ".wasm", ".dll", ".lib", ".dylib", SOURCE, SCRIPT, PAGE)
_OF_BROWSERS = (SCRIPT, PAGE)
_OF_SYSTEMS = {"windows": (".dll", ".lib", ".a"), "macos": (".dylib", ".a", ".o")}
"""What libraries of other systems than Linux are called."""
_SHARED = (".so", ".dll", ".dylib")
LARGEST_WITHIN = 1 << 30
"""Bytes of weights up to which a library has them itself unless it is told otherwise: what is linked reaches two
gigabytes."""


def export(
    model: str | Path | bytes | Any,
    output: str | Path,
    example_inputs: Any = None,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    name: str | None = None,
    weights: str | None = None,
    freestanding: bool = False,
    cc: str | None = None,
    options: Options | None = None,
    constants: Mapping[str, Any] | str | Path | None = None,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    session: Session | None = None,
    progress: OnProgress | None = None,
    force: bool = False,
    **fields: Any,
) -> tuple[Path, ...]:
    """Write a model (whatever `tilewright.compile` takes, with the same arguments and options) as a library to the file
    `output`, and give the files that were written: the library, its header, and the file of weights where there is one.

    The suffix says what is made: a shared library (.so; .dylib for macOS; .dll for Windows, with a .dll.lib for its
    linkers), a static one (.a, .lib), one object file (.o), or a source in C11 (.c) for any compiler and machine, whose
    weights are arrays of C up to four megabytes. A library has the kernels
    of the model, a thread pool and little else, and needs the C library, its mathematics and threads; `freestanding`
    needs nothing at all, and has one thread and the caller's memory. A module of JavaScript (.mjs) runs the model on
    the GPUs of browsers, by WebGPU, and a page (.html, or a folder such as "page/") has such a module beside it. Its
    functions begin with `name`, by default that
    of the file. Several levels of x86-64 as `target`, between `;`, give a library with code for each, of which a
    process takes the best that its CPU can run. `weights` are "inside" (by default up to one gigabyte), or "beside": in
    a file that processes map and share. `cc` is the command of a C compiler, by default the system's, or that of the
    ziglang wheel. docs/export.md
    has the interface.

    Raises as `compile` does, UnsupportedError for what needs Python while it runs, OptionError, ArtifactError.
    """
    path = _checked(output)
    name = _name(path, name)
    if weights not in (None, "inside", "beside"):
        raise OptionError(f"weights={weights!r:.80} is not allowed: 'inside' or 'beside'")
    if not isinstance(freestanding, bool):
        raise OptionError(f"freestanding={freestanding!r:.80} is not allowed: give True or False")
    if freestanding and (weights == "beside" or path.suffix in _SHARED):
        raise OptionError("a freestanding library opens no files and is not loaded: make a .a or .o, weights inside")
    if path.suffix in _OF_BROWSERS and (freestanding or weights == "inside"):
        raise OptionError("a module of JavaScript has its weights beside it, and is never freestanding")
    chosen = _for_source(Options.of(options, **fields), path.suffix == SOURCE)
    if path.suffix in _OF_BROWSERS:
        chosen = replace(chosen, target=chosen.target or WEBGPU.name, placement="device")  # a page has no CPU beside it
    source = with_examples(model, example_inputs, example_kwargs, dynamic_shapes)
    given = [Path(source)] if isinstance(source, str | Path) else []
    if path.suffix == PAGE:
        with suppress(OSError):  # which the check says in words
            path.parent.mkdir(exist_ok=True)
    for file, what, is_one in _targets(path, name):
        check_replaced(file, what, is_one, sources=given, force=force)
        check_file(file)
    session = Session.of(session)
    toolchain = None
    if path.suffix not in (SOURCE, *_OF_BROWSERS):
        triples = [getattr(machine, "triple", "") for machine in session.machines(chosen)]
        if len(triples) > 1 and {arch_of(triple) for triple in triples} != {"x86_64"}:
            raise OptionError(
                f"target={chosen.target!r:.200} is not allowed: levels of a library are those of x86-64",
                hint="give several of x86-64, x86-64-v2, x86-64-v3, x86-64-v4, ..., or one target",
            )
        toolchain = Toolchain.found(triples[0], cc)
    objects: list[Sequence[ObjectFile]] = []  # of each level; a compilation that began anew has told of more before
    request = Request.of(source, constants, shapes)
    artifact = compile_request(request, chosen, progress, session=session, on_objects=objects.append, own_objects=True)
    tell_of_failures(artifact, chosen)
    if path.suffix in _OF_BROWSERS:
        return write_script(artifact, path, name)
    if toolchain is None:
        return write_c(artifact, objects[-1], path, name, weights="inside" if freestanding else weights)
    levels = (*artifact.levels, artifact)
    made = [TargetCode(level, files) for level, files in zip(levels, objects[-len(levels) :], strict=True)]
    made.sort(key=lambda level: len(level.artifact.target.features))
    return write_library(made, path, name, toolchain, weights=weights, freestanding=freestanding)


def _for_source(options: Options, is_source: bool) -> Options:
    """The options of an export, for C where a source is made of it."""
    name = (options.target or "").split(",")[0]
    if is_source and name not in ("", C_TARGET.name):
        raise OptionError(
            f"target={options.target!r:.80} is not allowed: a source in C is for all machines",
            hint="leave the target out, and tell the C compiler of the machine",
        )
    if not is_source and name == C_TARGET.name:
        raise OptionError("the target 'c' makes a source in C", hint="give an output that ends in .c")
    return replace(options, target=options.target or C_TARGET.name) if is_source else options


def write_c(
    artifact: Artifact, texts: Sequence[ObjectFile], path: Path, name: str, *, weights: str | None
) -> tuple[Path, ...]:
    """Write a compiled model as C: each file whole or not at all."""
    check_exportable(artifact)
    is_beside = weights == "beside" or (weights is None and artifact.weight_bytes > LARGEST_ARRAYS)
    targets = [file for file, *_ in _targets(path, name)]
    with tempfile.TemporaryDirectory(prefix="tilewright-export-") as folder:
        made = write_source(Path(folder), artifact, texts, name, targets[2].name if is_beside else "")
        return _put(made, [*targets[:2], targets[2 if is_beside else 3]])


def write_script(artifact: Artifact, path: Path, name: str) -> tuple[Path, ...]:
    """Write a compiled model as a module of JavaScript for the GPUs of browsers, and as a page where that is wanted:
    each file whole or not at all."""
    targets = [file for file, *_ in _targets(path, name)]
    script, weights = targets[-2:]
    with tempfile.TemporaryDirectory(prefix="tilewright-export-") as folder:
        made = write_module(Path(folder), artifact, weights.name)
        if path.suffix == PAGE:
            made.insert(0, write_page(Path(folder), name, script.name))
        return _put(made, targets)


def _put(made: Sequence[Path], targets: Sequence[Path]) -> tuple[Path, ...]:
    """Move the files that were made to their places, the first one last; gives these."""
    written = tuple(targets[: len(made)])
    for source, target in reversed(list(zip(made, written, strict=True))):
        with replacing(target) as file, open(source, "rb") as content:
            shutil.copyfileobj(content, file)
        os.chmod(target, 0o755 if target.suffix in _SHARED else 0o644)
    return written


def write_library(
    levels: Sequence[TargetCode], path: Path, name: str, toolchain: Toolchain, *, weights: str | None,
    freestanding: bool,
) -> tuple[Path, ...]:
    """Write the library of a compiled model, or of its levels, the one that asks most of the CPU last: each file whole
    or not at all."""
    artifact = levels[-1].artifact
    if artifact.target.kind != "cpu":
        raise UnsupportedError(f"there are no libraries for {artifact.target.cpu}", hint="export for a CPU")
    check_exportable(artifact)
    if is_wasm(artifact.target) != (path.suffix == ".wasm"):
        raise OptionError(
            f"'{path.name:.80}' is no name of a library for {artifact.target.cpu} ({artifact.target.triple})",
            hint="modules of WebAssembly end in .wasm, and have a target such as wasm-simd128",
        )
    system = system_of(artifact.target.triple)
    kinds = (".wasm",) if path.suffix == ".wasm" else _OF_SYSTEMS.get(system, (".so", ".a", ".o"))
    if path.suffix not in kinds:
        raise OptionError(
            f"'{path.name:.80}' is no name of a library for {artifact.target.cpu} ({artifact.target.triple})",
            hint=f"libraries for it end in {', '.join(kinds)}",
        )
    freestanding = freestanding or path.suffix == ".wasm"
    is_beside = weights == "beside" or (weights is None and artifact.weight_bytes > LARGEST_WITHIN)
    if is_beside and freestanding:
        raise UnsupportedError(f"{artifact.weight_bytes} bytes of weights are too many to be inside of a library")
    with tempfile.TemporaryDirectory(prefix="tilewright-export-") as folder:
        build = Build(Path(folder), levels, name, toolchain, freestanding=freestanding)
        targets = [file for file, *_ in _targets(path, name)]
        made = build.made(path.suffix, targets[2].name if is_beside or path.suffix == ".wasm" else "", path.name)
        if path.suffix == ".dll":
            targets.insert(2, path.with_name(f"{path.name}.lib"))
        return _put(made, targets)


def _checked(output: object) -> Path:
    if not isinstance(output, str | os.PathLike) or not Path(output).name:
        raise OptionError(f"output={output!r:.80} is not allowed: give the path of a file")
    path = Path(output)
    if str(output).endswith(("/", os.sep)) or path.is_dir():
        path = path / f"index{PAGE}"
    if path.suffix not in KINDS:
        raise OptionError(
            f"'{path.name:.80}' has not the name of a library", hint=f"give one that ends in {', '.join(KINDS)}"
        )
    return path


def _name(path: Path, given: str | None) -> str:
    """The name with which the functions begin: a word of C."""
    name = given if given is not None else path.stem.removeprefix("lib").replace("-", "_").replace(".", "_")
    if not isinstance(name, str) or not name.isascii() or not name.isidentifier() or len(name) > _LONGEST:
        raise OptionError(
            f"name={name!r:.80} is not allowed: functions of C cannot begin so",
            hint="give a name of letters, digits and _, such as name='resnet50'",
        )
    if name.startswith(("_", "tw_")) or name in ("tw", "pthread") or is_taken(name):
        raise OptionError(f"name={name!r} is not allowed: such names are the library's own", hint="give another name")
    if name in _HEADERS:
        raise OptionError(
            f"name={name!r} is not allowed: {name}.h would be taken for the C library's",
            hint=f"give another name, such as name='{name}_model'",
        )
    return name


_LONGEST = 64

_HEADERS = frozenset({
    "assert", "complex", "ctype", "errno", "fenv", "float", "inttypes", "iso646", "limits", "locale", "malloc", "math",
    "setjmp", "signal", "stdalign", "stdarg", "stdatomic", "stdbool", "stddef", "stdint", "stdio", "stdlib",
    "stdnoreturn", "string", "tgmath", "threads", "time", "uchar", "unistd", "wchar", "wctype",
})  # fmt: skip
"""Names of headers of C libraries."""


_BEGINS = (b"\x7fELF", b"!<arch>", b"\0asm", b"MZ", b"\xcf\xfa\xed\xfe", b"/* A model, made")


def _targets(path: Path, name: str) -> list[tuple[Path, str, Any]]:
    """What is written: the library, its header, and its weights or a module of JavaScript, with what may be replaced
    there; of a source also its weights as arrays."""
    weights, script = path.with_name(f"{path.stem}.weights"), path.with_suffix(".mjs")
    third = (weights, "a file of weights", lambda begins: begins.startswith(WEIGHTS_MAGIC))
    if path.suffix in _OF_BROWSERS:
        own: list[tuple[Path, str, Any]] = [(script, "a module of a model", lambda begins: begins.startswith(BEGINS))]
        if path.suffix == PAGE:
            own.insert(0, (path, "a page of a model", lambda begins: begins.startswith(PAGE_BEGINS)))
        return [*own, third]
    if path.suffix == ".wasm":
        third = (script, "a module of a model", lambda begins: begins.startswith(b"// Running the "))
    targets: list[tuple[Path, str, Any]] = [
        (path, "a library", lambda begins: begins.startswith(_BEGINS)),
        (path.with_name(f"{name}.h"), "a header of a model", lambda begins: begins.startswith(b"/* The C interfa")),
        third,
    ]
    if path.suffix == SOURCE:
        arrays = path.with_name(f"{name}_weights.h")
        targets.append((arrays, "weights of a model", lambda begins: begins.startswith(b"/* The weights o")))
    return targets
