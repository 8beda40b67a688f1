"""What was compiled, for users: a record that prints itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from tilewright.runtime.errors import printable, short_name
from tilewright.runtime.report.kept import urgent
from tilewright.runtime.report.notebooks import escaped
from tilewright.runtime.report.records import AddedProgram, BlockRecord, ProgramReport, StateRecord

if TYPE_CHECKING:
    from tilewright.runtime.artifact import Artifact, StateInfo


@dataclass(frozen=True)
class Report(ProgramReport):
    """What was compiled. Its fields are records: `report.kernels`, `report.calls[0].kernel`; all of it as JSON data is
    `as_dict()`, and as text `to_json()`, which `Report.from_json` reads. `str()` shows single values as lines, several
    records as tables, and of remarks (there may be thousands) how many there are, and those that say that something
    failed, or warn.

    Of the whole model: `object_bytes` are those of code, `constant_bytes` those of weights, `lent_bytes` those of
    weights that stay where the model's source has them; `arena_bytes` are None where they depend on shapes. `variants`
    are programs for frequent sizes, `broadcasting` is that for dims that are 1 where others are not. `attached` is what
    tools keep with the model, such as the certificate of `tilewright quantize`.
    """

    model: str = ""
    threads: int | None = None
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    states: tuple[StateRecord, ...] = ()
    target: str = ""
    object_bytes: int = 0
    constant_bytes: int = 0
    lent_bytes: int = 0
    arena_bytes: int | None = None
    variants: tuple[AddedProgram, ...] = ()
    broadcasting: AddedProgram | None = None
    attached: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        """How much there is: all of it may be thousands of lines, which `str` shows."""
        single = (f"{name} {_cell(getattr(self, name))}" for name in ("model", "target", "kernels"))
        several = ("calls", "products", "types", "layers", "remarks")
        counted = (f"{len(getattr(self, name))} {name}" for name in several)
        return printable(f"<report: {', '.join((*single, *counted))}>")

    def __str__(self) -> str:
        lines: list[str] = []
        for name, value in _shown(self):
            if name == "remarks":
                lines.append(f"{name}: {len(self.remarks)}")
                lines += [f"  {r.kind}: {r.stage}: {_cell(r.subject)}: {r.message}" for r in urgent(self.remarks)]
            elif _is_table(value):
                lines += ["", f"{name}:", *_table(value)]
            elif isinstance(value, Mapping):
                lines += ["", f"{name}:", *(f"  {short_name(str(key))}: {_cell(item)}" for key, item in value.items())]
            else:
                lines.append(f"{name}: {_cell(value)}")
        return printable("\n".join(lines))

    def _repr_html_(self) -> str:
        """For notebooks."""
        return "".join(_html(name, value) for name, value in _shown(self))


_EXPLAINED = ("edges", "flow", "loops", "schedules")
"""What `tilewright explain` shows."""

LONGEST_CELL = 400
"""Characters of a value that are shown of it; names of a model may be of any length."""


def report_of(artifact: Artifact) -> Report:
    """What was compiled: signature, target, sizes, and what the compiler noted (kernels, times)."""
    own = artifact.report
    of_program = {f.name: getattr(own, f.name) for f in fields(own)}
    if len(artifact.programs) > 1:
        remarks = [remark for program in artifact.programs for remark in program.report.remarks]
        of_program["remarks"] = tuple(dict.fromkeys(remarks))
    return Report(
        **of_program,
        model=artifact.model,
        inputs=tuple(map(str, artifact.inputs)),
        outputs=tuple(map(str, artifact.outputs)),
        assumed=artifact.assumed,
        states=tuple(map(_state_record, artifact.states)),
        target=f"{artifact.target.cpu} ({artifact.target.triple or artifact.target.kind})",
        object_bytes=artifact.code_bytes,
        constant_bytes=memoryview(artifact.constants).nbytes,
        lent_bytes=sum(array.data.nbytes for array in artifact.lent),
        arena_bytes=artifact.arena_bytes,
        variants=tuple(_added(variant.artifact, variant.sizes) for variant in artifact.variants),
        broadcasting=None if artifact.broadcasting is None else _added(artifact.broadcasting, {}),
        attached=artifact.attached,
    )


def _added(artifact: Artifact, sizes: Mapping[str, int]) -> AddedProgram:
    """What a report tells of a program beside the general one, which is for calls of these sizes."""
    own = artifact.report
    code, constants = own.added_code_bytes or 0, own.added_constant_bytes or 0
    return AddedProgram(dict(sizes), own.kernels, artifact.arena_bytes, code, constants)


def _state_record(state: StateInfo) -> StateRecord:
    """What a report tells of a state."""
    first = "zeros" if state.initial < 0 else "as the model says"
    grows = f"along axis {state.grows} up to {short_name(state.counter)}" if state.counter else ""
    grows += f", the last {state.window} rows are read" if state.window >= 0 else ""
    return StateRecord(state.info.name, state.info.type, state.output, first, state.way, grows)


def _shown(report: Report) -> list[tuple[str, Any]]:
    """What is shown, by names in words: what is of the whole model first, and what holds nothing left out."""
    of_program = {f.name for f in fields(ProgramReport)}
    names = sorted((f.name for f in fields(report)), key=of_program.__contains__)
    values = ((name, getattr(report, name)) for name in names if name not in ("version", *_EXPLAINED))
    return [(_words(name), value) for name, value in values if not _is_nothing(value)]


def _is_nothing(value: Any) -> bool:
    return value is None or (isinstance(value, tuple | Mapping | str) and not value)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _html(name: str, value: Any) -> str:
    if name == "remarks" or not (_is_table(value) or isinstance(value, Mapping)):
        shown = f"{len(value)} remarks" if name == "remarks" else _cell(value)
        return f"<div><b>{escaped(name)}</b>: {escaped(shown)}</div>"
    columns, rows = ([*value], [[*value.values()]]) if isinstance(value, Mapping) else _rows(value)
    head = "".join(f"<th>{escaped(short_name(str(column)))}</th>" for column in columns)
    lines = ("".join(f"<td>{escaped(_cell(cell))}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<div><b>{escaped(name)}</b></div><table><tr>{head}</tr>{body}</table>"


def _is_table(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and all(map(is_dataclass, value))


def _rows(records: Sequence[Any]) -> tuple[list[str], list[list[Any]]]:
    """The names of the fields that some record has, and their values; all nodes of a kernel are too long for a line."""
    is_block = isinstance(records[0], BlockRecord)  # of which positions say nothing to people
    known = [f.name for f in fields(records[0]) if f.name != ("kernels" if is_block else "nodes")]
    names = [name for name in known if any(getattr(r, name) is not None for r in records)]
    return [*map(_words, names)], [[getattr(r, name) for name in names] for r in records]


def _table(records: Sequence[Any]) -> list[str]:
    columns, rows = _rows(records)
    cells = [columns, *([*map(_cell, row)] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    numeric = [all(isinstance(row[i], int | float | None) for row in rows) for i in range(len(columns))]
    return [
        "  " + "  ".join(_pad(*part) for part in zip(line, widths, numeric, strict=True)) for line in cells
    ]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, tuple):
        return ", ".join(map(_cell, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{_cell(name)}={_cell(item)}" for name, item in value.items())
    if is_dataclass(value):
        columns, (row,) = _rows([value])
        own = type(value).__str__ is not object.__str__
        return str(value) if own else ", ".join(f"{n} {_cell(c)}" for n, c in zip(columns, row, strict=True))
    return f"{value:.4g}" if isinstance(value, float) else short_name(str(value), LONGEST_CELL)


def _pad(text: str, width: int, right: bool) -> str:
    return text.rjust(width) if right else text.ljust(width)
