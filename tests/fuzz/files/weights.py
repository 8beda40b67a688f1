"""Fuzzing what reads files of weights: headers of GGUF and safetensors files, and indices, that are damaged or lie.

Each is refused by a ModelError (an UnsupportedError where its weights are of a dtype that we lack), or read; then all
of its metadata can be read, too, and its tensors lie within the file. It takes at most twice the memory that the file
has bytes, but for a constant.

    python -m tests.fuzz weights --count 100000
    python -m tests.fuzz.files.weights --count 1000 FILE...     with these files' headers
"""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import random as randomness
import struct
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from tests.frontends.weights.gguf_files import NUMBERS, Gguf, small
from tests.fuzz.files.documents import mutate as mutate_document
from tests.fuzz.files.limits import limited
from tests.fuzz.registry import Tried
from tilewright.frontends.weights.folders import read_folder, read_stored
from tilewright.frontends.weights.gguf import Texts, read_gguf
from tilewright.frontends.weights.kinds import KINDS
from tilewright.frontends.weights.safetensors import LEAST_ROOM
from tilewright.frontends.weights.stored import StoredTensor
from tilewright.ir.diag import ModelError, UnsupportedError

SECONDS = 5.0
ROOM = 24 << 20
"""Bytes that may be taken whatever the size of the file: Python asks for memory in large pieces."""
CHANGES = (1, 1, 1, 2, 2, 3, 6)
NUMBERS_OF_TROUBLE = (
    0, 1, 2, 3, 4, 5, 8, 9, 12, 13, 31, 32, 33, 64, 255, 256, 65535, 65536, 2**16 + 1, 2**31 - 1, 2**31, 2**32 - 1,
    2**32, 2**40, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 8, 2**64 - 1,
)  # fmt: skip
MOST_DECODED = 1 << 16


@functools.cache
def corpus() -> tuple[bytes, ...]:
    """GGUF files, then safetensors files: right ones."""
    kinds = Gguf().key("general.alignment", "u32", 8)
    kinds.alignment = 8
    for k, (number, name) in enumerate({2: "Q4_0", 8: "Q8_0", 12: "Q4_K", 14: "Q6_K", 39: "MXFP4", 30: "BF16"}.items()):
        kind = KINDS[name]
        kinds.tensor(f"blk.{k}.w", (2, 2 * kind.elements), number, bytes(4 * kind.bytes))
    model = small()
    model.key("tokenizer.ggml.tokens", "[str]", [f"t{k}" * (k % 7) for k in range(200)])
    model.key("tokenizer.ggml.scores", "[f32]", [float(k) for k in range(200)])
    for k in range(20):
        model.tensor(f"blk.{k}.attn_norm.weight", (8,), "F32", bytes(32))
    part = Gguf().key("split.no", "u16", 0).key("split.count", "u16", 1).tensor("w", (2,), "F32", bytes(8))
    return (*(file.bytes() for file in (small(), kinds, model, part, Gguf())), *_safetensors())


def _safetensors() -> Iterable[bytes]:
    entries, size = _entries()
    text = json.dumps(entries).encode()
    yield struct.pack("<Q", len(text)) + text + bytes(size)
    yield struct.pack("<Q", 2) + b"{}"


