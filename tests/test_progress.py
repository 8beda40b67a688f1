"""What a compilation tells of its progress."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tilewright
from tests import models
from tilewright.options import Options, Progress
from tilewright.session import Session
from tilewright.stages import programs


def test_stages_come_in_order_and_are_counted_to_their_end(tmp_path: Path) -> None:
    told: list[Progress] = []
    session = Session(tmp_path)
    model = tilewright.compile(models.mlp(), progress=told.append, session=session)
    assert list(dict.fromkeys(step.stage for step in told)) == ["import", "graph", "kernels", "code", "link"]
    for stage in ("graph", "kernels", "code"):
        steps = [step for step in told if step.stage == stage]
        assert [step.done for step in steps] == list(range(1, steps[-1].total + 1))
        assert len({step.total for step in steps}) == 1
    kernels = [step for step in told if step.stage == "kernels"]
    assert kernels[-1].total == model.report().kernels
    told.clear()
    tilewright.compile(models.mlp(), progress=told.append, session=session)
    assert told == []  # the cache has it


def test_programs_of_a_level_tell_theirs() -> None:
    told: list[Progress] = []
    programs(models.mlp(), "loops", progress=told.append)
    assert list(dict.fromkeys(step.stage for step in told)) == ["import", "graph", "kernels"]


@pytest.mark.parametrize("stage", ["import", "graph", "kernels", "code", "link"])
@pytest.mark.parametrize("threads", [1, 2])
def test_what_the_callback_raises_ends_the_compilation(tmp_path: Path, stage: str, threads: int) -> None:
    def stop(step: Progress) -> None:
        if step.stage == stage:
            raise KeyboardInterrupt(stage)

    options = Options(compile_threads=threads)
    with pytest.raises(KeyboardInterrupt, match=stage):
        tilewright.compile(models.mlp(), options=options, progress=stop, session=Session(tmp_path / "cache"))
    assert list(tmp_path.iterdir()) == []


def test_a_bar_is_shown_on_a_terminal_only(tmp_path: Path) -> None:
    pty = pytest.importorskip("pty")
    path = models.written(models.mlp(), tmp_path, "mlp")
    line = [sys.executable, "-m", "tilewright", "explain", str(path), "--no-cache"]
    quiet = subprocess.run(line, capture_output=True, text=True, timeout=300)
    assert quiet.returncode == 0 and quiet.stderr == "", quiet.stderr
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=theirs, env=environment) as process:
        os.close(theirs)
        seen = _all_of(ours)
    assert process.returncode == 0 and b"compiling mlp.onnx" in seen


def _all_of(terminal: int) -> bytes:
    """What comes on a terminal until its other side is closed, which Linux tells by an error."""
    parts = []
    try:
        while part := os.read(terminal, 4096):
            parts.append(part)
    except OSError:
        pass
    os.close(terminal)
    return b"".join(parts)
