"""Progress on the error stream, shown only when that is a terminal."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from tilewright.runtime.errors import PerformanceWarning, short_name

if TYPE_CHECKING:
    from tilewright.options import OnProgress
    from tilewright.options import Progress as Step


@contextmanager
def working(what: str) -> Iterator[None]:
    """A moving bar with the time spent, for work whose length is not known."""
    console = Console(stderr=True)
    columns = TextColumn("{task.description}", markup=False), BarColumn(bar_width=20), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        progress.add_task(short_name(what), total=None)
        yield


@contextmanager
def counting(what: str, total: int) -> Iterator[tuple[Progress, TaskID]]:
    """A bar of `total` steps; `progress.advance(task)` is one step."""
    console = Console(stderr=True)
    with _bar(console) as progress:
        yield progress, progress.add_task(short_name(what), total=total)


@contextmanager
def compiling(name: str, doing: str = "compiling") -> Iterator[OnProgress | None]:
    """A bar for each stage of a compilation, and what is to be called with its steps: None without a terminal."""
    console = Console(stderr=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PerformanceWarning)  # commands tell of it in their own way
        if not console.is_terminal:
            yield None
            return
        with _bar(console) as progress:
            yield _shown(progress, doing, name)


def _shown(progress: Progress, doing: str, name: str) -> OnProgress:
    name = short_name(name)
    task = progress.add_task(f"{doing} {name}", total=None)

    def show(step: Step) -> None:
        about = f"{doing} {name}: {step.stage}"
        progress.update(task, description=about, completed=step.done, total=step.total)

    return show


def _bar(console: Console) -> Progress:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
