"""Models on the NPU: values to the bit where they are whole numbers, and the time that the report tells."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilewright
from tests.machines.test_toy import EXPECTED, X, model
from tilewright.loops.machine.intrinsics import check_machine
from tilewright.machines import PRESETS
from tilewright.plugins import Plugin
from tilewright.session import Session
from tilewright.target.machine import Accelerator


def told(made: tilewright.Model) -> str:
    (remark,) = [r for r in made.report().remarks if r.stage == "simulator"]
    return remark.message


@pytest.mark.parametrize("name", EXPECTED)
def test_models_run_and_their_time_is_told(name: str, tmp_path: Path) -> None:
    made = tilewright.compile(model(name), target="npu16", session=Session(tmp_path, plugins=()), verify=True)
    assert np.array_equal(made(X)[0], EXPECTED[name])
    assert " cycles, " in told(made)
    made.save(tmp_path / "model.tw")
    loaded = tilewright.load(tmp_path / "model.tw")
    assert loaded.artifact.target.kind == "accelerator" and np.array_equal(loaded(X)[0], EXPECTED[name])


def test_sizes_that_calls_choose_are_computed_and_have_no_time(tmp_path: Path) -> None:
    made = tilewright.compile(model("affine", "rows"), target="npu16", session=Session(tmp_path, plugins=()))
    assert np.array_equal(made(X)[0], EXPECTED["affine"]) and "its time is not known" in told(made)


def test_a_plugin_brings_facts_and_nothing_else(tmp_path: Path) -> None:
    plugin = Plugin("bare machine", machines=(Accelerator("bare"),))
    made = tilewright.compile(model("relu"), target="bare", session=Session(tmp_path, plugins=(plugin,)))
    assert np.array_equal(made(X)[0], EXPECTED["relu"]) and "scalar 100.0%" in told(made)


@pytest.mark.parametrize("name", PRESETS)
def test_facts_of_presets_fit_together(name: str) -> None:
    check_machine(PRESETS[name])
