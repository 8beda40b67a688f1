"""The parts of the thread pool that differ between machines and systems, as LLVM IR text.

Each target defines the same few internal functions: `tw_relax`, `tw_get_float`, `tw_set_float`, `tw_now`,
`tw_block_signals`, `tw_restore_signals`, `tw_sleep`, `tw_wake`, `tw_pin`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.codegen.cpu.float_modes import float_modes
from tilewright.target.machine import TargetError
from tilewright.target.target import arch_of

IDLE, OFFERED, TAKEN, ASLEEP, QUIT = range(5)
"""The values of a mailbox's state word."""


@dataclass(frozen=True)
class _System:
    """What differs between operating systems (C library and kernel numbers)."""

    monotonic_clock: int
    set_mask: int  # SIG_SETMASK
    fault_signals: tuple[int, ...]  # ILL, BUS, FPE, SEGV


_LINUX = _System(monotonic_clock=1, set_mask=2, fault_signals=(4, 7, 8, 11))
_DARWIN = _System(monotonic_clock=6, set_mask=3, fault_signals=(4, 10, 8, 11))
_WINDOWS = _System(monotonic_clock=1, set_mask=0, fault_signals=())
"""What is called as in POSIX there is brought by the library that the code is exported to (`exporters/library`)."""

_FUTEX_NUMBER = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "s390x": 238}
_SUPPORTED = f"models run on Linux and macOS, on {', '.join(_FUTEX_NUMBER)}; on Windows inside of WSL"
_FUTEX_WAIT_PRIVATE, _FUTEX_WAKE_PRIVATE = 128, 129
_UL_COMPARE_AND_WAIT = 1


def platform_ir(triple: str) -> str:
    """Text of the functions above for a target triple; TargetError where the pool cannot run."""
    arch, system = _arch(triple), _system(triple)
    linux = system is _LINUX
    parts = [
        _relax(arch),
        float_modes(triple),
        clock_ir(triple),
        _NO_SIGNALS if system is _WINDOWS else _signals(system),
        _sleep(arch) if linux else _SLEEP_WINDOWS if system is _WINDOWS else _SLEEP_DARWIN,
        _pin(arch) if linux else _PIN_NOWHERE,
    ]
    return "\n".join(parts)


def has_threads(triple: str) -> bool:
    """Whether code for a triple brings a pool: WebAssembly has one thread, and no system below it."""
    return not triple.startswith("wasm")


def check_platform(triple: str) -> None:
    """TargetError where no pool is known: before any work."""
    if not has_threads(triple):
        return
    _arch(triple)
    _system(triple)


def _arch(triple: str) -> str:
    name = arch_of(triple)
    if name not in _FUTEX_NUMBER:
        raise TargetError(f"no code can be made for the architecture of {triple}", hint=_SUPPORTED)
    return name


def _system(triple: str) -> _System:
    if "linux" in triple:
        return _LINUX
    if "darwin" in triple or "macos" in triple:
        return _DARWIN
    if triple.endswith("windows-gnu"):
        return _WINDOWS
    raise TargetError(f"no code can be made for the operating system of {triple}", hint=_SUPPORTED)


def _relax(arch: str) -> str:
    """`tw_relax`: tell the core that this is a spin loop (and give its sibling hyperthread the pipeline)."""
    if arch == "x86_64":
        declaration, body = "declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"
    elif arch == "aarch64":
        # `yield` does nothing on most cores; `isb` really pauses, for a few tens of cycles. As an intrinsic:
        # inline assembly would need LLVM's assembly parser.
        declaration, body = "declare void @llvm.aarch64.isb(i32)", "call void @llvm.aarch64.isb(i32 15)"
    else:
        # RISC-V's pause is an extension (Zihintpause) that the baseline lacks; IBM Z has none.
        declaration, body = "", ""
    return f"""{declaration}
define internal void @tw_relax() alwaysinline nounwind {{
  {body}
  ret void
}}
"""


def clock_ir(triple: str) -> str:
    """`tw_now`: a steady clock in nanoseconds; in WebAssembly, which has none, it stands still."""
    if not has_threads(triple):
        return "\ndefine internal i64 @tw_now() nounwind {\n  ret i64 0\n}\n"
    return f"""
declare i32 @clock_gettime(i32, ptr)
define internal i64 @tw_now() nounwind {{
  %time = alloca {{ i64, i64 }}
  %ignored = call i32 @clock_gettime(i32 {_system(triple).monotonic_clock}, ptr %time)
  %seconds = load i64, ptr %time
  %fraction.at = getelementptr {{ i64, i64 }}, ptr %time, i64 0, i32 1
  %fraction = load i64, ptr %fraction.at
  %scaled = mul i64 %seconds, 1000000000
  %now = add i64 %scaled, %fraction
  ret i64 %now
}}
"""


