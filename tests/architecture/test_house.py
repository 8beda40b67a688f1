"""The rules of the house: which room may import which, no cycles, and what imports cost."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import tilewright

PACKAGE = Path(tilewright.__file__).parent
MAX_LINES = 600
MAX_FILES = 15

# What each room imports of ours. `errors` is runtime/errors.py, the root of all errors, which every room may use.
ROOMS: dict[str, set[str]] = {
    "ir": set(),
    "ops": {"ir"},
    "frontends": {"ir", "ops"},
    "target": {"ir"},
    "cost": {"ir", "target"},
    "passes": {"ir", "target"},
    "graph": {"ir", "ops", "target", "cost", "passes"},
    "loops": {"ir", "ops", "target", "cost"},
    "schedule": {"ir", "ops", "loops", "target", "cost", "graph"},
    "program": {"ir", "loops", "ops", "passes", "runtime"},
    "codegen": {"ir", "loops", "ops", "program", "runtime", "target"},
    "asm": {"ir", "target"},
    "accounts": {"codegen", "cost", "graph", "ir", "loops", "ops", "program", "runtime", "simulator", "target"},
    "runtime": set(),
    "options": {"frontends", "runtime"},
    "plugins": {"frontends", "ir"},
    "machines": {"target"},
    "simulator": {"ir", "loops", "program", "runtime", "target"},
    "session": {"frontends", "ir", "machines", "options", "plugins", "runtime", "target", "tilewright"},
}
ALL = {
    *ROOMS, "api", "back_end", "checks", "comparison", "compilation", "compiler", "exporters", "external", "fitting",
    "interventions", "link",
    "quantization", "requested", "settings", "stages", "tilewright", "validation",
}  # fmt: skip
ROOMS |= {
    "back_end": ALL,
    "external": {"codegen", "ir", "ops", "runtime", "target"},
    "link": ALL,
    "requested": {"frontends", "ir", "ops", "options", "runtime", "session"},
    "compilation": ALL,
    "settings": {
        "back_end", "codegen", "compilation", "cost", "external", "graph", "interventions", "ir", "link", "loops",
        "ops", "options", "passes", "plugins", "program", "runtime", "schedule", "session", "target",
    },
    "interventions": {"codegen", "ir", "loops", "options", "runtime", "target"},
    "fitting": {"compilation", "cost", "graph", "ir", "passes", "program", "runtime"},
    "compiler": ALL,
    "stages": ALL,
    "kit": {"compiler", "cost", "ir", "ops", "options", "runtime", "schedule", "simulator", "target"},
    "checks": {
        "accounts", "compilation", "compiler", "cost", "graph", "ir", "loops", "ops", "options", "program", "requested",
        "runtime", "schedule", "session", "target",
    },
    "api": {"compiler", "frontends", "options", "runtime", "session", "validation"},
    "validation": {
        "compilation", "compiler", "graph", "ir", "loops", "ops", "options", "plugins", "program", "runtime",
        "schedule", "session", "target",
    },
    "onnxruntime": {"api", "ir", "runtime"},
    "exporters": {
        "api", "codegen", "compiler", "frontends", "ir", "ops", "options", "requested", "runtime", "session", "target",
        "tilewright",
    },
    "quantization": {
        "api", "compilation", "exporters", "frontends", "graph", "ir", "ops", "options", "passes", "requested",
        "runtime",
    },
    "comparison": {
        "api", "compilation", "compiler", "graph", "ir", "ops", "options", "quantization", "requested", "runtime",
        "session", "validation",
    },
    "torch": {"api", "cost", "frontends", "ir", "options", "runtime", "session"},
    "llm": {"api", "frontends", "ir", "options", "quantization", "runtime", "session"},
    "fleet": {"compiler", "options", "runtime", "session", "target"},
    "profiling": {"api", "ir", "runtime", "session", "target"},
    "viewer": {
        "accounts", "api", "checks", "compilation", "compiler", "cost", "ir", "loops", "ops", "options", "profiling",
        "program", "requested", "runtime", "schedule", "session", "stages", "target", "tilewright",
    },
    "cli": ALL | {"fleet", "kit", "llm", "profiling", "viewer"},
    "__main__": {"cli"},
    "tilewright": {
        "api", "checks", "comparison", "exporters", "fleet", "frontends", "ir", "options", "profiling", "quantization",
        "runtime", "session", "target", "viewer",
    },
}

FOREIGN: dict[str, set[str]] = {
    "onnx": {"exporters", "frontends", "quantization"},
    "torch": {"frontends", "torch"},
    "jaxlib": {"frontends"},
    "jax": set(),
    "llvmlite": {"codegen", "target", "runtime", "torch", "cli", "profiling"},
    "tokenizers": {"llm"},
    "jinja2": {"llm"},
    "llguidance": {"llm"},
    "fastapi": {"llm"},
    "starlette": {"llm"},
    "pydantic": {"llm"},
    "uvicorn": {"llm"},
    "click": {"cli"},
    "rich": {"cli"},
    "onnxruntime": {"cli"},
    "openvino": {"cli"},
    "cryptography": {"runtime"},
    "wgpu": {"runtime"},
    "matplotlib": {"viewer"},
}

# Imports inside of functions, each with a reason: heavy or optional packages, and the lazy names of the package.
LATE = {
    ("__init__.py", "importlib"),
    ("__init__.py", "difflib"),  # for an error
    ("api.py", "tilewright.compiler"),  # a model that the cache has needs no compiler
    ("runtime/context.py", "tilewright.runtime.guarded.calls"),  # nor what nobody guards, what guards it and llvmlite
    ("api.py", "tilewright.runtime.devices.external"),  # most models have no part of a vendor's compiler
    ("api.py", "tilewright.validation.validate"),  # nor does one that nobody validates need what validates
    ("fleet/build.py", "tilewright.compiler"),
    ("cli/commands/info.py", "tilewright.kit.page"),  # only pages of accelerators need the compiler
    ("cli/commands/info.py", "tilewright.kit.suite"),
    ("cli/commands/info.py", "tilewright.loops.machine.check_facts"),
    ("frontends/onnx/__init__.py", "tilewright.frontends.onnx.load"),  # nor onnx
    ("frontends/onnx/__init__.py", "tilewright.frontends.exported.one_sequence"),
    ("frontends/built_in.py", "tilewright.ir.text"),  # nor the printer
    ("frontends/built_in.py", "tilewright.ops.written_out"),  # nor operators
    ("frontends/torch/__init__.py", "tilewright.frontends.torch.identity"),  # torch takes seconds
    ("frontends/torch/__init__.py", "tilewright.frontends.torch.load"),
    ("frontends/torch/__init__.py", "tilewright.frontends.exported.one_sequence"),
    ("frontends/torch/node.py", "tilewright.frontends.torch.tensors"),  # the pages list adapters without torch
    ("frontends/torch/adapters/layers/flex.py", "torch._higher_order_ops.flex_attention"),
    ("frontends/torch/adapters/layers/flex.py", "tilewright.frontends.torch.adapters.layers.traced"),
    ("frontends/tflite/__init__.py", "tilewright.frontends.tflite.load"),  # nor a front end
    ("frontends/stablehlo/__init__.py", "tilewright.frontends.stablehlo.load"),  # nor jaxlib, an extra
    ("frontends/decoders/__init__.py", "tilewright.frontends.decoders.load"),  # nor a front end
    ("llm/__init__.py", "importlib"),
    ("llm/model.py", "tilewright.llm.grammars"),  # llguidance is an extra
    ("llm/tokens/gguf.py", "tilewright.llm.tokens.library"),  # vocabularies with scores need no package
    ("llm/loading.py", "tilewright.llm.texts.promised"),  # a model that is not compared needs no compiler
    ("llm/model.py", "tilewright.llm.texts.promised"),
    ("cli/language_models/weights.py", "tilewright.llm.texts.promised"),  # help needs no compiler
    ("cli/language_models/weights.py", "tilewright.llm.vocabulary"),
    ("llm/vocabulary.py", "tilewright.llm.templates"),  # texts alone need no jinja2
    ("llm/vocabulary.py", "tilewright.llm.tokens.folder"),  # tokenizers is an extra, and takes 30 ms
    ("cli/language_models/options.py", "tilewright.llm.loading"),  # help needs no compiler
    ("cli/language_models/serve.py", "tilewright.llm.serving.http.running"),  # an extra
    ("cli/language_models/chat.py", "readline"),  # pipes need none, and it may write to the standard output
    ("torch/__init__.py", "importlib"),
    ("torch/backend.py", "tilewright.torch.traced"),  # a graph that the cache has needs no adapters
    ("runtime/storage/loader.py", "llvmlite.binding"),  # asked of CPUs of which nothing here knows the features
    ("target/host.py", "llvmlite"),  # models that the cache has need no LLVM
    ("target/hardware.py", "llvmlite"),
    ("session.py", "tilewright.target.named"),  # nor machines
    ("session.py", "tilewright.machines"),
    ("runtime/report/kept.py", "tilewright.runtime.report.records"),  # nor reports that nobody reads (10 ms)
    ("runtime/artifact.py", "tilewright.runtime.report.shown"),
    ("runtime/storage/loading.py", "tilewright.runtime.storage.described"),  # files that are signed
    ("runtime/report/notebooks.py", "html"),  # takes 2 ms, as do the next two
    ("runtime/states.py", "zipfile"),
    ("runtime/kept/recorder.py", "zipfile"),
    ("frontends/weights/foreign.py", "zipfile"),
    ("options.py", "difflib"),  # for an error
    ("torch/watch/native.py", "llvmlite"),
    ("runtime/storage/signing.py", "cryptography.exceptions"),  # an extra
    ("runtime/storage/signing.py", "cryptography.hazmat.primitives"),
    ("runtime/storage/signing.py", "cryptography.hazmat.primitives.asymmetric"),
    ("back_end.py", "tilewright.runtime.devices.webgpu"),  # an extra
    ("runtime/executor.py", "tilewright.runtime.devices.webgpu"),
    ("back_end.py", "tilewright.runtime.devices.cuda"),  # needs a driver
    ("runtime/executor.py", "tilewright.runtime.devices.cuda"),
    ("runtime/executor.py", "tilewright.runtime.devices.external"),
    ("runtime/devices/webgpu.py", "wgpu"),
    ("runtime/executor.py", "importlib.metadata"),  # takes 25 ms, and only artefacts of plugins need it
    ("runtime/staged/__init__.py", "importlib"),  # most models are of one part
    ("runtime/staged/functions/images.py", "PIL.Image"),  # an extra
    ("runtime/values/recorded.py", "PIL.Image"),  # an extra
    ("cli/models.py", "tilewright.frontends.weights.safetensors"),  # artefacts need no compiler
    ("viewer/plots.py", "matplotlib.figure"),  # an extra
    ("cli/__init__.py", "tilewright.cli.app"),
    ("cli/peers.py", "onnxruntime"),
    ("cli/peers.py", "openvino"),
}

ENVIRONMENT = {"cli", "compiler", "session"}
LEVELS = "runtime/storage/levels.py"
"""The one file of the runtime that reads the environment: which level of an artefact is forced."""


@dataclass(frozen=True)
class Import:
    """One import statement; `typing_only` ones never run."""

    file: str
    line: int
    module: str
    late: bool
    typing_only: bool

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.module}"


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a file: finding them takes longer than looking at each."""
    return tuple(ast.walk(parsed(path)))


