"""A compiled model as plain data, in memory and as a file.

Objects are position-independent code of the small code model (LLVM's large one cannot link several objects
into one process), and need no symbols but each other's, the C library's and the C math library's.

Native interface. The objects of an artefact define these C functions (`plan` only when there is no
`static_plan`); both return 0, or k + 1 for the failure `errors[k]`:

- `i32 tw_plan(i64 *in_shapes, void **in_data, i64 *dims, i64 *out_shapes, i64 *sizes)`: from the dims of all
  inputs, flattened in order, and (for shapes that depend on values) their data, fill `dims` (`dims_count`
  entries: the symbolic variables in the order of `variables`, then whatever the code wants to keep), the dims
  of all outputs, and sizes[0] = bytes of the arena, sizes[1] = bytes of scratch memory per worker (a multiple
  of 64).
- `i32 tw_run(void **call)`: compute. `call` holds `void *pool, void **in_data, void **out_data, void *constants,
  void *arena, void *scratch, i64 *dims`. Inputs and outputs are C-contiguous and aligned to their element;
  constants, arena and scratch are aligned to 64 bytes; scratch holds sizes[1] bytes for each worker. 4-bit
  integers take a byte each in inputs and outputs.
- `i32 tw_run_profiled(void **call, u64 *counts)`, if the model was compiled with profile=True: also stores the
  cycle counter before the first kernel and after each, in the order of the report's calls.
- the thread pool's `tw_pool_create`, `tw_pool_destroy`; without them the model runs on one thread.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tilewright.runtime import staged
from tilewright.runtime.errors import ArtifactError, OptionError
from tilewright.runtime.report import Report
from tilewright.runtime.storage.container import (
    FORMAT,
    Bytes,
    Section,
    container_bytes,
    read_container,
    write_container,
)

Dim = int | str


@dataclass(frozen=True)
class TensorInfo:
    """An input or output: `dtype` is a NumPy (or ml_dtypes) name or "string", dims are numbers or symbolic texts.

    Values that are no tensors have another `kind`, and no shape: a "sequence" or an "optional" of an `element` (their
    dtype is "object"), a "map" from keys of `dtype` to an `element`. An "unranked" tensor has a dtype, and any shape.
    """

    name: str
    dtype: str
    shape: tuple[Dim, ...]
    kind: str = "tensor"
    element: TensorInfo | None = None

    def __str__(self) -> str:
        return f"{self.name}: {self.type}"

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


@dataclass(frozen=True)
class TargetInfo:
    """The machine the code was made for: `kind` names what runs it (`executor`); `features` are LLVM's names of those
    a CPU must have to run it. Machines of other kinds have their name as `cpu`, and no triple."""

    triple: str
    cpu: str
    features: tuple[str, ...] = ()
    kind: str = "cpu"


@dataclass(frozen=True)
class StaticPlan:
    """What `tw_plan` would say for a model all of whose shapes are fixed; sizes in bytes."""

    arena: int
    scratch: int
    dims: tuple[int, ...] = ()


@dataclass(frozen=True)
class Failure:
    """An error the native code can report: `kind` chooses the exception (see `errors.error_class`)."""

    kind: str
    message: str


@dataclass(frozen=True)
class ConstantInfo:
    """Where a constant lies in the weights (bytes from their start); for people and tools only."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Artifact:
    """A compiled model.

    `plan_reads_data`: output shapes or sizes depend on the values of inputs, so that `tw_plan` runs at every
    call and not only when the shapes change. `report` is free JSON data about what was compiled. A staged model has no
    code and weights of its own but a `program`, whose steps call its `parts`.
    """

    target: TargetInfo
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    objects: tuple[bytes | memoryview, ...] = field(repr=False)
    constants: bytes | bytearray | memoryview = field(default=b"", repr=False)
    constant_table: tuple[ConstantInfo, ...] = ()
    static_plan: StaticPlan | None = None
    variables: tuple[str, ...] = ()
    dims_count: int = 0
    plan_reads_data: bool = False
    program: staged.program.StagedProgram | None = None
    parts: tuple[Artifact, ...] = ()
    errors: tuple[Failure, ...] = ()
    plan_symbol: str = "tw_plan"
    run_symbol: str = "tw_run"
    run_profiled_symbol: str = "tw_run_profiled"
    producer: str = ""
    report: dict[str, Any] = field(default_factory=dict)
    format: int = FORMAT

    def save(self, path: str | Path) -> None:
        """Write the artefact to a file, whole or not at all; ArtifactError when that fails.

        A file of that name is replaced, not written over: models that were loaded from it go on as before.
        """
        if not isinstance(path, str | os.PathLike):
            raise ArtifactError(f"cannot save to {path!r:.80}", hint="give a path")
        write_container(Path(path), self._metadata(), self._sections())

    def to_bytes(self) -> bytes:
        """What `save` writes, for `load` and for pickle."""
        return container_bytes(self._metadata(), self._sections())

    @classmethod
    def load(cls, source: str | Path | Bytes, *, check_weights: bool = True, mmap: bool = False) -> Artifact:
        """Read a file written by `save`, or its bytes; ArtifactError when it is missing, damaged, foreign or too new.

        An artefact is native code: load only files whose origin you trust. Everything is copied into memory of this
        process, so that afterwards the file (or buffer) may be replaced, written over, cut off or deleted. With
        `mmap=True` the weights stay in the file: processes share their memory and loading without a check takes no
        time, but then the file may only be replaced by renaming (as `save` and `mv` do) or deleted. Writing over it
        changes the weights of the running model, cutting it off ends the process at the next call.

        `check_weights=False` skips the checksum of the weights (a third of a second per GB).
        """
        if isinstance(source, str | os.PathLike):
            name, source = str(source), Path(source)
        elif isinstance(source, bytes | bytearray | memoryview):
            name = "the given buffer"
        else:
            raise ArtifactError(f"cannot load {source!r:.80}", hint="give the path of a compiled model, or its bytes")
        if mmap and not isinstance(source, Path):
            raise OptionError("mmap=True needs a file, and bytes are given", hint="give the path of the file")
        metadata, sections = read_container(source, check_weights=check_weights, map_weights=mmap)
        try:
            return _from_metadata(metadata, deque(sections))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ArtifactError(
                f"{name}: the metadata is malformed ({error!r})", hint="compile the model again"
            ) from error

    def summary(self) -> Report:
        """What was compiled: signature, target, sizes, and what the compiler noted (kernels, times)."""
        plan = self.static_plan
        return Report(
            {
                "inputs": ", ".join(map(str, self.inputs)),
                "outputs": ", ".join(map(str, self.outputs)),
                "target": f"{self.target.cpu} ({self.target.triple or self.target.kind})",
                "object bytes": sum(memoryview(blob).nbytes for a in (self, *self.parts) for blob in a.objects),
                "constant bytes": sum(memoryview(a.constants).nbytes for a in (self, *self.parts)),
                "arena bytes": plan.arena if plan else "depends on the shapes",
                **self.report,
            }
        )

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle and copy as a file's bytes, which are checked again."""
        return (Artifact.load, (self.to_bytes(),))

    def _sections(self) -> list[Section]:
        code = [Section("code", memoryview(blob).cast("B")) for blob in self.objects]
        own = [*code, Section("weights", _byte_view(self.constants))]
        return own + [section for part in self.parts for section in part._sections()]

    def _metadata(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in _PLAIN}
        parts = {name: [asdict(item) for item in getattr(self, name)] for name in _RECORDS}
        plan = None if self.static_plan is None else asdict(self.static_plan)
        metadata = {**plain, **parts, "target": asdict(self.target), "static_plan": plan}
        if self.program is not None:
            metadata["program"] = self.program.record()
            metadata["parts"] = [part._metadata() for part in self.parts]
        return metadata


