"""Machines by name: levels of instruction sets, and CPUs of servers, laptops and small boards.

Sizes of caches are those of the makers' documents (AMD's and Arm's guides, Intel's data sheets, Apple's `sysctl
hw.perflevel0`), L3 as in the usual model of the line: `l3=BYTES` says it for another. An L2 that several cores share
counts with the share of one, as all of them compute. Cores with SVE (Neoverse V1 and V2) are driven as NEON machines of
128 bits, and SVE is switched off, so that an artefact needs nothing that it does not list. Code for AArch64 and for
macOS has been made and read, but never been run.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NoReturn

from tilewright.target.cores import bandwidth_of, calibration_of, pipes_of
from tilewright.target.features import FEATURES, V3_FEATURES, V4_FEATURES
from tilewright.target.host import host_target
from tilewright.target.machine import Machine, TargetError
from tilewright.target.target import Caches, Target

_LINUX_X86 = "x86_64-unknown-linux-gnu"
_LINUX_ARM = "aarch64-unknown-linux-gnu"
_MACOS_ARM = "aarch64-apple-macosx11.0"

_SMALL, _SERVER = Caches(32 << 10, 512 << 10, 32 << 20), Caches(32 << 10, 1 << 20, 32 << 20)
_VNNI4 = (*V4_FEATURES, "avx512vnni")
_ICELAKE = (*_VNNI4, "avx512ifma", "avx512vbmi", "avx512vbmi2", "gfni")
_ZEN4 = (*_ICELAKE, "avx512bf16")
_SVE = ("sve", "sve2")
_ARM82 = ("neon", "fullfp16", "dotprod")
_ARM86 = (*_ARM82, "i8mm", "bf16")


def _avx2(name: str, cpu: str, caches: Caches, more: tuple[str, ...] = ()) -> Target:
    features = (*V3_FEATURES, *more)
    return _with_core(Target(name, _LINUX_X86, cpu, features, 256, 16, masked_memory=True, caches=caches))


def _avx512(name: str, cpu: str, features: tuple[str, ...], caches: Caches = _SERVER) -> Target:
    return _with_core(
        Target(
            name,
            _LINUX_X86,
            cpu,
            features,
            vector_bits=512,
            vector_registers=32,
            masked_memory=True,
            embedded_broadcast=True,
            caches=caches,
        )
    )


def _neon(
    name: str, cpu: str, features: tuple[str, ...], caches: Caches, absent: tuple[str, ...] = ()
) -> Target:
    return _with_core(Target(name, _LINUX_ARM, cpu, features, 128, 32, caches=caches, absent=absent))


def _apple(number: int, features: tuple[str, ...], l2: int) -> Target:
    caches = Caches(128 << 10, l2, 8 << 20)  # the last is the system-level cache
    name = f"apple-m{number}"
    return _with_core(Target(name, _MACOS_ARM, name, features, 128, 32, caches=caches))


def _with_core(target: Target) -> Target:
    pipes, bandwidth = pipes_of(target.cpu, target.vector_bits), bandwidth_of(target.cpu)
    return replace(target, pipes=pipes, bandwidth=bandwidth, calibration=calibration_of(target.cpu))


_NAMED = (
    _avx2("x86-64-v3", "x86-64-v3", Caches()),
    _avx512("x86-64-v4", "x86-64-v4", V4_FEATURES),
    _avx2("zen2", "znver2", Caches(32 << 10, 512 << 10, 16 << 20)),
    _avx2("zen3", "znver3", _SMALL),
    _avx512("zen4", "znver4", _ZEN4),
    _avx512("zen5", "znver5", (*_ZEN4, "avxvnni"), Caches(48 << 10, 1 << 20, 32 << 20)),
    _avx2("haswell", "haswell", Caches(32 << 10, 256 << 10, 8 << 20)),
    _avx2("skylake", "skylake", Caches(32 << 10, 256 << 10, 8 << 20)),
    _avx512("skylake-avx512", "skylake-avx512", V4_FEATURES),
    _avx512("cascadelake", "cascadelake", _VNNI4),
    _avx512("icelake-server", "icelake-server", _ICELAKE, Caches(48 << 10, 1280 << 10, 48 << 20)),
    _avx512("tigerlake", "tigerlake", _ICELAKE, Caches(48 << 10, 1280 << 10, 12 << 20)),
    _avx2("alderlake", "alderlake", Caches(48 << 10, 1280 << 10, 24 << 20), ("avxvnni", "gfni")),
    _avx2("raptorlake", "raptorlake", Caches(48 << 10, 2 << 20, 30 << 20), ("avxvnni", "gfni")),
    _avx512(
        "sapphirerapids",
        "sapphirerapids",
        (*_ZEN4, "avx512fp16", "avxvnni"),
        Caches(48 << 10, 2 << 20, 60 << 20),
    ),
    _neon("aarch64-neon", "generic", ("neon",), Caches()),
    _neon("neoverse-n1", "neoverse-n1", _ARM82, Caches(64 << 10, 1 << 20, 32 << 20)),
    _neon("neoverse-v1", "neoverse-v1", _ARM86, Caches(64 << 10, 1 << 20, 32 << 20), _SVE),
    _neon("neoverse-v2", "neoverse-v2", _ARM86, Caches(64 << 10, 2 << 20, 36 << 20), _SVE),
    _neon("cortex-a72", "cortex-a72", ("neon",), Caches(32 << 10, 256 << 10, 0)),
    _neon("cortex-a76", "cortex-a76", _ARM82, Caches(64 << 10, 512 << 10, 2 << 20)),
    _apple(1, _ARM82, 3 << 20),
    _apple(2, _ARM86, 4 << 20),
    _apple(3, _ARM86, 4 << 20),
    _apple(4, _ARM86, 4 << 20),
)

NAMED: dict[str, Target] = {target.name: target for target in _NAMED}
"""Targets by name; `host` is the machine that asks."""

ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "icelake": "icelake-server",
        "skylake-x": "skylake-avx512",
        "emeraldrapids": "sapphirerapids",
        "graviton2": "neoverse-n1",
        "graviton3": "neoverse-v1",
        "graviton4": "neoverse-v2",
        "raspberry-pi-4": "cortex-a72",
        "raspberry-pi-5": "cortex-a76",
    }
)
"""Other names of targets: machines that have these cores."""

ABOUT: Mapping[str, str] = MappingProxyType(
    {
        "x86-64-v3": "any x86-64 with AVX2",
        "x86-64-v4": "any x86-64 with AVX-512",
        "zen2": "AMD EPYC 7002, Ryzen 3000 and 4000",
        "zen3": "AMD EPYC 7003, Ryzen 5000",
        "zen4": "AMD EPYC 9004, Ryzen 7000 and 8000",
        "zen5": "AMD EPYC 9005, Ryzen 9000",
        "haswell": "Intel Core of the 4th generation",
        "skylake": "Intel Core of the 6th to 10th generation",
        "skylake-avx512": "Intel Xeon Scalable, 1st generation",
        "cascadelake": "Intel Xeon Scalable, 2nd generation",
        "icelake-server": "Intel Xeon Scalable, 3rd generation",
        "tigerlake": "Intel Core of the 11th generation (laptops)",
        "alderlake": "Intel Core of the 12th generation (performance cores)",
        "raptorlake": "Intel Core of the 13th and 14th generation (performance cores)",
        "sapphirerapids": "Intel Xeon Scalable, 4th and 5th generation",
        "aarch64-neon": "any AArch64",
        "neoverse-n1": "AWS Graviton2, Ampere Altra",
        "neoverse-v1": "AWS Graviton3 (as NEON)",
        "neoverse-v2": "AWS Graviton4, Google Axion, NVIDIA Grace (as NEON)",
        "cortex-a72": "Raspberry Pi 4 (64-bit Linux)",
        "cortex-a76": "Raspberry Pi 5",
        "apple-m1": "Apple M1 (macOS)",
        "apple-m2": "Apple M2 (macOS)",
        "apple-m3": "Apple M3 (macOS)",
        "apple-m4": "Apple M4 (macOS)",
    }
)
"""What machines the names stand for."""


def find_machine(text: str | None, others: Callable[[], Iterable[Machine]]) -> Machine:
    """As `parse_target`, or the one of `others` of this name; these are asked for where the name is none of ours."""
    name = ("host" if text is None else text).split(",")[0].strip()
    if name == "host" or name in NAMED or name in ALIASES:
        return parse_target(text)
    found = {machine.name: machine for machine in others()}
    return found[name] if name == text and name in found else _unknown(name, found)


def parse_target(text: str | None) -> Target:
    """The target that `text` names: `host` (or None), a name of `NAMED` or `ALIASES`, and changes as in
    `zen3,cores=8,l2=1048576`.

    Changes are cores, l1d, l2, l3 (bytes) and `+feature`. TargetError for anything else.
    """
    name, *changes = [part.strip() for part in ("host" if text is None else text).split(",")]
    target = _base(name)
    for change in changes:
        target = _changed(target, change)
    return target


def _base(name: str) -> Target:
    if name == "host":
        return host_target()
    name = ALIASES.get(name, name)
    return NAMED[name] if name in NAMED else _unknown(name)


def _unknown(name: str, others: Iterable[str] = ()) -> NoReturn:
    known = ["host", *NAMED, *ALIASES, *others]
    close = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean '{close[0]}'? " if close else ""
    raise TargetError(f"unknown target '{name}'", hint=f"{hint}known targets: {', '.join(known)}")


def _changed(target: Target, change: str) -> Target:
    if change.startswith("+"):
        return _with_feature(target, change[1:])
    key, _, value = change.partition("=")
    if key not in ("cores", "l1d", "l2", "l3"):
        raise TargetError(
            f"unknown change '{change}' of target '{target.name}'",
            hint="changes are cores=N, l1d=BYTES, l2=BYTES, l3=BYTES and +feature",
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