def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def room_of_file(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return "tilewright" if first == "__init__.py" else first.removesuffix(".py")


def room_of_module(module: str) -> str:
    parts = module.split(".")
    if parts[:3] == ["tilewright", "runtime", "errors"]:
        return "errors"
    return parts[1] if len(parts) > 1 else "tilewright"


def mention(words: Iterable[str]) -> Iterator[Path]:
    """The files whose texts have any of these words: others need no tree to be looked at."""
    pattern = re.compile(rf"\b(?:{'|'.join(words)})\b")
    return (path for path in files() if pattern.search(path.read_text()))


def _last_name(node: ast.expr) -> str:
    """`c` of `c` and of `a.b.c`; "" of other expressions."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


@cache
def imports(path: Path) -> tuple[Import, ...]:
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[Import]:
    file = path.relative_to(PACKAGE).as_posix()

    def visit(node: ast.AST, late: bool, typing_only: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(file, child.lineno, alias.name, late, typing_only)
            elif isinstance(child, ast.ImportFrom):
                yield from from_import(child, late, typing_only)
            elif isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):  # no expression imports anything
                inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
                guard = isinstance(child, ast.If) and _last_name(child.test) == "TYPE_CHECKING"
                yield from visit(child, late or inside, typing_only or guard)

    def from_import(node: ast.ImportFrom, late: bool, typing_only: bool) -> Iterator[Import]:
        assert node.level == 0, f"{file}:{node.lineno}: imports are absolute"
        assert node.module is not None
        for alias in node.names:
            # `from tilewright.ir import dtype` imports a module, `from tilewright.ir.core import Op` a name; what other
            # packages have depends on where they are installed
            inner = PACKAGE.parent.joinpath(*node.module.split("."), alias.name)
            is_ours = node.module.split(".")[0] == PACKAGE.name
            is_module = is_ours and (inner.is_dir() or inner.with_suffix(".py").is_file())
            name = f"{node.module}.{alias.name}" if is_module else node.module
            yield Import(file, node.lineno, name, late, typing_only)

    yield from visit(parsed(path), False, False)


def all_imports() -> list[tuple[str, Import]]:
    return [(room_of_file(path), found) for path in files() for found in imports(path)]


def test_every_room_is_in_the_table() -> None:
    assert {room_of_file(path) for path in files()} <= ROOMS.keys()


def test_rooms_import_only_what_the_table_allows() -> None:
    wrong = [
        str(found)
        for room, found in all_imports()
        if found.module.split(".")[0] == "tilewright"
        and room_of_module(found.module) not in {room, "errors", *ROOMS[room]}
    ]
    assert wrong == []


def test_foreign_packages_stay_in_their_rooms() -> None:
    wrong = [
        str(found)
        for room, found in all_imports()
        if room not in FOREIGN.get(found.module.split(".")[0], {room})
    ]
    assert wrong == []


def test_no_imports_inside_functions() -> None:
    wrong = [str(f) for _, f in all_imports() if f.late and (f.file, f.module) not in LATE]
    assert wrong == []


def test_no_import_cycles() -> None:
    edges: dict[str, set[str]] = {}
    for path in files():
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        edges[name] = {
            f.module
            for f in imports(path)
            if not f.late and not f.typing_only and f.module.startswith("tilewright.")
        } - {name}
    done: set[str] = set()

    def walk(module: str, above: tuple[str, ...]) -> None:
        assert module not in above, "a cycle: " + " -> ".join([*above[above.index(module) :], module])
        if module not in done:
            for other in sorted(edges.get(module, ())):
                walk(other, (*above, module))
            done.add(module)

    for module in sorted(edges):
        walk(module, ())


@pytest.mark.parametrize("folder", [PACKAGE, Path(__file__).parent.parent], ids=["package", "tests"])
def test_no_file_is_long(folder: Path) -> None:
    long = {p.name: n for p in folder.rglob("*.py") if (n := len(p.read_text().splitlines())) > MAX_LINES}
    assert long == {}


def test_no_folder_has_many_files() -> None:
    """Families of operators and of adapters have a file each, however many there are."""
    adapters = {PACKAGE / "frontends" / name / "adapters" for name in ("onnx", "torch")}
    families = {PACKAGE / "ops", *adapters}
    folders = {path.parent for path in files() if families.isdisjoint((path.parent, path.parent.parent))}
    many = {f.relative_to(PACKAGE).as_posix(): n for f in folders if (n := len(list(f.glob("*.py")))) > MAX_FILES}
    assert many == {}


def test_no_two_classes_have_one_name() -> None:
    """Those that begin with `_` are of their module alone."""
    found: dict[str, list[str]] = {}
    for path in files():
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(path.relative_to(PACKAGE).as_posix())
    assert {name: where for name, where in found.items() if len(where) > 1} == {}


def test_the_environment_is_read_in_few_places() -> None:
    readers = {
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in mention(("environ", "getenv"))
        if room_of_file(path) not in ENVIRONMENT and path != PACKAGE / LEVELS
        for node in nodes(path)
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
    }
    assert readers == set()


def test_nobody_spells_the_order_of_passes_and_stages_a_second_time() -> None:
    """Tools name passes, or a stage; a `Compilation` runs them."""
    steps = {"run_passes", "schedule_regions", "plan_memory", "assign_storage", "annotate", "introduce_states",
             "SplitGraph", "Fuse", "default_passes"}  # fmt: skip
    homes = {
        "compilation.py", "back_end.py", "graph/pipeline.py",
        "program/memory/planned.py",  # tries several plans within a limit
        "checks/regions.py",  # plans what kernels will need that are not there yet
        "graph/fusion/otherwise.py",  # cuts one region again whose kernel failed
    }  # fmt: skip
    users = {
        f"{p.relative_to(PACKAGE)}:{call.lineno} calls {call.func.id}"
        for p in mention(steps)
        if p.relative_to(PACKAGE).as_posix() not in homes
        for call in nodes(p)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in steps
    }
    assert {user for user in users if not user.startswith("codegen/cpu/")} == set()  # passes of LLVM


def test_no_module_is_a_drawer() -> None:
    assert not [p for p in files() if p.stem in ("utils", "util", "helpers", "misc", "common")]


def modules_after(code: str) -> set[str]:
    program = f"{code}\nimport sys\nprint(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    return set(result.stdout.split())


def test_importing_the_package_imports_nothing_heavy() -> None:
    loaded = modules_after("import tilewright")
    assert loaded.isdisjoint({"numpy", "onnx", "llvmlite", "click", "rich"})


def test_the_runtime_needs_nothing_of_the_compiler() -> None:
    loaded = modules_after("import tilewright; tilewright.load, tilewright.Model, tilewright.TilewrightError")
    ours = {name.split(".")[1] for name in loaded if name.startswith("tilewright.")}
    assert ours == {"runtime"}
    assert "onnx" not in loaded


def test_running_an_artefact_from_the_command_line_imports_no_compiler() -> None:
    loaded = modules_after("import tilewright.cli.commands.run")
    ours = {name.split(".")[1] for name in loaded if name.startswith("tilewright.")}
    assert ours == {"runtime", "cli"}
    assert "onnx" not in loaded
