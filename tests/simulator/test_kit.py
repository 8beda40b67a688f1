"""The page of a machine and its conformance suite: what is right, on what it runs, and what is missing."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from tests.simulator.chips import CHIPS
from tilewright.cli.app import commands
from tilewright.kit.cases import CASES
from tilewright.kit.page import machine_page, suite_table
from tilewright.kit.suite import conformance
from tilewright.machines import PRESETS
from tilewright.target.machine import GLOBAL, Accelerator, Memory

MACHINES = {**PRESETS, **CHIPS, "small": Accelerator("small", memories=(GLOBAL, Memory("pad", 256)))}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", MACHINES)
def test_all_cases_are_right_on_all_machines(name: str) -> None:
    outcomes = list(conformance(MACHINES[name]))
    assert len(outcomes) == len(CASES)
    assert all(o.right for o in outcomes), [o for o in outcomes if not o.right]
    assert all(o.complete or o.cycles for o in outcomes)
    if name.startswith("npu"):
        assert all(o.complete and o.units for o in outcomes), [o for o in outcomes if not o.complete]


def test_what_a_machine_lacks_is_named() -> None:
    found = {o.case: o for o in conformance(CHIPS["laned"])}
    assert found["exponential"].missing == ("unit 'simd' does no 'exp'",)
    assert found["product 64 x 64 x 64 of f32"].complete
    assert not found["exponential"].events, "the machine has no number of them"


def test_events_that_are_needed_are_told() -> None:
    found = next(o for o in conformance(PRESETS["npu16"]) if o.case.startswith("product 64"))
    assert found.events["fix -> vector"] >= 1
    assert f" {max(found.events.values())} |" in suite_table([found])


def test_the_page_has_the_facts_and_what_follows() -> None:
    page = machine_page(CHIPS["rows"])
    assert "| global -> pad | dma | 32 | 50 | yes | yes |" in page
    assert "`m` from 1 to 64; `k` from 4 to 256; `k % 4 == 0`; cycles: `m * ((k + 31) // 32)`" in page
    assert "| gemv | f32 x f32 -> f32 | 1..64 x 1 x 4..256 | 32 | global -> pad; global -> pad |" in page
    assert "| core | 2 |" in machine_page(CHIPS["cores"])
    assert "## Events" not in page
    assert "| any queue | any queue | 8 |" in machine_page(PRESETS["npu16"])


def test_the_command_prints_it_and_refuses_what_is_no_accelerator() -> None:
    run = CliRunner().invoke
    assert "| mmad_i8 | i8 x i8 -> i32 |" in run(commands, ["info", "--target", "npu16"]).output
    data = json.loads(run(commands, ["info", "--target", "npu16", "--conformance", "--json"]).output)
    assert len(data["conformance"]) == len(CASES) and all(o["complete"] for o in data["conformance"])
    assert "no such machine" in run(commands, ["info", "--target", "zen3"]).output
    assert "give --target" in run(commands, ["info", "--conformance"]).output
    assert "npu16" in run(commands, ["info"]).output
