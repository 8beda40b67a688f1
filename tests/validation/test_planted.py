"""Planted defects of the compiler are found by validation, which names them, and the model compiles without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tilewright
from tests.models import mlp
from tests.validation.planted import PLANTED, Planted
from tests.zones.turned_on import findings_are_expected
from tilewright import compiler
from tilewright.compiler import compile_request
from tilewright.ir.diag import InputError, InternalError
from tilewright.ops.define.interp import evaluate_func
from tilewright.options import Options, Request
from tilewright.runtime import Artifact, Model
from tilewright.runtime.errors import OptionError
from tilewright.session import Session
from tilewright.validation.findings import MeaningChanged
from tilewright.validation.validate import Validation

pytestmark = [
    pytest.mark.with_scalar_kernels, pytest.mark.without_room_for_zones, pytest.mark.usefixtures("as_for_users")
]  # fmt: skip

SHOWN_BY = (
    "dropped epilogue", "a wrong constant fold", "a bound that only real inputs reach", "a race in a parallel loop",
)  # fmt: skip
"""Those of every run: a pass, one with constants, a rule, a schedule. Two rules together have a test of their own."""

WITHOUT_FALLBACK = ("wrong rounding in a cast",)
"""What code generation does wrong in each form of a kernel: there is an error, and no wrong answer."""


def validated(planted: Planted, folder: Path) -> tuple[Artifact, Validation]:
    validation = Validation(planted.feeds, folder)
    options = Options(cache=False, threads=2)
    request = Request.of(planted.module(), None, None)
    with findings_are_expected():
        return compile_request(request, options, session=Session(), checks=validation), validation


def check(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = PLANTED[name]
    planted.plant(monkeypatch)
    if name in WITHOUT_FALLBACK:
        with pytest.raises(InternalError, match="changes the meaning of the kernel"):
            validated(planted, folder)
        return
    artifact, validation = validated(planted, folder)
    assert any(planted.names in str(finding) for finding in validation.findings), validation.findings
    told = [r for r in artifact.report.remarks if r.kind == "failed"]
    assert told and any(planted.names in r.message for r in told)
    assert any((place / "before.txt").is_file() for place in folder.iterdir())
    module, model = planted.module(), Model(artifact, 2)
    for size in planted.sizes:
        for arrays in calls(planted, size):
            (wanted,), (found,) = evaluate_func(module.main, module, arrays), model(*arrays)
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def calls(planted: Planted, size: int) -> Iterator[list[np.ndarray]]:
    main, rng = planted.module().main, np.random.default_rng(size)
    yield from ([feed[name] for name in main.attrs["inputs"]] for feed in planted.feeds)
    shapes = [[int(d.evaluate({"n": size})) for d in a.tensor.shape] for a in main.args]
    kinds = zip(main.args, shapes, strict=True)
    numbers = [rng.standard_normal(s) if a.tensor.dtype.is_float else rng.integers(0, 99, s) for a, s in kinds]
    yield [n.astype(a.tensor.dtype.storage) for n, a in zip(numbers, main.args, strict=True)]


@pytest.mark.parametrize("name", SHOWN_BY)
def test_planted_defects_are_found_named_and_left_out(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(name, tmp_path, monkeypatch)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", [name for name in PLANTED if name not in SHOWN_BY])
def test_all_planted_defects_are_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(name, tmp_path, monkeypatch)


def test_a_sound_compiler_is_not_blamed(tmp_path: Path) -> None:
    for name in ("dropped epilogue", "wrong rounding in a cast"):
        artifact, validation = validated(PLANTED[name], tmp_path)
        assert validation.findings == []
        assert [r.kind for r in artifact.report.remarks if r.stage == "validate"] == ["applied"]


def test_strict_compilations_end_with_what_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "failures_are_errors", lambda options: True)
    planted = PLANTED["two rules: negation"]
    planted.plant(monkeypatch)
    with pytest.raises(MeaningChanged, match=r"'zero_minus' of 'canonicalize' .of what 'neg_as_difference' wrote"):
        validated(planted, tmp_path)


def test_where_nothing_is_replayed_it_is_refused(tmp_path: Path) -> None:
    options = Options(cache=False, validate=True)
    with pytest.raises(OptionError, match=r"only tilewright\.compile"):
        compile_request(Request.of(PLANTED["dropped epilogue"].module(), None, None), options, session=Session())
    for wrong in (1, "", None):
        with pytest.raises(OptionError, match="give True, or the path"):
            Options(validate=wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="cannot read"):
        tilewright.compile(mlp(), validate=tmp_path / "nowhere.npz")