def _entries() -> tuple[dict[str, Any], int]:
    """The header of a safetensors file, and how many bytes its tensors take."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (size, shape) in {"F32": (4, [2, 3]), "BF16": (2, [4]), "I8": (1, [0, 3]), "BOOL": (1, [])}.items():
        end = at + size * int(np.prod(shape, dtype=int))
        entries[f"t.{name}"] = {"dtype": name, "shape": shape, "data_offsets": [at, end]}
        at = end
    return entries, at


INDEX = {"metadata": {"total_size": 8}, "weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}


def mutated(data: bytes, random: Random, header: int | None = None) -> bytes:
    """Bytes changed at a few places, mostly of the first `header`: numbers of trouble, single bits, pieces that are
    missing, doubled or from elsewhere, and a cut."""
    changed = bytearray(data)
    for _ in range(random.choice(CHANGES)):
        limit = min(len(changed), header or len(changed))
        at = random.randrange(limit) if limit else 0
        how = random.random()
        if how < 0.4:
            width = random.choice((1, 4, 4, 8, 8, 8))
            number = random.choice((*NUMBERS_OF_TROUBLE, len(changed), len(changed) - at, random.getrandbits(64)))
            number = number + random.choice((0, 0, 0, -1, 1)) & (1 << 8 * width) - 1
            changed[at : at + width] = number.to_bytes(width, "little")
        elif how < 0.6 and changed:
            changed[at] ^= 1 << random.randrange(8)
        elif how < 0.7:
            del changed[at : at + random.choice((1, 2, 4, 8, 40))]
        elif how < 0.8:
            changed[at:at] = changed[at : at + random.choice((1, 8, 24, 100))]
        elif how < 0.9:
            source = random.randrange(limit) if limit else 0
            size = random.choice((1, 4, 8, 16))
            changed[at : at + size] = changed[source : source + size]
        else:
            del changed[random.randrange(len(changed) + 1) :]
    return bytes(changed)


def lie(random: Random) -> bytes:
    """A GGUF file that is whole but for one thing that its header says."""
    file = small()
    how = random.randrange(5)
    number = random.choice(NUMBERS_OF_TROUBLE)
    if how == 0:
        file.counts = (number, len(file.keys)) if random.random() < 0.5 else (len(file.tensors), number)
    elif how == 1:
        at = random.randrange(len(file.keys))
        type, rest = random.choice((*NUMBERS.values(), 8, 9, 13)), file.keys[at][1][4:]
        file.keys[at] = (file.keys[at][0], struct.pack("<I", type) + rest)
    elif how == 2:
        at = random.randrange(len(file.tensors))
        name, dims, kind, data, offset = file.tensors[at]
        dims = tuple(random.choice((d, d, number)) for d in dims) + (1,) * random.choice((0, 0, 1, 3))
        file.tensors[at] = (name, dims, random.choice((kind, kind, random.randrange(50))), data, offset)
    elif how == 3:
        name, dims, kind, data, _ = file.tensors[-1]
        file.tensors[-1] = (name, dims, kind, data, number & ~31 if random.random() < 0.8 else number)
    else:
        file.key("general.alignment", random.choice(("u32", "u64", "i32")), number % 2**31)
    return file.bytes()


def document(data: dict[str, Any], random: Random) -> bytes:
    """JSON data, changed at a few places."""
    changed = copy.deepcopy(data)
    with contextlib.suppress(RecursionError):  # it was nested deeper and deeper
        for _ in range(random.choice(CHANGES)):
            mutate_document(changed, random, data)
        return json.dumps(changed).encode()
    return b"{}"


def fuzz(seed: int) -> Tried:
    random = Random(seed)
    how = random.random()
    if how < 0.1:
        return _tried_index(random)
    if how < 0.2:
        text = document(_entries()[0], random)
        return target(struct.pack("<Q", len(text)) + text + bytes(_entries()[1]))
    data = lie(random) if how < 0.4 else random.choice(corpus())
    return target(data if how < 0.4 and random.random() < 0.8 else mutated(data, random))


def target(data: bytes) -> Tried:
    """Read a file, as what it begins like."""
    with tempfile.TemporaryDirectory(dir=_memory()) as folder:
        is_safetensors = data[8:9] == b"{" or (len(data) > 8 and data[:4] != b"GGUF" and data[4:8] == bytes(4))
        path = Path(folder, "w.safetensors" if is_safetensors else "w.gguf")
        path.write_bytes(data)
        try:
            return _read(path, is_safetensors)
        except BaseException as error:
            error.add_note(f"the file: {data[:400]!r}")
            raise


def _memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def _read(path: Path, is_safetensors: bool) -> Tried:
    kind = "safetensors" if is_safetensors else "gguf"
    size = path.stat().st_size
    try:
        with limited(SECONDS, 2 * size + ROOM + (LEAST_ROOM if is_safetensors else 0)):
            tensors = read_stored(path) if is_safetensors else _with_metadata(path)
    except UnsupportedError:
        if not is_safetensors:
            raise
        return Counter({(kind, "unsupported"): 1})
    except ModelError as error:
        assert str(path) in str(error) and error.hint, str(error)
        return Counter({(kind, "refused"): 1})
    for tensor in tensors.values():
        assert tensor.data.nbytes == tensor.kind.tensor_bytes(tensor.shape) <= size
        if 0 < tensor.size <= MOST_DECODED:
            assert tensor.decoded().shape == tensor.shape
    return Counter({(kind, "read"): 1})


def _with_metadata(path: Path) -> dict[str, StoredTensor]:
    file = read_gguf(path)
    for key, value in file.metadata.items():
        assert isinstance(key, str)
        if isinstance(value, Texts):
            for _ in value:
                pass
        elif isinstance(value, np.ndarray):
            value.tobytes()
    return file.tensors


def _tried_index(random: Random) -> Tried:
    """A folder whose index lies."""
    text = document(INDEX, random)
    with tempfile.TemporaryDirectory(dir=_memory()) as name:
        folder = Path(name)
        for tensor in ("a", "b"):
            entry = json.dumps({tensor: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
            (folder / f"{tensor}.safetensors").write_bytes(struct.pack("<Q", len(entry)) + entry + bytes(4))
        (folder / "model.safetensors.index.json").write_bytes(text if random.random() < 0.7 else mutated(text, random))
        try:
            with limited(SECONDS, ROOM + LEAST_ROOM):
                found = read_folder(folder)
        except ModelError as error:
            assert str(folder) in str(error) and error.hint, str(error)
            return Counter({("index", "refused"): 1})
        except BaseException as error:
            error.add_note(f"the index: {text[:400]!r}")
            raise
    assert all(tensor.size == 1 for tensor in found.values())
    return Counter({("index", "read"): 1})


def main(arguments: list[str]) -> None:
    """Change the headers of whole files, in copies of them."""
    count, paths = int(arguments[1]), arguments[2:]
    first = randomness.SystemRandom().randrange(10**6, 10**9)
    print(f"{count} changes of each of {len(paths)} files, seeds from {first} on", flush=True)
    for name in paths:
        data, header, tried = Path(name).read_bytes(), _header_bytes(Path(name)), Counter[tuple[str, str]]()
        with tempfile.TemporaryDirectory(dir=_memory()) as folder:
            path = Path(folder, "w.gguf")
            path.write_bytes(data)
            for seed in range(first, first + count):
                changed = mutated(data[:header], Random(seed))
                with path.open("r+b") as file:
                    file.write(changed)
                try:
                    tried.update(_read(path, False))
                except BaseException as error:
                    error.add_note(f"seed {seed}")
                    raise
                with path.open("r+b") as file:
                    file.write(data[: max(header, len(changed))])
        print(f"{name}: {header} bytes of header, {dict(tried)}", flush=True)


def _header_bytes(path: Path) -> int:
    """Where the first tensor begins."""
    views = [tensor.data for tensor in read_gguf(path).tensors.values()]
    return min(v.__array_interface__["data"][0] - v.base.__array_interface__["data"][0] for v in views)


if __name__ == "__main__":
    main(sys.argv[1:])
