"""Machines by name: levels of instruction sets, and CPUs of servers."""

from __future__ import annotations

import difflib
from dataclasses import replace

from tilewright.target.features import FEATURES, V3_FEATURES, V4_FEATURES
from tilewright.target.host import host_target
from tilewright.target.target import WIDE_PIPES, ZEN_BANDWIDTH, Caches, Pipes, Target, TargetError

_LINUX_X86 = "x86_64-unknown-linux-gnu"
_LINUX_ARM = "aarch64-unknown-linux-gnu"

_SMALL, _SERVER = Caches(32 << 10, 512 << 10, 32 << 20), Caches(32 << 10, 1 << 20, 32 << 20)
_AVX512 = Target(
    "x86-64-v4",
    _LINUX_X86,
    "x86-64-v4",
    V4_FEATURES,
    vector_bits=512,
    vector_registers=32,
    masked_memory=True,
    fast_gather=True,
    embedded_broadcast=True,
    caches=_SERVER,
    pipes=WIDE_PIPES,
)
_AVX2 = Target("x86-64-v3", _LINUX_X86, "x86-64-v3", V3_FEATURES, 256, 16, masked_memory=True)
_NEON = Target("aarch64-neon", _LINUX_ARM, "generic", ("neon",), 128, 32, pipes=Pipes(arithmetic=2))
_NAMED = (
    _AVX2,
    _AVX512,
    replace(
        _AVX2,
        name="zen3",
        cpu="znver3",
        caches=_SMALL,
        pipes=Pipes(issue=6, arithmetic=4),
        bandwidth=ZEN_BANDWIDTH,
    ),
    replace(_AVX512, name="cascadelake", cpu="cascadelake", features=(*V4_FEATURES, "avx512vnni")),
    _NEON,
    replace(
        _NEON,
        name="neoverse-n1",
        cpu="neoverse-n1",
        features=("neon", "fullfp16", "dotprod"),
        caches=Caches(64 << 10, 1 << 20, 32 << 20),
    ),
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
