"""Machines by name: levels of instruction sets, and CPUs of servers."""

from __future__ import annotations

import dataclasses
import difflib

from tilewright.target.features import FEATURES, V3_FEATURES, V4_FEATURES
from tilewright.target.host import host_target
from tilewright.target.target import Caches, Target, TargetError

_LINUX_X86 = "x86_64-unknown-linux-gnu"
_LINUX_ARM = "aarch64-unknown-linux-gnu"

_NAMED = (
    Target("x86-64-v3", _LINUX_X86, "x86-64-v3", V3_FEATURES, 256, 16, masked_memory=True),
    Target(
        "x86-64-v4", _LINUX_X86, "x86-64-v4", V4_FEATURES, 512, 32,
        masked_memory=True, fast_gather=True, embedded_broadcast=True, caches=Caches(32 << 10, 1 << 20, 16 << 20),
    ),
    Target(
        "zen3", _LINUX_X86, "znver3", V3_FEATURES, 256, 16,
        masked_memory=True, caches=Caches(32 << 10, 512 << 10, 32 << 20),
    ),
    Target(
        "cascadelake", _LINUX_X86, "cascadelake", (*V4_FEATURES, "avx512vnni"), 512, 32,
        masked_memory=True, fast_gather=True, embedded_broadcast=True, caches=Caches(32 << 10, 1 << 20, 32 << 20),
    ),
    Target("aarch64-neon", _LINUX_ARM, "generic", ("neon",), 128, 32),
    Target(
        "neoverse-n1", _LINUX_ARM, "neoverse-n1", ("neon", "fullfp16", "dotprod"), 128, 32,
        caches=Caches(64 << 10, 1 << 20, 32 << 20),
    ),
)  # fmt: skip

NAMED: dict[str, Target] = {target.name: target for target in _NAMED}
"""Targets by name; `host` is the machine that asks."""


def parse_target(text: str | None) -> Target:
    """The target that `text` names: `host` (or None), a name of `NAMED`, and changes as in `zen3,cores=8,l2=1048576`.

    Changes are cores, l1d, l2, l3 (bytes) and `+feature`. TargetError for anything else.
    """
    name, *changes = [part.strip() for part in (text or "host").split(",")]
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
    if not value.isdigit() or (key != "l3" and int(value) < 1):
        raise TargetError(
            f"'{change}' of target '{target.name}' needs a positive whole number after '{key}='"
        )
    if key == "cores":
        return dataclasses.replace(target, cores=int(value))
    return dataclasses.replace(target, caches=dataclasses.replace(target.caches, **{key: int(value)}))


def _with_feature(target: Target, feature: str) -> Target:
    known = FEATURES.get(target.arch, ())
    if feature not in known:
        raise TargetError(
            f"unknown feature '{feature}' for target '{target.name}' ({target.arch})",
            hint=f"features that can be added: {', '.join(known)}",
        )
    if feature in target.features:
        return target
    return dataclasses.replace(target, features=(*target.features, feature))
