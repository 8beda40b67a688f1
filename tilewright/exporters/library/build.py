"""The files of a library: sources in C, objects of the model's code under names of their own, and the weights."""

from __future__ import annotations

import hashlib
import os
import re
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from tilewright.codegen.cpu.assemble import ObjectFile
from tilewright.codegen.cpu.linking.elf import read_elf
from tilewright.exporters.library.features import features_c
from tilewright.exporters.library.foreign_symbols import (
    GlobalNames,
    is_coff,
    is_macho,
    names_in,
    renamed_foreign,
)
from tilewright.exporters.library.levels import LACKS, chooser_c
from tilewright.exporters.library.symbols import renamed
from tilewright.exporters.library.tables import LibraryWeights, c_name, tables_c
from tilewright.exporters.library.toolchain import Toolchain
from tilewright.ir.diag import UnsupportedError
from tilewright.runtime.artifact import Artifact, TargetInfo
from tilewright.runtime.storage.files import write_slices
from tilewright.target.target import arch_of, system_of

WEIGHTS_MAGIC = b"TWWEIGHT"
WEIGHTS_VERSION = 1
WEIGHTS_AT = 4096
"""Where the weights begin in a file of their own: the page from which processes map them."""

_RUNTIME = Path(__file__).parent / "runtime"
_SOURCES = ("basics.c", "machine.c", "programs.c", "interface.c")
_FORKS = ("tw_parallel", "tw_parallel_ordered")
_PROVIDED = frozenset({"memcpy", "memmove", "memset", "memcmp"})
"""Functions that a freestanding library brings itself."""
_FUNCTIONS = ("info", "plan", "create", "run", "cancel", "state", "reset", "error", "destroy")
"""Of the interface."""

_MADE = (*_FUNCTIONS, "model", "weights")


def is_taken(name: str) -> bool:
    """Whether what a library of this name makes is called as something within all libraries."""
    words = frozenset(re.findall(r"\w+", runtime_c()))
    return not words.isdisjoint(f"{name}_{made}" for made in _MADE)


def runtime_c(*sources: str) -> str:
    """What every library does around its kernels, with `model` where the library's name is meant: all, or these
    files of it."""
    return "\n".join((_RUNTIME / source).read_text(encoding="utf-8") for source in sources or _SOURCES)


def header_c() -> str:
    """The interface, with `model` where the library's name is meant."""
    return (_RUNTIME / "model.h").read_text(encoding="utf-8")


def named(text: str, name: str, *, in_comments: bool = True) -> str:
    """A text of C or JavaScript that says `model` wherever the library's name is meant: in no string, as those are
    names and messages of the model, and where comments are layers of the model, in none of these."""

    def prefixed(found: re.Match[str]) -> str:
        return found[0] if found[0].startswith(('"', "/")) else f"{name}_"

    comments = "" if in_comments else r"/\*.*?\*/|"
    return re.sub(comments + r'"(?:[^"\\\n]|\\.)*"|\b(?:model|MODEL)_(?=\w)', prefixed, text)


def weights_beside(path: Path, pieces: Sequence[memoryview], beside: str) -> LibraryWeights:
    """Write weights to a file of their own, which tables refer to by the name `beside`."""
    size = sum(piece.nbytes for piece in pieces)
    digest, checksum = hashlib.blake2b(digest_size=32), 0
    for piece in pieces:
        digest.update(piece)
        checksum = zlib.crc32(piece, checksum)
    header = WEIGHTS_MAGIC + struct.pack("<IIQ", WEIGHTS_VERSION, checksum, size) + digest.digest()
    _write_weights(path, header.ljust(WEIGHTS_AT, b"\0"), pieces)
    return LibraryWeights(size, checksum, beside, header)


def _write_weights(path: Path, header: bytes, pieces: Sequence[memoryview]) -> None:
    with open(path, "wb") as file:
        file.write(header)
        for piece in pieces:
            write_slices(file, piece)


