"""Machines by name: levels of instruction sets, and CPUs of servers."""

from __future__ import annotations

import difflib
from dataclasses import replace

from tilewright.target.cores import bandwidth_of, pipes_of
from tilewright.target.features import FEATURES, V3_FEATURES, V4_FEATURES
from tilewright.target.host import host_target
from tilewright.target.target import Caches, Target, TargetError

_LINUX_X86 = "x86_64-unknown-linux-gnu"
_LINUX_ARM = "aarch64-unknown-linux-gnu"

_SMALL, _SERVER = Caches(32 << 10, 512 << 10, 32 << 20), Caches(32 << 10, 1 << 20, 32 << 20)
_VNNI4 = (*V4_FEATURES, "avx512vnni")
_ZEN4 = (*_VNNI4, "avx512bf16", "avx512ifma", "avx512vbmi", "avx512vbmi2", "gfni")


def _avx2(name: str, cpu: str, caches: Caches) -> Target:
    return _with_core(Target(name, _LINUX_X86, cpu, V3_FEATURES, 256, 16, masked_memory=True, caches=caches))


def _avx512(name: str, cpu: str, features: tuple[str, ...]) -> Target:
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
            caches=_SERVER,
        )
    )


def _neon(name: str, cpu: str, features: tuple[str, ...], caches: Caches) -> Target:
    return _with_core(Target(name, _LINUX_ARM, cpu, features, 128, 32, caches=caches))


def _with_core(target: Target) -> Target:
    pipes, bandwidth = pipes_of(target.cpu, target.vector_bits), bandwidth_of(target.cpu)
    return replace(target, pipes=pipes, bandwidth=bandwidth)


_NAMED = (
    _avx2("x86-64-v3", "x86-64-v3", Caches()),
    _avx512("x86-64-v4", "x86-64-v4", V4_FEATURES),
    _avx2("zen3", "znver3", _SMALL),
    _avx512("zen4", "znver4", _ZEN4),
    _avx512("cascadelake", "cascadelake", _VNNI4),
    _neon("aarch64-neon", "generic", ("neon",), Caches()),
    _neon("neoverse-n1", "neoverse-n1", ("neon", "fullfp16", "dotprod"), Caches(64 << 10, 1 << 20, 32 << 20)),
)

NAMED: dict[str, Target] = {target.name: target for target in _NAMED}
"""Targets by name; `host` is the machine that asks."""


def parse_target(text: str | None) -> Target:
    """The target that `text` names: `host` (or None), a name of `NAMED`, and changes as in
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
    if name not in NAMED:
        known = ["host", *NAMED]
        close = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean '{close[0]}'? " if close else ""
        raise TargetError(f"unknown target '{name}'", hint=f"{hint}known targets: {', '.join(known)}")
    return NAMED[name]


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
