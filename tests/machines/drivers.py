"""The two drivers of Vulkan that need no GPU: Mesa's lavapipe, and SwiftShader, which comes with Chromium."""

from __future__ import annotations

import os
from glob import glob

NAMES = {"lavapipe": "llvmpipe", "swiftshader": "SwiftShader"}
"""What the adapter of a driver calls itself."""
_FILES = {
    "lavapipe": ("/usr/share/vulkan/icd.d/lvp_icd*.json",),
    "swiftshader": ("/usr/lib/chromium/vk_swiftshader_icd.json", "/opt/google/chrome/vk_swiftshader_icd.json"),
}
ADAPTER = "WGPUPY_WGPU_ADAPTER_NAME"
"""The variable in which the package wgpu looks for the adapter that is to be taken."""


def file_of(driver: str) -> str:
    """The file that tells the loader of Vulkan of a driver; "" where the driver is not installed."""
    return next((found for pattern in _FILES[driver] for found in sorted(glob(pattern))), "")


def offer_both() -> None:
    """Tell the loader of Vulkan of SwiftShader, too, beside the drivers that it finds by itself. It looks when the
    first adapter is asked for."""
    files = [*os.environ.get("VK_ADD_DRIVER_FILES", "").split(os.pathsep), file_of("swiftshader")]
    os.environ["VK_ADD_DRIVER_FILES"] = os.pathsep.join(dict.fromkeys(filter(None, files)))
