"""What the package `gguf` (the oracle) makes of random blocks: digests of it are recorded in `decoded_digests.json`.

    python -m tests.frontends.weights.oracle            compares all kinds on fresh bytes
    python -m tests.frontends.weights.oracle FILE...    and all tensors of these files
    python -m tests.frontends.weights.oracle --record   records the digests anew

The package is needed for that alone. Tests compare with the digests: it would bring a client for HTTP with it, and
bytes that are recorded are the same on every machine.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.frontends.weights.gguf import read_gguf
from tilewright.frontends.weights.kinds import KINDS, Kind
from tilewright.frontends.weights.stored import StoredTensor

RECORDED = Path(__file__).with_name("decoded_digests.json")


def random_tensor(kind: Kind, seed: int | None, rows: int = 100, blocks: int = 5) -> StoredTensor:
    """Random bytes: every block is a legal one."""
    data = np.frombuffer(np.random.default_rng(seed).bytes(rows * blocks * kind.bytes), np.uint8)
    return StoredTensor("t", (rows, blocks * kind.elements), kind, data)


def bits(values: np.ndarray) -> np.ndarray:
    """The bits of floats, where all that are no numbers are alike."""
    found = np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint32)
    return np.where(np.isnan(values.reshape(-1)), np.uint32(0x7FC00000), found)


def digest(values: np.ndarray) -> str:
    return hashlib.sha256(bits(values).tobytes()).hexdigest()


def by_the_oracle(tensor: StoredTensor) -> np.ndarray:
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    rows = tensor.data.reshape(-1, tensor.kind.row_bytes(tensor.columns))
    with np.errstate(all="ignore"):
        found: Any = dequantize(rows, GGMLQuantizationType[tensor.kind.name])
    return np.asarray(found).reshape(tensor.shape)


def recorded() -> dict[str, str]:
    found: dict[str, str] = json.loads(RECORDED.read_text())
    return found


def main(arguments: list[str]) -> int:
    names = list(recorded())
    wrong = 0
    for name in names:
        tensor = random_tensor(KINDS[name], None)
        equal = np.array_equal(bits(tensor.decoded()), bits(by_the_oracle(tensor)))
        wrong += not equal
        print(f"{name}: {'equal' if equal else 'DIFFERENT'}")
    if "--record" in arguments:
        found = {name: digest(by_the_oracle(random_tensor(KINDS[name], 97))) for name in names}
        RECORDED.write_text(json.dumps(found, indent=1) + "\n")
        return wrong
    for path in map(Path, arguments):
        tensors = read_gguf(path).tensors.values()
        unlike = [t for t in tensors if not np.array_equal(bits(t.decoded()), bits(by_the_oracle(t)))]
        wrong += len(unlike)
        print(f"{path}: {len(tensors)} tensors, {len(unlike)} different {unlike[:3]}")
    return wrong


if __name__ == "__main__":
    sys.exit(1 if main(sys.argv[1:]) else 0)
