"""A schedule that fails in a way that none of them may: the kernel becomes slower, the model stays right."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import tilewright
from tests.models import mlp, mlp_expected
from tilewright import compiler
from tilewright.codegen.cpu.kernel.emit import kernel_ir
from tilewright.codegen.program import KernelText
from tilewright.ir.core import Func
from tilewright.loops.kernel_info import kernel_info
from tilewright.runtime import Model
from tilewright.schedule.strategies import STRATEGIES
from tilewright.target.target import Target

pytestmark = pytest.mark.with_scalar_kernels

RNG = np.random.default_rng(3)
X = RNG.standard_normal((5, 64)).astype(np.float32)


def fail(*arguments: object) -> None:
    raise IndexError("list index out of range")


@pytest.fixture
def as_for_users(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Without what makes such failures errors of tests."""
    monkeypatch.setattr(compiler, "failures_are_errors", lambda options: options.verify or options.strict)
    yield monkeypatch


def break_schedules(patch: pytest.MonkeyPatch, *, last: bool) -> None:
    """Let every schedule fail, the last resort only with `last`."""
    for strategy in STRATEGIES.ours if last else STRATEGIES.ours[:-1]:
        patch.setattr(type(strategy), "schedule", fail)


def remarks(model: Model) -> str:
    return "\n".join(f"{r.kind} {r.stage} {r.subject}: {r.message}" for r in model.report().remarks)


@pytest.mark.parametrize("last", [False, True], ids=["simplest", "none"])
@pytest.mark.parametrize("threads", [1, 2])
def test_model_stays_right(as_for_users: pytest.MonkeyPatch, last: bool, threads: int) -> None:
    break_schedules(as_for_users, last=last)
    model = tilewright.compile(mlp(), threads=threads, cache=False)
    (y,) = model(X)
    np.testing.assert_allclose(y, mlp_expected(X), rtol=1e-5)
    said = remarks(model)
    for subject, instead in (
        ("matmul_add_max", "each of its operators is a kernel"),
        ("matmul", "it has a simpler schedule"),
    ):
        told = f"IndexError: list index out of range; {instead}: please report this"
        assert f"failed schedule kernel {subject}: {told}" in said
    assert ("it has no schedule, and is slow" in said) == last


def test_kernel_that_cannot_be_emitted(as_for_users: pytest.MonkeyPatch) -> None:
    """Code of the good schedule cannot be made: the plain one's is."""

    def refusing(kernel: Func, target: Target, **options: bool) -> KernelText:
        if any(step.startswith(("compute_at", "rfactor")) for step in kernel_info(kernel).schedule):
            raise AssertionError("no such code")
        return kernel_ir(kernel, target, **options)

    as_for_users.setattr("tilewright.back_end.kernel_ir", refusing)
    model = tilewright.compile(mlp(), threads=1, cache=False)
    (y,) = model(X)
    np.testing.assert_allclose(y, mlp_expected(X), rtol=1e-5)
    assert "AssertionError: no such code; it has a simpler schedule" in remarks(model)


def test_verify_raises(as_for_users: pytest.MonkeyPatch) -> None:
    break_schedules(as_for_users, last=False)
    with pytest.raises(IndexError):
        tilewright.compile(mlp(), threads=1, cache=False, verify=True)


def test_tests_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    break_schedules(monkeypatch, last=False)
    with pytest.raises(IndexError):
        tilewright.compile(mlp(), threads=1, cache=False)
