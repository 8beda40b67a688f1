"""What is said where a driver of WebGPU is missing, too old, or has no memory left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tilewright
from tests.machines.drivers import ADAPTER, NAMES
from tests.machines.test_webgpu import model
from tilewright import Session
from tilewright.runtime.devices import webgpu

wgpu = pytest.importorskip("wgpu")
EXP = "g (float[n] x) => (float[n] y) { y = Exp(x) }"
THE_CPU = "compile the model for the CPU"


def compiled(text: str, tmp_path: Path) -> tilewright.Model:
    return tilewright.compile(model(text), target="webgpu", session=Session(folder=tmp_path))


def test_without_a_driver_none_is_found(tmp_path: Path) -> None:
    """The package asks once in a process."""
    compiled(EXP, tmp_path).save(tmp_path / "model.tw")
    code = """import sys, tilewright, numpy as np
try:
    tilewright.load(sys.argv[1])(np.ones(3, np.float32))
except tilewright.DeviceError as error:
    print(error)"""
    found = {k: v for k, v in os.environ.items() if not k.startswith("VK_") and k != ADAPTER}
    environment = found | {"VK_DRIVER_FILES": str(tmp_path / "none.json"), "WGPU_BACKEND_TYPE": "Vulkan"}
    command = [sys.executable, "-c", code, str(tmp_path / "model.tw")]
    said = subprocess.run(command, capture_output=True, text=True, env=environment, check=True, timeout=120).stdout
    assert "no GPU was found" in said and "mesa-vulkan-drivers" in said and THE_CPU in said


class Adapter:
    """Of a driver with these limits."""

    info = {"device": "Old", "description": "driver 1.0"}  # noqa: RUF012

    def __init__(self, **limits: int) -> None:
        names = (*webgpu._NEEDED, "max-buffer-size", "max-storage-buffer-binding-size")
        self.limits = dict.fromkeys(names, 1 << 20) | {k.replace("_", "-"): v for k, v in limits.items()}

    def request_device_sync(self, **_: Any) -> Any:
        raise RuntimeError("it is taken")


@pytest.mark.parametrize(
    ("adapter", "says"),
    [
        (None, "no GPU was found: the package wgpu offers none"),
        (Adapter(max_compute_workgroup_storage_size=0), r"too old for WebGPU \(Old driver 1.0\): its max-\S+ is 0"),
        (Adapter(), r"the GPU cannot be used \(Old driver 1.0\): it is taken"),
    ],
)
def test_an_adapter_that_is_of_no_use_is_named(
    adapter: Any, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = compiled(EXP, tmp_path)
    webgpu.device.cache_clear()
    monkeypatch.setattr(wgpu, "gpu", SimpleNamespace(request_adapter_sync=lambda **_: adapter))
    with pytest.raises(tilewright.DeviceError, match=says) as error:
        made(np.ones(3, np.float32))
    assert THE_CPU in str(error.value)


def test_a_package_that_is_too_old_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = compiled(EXP, tmp_path)
    webgpu.device.cache_clear()
    monkeypatch.setattr(wgpu, "gpu", SimpleNamespace())
    with pytest.raises(tilewright.DeviceError, match=r"the package wgpu is too old: it is \d") as error:
        made(np.ones(3, np.float32))
    assert "pip install --upgrade" in str(error.value)


def test_a_call_larger_than_a_buffer_is_refused_and_the_next_one_runs(driver: str, tmp_path: Path) -> None:
    """Nothing is allocated for it on the device."""
    made = compiled("g (float[n] x, int64[1] s) => (float[k, n] y) { m = Shape(x) t = Concat<axis=0>(s, m) "
                    "y = Expand(x, t) }", tmp_path)  # fmt: skip
    most = min(webgpu.device().limits[f"max-{name}"] for name in ("storage-buffer-binding-size", "buffer-size"))
    x = np.ones(4, np.float32)
    assert made(x, np.array([3]))[0].sum() == 12
    says = rf"bytes for outputs, and one buffer of this GPU has at most {most}"
    with pytest.raises(tilewright.DeviceError, match=says) as error:
        made(x, np.array([most // 16 + 64]))
    assert "use a smaller batch" in str(error.value) and THE_CPU in str(error.value)
    assert made(x, np.array([3]))[0].sum() == 12


FULL = """
import json, resource, sys
import numpy as np, tilewright
made = tilewright.load(sys.argv[1])
x, large = np.ones(64, np.float32), np.ones(26 << 20, np.float32)
expected, said = made(x)[0], []
(used,) = (int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize"))
_, most = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (used * 1024 + (230 << 20), most))
try:
    made(large)
except tilewright.DeviceError as error:
    said.append(str(error))
resource.setrlimit(resource.RLIMIT_AS, (most, most))
print(json.dumps([said, made(x)[0].tolist() == expected.tolist()]))
"""
"""A process with so much memory left that the tensors of a call have room on the host, and not on the device."""


@pytest.mark.without_zones
@pytest.mark.without_room_for_zones
def test_a_driver_without_memory_is_named_and_the_next_call_runs(driver: str, tmp_path: Path) -> None:
    if driver == "swiftshader":
        pytest.skip("SwiftShader ends the process where it gets no memory")
    compiled(EXP, tmp_path).save(tmp_path / "model.tw")
    environment = os.environ | {ADAPTER: NAMES[driver]}
    command = [sys.executable, "-c", FULL, str(tmp_path / "model.tw")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    said, same = json.loads(done.stdout)
    assert len(said) == 1 and "bytes of weights" in said[0] and THE_CPU in said[0], done.stderr
    assert same