def _signals(system: _System) -> str:
    """`tw_block_signals`, `tw_restore_signals`: around the start of threads, which inherit the mask.

    A signal delivered to a worker would not interrupt the system call in which the host's main thread
    waits, so that Ctrl-C would seem lost. Faults stay unblocked: they belong to the thread that made them.
    """
    unblock = "\n".join(
        f"  %fault{signal} = call i32 @sigdelset(ptr %all, i32 {signal})" for signal in system.fault_signals
    )
    return f"""
define internal void @tw_block_signals(ptr %old) nounwind {{
  %all = alloca [128 x i8], align 16
  %filled = call i32 @sigfillset(ptr %all)
{unblock}
  %set = call i32 @pthread_sigmask(i32 {system.set_mask}, ptr %all, ptr %old)
  ret void
}}
define internal void @tw_restore_signals(ptr %old) nounwind {{
  %set = call i32 @pthread_sigmask(i32 {system.set_mask}, ptr %old, ptr null)
  ret void
}}
"""


def _sleep(arch: str) -> str:
    """`tw_sleep`, `tw_wake` on Linux: futex, private to the process."""
    number = _FUTEX_NUMBER[arch]
    return f"""
declare i64 @syscall(i64, ...)
define internal void @tw_sleep(ptr %state) nounwind {{
  %ignored = call i64 (i64, ...) @syscall(i64 {number}, ptr %state, i64 {_FUTEX_WAIT_PRIVATE},
                                          i64 {ASLEEP}, ptr null)
  ret void
}}
define internal void @tw_wake(ptr %state) nounwind {{
  %ignored = call i64 (i64, ...) @syscall(i64 {number}, ptr %state, i64 {_FUTEX_WAKE_PRIVATE}, i64 1)
  ret void
}}
"""


_SLEEP_DARWIN = f"""
declare i32 @__ulock_wait(i32, ptr, i64, i32)
declare i32 @__ulock_wake(i32, ptr, i64)
define internal void @tw_sleep(ptr %state) nounwind {{
  %ignored = call i32 @__ulock_wait(i32 {_UL_COMPARE_AND_WAIT}, ptr %state, i64 {ASLEEP}, i32 0)
  ret void
}}
define internal void @tw_wake(ptr %state) nounwind {{
  %ignored = call i32 @__ulock_wake(i32 {_UL_COMPARE_AND_WAIT}, ptr %state, i64 0)
  ret void
}}
"""

_SLEEP_WINDOWS = f"""
declare void @tw_os_wait(ptr, i32)
declare void @tw_os_wake(ptr)
define internal void @tw_sleep(ptr %state) nounwind {{
  call void @tw_os_wait(ptr %state, i32 {ASLEEP})
  ret void
}}
define internal void @tw_wake(ptr %state) nounwind {{
  call void @tw_os_wake(ptr %state)
  ret void
}}
"""

_NO_SIGNALS = """
define internal void @tw_block_signals(ptr %old) nounwind {
  ret void
}
define internal void @tw_restore_signals(ptr %old) nounwind {
  ret void
}
"""


def _pin(arch: str) -> str:
    """`tw_pin` on Linux: a set of CPUs is words of 64 bits."""
    byte = 7 if arch == "s390x" else 0  # the low byte of a word is the last one
    return _PIN_LINUX.replace("BYTE", str(byte))


_PIN_LINUX = """
declare i32 @sched_setaffinity(i32, i64, ptr)
define internal void @tw_pin(i32 %cpu) nounwind {
entry:
  %set = alloca [128 x i8], align 8
  %valid = icmp ult i32 %cpu, 1024
  br i1 %valid, label %pin, label %done
pin:
  call void @llvm.memset.p0.i64(ptr %set, i8 0, i64 128, i1 false)
  %number = lshr i32 %cpu, 3
  %byte = xor i32 %number, BYTE
  %bit = and i32 %cpu, 7
  %byte.at = getelementptr i8, ptr %set, i32 %byte
  %mask = shl i32 1, %bit
  %mask8 = trunc i32 %mask to i8
  store i8 %mask8, ptr %byte.at
  %ignored = call i32 @sched_setaffinity(i32 0, i64 128, ptr %set)
  br label %done
done:
  ret void
}
"""

_PIN_NOWHERE = """
define internal void @tw_pin(i32 %cpu) nounwind {
  ret void
}
"""
