"""The C compiler that makes a library of sources and object files: the system's, or the one of the ziglang wheel."""

from __future__ import annotations

import importlib.util
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.runtime.errors import ArtifactError, OptionError
from tilewright.target.target import arch_of, system_of

_FLAGS = ("-std=c11", "-O2", "-fPIC", "-fvisibility=hidden", "-ffunction-sections", "-fdata-sections", "-g0")


@dataclass(frozen=True)
class Toolchain:
    """How a C compiler is called for a target, and an archiver."""

    compiler: tuple[str, ...]
    archiver: tuple[str, ...]

    @classmethod
    def found(cls, triple: str, given: str | None = None) -> Toolchain:
        """`given` (a command), or `cc` for this machine, or zig. ArtifactError where there is none."""
        if given:
            compiler = _words(given)
            is_zig = "cc" in compiler[1:]  # one command is compiler and archiver
            return cls(compiler, (*compiler[: compiler.index("cc")], "ar") if is_zig else ("ar",))
        is_own = system_of(f"-{sys.platform}") == system_of(triple)
        here = is_own and arch_of(triple) == arch_of(platform.machine().lower())
        if here and shutil.which("cc"):
            return cls(("cc",), ("ar",))
        if importlib.util.find_spec("ziglang") is not None:
            zig = (sys.executable, "-m", "ziglang")
            return cls((*zig, "cc", "-target", _zig_target(triple)), (*zig, "ar"))
        raise ArtifactError(
            f"there is no C compiler that links for {triple}",
            hint="install one (`cc`), or the extra: pip install 'tilewright[export]', which brings zig's; or give --cc",
        )

    def compile(self, source: Path, made: Path, *flags: str) -> None:
        """An object file of a C or assembly source."""
        self._run([*self.compiler, *_FLAGS, *flags, "-c", source.name, "-o", made.name], source.parent)

    def link_shared(self, objects: Sequence[Path], made: Path, name: str = "") -> None:
        """A shared library that shows what its sources say, and needs the C library, its mathematics and threads. Those
        of Windows and macOS hold the `name` under which others look for them; beside one of Windows there is a library
        for linkers, whose suffix is .lib."""
        flags = ["-shared", "-Wl,--gc-sections", "-Wl,-z,noexecstack", "-Wl,-z,defs", "-Wl,--build-id=none", "-s"]
        libraries, target = ["-lm", "-lpthread", "-ldl"], made.name
        if made.suffix == ".dll":
            (made.parent / "named").mkdir()
            target, library = f"named/{name}", made.with_suffix(".lib").name
            flags = ["-shared", "-Wl,--gc-sections", f"-Wl,--out-implib,{library}", "-s"]
            libraries = ["-lapi-ms-win-core-synch-l1-2-0"]
        elif made.suffix == ".dylib":
            flags, libraries = ["-shared", "-Wl,-dead_strip", f"-Wl,-install_name,@rpath/{name}", "-s"], []
        self._run([*self.compiler, *flags, *(o.name for o in objects), "-o", target, *libraries], made.parent)
        if target != made.name:
            (made.parent / target).replace(made)

    def link_wasm(self, objects: Sequence[Path], made: Path, shown: Sequence[str]) -> None:
        """A module of WebAssembly with these functions, its memory, and where that is free. Code that calls functions
        of the C library (`sin` in float64) gets them from that of WASI, which zig brings: they import nothing."""
        flags = ["-Wl,--no-entry", "-Wl,--gc-sections", "-Wl,-z,stack-size=1048576", "-Wl,--strip-all"]
        flags += [f"-Wl,--export={name}" for name in (*shown, "__heap_base")]
        flags += [*(o.name for o in objects), "-o", made.name]
        try:
            self._run([*self.compiler, "-nostdlib", *flags], made.parent)
        except ArtifactError as error:
            if "undefined symbol" not in str(error) or _WASM not in self.compiler:
                raise
            compiler = ["wasm32-wasi" if word == _WASM else word for word in self.compiler]
            self._run([*compiler, "-mexec-model=reactor", *flags, "-lm"], made.parent)

    def merge(self, objects: Sequence[Path], made: Path) -> None:
        """One object file of several."""
        self._run([*self.compiler, "-r", "-nostdlib", *(o.name for o in objects), "-o", made.name], made.parent)

    def archive(self, objects: Sequence[Path], made: Path) -> None:
        """A static library, whose bytes follow from its members alone."""
        self._run([*self.archiver, "rcsD", made.name, *(o.name for o in objects)], made.parent)

    def _run(self, command: Sequence[str], folder: Path) -> None:
        """In the folder of the files, so that no path is in what is made."""
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
        except OSError as error:
            hint = "install it, or give another with --cc"
            raise ArtifactError(f"cannot run {command[0]}: {error}", hint=hint) from error
        if done.returncode:
            raise ArtifactError(
                f"{' '.join(command[:3])} ... failed: {_last_lines(done.stderr)}",
                hint="give another C compiler with --cc (C11, GCC or Clang)",
            )


def _words(command: object) -> tuple[str, ...]:
    try:
        words = shlex.split(command) if isinstance(command, str) else []
    except ValueError:  # a quote that does not end
        words = []
    if not words:
        hint = "give a compiler and its options, such as 'gcc-14 -O3'"
        raise OptionError(f"cc={command!r:.80} is not a command", hint=hint)
    return tuple(words)


_WASM = "wasm32-freestanding"


def _zig_target(triple: str) -> str:
    arch, rest = arch_of(triple), triple.split("-")[1:]
    if arch == "wasm32":
        return _WASM
    system = system_of(triple) or "linux"
    return f"{arch}-macos.11.0" if system == "macos" else f"{arch}-{system}-{'musl' if 'musl' in rest else 'gnu'}"


def _last_lines(text: str) -> str:
    return " | ".join(text.strip().splitlines()[:6]) or "it says nothing"
