"""The picture of a plan: a rectangle for each tensor of the arena, none over another."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner

from tests.runtime.test_needed import network
from tilewright.cli.app import commands
from tilewright.program.memory.packing.boxes import PackedBoxes, TimedBox, overlapping
from tilewright.program.memory.picture import drawn_tensors, picture
from tilewright.runtime.errors import ArtifactError
from tilewright.stages import planned_programs

pytestmark = pytest.mark.without_room_for_zones

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("picture") / "model.onnx"
    onnx.save(network(), str(path))
    return path


def test_tensors_lie_apart_where_the_plan_puts_them(model: Path) -> None:
    ((name, main),) = planned_programs(model)
    sizes = {"batch": 3, "length": 40}
    tensors = drawn_tensors(main, sizes)
    assert len(tensors) >= 2
    boxes = [TimedBox(t.size, t.first, t.last) for t in tensors]
    packing = PackedBoxes(tuple(t.offset for t in tensors), max(t.offset + t.size for t in tensors))
    shared = overlapping(boxes, packing)  # results in the place of arguments lie there while their kernel runs
    assert shared is None or tensors[shared[0]].last == tensors[shared[1]].first
    drawn = ET.fromstring(picture([(name, main)], sizes))
    assert len(drawn.findall(f"{SVG}rect[@class='t']")) == len(tensors)
    assert f"for {len(tensors)} tensors" in (drawn.findtext(f"{SVG}text") or "")


def test_names_are_no_markup(model: Path) -> None:
    ((_, main),) = planned_programs(model)
    text = picture([("a<b & 'c'", main)], {})
    assert (ET.fromstring(text).findtext(f"{SVG}text") or "").startswith("a<b & 'c': ")


def test_the_command_writes_it_and_keeps_other_files(model: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.svg"
    for _ in range(2):
        result = CliRunner().invoke(commands, ["memory", str(model), "--dim", "batch=2", "-o", str(plan)])
        assert result.exit_code == 0, result.output
    assert ET.parse(plan).getroot().tag == f"{SVG}svg"
    kept = CliRunner().invoke(commands, ["memory", str(model), "-o", str(model)])
    assert isinstance(kept.exception, ArtifactError) or kept.exit_code == 1
    onnx.load(str(model))