def is_wasm(target: TargetInfo) -> bool:
    """Whether a library for a target is a module of WebAssembly."""
    return arch_of(target.triple) == "wasm32"


@dataclass(frozen=True)
class TargetCode:
    """A compiled model and the objects of its code."""

    artifact: Artifact
    objects: Sequence[ObjectFile]


class LibraryCode:
    """The code of one target in a library, whose functions begin with `name`: objects, and the C source that runs
    them. It is all of a library, or a level of one, whose functions nobody sees from outside."""

    def __init__(self, made: TargetCode, name: str, *, freestanding: bool, library: str = "") -> None:
        self.artifact, self.name, self.freestanding = made.artifact, name, freestanding
        self.library = library or name
        self.is_wasm, self.system = is_wasm(self.artifact.target), system_of(self.artifact.target.triple)
        if self.is_wasm:
            self.blobs = [file.data for file in made.objects]
            return
        # one thread needs no pool
        kept = [file for file in made.objects if not (freestanding and file.kind == "pool")]
        symbols = [names_of(file) for file in kept]
        self._own = frozenset[str]().union(*(s.defined for s in symbols), _FORKS)
        self._check_needs(frozenset[str]().union(*(s.needed for s in symbols)) - self._own)
        self.blobs = [renamed_object(file, self._symbol) for file in kept]

    def source(self, weights: LibraryWeights) -> str:
        """The C source: tables, and what runs them."""
        features = features_c(self.artifact.target, freestanding=self.freestanding)
        tables = tables_c(self.artifact, self.library, weights, features)
        preamble = _FREE + MEMORY_FUNCTIONS if self.freestanding else _HOSTED
        if self.system == "windows":
            preamble = preamble.replace(_VISIBLE, _VISIBLE_OF_WINDOWS)
            if not self.freestanding:
                windows = (_RUNTIME / "windows.c").read_text(encoding="utf-8")
                preamble = f"#define TW_CODE\n{windows}\n{preamble[preamble.index(_VISIBLE_OF_WINDOWS):]}"
        text = f'{preamble}\n#include "{self.name}.h"\n\n{tables}\n{runtime_c()}'
        if self.library == self.name:
            return named(text, self.name)
        hidden = preamble.replace(_shown(self.system), "#define TW_PUBLIC\n")
        text = named(f"{text.replace(preamble, hidden, 1)}\n{LACKS}", self.name)
        return f"#define {self.name}_weights {self.library}_weights\n{text}"

    def _symbol(self, symbol: str) -> str:
        if self.system == "windows" and symbol in _POSIX:
            return f"{self.name}_os_{_POSIX[symbol]}"
        if symbol not in self._own:
            return symbol
        return f"{self.name}_{c_name(symbol) if symbol.startswith('tw_') else symbol}"

    def _check_needs(self, needed: frozenset[str]) -> None:
        missing = sorted(needed - _PROVIDED) if self.freestanding else []
        if missing:
            raise UnsupportedError(
                f"the model's code needs {', '.join(missing)}, which a freestanding library has nowhere to take from",
                hint="export it without freestanding",
            )


