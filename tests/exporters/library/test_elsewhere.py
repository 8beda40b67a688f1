"""Exported models on other machines, as far as there is something here that runs them: qemu-user, node, Chromium."""

from __future__ import annotations

import http.server
import importlib.util
import json
import re
import shutil
import subprocess
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
from tests.exporters.library.emulated import MACHINES, difference, run_elsewhere
from tests.exporters.library.mixed_model import mixed, mixed_input
from tests.exporters.library.test_export import counter, loop
from tests.models import mlp
from tilewright.runtime.errors import OptionError

needs_zig = pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="ziglang is not installed")
PAGE = (Path(__file__).parents[3] / "docs/export.md").read_text(encoding="utf-8")


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(5).standard_normal(shape).astype(np.float32)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", MACHINES)
def test_programs_of_kernels_and_of_steps(name: str) -> None:
    if MACHINES[name].missing:
        pytest.skip(f"{MACHINES[name].missing} is not installed")
    wanted = tilewright.compile(loop(), threads=1)(x := np.abs(floats(3)))
    found = run_elsewhere(loop(), [x], MACHINES[name], threads=2)
    assert [difference(*pair) for pair in zip(found, wanted, strict=True)] == [0, 0, 0]


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", MACHINES)
def test_numbers_of_all_widths(name: str) -> None:
    """Bytes in either order, products of bytes, conversions. Sums of floats differ by roundings."""
    if MACHINES[name].missing:
        pytest.skip(f"{MACHINES[name].missing} is not installed")
    here, x = tilewright.compile(mixed(), threads=1), mixed_input()
    found = run_elsewhere(mixed(), [x], MACHINES[name])
    for info, ours, theirs in zip(here.outputs, found, here(x), strict=True):
        assert difference(ours, theirs) <= {"p": 1e-6, "y_four": 1e-6, "y_double": 1e-14}.get(info.name, 0), info.name


@pytest.mark.sweep(0)
@pytest.mark.parametrize(
    ("name", "cpu", "feature"),
    [("IBM z15", "max,vxeh2=off", "vector-enhancements-2"),
     ("RISC-V, 256 bits", "rv64,v=true,zba=true,zbb=true,zbs=true,vlen=128", "zvl256b"),
     ("RISC-V, 128 bits", "rv64,v=false,zba=true,zbb=true,zbs=true", "v")],
)  # fmt: skip
def test_a_machine_without_the_instructions_is_refused(name: str, cpu: str, feature: str) -> None:
    if MACHINES[name].missing:
        pytest.skip(f"{MACHINES[name].missing} is not installed")
    other = replace(MACHINES[name], command=(MACHINES[name].command[0], "-cpu", cpu))
    with pytest.raises(RuntimeError, match=rf"exit code 3: [^$]*this CPU lacks {feature}, which the code needs"):
        run_elsewhere(mlp(), [floats(2, 64)], other)


def js_tensor(array: np.ndarray) -> dict[str, Any]:
    return {"data": array.reshape(-1).tolist(), "dims": list(array.shape)}


SCRIPT = """
import { load } from "./NAME.mjs";
const model = await load();
const answers = [];
for (const inputs of CASES) {
  const values = Object.fromEntries(Object.entries(inputs).map(
    ([name, { data, dims }]) => [name, { data: Float32Array.from(data), dims }]));
  try {
    const outputs = model.run(values);
    answers.push(Object.fromEntries(Object.entries(outputs).map(
      ([name, { data, dims }]) => [name, { data: Array.from(data), dims }])));
  } catch (error) {
    answers.push(error.message);
  }
}
const found = JSON.stringify({ name: model.name, inputs: model.inputs, answers });
"""


def in_javascript(folder: Path, model: Any, cases: list[dict[str, np.ndarray]], **options: Any) -> str:
    """A program that runs a model on some inputs, which leaves what it found in `found`."""
    tilewright.export(model, folder / "net.wasm", target="wasm-simd128", **options)
    values = json.dumps([{name: js_tensor(array) for name, array in case.items()} for case in cases])
    return SCRIPT.replace("NAME", "net").replace("CASES", values)


def same(answer: dict[str, Any], wanted: tuple[np.ndarray, ...]) -> bool:
    found = [np.array(t["data"], w.dtype).reshape(t["dims"]) for t, w in zip(answer.values(), wanted, strict=True)]
    return max(map(difference, found, wanted)) < 1e-6


@needs_zig
@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_in_node(tmp_path: Path) -> None:
    model, sizes = tilewright.compile(mlp(), threads=1), (2, 1, 0, 300, 2)
    cases = [{"x": floats(n, 64)} for n in sizes]
    wrong = [{"x": floats(2, 65)}, {"z": floats(1)}]
    program = in_javascript(tmp_path, mlp(), [*cases, *wrong, cases[0]]) + "console.log(found);"
    (tmp_path / "main.mjs").write_text(program)
    done = subprocess.run(["node", "main.mjs"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
    found = json.loads(done.stdout)
    assert found["inputs"] == [{"name": "x", "dtype": "float32", "dims": ["batch", 64]}]
    *answers, bad_shape, no_input, again = found["answers"]
    for case, answer in zip([*cases, cases[0]], [*answers, again], strict=True):
        assert same(answer, model(case["x"]))
    assert bad_shape == "input 'x' has the shape [2, 65], and the model takes [-1, 64]"
    assert no_input == "the model has no input 'z'"


@needs_zig
@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_states_are_kept_in_node(tmp_path: Path) -> None:
    model = tilewright.compile(counter("swapped"), threads=1, states={"s": "t"})
    cases = [{"x": floats(4) * k} for k in range(1, 4)]
    program = in_javascript(tmp_path, counter("swapped"), cases, states={"s": "t"}) + "console.log(found);"
    (tmp_path / "main.mjs").write_text(program)
    done = subprocess.run(["node", "main.mjs"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
    for case, answer in zip(cases, json.loads(done.stdout)["answers"], strict=True):
        assert same(answer, model(case["x"]))


@needs_zig
@pytest.mark.skipif(shutil.which("chromium") is None, reason="Chromium is not installed")
def test_in_chromium(tmp_path: Path) -> None:
    """The page of the documentation, served and opened."""
    (page,) = re.findall(r"```html\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "index.html").write_text(page)
    tilewright.export(mlp(), tmp_path / "mlp.wasm", target="wasm-simd128")
    quiet = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(quiet, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--dump-dom"]
        profile, page = f"--user-data-dir={tmp_path / 'profile'}", f"http://127.0.0.1:{server.server_port}/"
        command = ["chromium", *flags, profile, page]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    finally:
        server.shutdown()
    (y,) = tilewright.compile(mlp(), threads=1)((np.arange(128, dtype=np.float32) / 64).reshape(2, 64))
    assert f"y[2,32]: {y[0, 0]:.6f}" in done.stdout


@needs_zig
def test_what_has_no_form_in_webassembly(tmp_path: Path) -> None:
    for output, target in (("net.so", "wasm-simd128"), ("net.wasm", "x86-64-v3")):
        with pytest.raises(OptionError, match=f"'{output}' is no name of a library for"):
            tilewright.export(mlp(), tmp_path / output, target=target)
    assert not list(tmp_path.iterdir())
