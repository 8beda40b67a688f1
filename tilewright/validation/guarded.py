"""Native code that validation runs: between guard zones where this machine has them, so that a kernel that goes beyond
its buffers is a finding, and does not end the process that compiles."""

from __future__ import annotations

from dataclasses import replace

from tilewright.compilation import Setting
from tilewright.runtime import Artifact, Model
from tilewright.runtime.errors import CancelledError, DeviceError, InputError, NoMemoryError, TilewrightError
from tilewright.runtime.guarded import GUARD_ZONES, has_zones
from tilewright.target.host import host_target

THREADS = 2

HAS_ZONES = has_zones(host_target().triple)
"""Whether native code can run between guard zones here."""


NO_FAULT = (NoMemoryError, CancelledError, DeviceError)
"""What a model raises where this machine has no room for a call."""


def fault_of(error: TilewrightError) -> str:
    """What is wrong where code raises an error in a call that the interpreter takes; "" where it refuses the call, or
    there is no room for it."""
    return "" if isinstance(error, (InputError, *NO_FAULT)) else f"it fails: {error.what}"


def with_room_for_zones(setting: Setting) -> Setting:
    """The setting of a program whose kernels are looked at one by one, as `guarded=True` compiles it. It keeps results
    that the model's own plan has no memory for, and so is bound by none of its limits."""
    guarded = HAS_ZONES or setting.options.guarded
    return replace(setting, options=replace(setting.options, max_memory=None, guarded=guarded))


def between_zones(artifact: Artifact, threads: int = THREADS) -> Model:
    """A model whose inputs, results, constants and arena lie between zones, whatever it was compiled for."""
    if HAS_ZONES and GUARD_ZONES not in artifact.attached:
        artifact = replace(artifact, attached={**artifact.attached, GUARD_ZONES: {}})
    return Model(artifact, threads)
