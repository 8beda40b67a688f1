"""The fuzzers that `python -m tests.fuzz` and the tests with fresh seeds run.

A fuzzer is a function of a seed. The same seed does the same. It raises when it finds a defect: whatever it raises
is the finding, and the notes of the exception (`add_note`) say how it came about. It returns what it has tried,
counted by kind and outcome, say {("split", "accepted"): 3, ("split", "refused"): 1}.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from importlib import import_module

Tried = Counter[tuple[str, str]]
Fuzzer = Callable[[int], Tried]

# Where each one is, as module and function: one that is not asked for is not imported.
FUZZERS = {
    "attributes": ("tests.fuzz.attributes", "fuzz"),
    "broadcasts": ("tests.fuzz.broadcasts", "fuzz"),
    "convert": ("tests.random_models.converted", "fuzz"),
    "graph": ("tests.graph.fuzz", "fuzz"),
    "guards": ("tests.fuzz.guards", "fuzz"),
    "libraries": ("tests.exporters.library.fuzz", "fuzz"),
    "loader": ("tests.fuzz.files.loader", "fuzz"),
    "loops": ("tests.loops.fuzz", "fuzz"),
    "memory": ("tests.memory.fuzz", "fuzz"),
    "narrow": ("tests.fuzz.narrow", "fuzz"),
    "onnx": ("tests.random_models.fuzz", "fuzz"),
    "reader": ("tests.fuzz.files.reader", "fuzz"),
    "huge_sizes": ("tests.fuzz.files.huge_sizes", "fuzz"),
    "parts": ("tests.fuzz.parts", "fuzz"),
    "rounded": ("tests.fuzz.rounded", "fuzz"),
    "picked": ("tests.fuzz.picked", "fuzz"),
    "resizing": ("tests.fuzz.resizing", "fuzz"),
    "torch_broadcasts": ("tests.fuzz.torch_broadcasts", "fuzz"),
    "shapes": ("tests.fuzz.shapes.fuzz", "fuzz"),
    "sizes": ("tests.fuzz.sizes", "fuzz"),
    "aliasing": ("tests.fuzz.aliasing", "fuzz"),
    "states": ("tests.fuzz.states", "fuzz"),
    "torch": ("tests.torch.fuzz", "fuzz"),
    "weights": ("tests.fuzz.files.weights", "fuzz"),
}


def fuzzer(name: str) -> Fuzzer:
    """The fuzzer of this name, or at a place of its own, as `module:function`."""
    module, function = FUZZERS[name] if name in FUZZERS else name.split(":")
    return getattr(import_module(module), function)


def repeat_command(name: str, seed: int) -> str:
    return f"python -m tests.fuzz {name} --seed {seed} --count 1"


def run_seed(name: str, seed: int) -> Tried:
    """Run one seed of a fuzzer; a failure carries the command that repeats it."""
    try:
        return fuzzer(name)(seed)
    except Exception as e:
        e.add_note(f"repeat: {repeat_command(name, seed)}")
        raise
