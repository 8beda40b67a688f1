"""LLVM for machines of other architectures, in processes of its own: where it has no code for an instruction, it ends
the process that asks for it. Those of this machine's architecture are made in this process."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import pickle
import platform
import select
import signal
import subprocess
import sys
import tempfile
import threading
from functools import lru_cache
from typing import Any

from tilewright.codegen.cpu import generator as own
from tilewright.codegen.cpu.generator import Generator
from tilewright.ir.diag import InternalError
from tilewright.runtime.process.forks import free_in_children
from tilewright.target.target import arch_of

LONGEST_WAIT = 10.0
"""Seconds for which a process waits for the next text before it ends."""

_CHILD = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from tilewright.codegen.cpu.apart import serve
serve(float(sys.argv[2]))
"""


@lru_cache(maxsize=32)
def is_foreign(triple: str) -> bool:
    """Whether code for a triple is of another architecture than this machine's. False where this program is no
    interpreter, which could begin another."""
    if getattr(sys, "frozen", False) or not sys.executable:
        return False
    return arch_of(triple) != arch_of(platform.machine().lower())


def object_of(text: str, generator: Generator) -> bytes:
    """As `generator.object_of`; InternalError with what LLVM said also where it ends the process."""
    return bytes(_asked(generator, "object_of", text, {}))


def refusal_of(text: str, generator: Generator) -> str:
    """As `generator.refusal_of`; InternalError where LLVM ends the process."""
    return str(_asked(generator, "refusal_of", text, {}))


def assembly_of(text: str, generator: Generator, *, comments: bool) -> str:
    """As `generator.assembly_of`; InternalError as `object_of`."""
    return str(_asked(generator, "assembly_of", text, {"comments": comments}))


# The process that asks


class _Worker:
    """A process that makes code of one text after the other."""

    def __init__(self) -> None:
        self.said = tempfile.TemporaryFile()  # noqa: SIM115
        self.is_ready = False
        command = [sys.executable, "-I", "-c", _CHILD, json.dumps(sys.path), str(LONGEST_WAIT)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said
        )

    def ask(self, *question: Any) -> Any:
        """Its answer, or the error that it raised; EOFError or OSError where it has ended."""
        assert self.process.stdin is not None and self.process.stdout is not None
        if not self.is_ready:
            self.is_ready = pickle.load(self.process.stdout)
        pickle.dump(question, self.process.stdin)
        self.process.stdin.flush()
        return pickle.load(self.process.stdout)

    def end(self) -> tuple[int, str]:
        """Its exit code, and what LLVM said last."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            code = self.process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self.process.stdout.close()
        with contextlib.suppress(OSError):  # it did not read all
            self.process.stdin.close()
        self.said.seek(0)
        lines = [line for line in self.said.read().decode(errors="replace").splitlines() if line.strip()]
        self.said.close()
        errors = [line for line in lines if "LLVM ERROR" in line] or lines[-1:]
        return code, errors[0].removeprefix("LLVM ERROR: ").strip() if errors else ""


_IDLE: list[_Worker] = []
_LOCK = free_in_children(threading.Lock())


def _asked(generator: Generator, work: str, text: str, options: dict[str, Any]) -> Any:
    """What a process answers; this one where none can begin."""
    while True:
        try:
            worker, was_idle = _taken()
        except OSError:
            return getattr(own, work)(text, generator, **options)
        try:
            answer = worker.ask(generator, work, text, options)
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            code, said = worker.end()
            if was_idle and code == 0:  # it had waited long enough
                continue
            if not worker.is_ready:
                return getattr(own, work)(text, generator, **options)
            raise _ended(generator, code, said) from error
        except BaseException:  # an interrupt: its answer would be taken for the next one
            worker.process.kill()
            worker.end()
            raise
        with _LOCK:
            _IDLE.append(worker)
        if isinstance(answer, Exception):
            raise answer
        return answer


def _taken() -> tuple[_Worker, bool]:
    """A process, and whether it has answered before."""
    with _LOCK:
        if _IDLE:
            return _IDLE.pop(), True
    return _Worker(), False


def _ended(generator: Generator, code: int, said: str) -> Exception:
    if code == -9:  # SIGKILL, which Windows has not
        return MemoryError("the system ended LLVM's process")
    how = signal.Signals(-code).name if -code in signal.valid_signals() else f"exit code {code}"
    what = f"LLVM makes no code for {generator.cpu} ({generator.triple}): {said or 'it says nothing'} ({how})"
    return InternalError(what, hint="this is a defect; please report it")


def _end_all() -> None:
    with _LOCK:
        workers = [_IDLE.pop() for _ in range(len(_IDLE))]
    for worker in workers:
        worker.process.kill()
        worker.end()


def _forget() -> None:
    """In a forked child: they are the parent's."""
    for worker in _IDLE:
        worker.process.returncode = 0  # nobody waits for it here
    _IDLE.clear()


atexit.register(_end_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


# The process that is asked


def serve(longest_wait: float) -> None:
    """Answer until nobody asks any more, or has not for so many seconds. Somebody began this for a first question, for
    which it waits however busy the machine is."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all; the one that asks ends this one
    questions, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what LLVM prints is no answer
    pickle.dump(True, answers)
    answers.flush()
    while True:
        try:
            generator, work, text, options = pickle.load(questions)
        except EOFError:
            return
        pickle.dump(_answer(generator, work, text, options), answers)
        answers.flush()
        if not _is_asked(longest_wait):
            return


def _is_asked(longest_wait: float) -> bool:
    """Whether a question is there, or the end, before it is time to go."""
    return sys.platform == "win32" or bool(select.select([0], [], [], longest_wait)[0])


def _answer(generator: Generator, work: str, text: str, options: dict[str, Any]) -> Any:
    try:
        return getattr(own, work)(text, generator, **options)
    except MemoryError:
        return MemoryError("LLVM has not enough memory")
    except Exception as error:
        return error if isinstance(error, InternalError) else InternalError(f"LLVM makes no code: {error}")