_PLAIN = (
    "variables",
    "dims_count",
    "plan_reads_data",
    "plan_symbol",
    "run_symbol",
    "producer",
    "report",
    "format",
)
_RECORDS: dict[str, type[TensorInfo] | type[ConstantInfo] | type[Failure]] = {
    "inputs": TensorInfo,
    "outputs": TensorInfo,
    "constant_table": ConstantInfo,
    "errors": Failure,
}


def _from_metadata(metadata: dict[str, Any], sections: deque[Section]) -> Artifact:
    """The artefact of some metadata, and those of its parts; takes their sections: code up to weights for each."""
    code = []
    while sections[0].kind == "code":
        code.append(sections.popleft().data)
    weights = sections.popleft().data
    fields: dict[str, Any] = {name: metadata[name] for name in _PLAIN}
    for name, kind in _RECORDS.items():
        fields[name] = tuple(kind(**_with_tuples(item)) for item in metadata[name])
    if metadata["static_plan"] is not None:
        fields["static_plan"] = StaticPlan(**_with_tuples(metadata["static_plan"]))
    return Artifact(
        **{**fields, "variables": tuple(metadata["variables"])},
        target=TargetInfo(**_with_tuples(metadata["target"])),
        objects=tuple(code),
        constants=weights,
        program=staged.program.StagedProgram.of(metadata["program"]) if "program" in metadata else None,
        parts=tuple(_from_metadata(part, sections) for part in metadata.get("parts", ())),
    )


def _with_tuples(record: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in record.items()}
    if fields.get("element") is not None:
        fields["element"] = TensorInfo(**_with_tuples(fields["element"]))
    return fields


def _byte_view(data: bytes | bytearray | memoryview) -> memoryview:
    """The bytes of a contiguous buffer; an empty one cannot be cast."""
    view = memoryview(data)
    return view.cast("B") if view.nbytes else memoryview(b"")
