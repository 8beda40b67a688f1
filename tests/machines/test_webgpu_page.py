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
import onnx
import pytest
from onnx import helper, numpy_helper, parser

import tilewright
from tests.machines.test_webgpu_module import TEXT
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


BLOCKS = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""Of MobileNetV2 (Sandler et al., 2018): factor, channels, repetitions and stride of its stages."""


class MobileNet:
    """MobileNetV2 with an eighth of the channels and random weights."""

    def __init__(self, pixels: int, classes: int) -> None:
        self.rng = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.weights = [numpy_helper.from_array(np.float32(n), name) for n, name in ((0, "low"), (6, "high"))]
        y, channels = self.conv("x", 3, 8, 3, 2), 8
        for factor, wide, count, stride in BLOCKS:
            for k in range(count):
                y, channels = self.block(y, channels, wide // 8, factor, stride if k == 0 else 1), wide // 8
        y = self.node("GlobalAveragePool", self.conv(y, channels, 160, 1, 1))
        y = self.node("Flatten", y)
        self.node("Gemm", y, self.weight((classes, 160)), self.weight((classes,)), transB=1)
        self.nodes[-1].output[0] = "y"
        types = (("x", [1, 3, pixels, pixels]), ("y", [1, classes]))
        x, y_info = (helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, d) for n, d in types)
        graph = helper.make_graph(self.nodes, "mobilenet", [x], [y_info], self.weights)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        self.model = made.SerializeToString()

    def weight(self, shape: tuple[int, ...]) -> str:
        scale = np.sqrt(2 / max(1, np.prod(shape[1:])))
        array = (self.rng.standard_normal(shape) * scale).astype(np.float32)
        self.weights.append(numpy_helper.from_array(array, f"w{len(self.weights)}"))
        return str(self.weights[-1].name)

    def node(self, kind: str, *inputs: str, **attrs: Any) -> str:
        self.nodes.append(helper.make_node(kind, [*inputs], [f"v{len(self.nodes)}"], **attrs))
        return str(self.nodes[-1].output[0])

    def conv(self, x: str, c: int, o: int, k: int, stride: int, groups: int = 1, *, is_linear: bool = False) -> str:
        weights = self.weight((o, c // groups, k, k)), self.weight((o,))
        y = self.node("Conv", x, *weights, group=groups, strides=[stride] * 2, pads=[k // 2] * 4)
        return y if is_linear else self.node("Clip", y, "low", "high")

    def block(self, x: str, c: int, o: int, factor: int, stride: int) -> str:
        wide = c * factor
        y = x if factor == 1 else self.conv(x, c, wide, 1, 1)
        y = self.conv(y, wide, wide, 3, stride, wide)
        y = self.conv(y, wide, o, 1, 1, is_linear=True)
        return self.node("Add", x, y) if stride == 1 and c == o else y


@pytest.mark.sweep
def test_a_page_runs_a_network(page: Any, tmp_path: Path) -> None:
    """An exported folder, as it is opened by somebody: the button runs it on random numbers."""
    proto, session = MobileNet(64, 50).model, Session(folder=tmp_path / "cache")
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
