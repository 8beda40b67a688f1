"""A compiled model as plain data, in memory and as a file.

Native code is an image (`storage/image.py`): linked, position-independent, and in need of nothing but the C library,
the C math library and threads. Other kinds of machines have `objects`, which mean what their back ends say; a
model that runs on a device and the CPU beside it has both.

Native interface. The image of an artefact defines these C functions (`plan` only when there is no
`static_plan`); both return 0, or k + 1 for the failure `errors[k]`:

- `i32 tw_plan(i64 *in_shapes, void **in_data, i64 *dims, i64 *out_shapes, i64 *sizes)`: from the dims of all
  inputs, flattened in order, and (for shapes that depend on values) their data, fill `dims` (`dims_count`
  entries: the symbolic variables in the order of `variables`, then whatever the code wants to keep), the dims
  of all outputs, and sizes[0] = bytes of the arena, sizes[1] = bytes of scratch memory per worker (a multiple
  of 64).
- `i32 tw_run(void **call)`: compute. `call` holds `void *pool, void **in_data, void **out_data, void *constants,
  void *arena, void *scratch, i64 *dims, i32 *stops`. Where somebody changes the word at `stops`, the run ends before
  its next kernel, and returns -1. Inputs and outputs are C-contiguous and aligned to their element; constants and
  arena are aligned to 64 bytes; scratch is behind the arena, sizes[1] bytes for each worker, and both are one block.
  4-bit integers take a byte in inputs and outputs, complex numbers are two floats with an axis of 2 among their dims.
- `i32 tw_run_profiled(void **call, u64 *counts)`, if the model was compiled with profile=True: also stores the
  cycle counter before the first kernel and after each, in the order of the report's calls.
- the thread pool's `tw_pool_create`, `tw_pool_destroy`; without them the model runs on one thread.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from tilewright.runtime import staged
from tilewright.runtime.errors import ArtifactError, Remark, printable, short_name
from tilewright.runtime.report.kept import KeptReport
from tilewright.runtime.storage.container import (
    FORMAT,
    Bytes,
    Section,
    container_bytes,
    is_container,
    named_source,
    read_container,
    write_container,
)
from tilewright.runtime.storage.files import (
    LentArray,
    Ranges,
    Selection,
    check_replaced,
    cuts,
    holds,
    saved_weights,
)
from tilewright.runtime.storage.image import Image, ImageLayout, shared_image
from tilewright.runtime.storage.records import plain, record
from tilewright.runtime.storage.signing import Trust, signer_of, trusted_keys
from tilewright.runtime.storage.store import Store
from tilewright.runtime.values.info import Dim as Dim
from tilewright.runtime.values.info import TensorInfo as TensorInfo

if TYPE_CHECKING:
    from tilewright.runtime.report.records import ProgramReport
    from tilewright.runtime.report.shown import Report


EXTERNAL = "external"
"""The kind of machine of parts that the compiler of a vendor has made, and the name under which their `attached` says
whose they are."""


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
    """What `tw_plan` would say for a model of fixed shapes, in bytes; the most threads of a call (0: any number)."""

    arena: int
    scratch: int
    dims: tuple[int, ...] = ()
    most_threads: int = 0

    def __post_init__(self) -> None:
        if min(self.arena, self.scratch, self.most_threads) < 0:
            raise ValueError("a plan has no bytes or threads below 0")


@dataclass(frozen=True)
class Failure:
    """An error the native code can report: `kind` chooses the exception (see `errors.error_class`)."""

    kind: str
    message: str


@dataclass(frozen=True)
class ConstantInfo:
    """Byte of the weights where a constant begins, or if it `is_lent` where its distance stands; for tools only."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    is_lent: bool = False

    @property
    def nbytes(self) -> int:
        """In the weights; by the name of the dtype, which NumPy need not have."""
        bits = re.search(r"\d+", self.dtype)
        return 8 if self.is_lent else math.prod(self.shape) * max(1, int(bits[0]) // 8 if bits else 1)


@dataclass(frozen=True)
class StateInfo:
    """What a model keeps from call to call, as `info`, whose name is that of an input of its source: at the end of a
    call it holds what the source has as `output`. Its kernel writes it "in place", or into memory with which it is
    "swapped"; a model in parts has it "handed on" as an array. It begins with the bytes at `initial` in the
    constants, or with zeros (-1). One that grows is filled along the axis `grows` up to the position that the state
    `counter` holds: what lies behind is never read, and of what lies before `window` rows at most (-1: all)."""

    info: TensorInfo
    output: str
    way: str
    initial: int = -1
    grows: int = -1
    counter: str = ""
    window: int = -1

    def __post_init__(self) -> None:
        fixed = self.info.kind == "tensor" and all(type(d) is int and d >= 0 for d in self.info.shape)
        if not fixed or self.way not in ("in place", "swapped", "handed on") or self.info.dtype == "string":
            raise ValueError(f"there is no state {self.info} that is {self.way}")
        if not -1 <= self.grows < len(self.info.shape) or (self.grows >= 0) != bool(self.counter):
            raise ValueError(f"the state {self.info} does not grow along axis {self.grows} with '{self.counter}'")

    def __str__(self) -> str:
        return f"{self.info} = {short_name(self.output)}"


@dataclass(frozen=True)
class Variant:
    """A program for calls with these `sizes` of symbolic dims, with fixed sizes in the shapes of its inputs."""

    sizes: Mapping[str, int]
    artifact: Artifact

    def check(self, general: Artifact) -> None:
        """ValueError unless its inputs and outputs are those of the general program with these sizes."""
        if not self.sizes or any(type(size) is not int or size < 1 for size in self.sizes.values()):
            raise ValueError(f"a variant has the sizes {dict(self.sizes)}")
        inputs = tuple(replace(i, shape=tuple(self.sizes.get(str(d), d) for d in i.shape)) for i in general.inputs)
        dims = {dim for info in general.inputs for dim in info.shape}
        made, wanted = (
            [(o.name, o.dtype, o.kind, len(o.shape)) for o in a.outputs] for a in (self.artifact, general)
        )
        is_one = inputs == self.artifact.inputs and made == wanted and dims.issuperset(self.sizes)
        is_one &= self.artifact.keeps == general.keeps
        if not is_one or self.artifact.variants:
            raise ValueError(f"the variant for {self.text} is none of this program")

    @property
    def text(self) -> str:
        """The sizes, such as "batch=1, height=224"."""
        return sizes_text(self.sizes)


def sizes_text(sizes: Mapping[str, int]) -> str:
    """Sizes by name in a line."""
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


@dataclass(frozen=True)
class Artifact:
    """A compiled model.

    `plan_reads_data`: output shapes or sizes depend on the values of inputs, so that `tw_plan` runs at every
    call and not only when the shapes change. `report` is the record of what was compiled, `model` the name of the file
    that it was compiled from, and `attached` JSON data that tools keep with it, by names of their own. A staged model
    has a `program`, whose steps call its `parts`. `variants` run in its place for some sizes, the most special first.
    Parts and variants have the same code (`image`, `objects`) and `constants` as the whole, and names of their own for
    their functions.
    `assumed` says which conditions on the dims the program takes for granted: other calls are those of `broadcasting`,
    which has both meanings of dims that may be equal or 1, and is tried where another program refuses the dims of a
    call. Constants that are `lent` lie elsewhere in this process; in a file they follow the others. `states` are kept
    from call to call: native code finds the addresses of what they hold behind those of the inputs, and those of what
    they hold next, where that is not in place, behind those of the outputs.
    """

    target: TargetInfo
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    image: Image | None = field(default=None, repr=False)
    objects: tuple[bytes | memoryview, ...] = field(default=(), repr=False)
    constants: bytes | bytearray | memoryview = field(default=b"", repr=False)
    lent: tuple[LentArray, ...] = field(default=(), repr=False)
    constant_table: tuple[ConstantInfo, ...] = ()
    static_plan: StaticPlan | None = None
    variables: tuple[str, ...] = ()
    dims_count: int = 0
    plan_reads_data: bool = False
    program: staged.program.StagedProgram | None = None
    parts: tuple[Artifact, ...] = ()
    variants: tuple[Variant, ...] = ()
    broadcasting: Artifact | None = None
    assumed: tuple[str, ...] = ()
    states: tuple[StateInfo, ...] = ()
    levels: tuple[Artifact, ...] = ()
    level: str = ""
    reads: Ranges = ()
    errors: tuple[Failure, ...] = ()
    plan_symbol: str = "tw_plan"
    run_symbol: str = "tw_run"
    run_profiled_symbol: str = "tw_run_profiled"
    producer: str = ""
    model: str = ""
    attached: Mapping[str, Any] = field(default_factory=dict, repr=False)
    kept_report: KeptReport = field(default_factory=KeptReport, repr=False)
    format: int = FORMAT

    def __repr__(self) -> str:
        return f"<tilewright artefact {self.signature} for {self.target.cpu}>"

    def of_parts(self) -> Artifact:
        """The program without its variants, called with the parts of complex numbers."""
        inputs, outputs = (tuple(info.parts for info in infos) for infos in (self.inputs, self.outputs))
        return replace(self, variants=(), broadcasting=None, inputs=inputs, outputs=outputs)

    def save(
        self, path: str | Path, *, force: bool = False, key: str | Path | bytes | None = None,
        shared: tuple[Store, int] | None = None,
    ) -> None:
        """Write the artefact to a file, whole or not at all; ArtifactError when that fails. With a private `key`
        (Ed25519, the path of a PEM file, or its bytes) it is signed. What is `shared` goes to the store of a fleet, so
        many folders above the file.

        An artefact of that name is replaced, not written over: models that were loaded from it go on as before. Any
        other file that is there, such as the model that was compiled, is replaced only by `force`.
        """
        if not isinstance(path, str | os.PathLike):
            raise ArtifactError(f"cannot save to {path!r:.80}", hint="give a path")
        check_replaced(Path(path), "a compiled model", is_container, force=force)
        signer = None if key is None else signer_of(key)
        write_container(Path(path), self._metadata(), self._sections(), signer, shared)

    def write(self, file: BinaryIO) -> None:
        """Write to an open file what `save` writes; OSError where that fails, half of it written."""
        write_container(file, self._metadata(), self._sections())

    def to_bytes(self) -> bytes:
        """What `save` writes, for `load` and for pickle."""
        return container_bytes(self._metadata(), self._sections())

    @classmethod
    def load(
        cls,
        source: str | Path | Bytes | io.FileIO,
        *,
        check_weights: bool | None = None,
        mmap: bool = False,
        trust: Trust | None = None,
    ) -> Artifact:
        """Read a file written by `save` (by its path, or open), or its bytes; ArtifactError when it is missing,
        damaged, foreign or too new.

        An artefact is native code: load only files whose origin you trust. Everything is copied into memory of this
        process, so that afterwards the file (or buffer) may be replaced, written over, cut off or deleted. With
        `mmap=True` weights and code stay in the file: processes share their memory and loading without a check takes no
        time, but then the file may only be replaced by renaming (as `save` and `mv` do) or deleted. Writing over it
        changes the running model, cutting it off ends the process at the next call.

        `check_weights` says whether the checksum of the weights is looked at, which takes a third of a second per GB:
        by default unless they are mapped.

        With `trust`, one or several public keys (Ed25519, the paths of PEM files, or their bytes), only what one of
        them has signed is loaded, and all of it is compared with what was signed.
        """
        trusted = None if trust is None else trusted_keys(trust)
        return StoredModel.read(source, check_weights=check_weights, mmap=mmap, trusted=trusted).whole()

    def sharing(
        self,
        image: Image | None,
        objects: tuple[bytes | memoryview, ...],
        constants: bytes | bytearray | memoryview,
        lent: tuple[LentArray, ...] = (),
    ) -> Artifact:
        """The artefact, its parts and its variants with this code and these weights."""
        own = (image, objects, constants, lent)
        return replace(
            self,
            image=image,
            objects=objects,
            constants=constants,
            lent=lent,
            parts=tuple(part.sharing(*own) for part in self.parts),
            variants=tuple(Variant(v.sizes, v.artifact.sharing(*own)) for v in self.variants),
            broadcasting=None if self.broadcasting is None else self.broadcasting.sharing(*own),
        )

    def with_levels(self, levels: Sequence[Artifact]) -> Artifact:
        """The artefact with that of other CPUs; ValueError where it is another model."""
        if len({(a.inputs, a.outputs, a.keeps, a.target.triple) for a in (self, *levels)}) > 1:
            raise ValueError("a level is another model")
        return replace(self, levels=tuple(levels))

    @property
    def keeps(self) -> tuple[tuple[TensorInfo, str], ...]:
        """The states, in whatever way they are kept."""
        return tuple((state.info, state.output) for state in self.states)

    @property
    def programs(self) -> tuple[Artifact, ...]:
        """All that a call may run: the general one, the variants, and last the one that broadcasts."""
        more = () if self.broadcasting is None else (self.broadcasting,)
        return (self, *(variant.artifact for variant in self.variants), *more)

    @property
    def compilers(self) -> set[tuple[str, str]]:
        """Names and versions of the compilers of vendors that are needed to run it."""
        parts = (part for program in self.programs for part in program.parts if part.target.kind == EXTERNAL)
        return {(part.attached[EXTERNAL]["compiler"], part.attached[EXTERNAL]["version"]) for part in parts}

    @property
    def signature(self) -> str:
        """The inputs, the outputs, and what is assumed of their dims."""
        more = len(self.assumed) - _SHOWN
        shown = [*self.assumed[:_SHOWN], *([f"{more} more conditions hold"] if more > 0 else [])]
        where = f" where {', '.join(shown)}" if shown else ""
        kept = f" keeping {', '.join(short_name(state.info.name) for state in self.states)}" if self.states else ""
        ends = f"({', '.join(map(str, self.inputs))}) -> ({', '.join(map(str, self.outputs))})"
        return printable(f"{ends}{kept}{where}")

    def check_reads(self) -> None:
        """ValueError unless all constants, and first values of states, are among what this level `reads`."""
        for program in (p for of in self.programs for p in (of, *of.parts)):
            initial = [(s.info.name, s.initial, s.initial + 1) for s in program.states if s.initial >= 0]
            table = [(info.name, info.offset, info.offset + info.nbytes) for info in program.constant_table]
            for name, first, end in (*table, *initial):
                if not holds(self.reads, first, end):
                    raise ValueError(f"{name!r:.80} is not among the weights that the level reads")

    def check_broadcasting(self, of: Artifact) -> None:
        """ValueError unless this can be run with the inputs of another program, and gives outputs like its."""
        made, wanted = ([(o.name, o.dtype, o.kind, len(o.shape)) for o in a.outputs] for a in (self, of))
        is_one = self.inputs == of.inputs and made == wanted and self.keeps == of.keeps
        if not is_one or self.variants or self.broadcasting is not None:
            raise ValueError("the program that broadcasts is none of this one")

    @property
    def weight_bytes(self) -> int:
        """All constants, those that are lent with them."""
        return memoryview(self.constants).nbytes + sum(array.data.nbytes for array in self.lent)

    @property
    def code_bytes(self) -> int:
        """All code."""
        native = 0 if self.image is None else self.image.nbytes
        return native + sum(memoryview(blob).nbytes for blob in self.objects)

    @property
    def report(self) -> ProgramReport:
        """What the compilation told of this program; ArtifactError where it cannot be read."""
        return self.kept_report.report

    @property
    def urgent(self) -> tuple[Remark, ...]:
        """The remarks on all programs that say that something failed, and warnings; known without reading reports."""
        programs = [program for level in (self, *self.levels) for program in level.programs]
        return tuple(dict.fromkeys(remark for program in programs for remark in program.kept_report.urgent))

    def reporting(self, **changes: Any) -> Artifact:
        """The artefact with other fields in its report."""
        return replace(self, kept_report=KeptReport(replace(self.report, **changes)))

    def summary(self) -> Report:
        """What was compiled: signature, target, sizes, and what the compiler noted (kernels, times)."""
        from tilewright.runtime.report.shown import report_of

        return report_of(self)

    @property
    def arena_bytes(self) -> int | None:
        """Bytes of a call's intermediate tensors; None where its shapes are not fixed."""
        return self.static_plan.arena if self.static_plan else None

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle and copy as a file's bytes, which are checked again."""
        return (Artifact.load, (self.to_bytes(),))

    def saved_weights(self) -> list[memoryview]:
        """The constants as a file has them, in pieces, also those lent. ArtifactError where these were written to."""
        return saved_weights(self.constants, self.lent)

    def _sections(self) -> list[Section]:
        code = [Section("code", memoryview(blob).cast("B")) for blob in self.objects]
        images = [level.image for level in (self, *self.levels) if level.image is not None]
        code += [Section("image", memoryview(image.text), (memoryview(image.data),)) for image in images]
        first, *more = self.saved_weights()
        readers = [level.reads for level in (self, *self.levels)]
        has_parts = self.levels and all(readers) and not self.lent
        cut = cuts(readers, memoryview(first).nbytes) if has_parts else ()
        return [*code, Section("weights", first, tuple(more), cut=cut)]

    def _metadata(self) -> dict[str, Any]:
        """What a file says of the artefact and of its code."""
        metadata = self._description()
        if self.image is not None:
            metadata["image"] = plain(self.image.layout)
        if self.reads:
            metadata["reads"] = plain(self.reads)
        if self.levels:
            metadata["levels"] = [level._metadata() for level in self.levels]
        return metadata

    def _description(self) -> dict[str, Any]:
        metadata = {f.name: plain(getattr(self, f.name)) for f in fields(self) if f.name not in _ELSEWHERE}
        metadata["report"] = self.kept_report.metadata()
        if self.program is not None:
            metadata["program"] = self.program.record()
            metadata["parts"] = [part._description() for part in self.parts]
        if self.broadcasting is not None:
            metadata["broadcasting"] = self.broadcasting._description()
        if self.variants:
            described = [{"sizes": dict(v.sizes), "artifact": v.artifact._description()} for v in self.variants]
            metadata["variants"] = described
        return metadata


@dataclass(frozen=True)
class StoredModel:
    """What was read of a file that errors call `name`: what is `described` of the model, or of each of its levels,
    their code, and the weights. Artefacts are made of it as they are asked for. `images` are those that were: where
    they are mapped, addresses are written into their sections when they are loaded. Of a file that was `kept` only one
    level has been read."""

    name: str
    described: tuple[Any, ...]
    code: tuple[Section, ...]
    weights: memoryview
    digest: bytes
    kept: Any
    trusted: frozenset[bytes] | None
    images: dict[int, Image] = field(default_factory=dict, repr=False)

    @classmethod
    def read(
        cls, source: object, *, check_weights: bool | None = None, mmap: bool = False,
        trusted: frozenset[bytes] | None = None, select: Callable[[dict[str, Any]], Selection] = lambda _: Selection(),
    ) -> StoredModel:
        """As `Artifact.load`. What the metadata tell `select` to leave out is looked at when it is asked for."""
        name, given = named_source(source, mapped=mmap)
        check = not mmap if check_weights is None else check_weights
        metadata, sections, digest, kept = read_container(
            given, check_weights=check, mapped=mmap, trusted=trusted, select=select
        )
        with _sound(name):
            *code, weights = sections
            kinds = [section.kind for section in code]
            described = (_without(metadata, "levels"), *_list(metadata, "levels"))
            is_linked, is_code = kinds == ["image"] * len(described), kinds == ["code"] * len(code)
            has_both = kinds == [*["code"] * (len(code) - 1), "image"]  # of a device and the CPU beside it
            if weights.kind != "weights" or not (is_linked or ((is_code or has_both) and len(described) == 1)):
                raise ValueError("the sections are others")
            return cls(name, described, tuple(code), weights.data, digest, kept, trusted)

    def whole(self) -> Artifact:
        """The artefact with all its levels; ArtifactError where one is damaged, and where the file from which the
        others have to be read is another one now."""
        if self.kept is not None:
            found = StoredModel.read(self.kept, trusted=self.trusted)
            if found.digest != self.digest:
                raise ArtifactError(
                    f"{self.name} was written over since one of its levels was loaded, and the others are lost",
                    hint="replace files by renaming, as `mv` and `Model.save` do, or load one level alone (level=...)",
                )
            return found.whole()
        first, *levels = map(self.level, range(len(self.described)))
        with _sound(self.name):
            return first.with_levels(levels)

    def level(self, number: int, *shared: str) -> Artifact:
        """The artefact of a level by itself, with these fields of the first one; ArtifactError where it is damaged."""
        with _sound(self.name):
            data = _without(self.described[number], "image")
            data |= {name: self.described[0][name] for name in shared if name in self.described[0]}
            found = _from_metadata(data)
            if found.reads:
                found.check_reads()
            objects = tuple(section.data for section in self.code if section.kind == "code")
            if len(objects) == len(self.code):
                return found.sharing(None, objects, self.weights)
            if number not in self.images:
                section = self.code[len(objects) + number]
                section.check(self.name)
                image = Image.of(record(ImageLayout, self.described[number].get("image")), section.data)
                self.images[number] = shared_image(image, section.digest)
            return found.sharing(self.images[number], objects, self.weights)


@contextlib.contextmanager
def _sound(name: str) -> Iterator[None]:
    """ArtifactError for metadata that is none of an artefact."""
    try:
        yield
    except (ValueError, IndexError, RecursionError) as error:
        raise ArtifactError(f"{name}: the metadata is malformed ({error!r})", hint="compile the model again") from error


_SHOWN = 4
"""Conditions on dims that a signature shows."""

_CODE = ("image", "objects", "constants", "lent", "levels")
_ELSEWHERE = (*_CODE, "program", "parts", "variants", "broadcasting", "kept_report", "reads")
"""Fields of an artefact that are no plain metadata: sections, and what only some models have."""


def _from_metadata(metadata: Any) -> Artifact:
    """The artefact of some metadata, and those of its parts and variants, without code and weights. ValueError for
    metadata that is none of an artefact."""
    own = _without(metadata, "parts", "variants", "broadcasting", "report")
    parts = tuple(map(_from_metadata, _list(metadata, "parts")))
    variants = tuple(map(_variant, _list(metadata, "variants")))
    general = _from_metadata(metadata["broadcasting"]) if "broadcasting" in metadata else None
    report = KeptReport.of_metadata(metadata.get("report"))
    found = record(
        Artifact, own, image=None, objects=(), parts=parts, variants=variants, broadcasting=general,
        kept_report=report, levels=(),
    )  # fmt: skip
    if found.program is not None:
        counts = [(len(part.inputs), len(part.outputs)) for part in parts]
        kept = len(found.states)
        staged.check.check_program(found.program, len(found.inputs) + kept, len(found.outputs) + kept, counts)
    elif parts:
        raise ValueError("there are parts, and no program that calls them")
    for variant in variants:
        variant.check(found)
    if general is not None:
        general.check_broadcasting(found)
    return found


def _list(metadata: dict[str, Any], name: str) -> list[Any]:
    """What the metadata lists, where it does."""
    listed = metadata.get(name, [])
    if not isinstance(listed, list):
        raise ValueError(f"{name} is no list")
    return listed


def _variant(data: Any) -> Variant:
    return record(Variant, _without(data, "artifact"), artifact=_from_metadata(data.get("artifact")))


def _without(data: Any, *names: str) -> dict[str, Any]:
    """Metadata without these entries; ValueError for what is no metadata."""
    if not isinstance(data, dict):
        raise ValueError("the model, a level, a part or a variant of it is something else")
    return {name: item for name, item in data.items() if name not in names}
