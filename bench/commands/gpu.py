"""Models on a GPU of NVIDIA beside PyTorch, torch.compile and ONNX Runtime."""

from __future__ import annotations

import argparse
from pathlib import Path

import tilewright
from bench import gpu, gpu_code
from bench.commands import measuring

MODELS = (*gpu.PRODUCTS, "resnet50", "bert_base", "llama_small_decode")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of the zoo, or products [{' '.join(MODELS)}]")
    parser.add_argument("--zoo", type=Path, help="folder of NAME.onnx [the one `zoo` fills]")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each engine [5]")
    parser.add_argument("--code", metavar="TARGET", help="what ptxas says of kernels for this target; nothing runs")
    parser.add_argument("--ptxas", default="ptxas", help="the assembler [that of the PATH]")
    measuring.add_places(parser)


def run(options: argparse.Namespace) -> int:
    folder = options.zoo or options.home / "zoo"
    if options.code:
        print(gpu_code.HEAD, flush=True)
        for name in options.models or MODELS:
            found = gpu_code.code_of(gpu.source_of(name, folder), options.code, options.ptxas)
            print(found.row(name), flush=True)
        return 0
    return _measured(options, folder)


def _measured(options: argparse.Namespace, folder: Path) -> int:
    try:
        target = gpu.target_of_device()
    except tilewright.DeviceError as error:
        print(f"nothing is measured: {error}")
        return 1
    print(f"target {target}", flush=True)
    found = {}
    for name in options.models or MODELS:
        found[name] = gpu.measure(name, folder, options.rounds)
        print(gpu.table({name: found[name]}), flush=True)
    print(f"\n{gpu.table(found)}")
    return 0
