"""A model for the GPUs of browsers: a module of JavaScript with its shaders, the file of its weights, and a page that
runs it."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tilewright.exporters.library.build import WEIGHTS_MAGIC
from tilewright.ir.diag import UnsupportedError
from tilewright.runtime.artifact import Artifact, TensorInfo
from tilewright.runtime.devices.states import is_known_on_both_sides
from tilewright.runtime.kept.state_memory import bytes_of

SCRIPT, PAGE = ".mjs", ".html"
BEGINS = b"// Running a mo"
PAGE_BEGINS = b"<!doctype html>\n<!-- The page of a mo"
_WEIGHTS_AT = 64
"""Where the weights begin in their file."""
_RUNTIME = Path(__file__).parent / "runtime"


def write_module(folder: Path, artifact: Artifact, weights: str) -> list[Path]:
    """Write the module of an artefact for `webgpu`, and its weights, to a folder; `weights` is the name of their file
    beside the module. UnsupportedError for other machines."""
    if artifact.target.kind != "gpu":
        raise UnsupportedError(
            f"a module of JavaScript runs on GPUs, and not on {artifact.target.cpu}",
            hint="leave the target out, or export a .wasm for the CPUs of browsers",
        )
    if artifact.parts:
        whys = dict.fromkeys(part.why for part in artifact.report.placed if part.machine == "host")
        raise UnsupportedError(
            "a module of JavaScript runs on GPUs, and this model in parts, some of them on a CPU: "
            f"{'; '.join(whys) or 'branches, loops or sizes from data stand between its kernels'}",
            hint="export a model without these, or a .wasm for the CPUs of browsers",
        )
    found = json.loads(bytes(artifact.objects[0]))
    program = found["programs"][artifact.run_symbol]
    used = dict.fromkeys(call["module"] for call in program["calls"])
    static = artifact.static_plan
    told = {
        "inputs": [_info(i) for i in artifact.inputs],
        "outputs": [_info(i) for i in artifact.outputs],
        "errors": [entry.message for entry in artifact.errors],
        "constants": memoryview(artifact.constants).nbytes,
        "arena": static.arena if static is not None else program["plan"]["arena"],
        "out_shapes": [d for i in artifact.outputs for d in i.parts.shape] if static is not None else [],
        "input_bytes": program["inputs"],
        "output_bytes": program["outputs"],
        "states": [
            _info(state.info) | {
                "bytes": (size := bytes_of(state.info)), "swapped": state.way == "swapped",
                "known": is_known_on_both_sides(state.info.dtype, size), "grows": bool(state.counter),
                "initial": state.initial,
            }
            for state in artifact.states
        ],
        "plan": program["plan"],
        "calls": program["calls"],
        "modules": {name: found["kernels"][name] for name in used},
    }
    text = (_RUNTIME / "gpu.mjs").read_text(encoding="utf-8")
    place = json.dumps(f"./{quote(weights)}")
    text = text.replace("{{WEIGHTS}}", place).replace("{{WEIGHTS_AT}}", str(_WEIGHTS_AT))
    text = text.replace("{{PROGRAM}}", json.dumps(told, ensure_ascii=True))
    script, data = folder / "model.mjs", folder / "model.weights"
    script.write_text(text, encoding="utf-8")
    with open(data, "wb") as file:
        file.write(WEIGHTS_MAGIC.ljust(_WEIGHTS_AT, b"\0"))
        file.write(artifact.constants)
    return [script, data]


def write_page(folder: Path, title: str, script: str) -> Path:
    """Write a page that runs a module, which lies beside it in the file `script`."""
    text = (_RUNTIME / "gpu.html").read_text(encoding="utf-8")
    text = text.replace("{{TITLE}}", html.escape(title)).replace("{{SCRIPT}}", json.dumps(f"./{quote(script)}"))
    page = folder / "model.html"
    page.write_text(text, encoding="utf-8")
    return page


def _info(info: TensorInfo) -> dict[str, Any]:
    return {"name": info.name, "dtype": info.dtype, "dims": list(info.shape)}
