"""Machines by name: CPUs, C compilers, machines of plugins, and changes of facts."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar, NoReturn

from tilewright.target.cpus import CPUS
from tilewright.target.features import FEATURES
from tilewright.target.gpu.cuda import CUDA, Cuda, find_cuda
from tilewright.target.gpu.webgpu import WEBGPU
from tilewright.target.hardware import Caches
from tilewright.target.host import host_target
from tilewright.target.machine import Machine, TargetError
from tilewright.target.target import SYSTEMS, Target


@dataclass(frozen=True, slots=True)
class CTarget(Target):
    """A CPU for which a C compiler makes the code: it has no instructions that programs could name."""

    kind: ClassVar[str] = "c"


C_TARGET = CTarget(
    "c", "c-unknown-unknown", "any C11 compiler", (), 256, 16, has_fma=False, caches=Caches(32 << 10, 256 << 10, 0)
)
"""Register tiles are those of 16 vectors of 256 bits: inner loops of 16 elements, which compilers unroll and make
vectors of on all machines that have some."""

NAMED: Mapping[str, Target] = MappingProxyType({name: cpu.target for name, cpu in CPUS.items()})
"""Targets by name; `host` is the machine that asks."""

ALIASES: Mapping[str, str] = MappingProxyType({alias: name for name, cpu in CPUS.items() for alias in cpu.aliases})
"""Other names of targets: machines that have these cores."""


OTHER_SYSTEMS: Mapping[str, str] = MappingProxyType(
    {
        "x86_64-windows": "x86-64-v3,os=windows",
        "aarch64-windows": "aarch64-neon,os=windows",
        "x86_64-macos": "x86-64-v3,os=macos",
        "aarch64-macos": "apple-m1",
    }
)
"""Targets for other operating systems by names that their linkers use, and what they stand for."""


def find_machine(text: str | None, others: Callable[[], Iterable[Machine]]) -> Machine:
    """As `parse_target`, or the one of `others` of this name; these are asked for where the name is none of ours. Of
    a device `NAME,memory=BYTES` says how many bytes of weights it holds."""
    if text is None or _CAPACITY not in text:
        return _find(text, others)
    name, _, given = text.partition(_CAPACITY)
    return _holding(_find(name, others), given)


_CAPACITY = ",memory="


def _holding(machine: Machine, given: str) -> Machine:
    """A device that holds so many bytes of weights."""
    what = f"'memory={given}' of target '{machine.name}'"
    if machine.link is None:
        raise TargetError(f"{what} is for devices beside a CPU", hint="it says how many bytes of weights these hold")
    if not (given.isascii() and given.isdigit()) or len(given) > 18 or int(given) < 1:
        raise TargetError(f"{what} needs a positive whole number of bytes of at most 18 digits")
    return replace(machine, link=replace(machine.link, capacity=int(given)))


def _find(text: str | None, others: Callable[[], Iterable[Machine]]) -> Machine:
    name = ("host" if text is None else text).split(",")[0].strip()
    if name == WEBGPU.name:
        return _unchanged(WEBGPU, text or "")
    if name == Cuda.kind:
        return find_cuda(text or "")
    if name in ("host", C_TARGET.name) or name in NAMED or name in ALIASES or name in OTHER_SYSTEMS:
        return parse_target(text)
    found = {machine.name: machine for machine in others()}
    return _unchanged(found[name], text or "") if name in found else _unknown(name, found)


def _unchanged(machine: Machine, text: str) -> Machine:
    """A machine whose facts no text changes."""
    _, comma, changes = text.partition(",")
    if not comma:
        return machine
    device = "only memory=BYTES is taken, the bytes of weights that it holds" if machine.link is not None else ""
    raise TargetError(
        f"unknown change '{changes.split(',')[0].strip()}' of target '{machine.name}'",
        hint=device or "its facts are those of its file; another machine is another record with a name of its own",
    )


def parse_target(text: str | None) -> Target:
    """The target that `text` names: `host` (or None), a name of `NAMED` or `ALIASES`, and changes as in
    `zen3,cores=8,l2=1048576`.

    Changes are cores, l1d, l2, l3 (bytes), os (linux, macos, windows) and `+feature`. TargetError for anything else.
    """
    name, *changes = [part.strip() for part in ("host" if text is None else text).split(",")]
    target = _base(name)
    for change in changes:
        target = _changed(target, change)
    return target


def _base(name: str) -> Target:
    if name == "host":
        return host_target()
    if name in OTHER_SYSTEMS:
        return parse_target(OTHER_SYSTEMS[name])
    if name == C_TARGET.name:
        return C_TARGET
    name = ALIASES.get(name, name)
    return NAMED[name] if name in NAMED else _unknown(name)


def _unknown(name: str, others: Iterable[str] = ()) -> NoReturn:
    gpus = (WEBGPU.name, Cuda.kind, *(machine.name for machine in CUDA.values()))
    known = ["host", *NAMED, *ALIASES, *OTHER_SYSTEMS, C_TARGET.name, *gpus, *others]
    close = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean '{close[0]}'? " if close else ""
    raise TargetError(f"unknown target '{name}'", hint=f"{hint}known targets: {', '.join(known)}")


def _changed(target: Target, change: str) -> Target:
    if change.startswith("+"):
        return _with_feature(target, change[1:])
    key, _, value = change.partition("=")
    if key == "os" and target.arch in ("x86_64", "aarch64"):
        if value in SYSTEMS:
            return replace(target, triple=SYSTEMS[value].format(arch=target.arch))
        raise TargetError(f"unknown system '{value}' of target '{target.name}'", hint=f"systems: {', '.join(SYSTEMS)}")
    if key not in ("cores", "l1d", "l2", "l3"):
        raise TargetError(
            f"unknown change '{change}' of target '{target.name}'",
            hint="changes are cores=N, l1d=BYTES, l2=BYTES, l3=BYTES, os=SYSTEM and +feature",
        )
    if not (value.isascii() and value.isdigit()) or len(value) > 18 or (key != "l3" and int(value) < 1):
        raise TargetError(
            f"'{change}' of target '{target.name}' needs a positive whole number of at most 18 digits after '{key}='"
        )
    if key == "cores":
        return replace(target, cores=int(value))
    return replace(target, caches=replace(target.caches, **{key: int(value)}))


def _with_feature(target: Target, feature: str) -> Target:
    known = FEATURES.get(target.arch, ())
    if feature not in known:
        raise TargetError(
            f"unknown feature '{feature}' for target '{target.name}' ({target.arch})",
            hint=f"features that can be added: {', '.join(known)}",
        )
    if feature in target.features:
        return target
    return replace(target, features=(*target.features, feature))
