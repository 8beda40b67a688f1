"""Models on a GPU of NVIDIA beside PyTorch, torch.compile and ONNX Runtime."""

from __future__ import annotations

import argparse
from pathlib import Path

import tilewright
from bench import gpu
from bench.commands import measuring

MODELS = (*gpu.PRODUCTS, "resnet50", "bert_base", "llama_small_decode")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of the zoo, or products [{' '.join(MODELS)}]")
    parser.add_argument("--zoo", type=Path, help="folder of NAME.onnx [the one `zoo` fills]")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each engine [5]")
    measuring.add_places(parser)


def run(options: argparse.Namespace) -> int:
    try:
        target = gpu.target_of_device()
    except tilewright.DeviceError as error:
        print(f"nothing is measured: {error}")
        return 1
    print(f"target {target}", flush=True)
    found = {}
    for name in options.models or MODELS:
        found[name] = gpu.measure(name, options.zoo or options.home / "zoo", options.rounds)
        print(gpu.table({name: found[name]}), flush=True)
    print(f"\n{gpu.table(found)}")
    return 0
