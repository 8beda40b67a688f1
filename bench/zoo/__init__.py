"""The models to measure with: networks and single operators, by name. `build` makes them, in PyTorch's environment."""

from __future__ import annotations

from collections.abc import Sequence

NETWORKS = (
    "bert_base", "resnet50", "gpt2_decode_past128", "mobilenetv2_100", "vit_base_patch16_224", "yolov3_tiny",
    "llama_small_decode", "gpt2_prefill128", "efficientnet_b0", "vgg16", "mobilenetv3_large_100", "lstm2_h512_s64",
    "distilbert", "convnext_tiny", "densenet121", "darknet53_416",
)  # fmt: skip
OPERATORS = (
    "matmul_1024", "matmul_1024_dyn", "mlp_gelu_128x768x3072", "layernorm_512x1024", "rmsnorm_512x1024",
    "softmax_12x384x384", "eltwise10_4M", "conv7x7_3_64_s2_224", "conv1x1_64_64_56", "conv3x3_64_64_56",
    "conv1x1_64_256_56", "conv1x1_256_64_56", "conv3x3_128_128_s2_56", "conv3x3_128_128_28", "conv1x1_512_128_28",
    "conv1x1_256_512_s2_56", "conv3x3_256_256_14", "conv1x1_1024_256_14", "conv3x3_512_512_7", "conv1x1_2048_512_7",
)  # fmt: skip
OTHERS = ("smollm2_decode",)
"""Networks that `python -m bench memory --beside` is run on, beside some of the others."""
GROUPS = {"networks": NETWORKS, "operators": OPERATORS}


def names_of(asked: Sequence[str]) -> list[str]:
    """The models asked for, where `networks` and `operators` stand for all of their kind."""
    return list(dict.fromkeys(name for text in asked for name in GROUPS.get(text, (text,))))


def group_of(name: str) -> str:
    """The suite that results of a model belong to."""
    return "operators" if name in OPERATORS else "networks"
