"""What an input or output is."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.runtime.errors import short_name

Dim = int | str

_PARTS = {"float32": "complex64", "float64": "complex128"}


@dataclass(frozen=True)
class TensorInfo:
    """An input or output: `dtype` is a NumPy (or ml_dtypes) name or "string", dims are numbers or symbolic texts.

    Values that are no tensors have another `kind`, and no shape: a "sequence" or an "optional" of an `element` (their
    dtype is "object"), a "map" from keys of `dtype` to an `element`. An "unranked" tensor has a dtype, and any shape.
    Of complex numbers native code has the `parts`: the same memory as floats, with a last axis of 2.
    """

    name: str
    dtype: str
    shape: tuple[Dim, ...]
    kind: str = "tensor"
    element: TensorInfo | None = None

    def __post_init__(self) -> None:
        if self.kind not in (("tensor", "unranked") if self.element is None else ("sequence", "optional", "map")):
            raise ValueError(f"there is no {self.kind} of {self.element}")

    def __str__(self) -> str:
        return f"{short_name(self.name)}: {self.type}"

    def __repr__(self) -> str:
        return f"TensorInfo({self})"

    @property
    def is_complex(self) -> bool:
        """Whether callers have complex numbers."""
        return self.dtype in _PARTS.values()

    @property
    def parts(self) -> TensorInfo:
        """As native code has it."""
        found = next((part for part, dtype in _PARTS.items() if dtype == self.dtype), None)
        return self if found is None else replace(self, dtype=found, shape=(*self.shape, 2))

    @property
    def of_parts(self) -> TensorInfo:
        """As callers have it, of what native code has for complex numbers."""
        return replace(self, dtype=_PARTS[self.dtype], shape=self.shape[:-1])

    @property
    def type(self) -> str:
        """The type as a text, such as "float32[2, n]" or "sequence(float32[?])"."""
        match self.kind:
            case "tensor":
                return f"{self.dtype}[{', '.join(map(str, self.shape))}]"
            case "unranked":
                return f"{self.dtype}[...]"
            case "map":
                return f"map({self.dtype}, {self.element and self.element.type})"
        return f"{self.kind}({self.element and self.element.type})"
