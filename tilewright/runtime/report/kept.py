"""What an artefact keeps of its report. Most are never read, and to define the records that they are made of takes as
long as to find a model in the cache, so that these are imported when a report is read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tilewright.runtime.errors import Remark
from tilewright.runtime.storage.records import plain, record

if TYPE_CHECKING:
    from tilewright.runtime.report.records import ProgramReport


class KeptReport:
    """A program's report and, as a file has it, its text, which is read when somebody asks: there may be thousands of
    remarks. What users are told when a model is made or found, `urgent`, is known at once."""

    __slots__ = ("_report", "_text", "urgent")

    def __init__(self, report: ProgramReport | None = None) -> None:
        """Without a report one of nothing."""
        self._report = report
        self._text: str | None = None
        self.urgent = () if report is None else urgent(report.remarks)

    @classmethod
    def of_metadata(cls, data: Any) -> KeptReport:
        """What `metadata` gave; ValueError for other data."""
        if not isinstance(data, dict) or data.keys() != {"urgent", "text"} or type(data["text"]) is not str:
            raise ValueError(f"the report is {data!r:.40}")
        found = cls.__new__(cls)
        found._report, found._text = None, data["text"]
        found.urgent = record(_Urgent, {"urgent": data["urgent"]}).urgent
        return found

    @property
    def report(self) -> ProgramReport:
        """The record; ArtifactError where the text of a file is none."""
        if self._report is None:
            from tilewright.runtime.report.records import ProgramReport

            self._report = ProgramReport() if self._text is None else ProgramReport.from_json(self._text)
        return self._report

    def metadata(self) -> dict[str, Any]:
        """As JSON data for a file, without what differs from run to run."""
        if self._text is None:
            self._text = replace(self.report, compile_ms={}).to_json()
        return {"urgent": plain(self.urgent), "text": self._text}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeptReport) and self.metadata() == other.metadata()

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class _Urgent:
    urgent: tuple[Remark, ...]


def urgent(remarks: Iterable[Remark]) -> tuple[Remark, ...]:
    """Those that say that something failed, and warnings."""
    return tuple(remark for remark in remarks if remark.kind in ("failed", "warning"))
