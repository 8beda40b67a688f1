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
    for rows, columns in ((3, 5), (2, 700), (1, 1), (3, 5)):
        x = np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)
        found = page.evaluate(CALL, [rows, columns, [columns, rows], x.ravel().tolist()])
        for expected, (values, dims) in zip(host(x, np.array([columns, rows])), found, strict=True):
            data = np.array(values, np.uint16).view(np.float16) if expected.dtype == np.float16 else np.array(values)
            assert tuple(dims) == expected.shape
            np.testing.assert_allclose(data.reshape(dims), expected, rtol=1e-3, atol=1e-6)
    with pytest.raises(sync_api.Error, match="cannot be reshaped"):
        page.evaluate(CALL, [2, 2, [3, 1], [0.0] * 4])
