"""CONTRIBUTING.md, followed: its files are made and its changes applied in a copy of the tree, which then is tested."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import tilewright
from tests import models
from tests.architecture.test_house import ROOMS
from tests.processes import COMPILER, Python, bytecode

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "CONTRIBUTING.md"
BLOCK = re.compile(r"```(python|diff)\n# (\S+)\n(.*?)```", re.DOTALL)
PACKAGE = Path(tilewright.__file__).parent
COPIED = (PACKAGE, ROOT / "tests", ROOT / "docs")


def blocks(kind: str) -> Iterator[tuple[str, str]]:
    """The blocks of the page that are files (python) or changes to files (diff): path and content."""
    for found in BLOCK.finditer(PAGE.read_text()):
        if found[1] == kind:
            yield found[2], found[3]


def changed(text: str, change: str, file: str) -> str:
    """The text with the added lines put in; the lines around them must stand there, and only once."""
    lines = change.splitlines(keepends=True)
    assert all(line[:1] in (" ", "+", "\n") for line in lines), f"{file}: only additions are shown"
    before = "".join(line[1:] or "\n" for line in lines if line[:1] != "+")
    after = "".join(line[1:] or "\n" for line in lines)
    assert text.count(before) == 1, f"{file} has these lines {text.count(before)} times, not once:\n{before}"
    return text.replace(before, after)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The copy, after all examples of the page were followed."""
    copy = tmp_path_factory.mktemp("contributor") / "tree"
    for folder in COPIED:
        writing = shutil.ignore_patterns("*.pyc.*")  # compiled modules that other processes are about to rename
        shutil.copytree(folder, copy / folder.name, ignore=writing)
        if bytecode(folder).is_dir() and bytecode(folder) != folder:
            shutil.copytree(bytecode(folder), bytecode(copy / folder.name), ignore=writing)
    shutil.copy(ROOT / "pyproject.toml", copy)
    for path, content in blocks("python"):
        assert not (copy / path).exists(), f"{path} exists already: the example needs another name"
        (copy / path).write_text(content)
    for path, change in blocks("diff"):
        file = copy / path
        file.write_text(changed(file.read_text(), change, path))
    return copy


@pytest.fixture(scope="module")
def python(tree: Path) -> Iterator[Python]:
    """Python in the copy, whose package comes before any installed one."""
    with Python(("numpy", "onnx", "tilewright.cli.app", *COMPILER), tree, {"PYTHONPATH": str(tree)}) as python:
        yield python


def made(folder: str) -> list[str]:
    return [path for path, _ in blocks("python") if path.startswith(folder)]


def test_the_page_has_an_example_of_each_kind() -> None:
    for folder in (
        "tilewright/ops/",
        "tilewright/graph/",
        "tilewright/schedule/",
        "tilewright/loops/",
        "tests/",
    ):
        assert made(folder), folder
    assert "tilewright/target/cpus.py" in dict(blocks("diff"))


def test_the_table_of_rooms_is_the_one_that_is_tested() -> None:
    rows = re.findall(r"^\| `(\w+)` \| .* \| ([\w, ]+) \|$", PAGE.read_text(), re.MULTILINE)
    table = {room: set() if imports == "nothing" else set(imports.split(", ")) for room, imports in rows}
    packages = {p.parent.name for p in (ROOT / "tilewright").glob("*/__init__.py")} - {"cli"}
    assert table == {room: ROOMS[room] for room in packages}


BY_NIGHT = (
    # the files keep the rules of the house
    "tests/architecture/test_house.py",
    # the target has the facts of its core
    "tests/target/test_target.py",
)
IN_SUITE = (
    # the operator has samples, in the interpreter and in native code, and a binding
    "tests/ops/test_operators.py::test_every_operator_has_a_sample",
    "tests/ops/test_operators.py::test_operator_gives_what_the_reference_gives[caps]",
    "tests/codegen/test_operators.py::test_native_code_gives_what_the_reference_gives[soft_cap]",
    "tests/ops/test_onnx_bindings.py::test_a_bound_operator_means_what_onnx_says[soft_cap-com.example.SoftCap]",
    "tests/ops/test_onnx_bindings.py::test_every_attribute_that_a_binding_renames_is_tried[soft_cap-com.example.SoftCap]",
    # the primitive has a place in the fuzzer
    "tests/loops/test_fuzz.py::test_every_primitive_is_tried",
    "tests/loops/test_fuzz.py::test_each_step_is_accepted_now_and_then[backwards]",
)
"""What the suite says of the examples, of which some takes long."""


def test_the_suite_passes_with_the_examples_and_so_do_their_own_tests(
    python: Python, tree: Path, by_night: bool
) -> None:
    """In one process, of which the start, and reading the tree, take longest."""
    (tree / "where.py").write_text("import tilewright; print(tilewright.__file__)")
    assert python.run("where.py").startswith(str(tree))
    tests = [path for path in made("tests/") if Path(path).name.startswith("test_")]
    assert len(tests) >= 4
    python.run("-m", "pytest", *tests, *IN_SUITE, *(BY_NIGHT if by_night else ()))


def test_the_operator_has_a_place_on_the_page(python: Python, tree: Path) -> None:
    python.run("docs/operators.py")
    assert "### `soft_cap(x, *, cap=30.0)`" in (tree / "docs" / "operators.md").read_text()


def test_an_operator_of_ones_own_program_is_compiled(python: Python) -> None:
    python.run(*made("my_program"))


def test_the_front_end_is_given_by_a_program_and_found_when_it_is_installed(python: Python, tree: Path) -> None:
    python.run(*made("my_layers"))
    (points,) = re.findall(r"```toml\n\[project.entry-points.\"(.*?)\"\]\n(.*?)```", PAGE.read_text(), re.DOTALL)
    metadata = tree / "layers_format-1.0.dist-info"
    metadata.mkdir()
    (metadata / "entry_points.txt").write_text(f"[{points[0]}]\n{points[1].replace(chr(34), '')}")
    assert "2 operators in" in python.run("-m", "tilewright", "compile", "net.layers.npz")
    assert "front ends: layers" in python.run("-m", "tilewright", "info")


def test_the_pass_runs_alone_and_in_a_compilation(python: Python, tree: Path) -> None:
    model = models.written(models.mlp(), tree, "model")
    text = python.run("-m", "tilewright", "show", str(model), "--level", "import")
    (tree / "m.txt").write_text(text)
    assert python.run("-m", "tilewright", "opt", "--passes", "cancel-inverses", "--remarks", "m.txt")


def test_the_fuzzer_runs_with_the_primitive(python: Python) -> None:
    python.run("-m", "tests.fuzz", "loops", "--count", "5", "--seed", "1")


def test_the_target_makes_code(python: Python, tree: Path) -> None:
    model = models.written(models.mlp(), tree, "model")
    assembly = python.run("-m", "tilewright", "show", str(model), "--level", "asm", "--target", "excavator")
    assert "vfmadd" in assembly


def test_a_kind_of_machine_runs_a_model(python: Python) -> None:
    python.run(*made("my_pair"))
