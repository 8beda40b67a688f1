"""Networks for images, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

from bench.zoo.blueprint import Blueprint, settle_batch_norms

SETTLING_BATCH = 4


def from_timm(name: str, size: int) -> Callable[[], Blueprint]:
    """A network of the timm collection for square images."""

    def make() -> Blueprint:
        import timm

        module = timm.create_model(name, pretrained=False)
        settle_batch_norms(module, torch.randn(SETTLING_BATCH, 3, size, size))
        return Blueprint(module.eval(), {"input": torch.randn(1, 3, size, size)}, ["output"])

    return make


def _block(inputs: int, outputs: int, kernel: int) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.LeakyReLU(0.1))


class YoloTiny(nn.Module):
    """YOLOv3-tiny (Redmon & Farhadi, 2018): two grids of 3 boxes with 80 classes each."""

    boxes = 3 * (5 + 80)

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 16, 32, 64, 128, 256, 512, 1024)
        self.backbone = nn.ModuleList(_block(a, b, 3) for a, b in pairwise(widths))
        self.neck = _block(1024, 256, 1)
        self.coarse = nn.Sequential(_block(256, 512, 3), nn.Conv2d(512, self.boxes, 1))
        self.lateral = _block(256, 128, 1)
        self.fine = nn.Sequential(_block(384, 256, 3), nn.Conv2d(256, self.boxes, 1))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for number, block in enumerate(self.backbone, 1):
            x = block(x)
            if number == 5:
                route = x
            if number <= 5:
                x = functional.max_pool2d(x, 2)
            elif number == 6:  # pooling that keeps the size
                x = functional.max_pool2d(functional.pad(x, (0, 1, 0, 1), value=-1e30), 2, 1)
        neck = self.neck(x)
        raised = functional.interpolate(self.lateral(neck), scale_factor=2.0, mode="nearest")
        return self.coarse(neck), self.fine(torch.cat([raised, route], 1))


def yolov3_tiny() -> Blueprint:
    module = YoloTiny()
    settle_batch_norms(module, torch.randn(SETTLING_BATCH, 3, 416, 416))
    return Blueprint(module.eval(), {"input": torch.randn(1, 3, 416, 416)}, ["coarse", "fine"])


MODELS: dict[str, Callable[[], Blueprint]] = {
    "yolov3_tiny": yolov3_tiny,
    "darknet53_416": from_timm("darknet53", 416),
    **{
        name: from_timm(name, 224)
        for name in (
            "resnet50", "mobilenetv2_100", "vit_base_patch16_224", "efficientnet_b0", "vgg16",
            "mobilenetv3_large_100", "convnext_tiny", "densenet121",
        )
    },
}  # fmt: skip
