"""A model as a module of JavaScript, which runs on the GPU of a browser as it does on the CPU."""

from __future__ import annotations

import functools
import shutil
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import parser

import tilewright
from tests.machines.networks import decoder, mobilenet
from tests.machines.test_webgpu_module import TEXT
from tests.runtime.test_states import CASES, source
from tilewright import Session

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")

CALL = """async ([rows, columns, shape, values]) => {
  const { load } = await import("./net <1>.mjs");
  globalThis.model ??= await load();
  const x = { data: Float32Array.from(values), dims: [rows, columns] };
  const found = await model.run({ x, s: { data: BigInt64Array.from(shape.map(BigInt)), dims: [2] } });
  return Object.values(found).map(({ data, dims }) => [Array.from(data, Number), dims]);
}"""


class _Files(SimpleHTTPRequestHandler):
    extensions_map = SimpleHTTPRequestHandler.extensions_map | {".mjs": "text/javascript"}

    def log_message(self, *_: object) -> None:
        """Nothing is said of requests."""


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Any]:
    """A page of `tmp_path` in a browser that has a GPU, be it a simulated one."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Files, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    flags = ["--no-sandbox", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--enable-features=Vulkan"]
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        opened = browser.new_page()
        opened.goto(f"http://127.0.0.1:{server.server_port}/")
        if not opened.evaluate("async () => Boolean(await navigator.gpu?.requestAdapter())"):
            pytest.skip("this Chromium offers no GPU")
        yield opened
        browser.close()
    server.shutdown()


def test_a_model_in_a_page(page: Any, tmp_path: Path) -> None:
    proto, session = parser.parse_model(TEXT).SerializeToString(), Session(folder=tmp_path / "cache")
    written = tilewright.export(proto, tmp_path / "net <1>.mjs", session=session, name="net")
    assert [file.name for file in written] == ["net <1>.mjs", "net <1>.weights"]
    tilewright.export(proto, tmp_path / "net <1>.mjs", session=session, name="net")  # what is ours may be replaced
    host = tilewright.compile(proto, session=session)
    for rows, columns in ((3, 5), (2, 700), (3, 5)):
        x = np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)
        found = page.evaluate(CALL, [rows, columns, [columns, rows], x.ravel().tolist()])
        for expected, (values, dims) in zip(host(x, np.array([columns, rows])), found, strict=True):
            data = np.array(values, np.uint16).view(np.float16) if expected.dtype == np.float16 else np.array(values)
            assert tuple(dims) == expected.shape
            np.testing.assert_allclose(data.reshape(dims), expected, rtol=1e-3, atol=1e-6)
    with pytest.raises(sync_api.Error, match="cannot be reshaped"):
        page.evaluate(CALL, [2, 2, [3, 1], [0.0] * 4])


@pytest.mark.sweep
def test_a_page_runs_a_network(page: Any, tmp_path: Path) -> None:
    """An exported folder, as it is opened by somebody: the button runs it on random numbers."""
    proto, session = mobilenet(64, 50), Session(folder=tmp_path / "cache")
    written = tilewright.export(proto, f"{tmp_path / 'page'}/", session=session, name="mobilenet")
    assert [file.name for file in written] == ["index.html", "index.mjs", "index.weights"]
    page.goto(f"{page.url}page/index.html")
    page.wait_for_function("!document.getElementById('run').disabled")
    x = np.random.default_rng(0).standard_normal((1, 3, 64, 64)).astype(np.float32)
    call = "async (data) => (await model.run({ x: { data: Float32Array.from(data), dims: [1, 3, 64, 64] } })).y.data"
    found = list(page.evaluate(f"async (values) => Array.from(await ({call})(values))", x.ravel().tolist()))
    (expected,) = tilewright.compile(proto, session=session)(x)
    np.testing.assert_allclose(found, expected[0], rtol=1e-4, atol=1e-5 * float(np.abs(expected).max()))
    page.click("#run")
    page.wait_for_function("document.getElementById('answer').textContent.includes('y: float32[1, 50]')")
    assert page.title() == "mobilenet" and "ms" in page.inner_text("#status")


RUN = """async ([file, values]) => {
  const { load } = await import(file);
  globalThis.models ??= {};
  const model = (models[file] ??= await load());
  const given = {};
  for (const [name, dtype, data, dims] of values) {
    const Kind = { float32: Float32Array, int64: BigInt64Array, int8: Int8Array }[dtype];
    given[name] = { data: Kind.from(dtype === "int64" ? data.map(BigInt) : data), dims };
  }
  const found = await model.run(given);
  return Object.entries(found).map(([name, { data, dims }]) => [name, Array.from(data, Number), dims]);
}"""


def run_in(page: Any, file: str, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    values = [[name, x.dtype.name, x.ravel().tolist(), x.shape] for name, x in given.items()]
    found = page.evaluate(RUN, [f"./{file}", values])
    return {name: np.array(data).reshape(dims) for name, data, dims in found}


STATEFUL: dict[str, tuple[bytes, dict[str, Any], Any]] = {
    "swapped": (source(CASES["swapped"][0]), {"states": CASES["swapped"][1]}, lambda k: CASES["swapped"][2](k)),
    "sizes of states": (source(CASES["cache"][0]), {"states": CASES["cache"][1]}, lambda k: CASES["cache"][2](k)),
    "decoder": (
        decoder(1, 32, 2), {"states": True, "capacity": 16}, lambda k: [np.arange(3 if k == 1 else 1)[None] + k]
    ),
}  # fmt: skip


READ = "async (name) => Array.from((await models['./net.mjs'].state(name)).data, Number)"
SET = """async (name) => {
  const model = models["./net.mjs"], state = await model.state(name);
  state.data.fill(state.data[0]);
  await model.set_state(name, state);
}"""


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", STATEFUL)
def test_a_page_keeps_states(name: str, page: Any, tmp_path: Path) -> None:
    proto, options, inputs = STATEFUL[name]
    session = Session(folder=tmp_path / "cache")
    tilewright.export(proto, tmp_path / "net.mjs", session=session, **options)
    host = tilewright.compile(proto, session=session, **options)

    def called(k: int) -> None:
        given = dict(zip([info.name for info in host.inputs], inputs(k), strict=True))
        found = run_in(page, "net.mjs", given)
        for output, expected in host.run_dict(given).items():
            np.testing.assert_allclose(found[output], expected, rtol=1e-4, atol=1e-5)

    for k in (1, 2, 3):
        called(k)
    with pytest.raises(sync_api.Error, match="and the model wants"):
        run_in(page, "net.mjs", {info.name: np.zeros((1,) * 7, info.dtype) for info in host.inputs})
    called(4)
    names = [state.info.name for state in host.states]
    for state in names:
        np.testing.assert_allclose(page.evaluate(READ, state), host.state(state).ravel(), rtol=1e-4, atol=1e-5)
    page.evaluate("async () => models['./net.mjs'].reset()")
    host.reset()
    called(1)
    page.evaluate(SET, names[0])
    host.set_state(names[0], np.full_like(before := host.state(names[0]), before.flat[0]))
    called(2)


QUANTISED = """g (float[1,4,9,9] x) => (float[1,8,9,9] y) {
  s = Constant<value=float{0.02}>() z = Constant<value=int8{3}>() n = Constant<value=int8{0}>()
  q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)
  e = DequantizeLinear(w, s, n)
  c = Conv<pads=[1,1,1,1]>(d, e) r = Relu(c)
  t = Constant<value=float{0.05}>()
  o = QuantizeLinear(r, t, n) y = DequantizeLinear(o, t, n)
}"""


def test_a_page_runs_a_network_of_int8(page: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    weights = {"w": rng.integers(-127, 128, (8, 4, 3, 3)).astype(np.int8)}
    text = QUANTISED.replace("(float[1,4,9,9] x)", "(float[1,4,9,9] x, int8[8,4,3,3] w)")
    proto, session = source(text), Session(folder=tmp_path / "cache")
    tilewright.export(proto, tmp_path / "net.mjs", constants=weights, session=session)
    x = rng.standard_normal((1, 4, 9, 9)).astype(np.float32)
    (expected,) = tilewright.compile(proto, constants=weights, session=session)(x)
    steps = np.abs(run_in(page, "net.mjs", {"x": x})["y"] - expected) / 0.05
    assert steps.max() < 1.01 and (steps < 0.01).mean() > 0.99, "sums of whole numbers are exact; a tie may be broken"


def test_what_fails_in_a_page_is_said_in_it(page: Any, tmp_path: Path) -> None:
    session = Session(folder=tmp_path / "cache")
    grown = source("""g (float[n] x, int64[1] s) => (float[k, n] y) {
        m = Shape(x) t = Concat<axis=0>(s, m) y = Expand(x, t) }""")
    tilewright.export(grown, tmp_path / "net.mjs", session=session)
    one = {"x": np.ones(4, np.float32), "s": np.array([2])}
    assert run_in(page, "net.mjs", one)["y"].tolist() == [[1] * 4] * 2
    with pytest.raises(sync_api.Error, match=r"needs 4000000\d* bytes for outputs, and a buffer of this GPU has \d+"):
        run_in(page, "net.mjs", {**one, "s": np.array([250_000_000])})
    assert run_in(page, "net.mjs", one)["y"].tolist() == [[1] * 4] * 2, "the next call begins anew"
    with pytest.raises(sync_api.Error, match="input 'x' is float32: its data are a Float32Array"):
        run_in(page, "net.mjs", {**one, "x": np.array([1])})
    with pytest.raises(sync_api.Error, match="the model has no input 'z'"):
        run_in(page, "net.mjs", {**one, "z": np.array([1])})
    (tmp_path / "net.weights").rename(tmp_path / "away")
    page.reload()
    with pytest.raises(sync_api.Error, match=r"cannot load .*net\.weights: 404"):
        run_in(page, "net.mjs", one)
    page.evaluate("() => Object.defineProperty(navigator, 'gpu', { value: undefined })")
    with pytest.raises(sync_api.Error, match="offers no GPU \\(WebGPU is off, or there is no driver"):
        run_in(page, "net.mjs", one)


def test_a_gpu_that_is_lost_is_said_in_a_page(page: Any, tmp_path: Path) -> None:
    text = "g (float[n] x) => (float[n] y) { y = Exp(x) }"
    tilewright.export(source(text), tmp_path / "net.mjs", session=Session(folder=tmp_path / "cache"))
    one = {"x": np.zeros(4, np.float32)}
    assert run_in(page, "net.mjs", one)["y"].tolist() == [1] * 4
    page.evaluate("() => models['./net.mjs'].device.destroy()")
    with pytest.raises(sync_api.Error, match=r"the GPU was lost: .*; load the model again"):
        run_in(page, "net.mjs", one)
