"""What the installed package shows: its names, its types, and what stays unimported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import tilewright
from tilewright.ir import diag
from tilewright.runtime import errors

ROOT = Path(__file__).parent.parent


def test_the_public_names_are_listed() -> None:
    assert set(tilewright.__all__) <= set(dir(tilewright))
    assert {"compile", "load", "Model", "Options", "Session", "TensorInfo", "InputError"} <= set(tilewright.__all__)
    assert [name for name in dir(tilewright) if not name.startswith("_")] == sorted(tilewright.__all__)
    for name in tilewright.__all__:
        assert getattr(tilewright, name).__name__ == name
    names: dict[str, object] = {}
    exec("from tilewright import *", names)
    assert set(tilewright.__all__) <= names.keys()


def test_a_name_that_does_not_exist() -> None:
    with pytest.raises(AttributeError, match="module 'tilewright' has no attribute 'absent'"):
        tilewright.absent  # noqa: B018


def errors_in(module: ModuleType) -> set[str]:
    values = vars(module).items()
    return {name for name, value in values if isinstance(value, type) and issubclass(value, errors.TilewrightError)}


def test_the_errors_that_users_meet_are_public() -> None:
    # Of programs as text; a kind of ScheduleError.
    inside = {"TextError", "VerifyError", "NoRoomError", "GivenScheduleError"}
    found = {name for name in tilewright.__all__ if name.endswith("Error")}
    assert errors_in(errors) <= found and errors_in(diag) - inside <= found
    assert all(issubclass(getattr(tilewright, name), tilewright.TilewrightError) for name in found)


def test_listing_names_imports_nothing() -> None:
    program = "import sys, tilewright; dir(tilewright); assert not [m for m in sys.modules if 'tilewright.' in m]"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_mark_of_typed_packages_is_installed() -> None:
    assert Path(tilewright.__file__).with_name("py.typed").read_text() == ""


USER = """
import numpy as np
import tilewright
from tilewright import InputError, Options, load

def work(path: str) -> None:
    with load(path, threads=2, mmap=True) as model:
        reveal_type(model)
        reveal_type(model(np.zeros(3)))
        reveal_type(model.run({}))
        reveal_type(model.run(None, {}))
        reveal_type(model.run(["y"], {}))
        reveal_type(model.run_dict({}))
    reveal_type(tilewright.compile(path, options=Options(threads=1)).get_inputs()[0].type)
    reveal_type(tilewright.ModelError("what").hint)
    tilewright.load(3)
"""


def test_a_users_file_sees_the_types(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "user.py").write_text(USER)
    command = [sys.executable, "-m", "mypy", "--follow-imports=silent", "--python-version", "3.11", "user.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env={"MYPYPATH": str(ROOT), "PATH": ""}, capture_output=True, text=True, timeout=600
    )
    lines = [line.partition(": ")[2] for line in done.stdout.splitlines() if ": " in line]
    shown = [line.split('"')[1] for line in lines if line.startswith("note: Revealed type")]
    wanted = [
        "tilewright.runtime.module.Model",
        *("tuple[numpy.ndarray", "tuple[numpy.ndarray", "list[numpy.ndarray", "list[numpy.ndarray"),
        *("dict[str, numpy.ndarray", "str", "str | None"),
    ]
    assert [s.replace("builtins.", "")[: len(w)] for s, w in zip(shown, wanted, strict=True)] == wanted, done.stdout
    assert sum(line.startswith("error") for line in lines) == 1, done.stdout
