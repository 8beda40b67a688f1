"""What was compiled, as data that prints itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from tilewright.runtime.errors import printable, short_name


@dataclass(frozen=True)
class Report:
    """JSON data about a model; `str()` shows single values as lines, lists of records as tables, and of remarks (there
    may be thousands) how many there are, and those that say that something failed, or warn."""

    data: Mapping[str, Any]

    @property
    def remarks(self) -> tuple[Mapping[str, str], ...]:
        """The records of what was and was not done to the model (see `Model.report`)."""
        found = self.data.get("remarks")
        return tuple(map(_remark, found)) if isinstance(found, list | tuple) else ()

    def __repr__(self) -> str:
        """How much there is: all of it may be thousands of lines, which `str` shows."""
        counted = (f"{len(v)} {name}" for name, v in self.data.items() if isinstance(v, list | tuple))
        single = (f"{name} {self.data[name]}" for name in ("model", "target", "kernels") if name in self.data)
        return f"<report: {', '.join((*single, *counted))}>"

    def __str__(self) -> str:
        lines: list[str] = []
        for name, value in ((short_name(name), value) for name, value in self.data.items()):
            if name == "remarks":
                lines.append(f"{name}: {len(self.remarks)}")
                failed = remarks_of_kinds(self.data, "failed", "warning")
                lines += [f"  {r['kind']}: {r['stage']}: {r['subject']}: {r['message']}" for r in failed]
            elif _is_table(value):
                lines += ["", f"{name}:", *_table(value)]
            elif isinstance(value, Mapping):
                lines += ["", f"{name}:", *(f"  {short_name(str(key))}: {item}" for key, item in value.items())]
            else:
                lines.append(f"{name}: {value}")
        return printable("\n".join(lines))

    def _repr_html_(self) -> str:
        """For notebooks."""
        return "".join(_html(name, value) for name, value in self.data.items())


def model_html(inputs: Sequence[Any], outputs: Sequence[Any], about: str) -> str:
    """Inputs and outputs of a model (`TensorInfo`), for notebooks."""
    rows = "".join(
        f"<tr><td>{kind}</td><td>{escape(short_name(info.name))}</td><td>{escape(printable(info.type))}</td></tr>"
        for kind, infos in (("input", inputs), ("output", outputs))
        for info in infos
    )
    return f"<b>tilewright model</b>, {escape(printable(about))}<table>{rows}</table>"


def _html(name: str, value: Any) -> str:
    if name == "remarks" or not (_is_table(value) or isinstance(value, Mapping)):
        shown = f"{len(value)} remarks" if name == "remarks" and isinstance(value, list | tuple) else value
        return f"<div><b>{escape(short_name(str(name)))}</b>: {escape(printable(str(shown)))}</div>"
    rows = [value] if isinstance(value, Mapping) else value
    columns = list(dict.fromkeys(key for row in rows for key in row))
    head = "".join(f"<th>{escape(short_name(str(column)))}</th>" for column in columns)
    lines = ("".join(f"<td>{escape(_cell(row.get(column, '')))}</td>" for column in columns) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<div><b>{escape(short_name(str(name)))}</b></div><table><tr>{head}</tr>{body}</table>"


def _is_table(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(v, Mapping) for v in value)


def remarks_of_kinds(data: Mapping[str, Any], *kinds: str) -> list[dict[str, str]]:
    """The remarks of a report's data that are of these kinds, of thousands that are not."""
    found = data.get("remarks")
    own = [r for r in found if isinstance(r, Mapping)] if isinstance(found, list | tuple) else []
    return [_remark(r) for r in own if r.get("kind") in kinds]


def _remark(remark: Any) -> dict[str, str]:
    """A remark with all of its fields; one of a file of an earlier version is a text."""
    fields = remark if isinstance(remark, Mapping) else {"message": str(remark)}
    return {"stage": "an earlier version", "subject": "the model", "message": "", "kind": "missed", **fields}


def _table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    rest = ([_cell(row.get(column, "")) for column in columns] for row in rows)
    cells = [[short_name(column) for column in columns], *rest]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    numeric = [all(isinstance(row.get(column, 0), (int, float)) for row in rows) for column in columns]
    return [
        "  " + "  ".join(_pad(*part) for part in zip(line, widths, numeric, strict=True)) for line in cells
    ]


def _cell(value: Any) -> str:
    if isinstance(value, Mapping):  # amounts by what they are of
        return ", ".join(f"{amount} {short_name(str(name))}" for name, amount in value.items())
    return f"{value:.4g}" if isinstance(value, float) else printable(str(value)).replace("\n", "\\n")


def _pad(text: str, width: int, right: bool) -> str:
    return text.rjust(width) if right else text.ljust(width)
