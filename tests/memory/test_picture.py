"""The picture of a plan: a rectangle for each tensor of the arena, none over another."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner

from tests.runtime.test_needed import network
from tilewright.cli.app import commands
from tilewright.ir.sym import var
from tilewright.program.memory.packing.boxes import PackedBoxes, TimedBox, overlapping
from tilewright.program.memory.picture import DrawnTensor, alive_bytes, drawn_tensors, picture
from tilewright.runtime.errors import ArtifactError, InputError
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
    for value in (v for op in main.body.ops for v in op.results):
        value.name = "a\x00\x1b\ud800]]>\uffff"  # the last two characters and the first ones are in no XML file
    drawn = ET.fromstring(picture([("\x07", main)], {}).encode())
    assert "a\\x00\\x1b\\ud800]]>" in (drawn.findtext(f"{SVG}rect/{SVG}title") or "")


def test_what_lies_in_a_place_together_counts_once() -> None:
    tensors = [DrawnTensor("", 0, 64, 0, 1), DrawnTensor("", 0, 64, 1, 2), DrawnTensor("", 64, 10, 1, 1)]
    assert alive_bytes(tensors, 4) == [64, 74, 64, 0]


def test_the_command_writes_it_and_keeps_other_files(model: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.svg"
    for _ in range(2):
        result = CliRunner().invoke(commands, ["memory", str(model), "--dim", "batch=2", "-o", str(plan)])
        assert result.exit_code == 0, result.output
    assert ET.parse(plan).getroot().tag == f"{SVG}svg"
    kept = CliRunner().invoke(commands, ["memory", str(model), "-o", str(model)])
    assert isinstance(kept.exception, ArtifactError) or kept.exit_code == 1
    onnx.load(str(model))


def test_sizes_that_the_model_has_not_are_refused(model: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.svg"
    result = CliRunner().invoke(commands, ["memory", str(model), "--dim", "bach=2", "-o", str(plan)])
    assert result.exit_code == 1 and not plan.exists()
    assert "the model has no symbolic dim 'bach'\n  hint: its symbolic dims: batch, length" in result.output
    ((_, main),) = planned_programs(model)
    main.attrs["arena"] = 64 // (var("batch") - 1) - 1
    for size in (1, 200):
        with pytest.raises(InputError, match=f"no tensors for batch={size}"):
            picture([("main", main)], {"batch": size})