class Build:
    """The making of one library in a folder of its own: of the model as it was compiled, or of several levels of a
    CPU, which share the weights."""

    def __init__(
        self, folder: Path, levels: Sequence[TargetCode], name: str, toolchain: Toolchain, *, freestanding: bool
    ) -> None:
        self.folder, self.artifact, self.name = folder, levels[-1].artifact, name
        self.toolchain, self.freestanding = toolchain, freestanding
        self.is_wasm, self.system = is_wasm(self.artifact.target), system_of(self.artifact.target.triple)
        names = [name] if len(levels) == 1 else [f"{name}_{c_name(made.artifact.level)}" for made in levels]
        self.codes = [
            LibraryCode(made, own, freestanding=freestanding, library=name)
            for made, own in zip(levels, names, strict=True)
        ]

    def made(self, kind: str, beside: str, shown: str = "") -> list[Path]:
        """The library (its suffix is the `kind`), its header, what linkers of Windows need of a .dll, and the file
        `beside` it: with the weights, where that has a name, or a module of JavaScript for WebAssembly. `shown` is the
        name of the file that the library will be in."""
        weights, extra, files = self._weights("" if self.is_wasm else beside)
        if self.is_wasm:
            script = (_RUNTIME / "model.mjs").read_text(encoding="utf-8")
            script = self._named(script)
            for kind in (".mjs", ".wasm"):
                script = script.replace(f"./model{kind}", f"./{quote(os.fsencode(Path(beside).stem))}{kind}")
            files = [self._written(f"{self.name}.mjs", script)]
        sources, header = self._sources(weights), self.folder / f"{self.name}.h"
        flags = ["-DTW_FREESTANDING", "-ffreestanding", "-fno-builtin"] if self.freestanding else []
        flags += ["-DTW_SHARED"] if kind == ".dll" else []
        if self.is_wasm:
            flags += ["-DTW_SYMBOLS_KEPT", "-mbulk-memory"]
        objects = []
        for source in sources:
            objects.append(source.with_suffix(".o"))
            self.toolchain.compile(source, objects[-1], *flags)
        objects += extra
        for k, blob in enumerate(blob for code in self.codes for blob in code.blobs):
            objects.append(self.folder / f"code-{k}.o")
            objects[-1].write_bytes(blob)
        library = self.folder / f"the-library{kind}"
        match kind:
            case ".so" | ".dll" | ".dylib":
                self.toolchain.link_shared(objects, library, shown)
                extra_files = [library.with_suffix(".lib")] if kind == ".dll" else []
                return [library, header, *extra_files, *files]
            case ".a" | ".lib":
                self.toolchain.archive(objects, library)
            case ".wasm":
                self.toolchain.link_wasm(objects, library, [f"{self.name}_{function}" for function in _FUNCTIONS])
            case _:
                self.toolchain.merge(objects, library)
        return [library, header, *files]

    def _sources(self, weights: LibraryWeights) -> list[Path]:
        """The C sources."""
        header = self._named(header_c())
        made = []
        for code in self.codes:
            if code.name != self.name:
                self._written(f"{code.name}.h", named(header_c(), code.name))
            made.append(self._written(f"{code.name}.c", code.source(weights)))
        self._written(f"{self.name}.h", header)
        if len(self.codes) > 1:
            text = chooser_c(self.name, [code.name for code in self.codes], _shown(self.system))
            made.append(self._written(f"{self.name}.c", text))
        return made

    def _named(self, text: str) -> str:
        return named(text, self.name)

    def _weights(self, beside: str) -> tuple[LibraryWeights, list[Path], list[Path]]:
        """What the tables say of the weights, objects that hold them, and the file beside."""
        pieces = self.artifact.saved_weights()
        size = sum(piece.nbytes for piece in pieces)
        if not size:
            return LibraryWeights(0), [], []
        if beside:
            path = self.folder / "beside.weights"
            return weights_beside(path, pieces, beside), [], [path]
        _write_weights(self.folder / "weights.bin", b"", pieces)
        text = _WASM_ASSEMBLY if self.is_wasm else _ASSEMBLIES.get(self.system, _ASSEMBLY)
        source = self._written("weights.S", text.format(name=self.name, size=size))
        made = self.folder / "the-weights.o"  # as no name is
        self.toolchain.compile(source, made)
        return LibraryWeights(size), [made], []

    def _written(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path


_ASSEMBLY = """    .section .rodata.weights,"a",%progbits
    .p2align 12
    .globl {name}_weights
    .hidden {name}_weights
{name}_weights:
    .incbin "weights.bin"
    .section .note.GNU-stack,"",%progbits
"""

_ASSEMBLIES = {
    "windows": """    .section .rdata,"dr"
    .p2align 12
    .globl {name}_weights
{name}_weights:
    .incbin "weights.bin"
""",
    "macos": """    .section __TEXT,__const
    .p2align 12
    .globl _{name}_weights
    .private_extern _{name}_weights
_{name}_weights:
    .incbin "weights.bin"
""",
}

_WASM_ASSEMBLY = """    .section .rodata.weights,"",@
    .p2align 6
    .globl {name}_weights
    .hidden {name}_weights
    .type {name}_weights,@object
{name}_weights:
    .incbin "weights.bin"
    .size {name}_weights, {size}
"""

_POSIX = {
    "posix_memalign": "memalign",
    "free": "free",
    "pthread_create": "thread",
    "pthread_join": "join",
    "clock_gettime": "clock",
    "sched_yield": "yield",
    "tw_os_wait": "wait",
    "tw_os_wake": "wake",
}
"""What the code calls as in POSIX, and which function of `runtime/windows.c` takes its place there."""


def names_of(file: ObjectFile) -> GlobalNames:
    """The global names in an object file, of whatever format."""
    if is_coff(file.data) or is_macho(file.data):
        return names_in(file.data)
    symbols = read_elf(file.data, file.name).symbols
    return GlobalNames(symbols.defined, symbols.needed)


def renamed_object(file: ObjectFile, name_of: Callable[[str], str]) -> bytes:
    """The object file with other global names."""
    if is_coff(file.data) or is_macho(file.data):
        return renamed_foreign(file.data, name_of)
    return renamed(file.data, name_of)


_HOSTED = """#define TW_CODE
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#if (defined(__aarch64__) || defined(__s390x__) || defined(__riscv)) && defined(__linux__)
#include <sys/auxv.h>
#endif
#if defined(__aarch64__) && defined(__linux__)
#include <sys/prctl.h>
#ifndef PR_SVE_GET_VL
#define PR_SVE_GET_VL 51
#endif
#endif

#define TW_PUBLIC __attribute__((visibility("default")))
#pragma GCC visibility push(hidden)

void *model_tw_pool_create(int32_t threads, const int32_t *cpus, int64_t spin_ns);
void model_tw_pool_destroy(void *pool);
"""

_SHOWN = '#define TW_PUBLIC __attribute__((visibility("default")))\n'
_VISIBLE = f"{_SHOWN}#pragma GCC visibility push(hidden)\n"

_VISIBLE_OF_WINDOWS = """#ifdef TW_SHARED
#define TW_PUBLIC __declspec(dllexport)
#else
#define TW_PUBLIC
#endif
"""


def _shown(system: str) -> str:
    """C that lets others see what is declared with TW_PUBLIC."""
    return _VISIBLE_OF_WINDOWS if system == "windows" else _SHOWN


_FREE = """#define TW_CODE
#include <stddef.h>
#include <stdint.h>

#define TW_PUBLIC __attribute__((visibility("default")))
#pragma GCC visibility push(hidden)
"""

MEMORY_FUNCTIONS = """
/* What C compilers ask of every program; a C library's own take their place. */
__attribute__((weak)) void *memcpy(void *restrict to, const void *restrict from, size_t count) {
  for (size_t k = 0; k < count; k++) ((volatile unsigned char *)to)[k] = ((const unsigned char *)from)[k];
  return to;
}

__attribute__((weak)) void *memmove(void *to, const void *from, size_t count) {
  if ((uintptr_t)to <= (uintptr_t)from) return memcpy(to, from, count);
  while (count--) ((volatile unsigned char *)to)[count] = ((const unsigned char *)from)[count];
  return to;
}

__attribute__((weak)) void *memset(void *to, int value, size_t count) {
  for (size_t k = 0; k < count; k++) ((volatile unsigned char *)to)[k] = (unsigned char)value;
  return to;
}

__attribute__((weak)) int memcmp(const void *one, const void *other, size_t count) {
  const unsigned char *a = one, *b = other;
  for (; count; count--, a++, b++)
    if (*a != *b) return *a < *b ? -1 : 1;
  return 0;
}
"""
