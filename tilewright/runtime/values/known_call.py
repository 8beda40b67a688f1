"""A call that an artefact keeps: its inputs, what the model means for them, and how far results may be from that. So a
compiled model is checked anywhere, with nothing but the runtime."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from tilewright.runtime.errors import ArtifactError
from tilewright.runtime.values.dtypes import numpy_dtype

KNOWN_CALL = "tilewright.call"
"""Of what is attached to an artefact."""

MOST_BYTES = 4 << 20
"""Of all arrays of a call that is kept."""


@dataclass(frozen=True)
class KnownResult:
    """An output: its elements, by how much floats may differ (float64, of its shape), and which share of integers may
    that are decided by floats."""

    wanted: np.ndarray
    allowed: np.ndarray
    flips: float = 0.0

    def difference(self, found: np.ndarray) -> str:
        """How a result is another one; "" where it is not. Elements that are not finite in `wanted` say nothing."""
        wanted = self.wanted
        if (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
            return f"{found.dtype}{list(found.shape)} instead of {wanted.dtype}{list(wanted.shape)}"
        if wanted.dtype.kind in "iub":
            bad = np.asarray(wanted != found)
        else:
            wide = np.complex128 if wanted.dtype.kind == "c" else np.float64
            with np.errstate(all="ignore"):
                a, b = wanted.astype(wide), found.astype(wide)
                bad = np.asarray(np.isfinite(a) & ~(np.abs(b - a) <= self.allowed))
        if bad.sum() <= self.flips * bad.size:
            return ""
        at = np.unravel_index(int(np.argmax(bad)), bad.shape)
        place = f" at [{', '.join(map(str, at))}]" if at else ""
        return f"{found[at]} instead of {wanted[at]}{place}, {bad.sum()} of {bad.size} elements differ"


@dataclass(frozen=True)
class KnownCall:
    """The inputs of a call, by name, and its results; None for one that says nothing, as random numbers do."""

    inputs: Mapping[str, np.ndarray]
    results: Sequence[KnownResult | None]

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays as they are kept."""
        kept = [r for r in self.results if r is not None]
        return sum(a.nbytes for a in (*self.inputs.values(), *(r.wanted for r in kept))) + sum(
            4 * r.allowed.size for r in kept
        )

    def differences(self, run: Callable[..., Sequence[np.ndarray]], names: Sequence[str]) -> dict[str, str]:
        """How results of a model, which is called with arrays in order, are others: by the names of outputs."""
        found = run(*self.inputs.values())
        if len(found) != len(self.results) or len(names) != len(self.results):
            return {"the model": f"{len(found)} results instead of {len(self.results)}"}
        triples = zip(names, self.results, found, strict=True)
        told = {name: known.difference(np.asarray(array)) for name, known, array in triples if known is not None}
        return {name: why for name, why in told.items() if why}

    def within(self, part: float) -> Self:
        """The same call where results may differ by this part of what they may here."""
        results = [None if r is None else replace(r, allowed=r.allowed * part) for r in self.results]
        return replace(self, results=results)

    def record(self) -> dict[str, Any]:
        """JSON data."""
        results = [
            None if r is None else {
                "wanted": _packed(r.wanted), "allowed": _packed(_rounded_up(r.allowed)), "flips": r.flips,
            }
            for r in self.results
        ]  # fmt: skip
        return {"inputs": {name: _packed(array) for name, array in self.inputs.items()}, "results": results}

    @classmethod
    def of(cls, attached: Mapping[str, Any], where: str) -> Self | None:
        """The call that an artefact keeps; None where it keeps none, ArtifactError for one that cannot be read."""
        record = attached.get(KNOWN_CALL)
        if record is None:
            return None
        try:
            inputs = {str(name): _unpacked(data) for name, data in record["inputs"].items()}
            results = [None if r is None else _result_of(r) for r in record["results"]]
        except (KeyError, TypeError, ValueError, AttributeError, zlib.error, MemoryError) as error:
            raise ArtifactError(
                f"{where}: the call that it keeps cannot be read: {error}", hint="compile it again"
            ) from error
        return cls(inputs, results)


def _result_of(record: Mapping[str, Any]) -> KnownResult:
    wanted, allowed = _unpacked(record["wanted"]), _unpacked(record["allowed"]).astype(np.float64)
    if wanted.shape != allowed.shape:
        raise ValueError("a tolerance has another shape than its result")
    return KnownResult(wanted, allowed, float(record["flips"]))


def _rounded_up(allowed: np.ndarray) -> np.ndarray:
    """In float32, nothing below what it was."""
    with np.errstate(over="ignore"):
        return np.nextafter(allowed.astype(np.float32), np.float32(np.inf))


def _packed(array: np.ndarray) -> dict[str, Any]:
    raw = np.ascontiguousarray(array).tobytes()
    return {
        "dtype": array.dtype.name, "shape": list(array.shape), "data": base64.b64encode(zlib.compress(raw)).decode(),
    }  # fmt: skip


def _unpacked(record: Mapping[str, Any]) -> np.ndarray:
    dtype, shape = numpy_dtype(record["dtype"]), tuple(map(int, record["shape"]))
    if dtype.hasobject or any(n < 0 for n in shape):
        raise ValueError("an array has no type or no shape that a call can have")
    most = int(np.prod(shape, dtype=object)) * dtype.itemsize
    raw = zlib.decompressobj().decompress(base64.b64decode(record["data"], validate=True), most + 1)
    return np.frombuffer(bytearray(raw), dtype).reshape(shape)
