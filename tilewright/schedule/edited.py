"""Schedules of kernels that a user gives as text, in place of those that the compiler would choose."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from tilewright.ir.core import Func
from tilewright.ir.diag import GivenScheduleError, ScheduleError, VerifyError
from tilewright.ir.text import print_block
from tilewright.ir.text.attributes import print_variable
from tilewright.ir.textpos import text_error
from tilewright.ir.verify import verify_func
from tilewright.loops.kernel_info import constants_of, kernel_info
from tilewright.loops.machine.rules import spec_of
from tilewright.schedule.references import find_buffer, similar
from tilewright.schedule.replay import ReplayError, replay
from tilewright.schedule.text import KernelTrace, parse_schedules
from tilewright.schedule.trace import Step, Trace
from tilewright.target.machine import Machine


class EditedSchedules:
    """The traces in the text of a file, by kernels, and the digest of each kernel that was asked for so far."""

    def __init__(self, text: str = "", file: str = "text") -> None:
        self.text = text
        self.file = file
        self.traces = parse_schedules(text, file=file)
        self.digests: dict[str, str] = {}

    def scheduled(self, naive: Func, machine: Machine) -> Func | None:
        """The kernel that its trace makes of `naive`; None where the file has none for it. ScheduleError with the line
        of a step that does not fit, or of the kernel where the trace is one of another kernel."""
        digest = self.digests[naive.name] = digest_of(naive)
        found = self.traces.get(naive.name)
        if found is None:
            return None
        if found.digest not in ("", digest):
            raise self.error(
                f"the kernel @{naive.name} of this model is another one than the schedule was made for",
                found.place,
                "make the file with `tilewright show MODEL --level schedule` of the same model and version, with the "
                "same --target, --numerics, --shape and --constant",
            )
        try:
            _check_constants(found.trace, naive)
            func = replay(naive, found.trace, machine)
            verify_func(func, spec_of(machine))
        except ReplayError as e:
            raise self.error(e.what, e.place, e.hint) from e
        except VerifyError as e:
            raise self.error(f"the steps make a kernel that is not legal: {e.what}", found.place, None) from e
        return func

    def not_emitted(self, kernel: str, error: Exception) -> ScheduleError:
        """That no code can be made of a kernel that its trace has made."""
        reason = f"no code can be made of this kernel: {type(error).__name__}: {error}"
        return self.error(reason, self.traces[kernel].place, "take fewer, or smaller, steps")

    def check_all_used(self) -> None:
        """ScheduleError for a trace of a kernel that nobody asked for."""
        for name, found in self.traces.items():
            if name not in self.digests:
                raise self.error(f"the model has no kernel @{name}", found.place, self._found_instead(found))

    def _found_instead(self, trace: KernelTrace) -> str:
        """A hint at the kernel that a trace may be meant for."""
        same = [name for name, digest in self.digests.items() if digest == trace.digest]
        if same:
            return f"did you mean {same[0]}? That kernel has this digest"
        kernels = f"its kernels are: {', '.join(self.digests) or 'none'}"
        return similar(trace.kernel, self.digests) or f"is the file one of another model? {kernels}"

    def error(self, message: str, place: int, hint: str | None) -> ScheduleError:
        """What is wrong, with the line of the text and a caret under the place."""
        shown = text_error(message, self.text, place, file=self.file, hint=hint)
        return GivenScheduleError(shown.what, where=shown.where, hint=shown.hint)


def digest_of(naive: Func) -> str:
    """Tells a kernel as it was lowered from others, whatever their names."""
    digest = hashlib.blake2b(digest_size=8)
    for v in naive.dims:
        digest.update(f"{print_variable(v)};".encode())
    for value in naive.args:
        digest.update(f"{value.type};".encode())
    digest.update(print_block(naive.body).encode())
    return digest.hexdigest()


def print_schedule(kernel: Func, digest: str, calls: int) -> str:
    """The trace of a kernel as it stands in a file, which is made of these one after the other."""
    head = f'kernel @{kernel.name} digest="{digest}" {{  # {calls} call{"" if calls == 1 else "s"}\n'
    return head + "".join(f"  {line}\n" for line in kernel_info(kernel).schedule) + "}\n"


def _check_constants(trace: Trace, naive: Func) -> None:
    """ReplayError for a step that lays out an operand anew which nobody could do when compiling."""
    constants = constants_of(naive)
    for step in _steps(trace):
        if step.primitive == "pack_argument":
            name = str(dict(step.arguments)["buffer"])
            if find_buffer(name, naive) not in constants:
                what = (
                    f"pack_argument buffer '{name}': it is no constant, so that nobody could lay it out anew"
                )
                raise ReplayError(what, hint="use pack, which copies when the kernel runs", place=step.place)


def _steps(trace: Trace) -> Iterator[Step]:
    yield from trace.steps
    if trace.otherwise is not None:
        yield from _steps(trace.otherwise)
