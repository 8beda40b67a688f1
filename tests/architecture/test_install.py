"""What an installation holds is what the tree holds, and the tests test what is installed."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import tilewright

ROOT = Path(__file__).parent.parent.parent
FILES = ("pyproject.toml", "README.md", "LICENSE")


def files_of(folder: Path) -> set[str]:
    """All files below a folder, except for those that running the code leaves."""
    found = (p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    return {p.relative_to(folder).as_posix() for p in found}


def wheel(tree: Path, folder: Path) -> set[str]:
    """The files of the package in the wheel that `pip install TREE` makes and unpacks."""
    settings = tomllib.loads((tree / "pyproject.toml").read_text())["build-system"]
    module, _, inner = settings["build-backend"].partition(":")
    assert not inner
    program = f"import {module} as backend, sys; print(backend.build_wheel(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", program, folder], cwd=tree, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(folder / done.stdout.split()[-1]) as archive:
        names = (Path(name) for name in archive.namelist())
        return {name.relative_to("tilewright").as_posix() for name in names if name.parts[0] == "tilewright"}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what an installation is made of."""
    copy = tmp_path / "tree"
    shutil.copytree(ROOT / "tilewright", copy / "tilewright", ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, copy)
    return copy


def test_an_installation_holds_the_files_of_the_tree_and_no_others(tree: Path, tmp_path: Path) -> None:
    extra = tree / "tilewright" / "ir" / "soon_gone.py"
    extra.write_text("")
    before = files_of(tree)
    assert wheel(tree, tmp_path) == files_of(tree / "tilewright")
    extra.unlink()
    assert wheel(tree, tmp_path) == files_of(tree / "tilewright")
    # nothing else has changed: there is no build folder that another installation would read, or write
    assert files_of(tree) == before - {"tilewright/ir/soon_gone.py"}


def installed_copy() -> Path | None:
    """The folder of the package where it is installed as a copy, which `make test` does; None where it is not."""
    try:
        found = importlib.metadata.distribution("tilewright")
    except importlib.metadata.PackageNotFoundError:
        return None
    source = json.loads(found.read_text("direct_url.json") or "{}")
    return None if source.get("dir_info", {}).get("editable") else Path(str(found.locate_file("tilewright")))


def test_an_installed_copy_is_what_is_tested_and_is_of_this_tree() -> None:
    folder = installed_copy()
    if folder is None:
        pytest.skip("the package is not installed as a copy")
    assert Path(tilewright.__file__).parent == folder, "run `make test`, or install with --editable"
    program = "import tilewright; print(tilewright.__file__)"
    started = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert Path(started.stdout.strip()).parent == folder  # commands that tests start use it too
    assert files_of(folder) == files_of(ROOT / "tilewright")


@pytest.mark.sweep
def test_a_wheel_and_an_sdist_install_elsewhere(tree: Path, tmp_path: Path) -> None:
    """As `make dist` builds them; the wheel of what the sdist holds, which pip builds and installs, is the same."""
    program = (
        "from flit_core import buildapi as b; import sys; print(b.build_sdist(sys.argv[1]), b.build_wheel(sys.argv[1]))"
    )

    def built(tree: Path, folder: Path) -> list[Path]:
        folder.mkdir()
        command = [sys.executable, "-c", program, str(folder)]
        done = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=120, check=True)
        return [folder / name for name in done.stdout.split()]

    sdist, wheel_file = built(tree, tmp_path / "dist")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    _, again = built(unpacked, tmp_path / "again")
    with zipfile.ZipFile(wheel_file) as one, zipfile.ZipFile(again) as other:
        assert sorted(one.namelist()) == sorted(other.namelist())
    place = tmp_path / "place"
    offline = ["--no-deps", "--no-index", "--no-build-isolation", "--no-compile", "--quiet"]
    offline.append("--disable-pip-version-check")
    install = [sys.executable, "-m", "pip", "install", *offline, "--target", place, sdist]
    done = subprocess.run(install, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    check = "import tilewright; from tilewright import Session, compile; print(tilewright.__file__)"
    started = subprocess.run(
        [sys.executable, "-c", check], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(place)},
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert Path(started.stdout.strip()).is_relative_to(place)
