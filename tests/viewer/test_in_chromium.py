"""The page in a browser: it opens without errors and requests, and shows what is asked for, whatever it is named."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tests.models import mlp_parameters
from tilewright.viewer.hierarchy import Placed, hierarchy
from tilewright.viewer.records import ModelView, NodeView
from tilewright.viewer.write import write_page

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")

HOSTILE = (
    "/net/</script><script>alert(1)</script>", "/net/<img src=http://example.org/x onerror=alert(2)>",
    '/net/"quoted" \'&amp;\'\n\tlines\u2028\u0000\u202e', "/net/{{DATA}}${alert(3)}`",
)  # fmt: skip


def hostile() -> onnx.ModelProto:
    """softmax(relu(x @ w + b)) whose names are markup."""
    tensors = [f"{name} tensor" for name in HOSTILE[:3]]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], [tensors[0]], name=HOSTILE[0]),
        helper.make_node("Add", [tensors[0], "b"], [tensors[1]], name=HOSTILE[1]),
        helper.make_node("Relu", [tensors[1]], [tensors[2]], name=HOSTILE[2]),
        helper.make_node("Softmax", [tensors[2]], ["<b>y</b>"], name=HOSTILE[3], axis=-1),
    ]
    weight, bias = (numpy_helper.from_array(a, name) for a, name in zip(mlp_parameters(), "wb", strict=True))
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, k]) for n, k in (("x", 64), ("<b>y</b>", 32)))
    graph = helper.make_graph(nodes, "<i>graph</i>", [x], [y], [weight, bias])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


class Opened:
    """A page that is open, and what it said and asked for."""

    def __init__(self, page: Any, file: Path) -> None:
        self.page = page
        self.said: list[str] = []
        self.asked: list[str] = []
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("dialog", lambda dialog: (self.said.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: self.asked.append(request.url))
        page.goto(file.as_uri())
        page.wait_for_function("app.painted > 0")

    def click(self, key: str) -> None:
        """Click the middle of a box of the graph."""
        place = self.page.evaluate("key => graphView.panes[0].place(key)", key)
        self.page.mouse.click(place["x"], place["y"])


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


def test_search_clicks_and_hostile_names(browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "page <i>&.html"
    tilewright.write_report(file, hostile(), threads=1, cache=False)
    opened = Opened(browser.new_page(viewport={"width": 1200, "height": 800}), file)
    page = opened.page
    page.keyboard.press("/")
    page.keyboard.type("onerror")
    assert HOSTILE[1] in page.locator("#results li .name").first.inner_text()
    page.keyboard.press("Enter")
    assert page.locator("#inspector h2").inner_text() == HOSTILE[1]
    assert "add(" in page.locator("#source").inner_text()
    page.keyboard.press("ArrowDown")  # to what reads it
    shown = page.locator("#inspector h2").inner_text()
    assert "\\u202e" in shown and "\u202e" not in page.locator("body").inner_text()
    page.keyboard.press("k")
    opened.click("i0")
    page.locator("#source", has_text="kernel @").wait_for()
    for level, wanted in (("LLVM IR", "define "), ("Schedule", "kernel @"), ("Assembly", "loop")):
        page.get_by_role("button", name=level, exact=True).click()
        page.locator("#source", has_text=wanted).wait_for()
    page.keyboard.press("s")
    assert page.locator("#code .column").count() == 4
    page.keyboard.press("2")  # keys are those of the texts now
    assert page.evaluate("app.view") == "graph" and page.evaluate("document.activeElement.tagName") == "PRE"
    page.keyboard.press("Escape")
    assert not page.locator("#code").is_visible()
    page.keyboard.press("Escape")
    assert page.evaluate("app.selected") is None
    for number in range(page.locator("#tabs button").count()):
        page.keyboard.press(str(number + 1))
        page.wait_for_timeout(30)
    page.set_viewport_size({"width": 380, "height": 700})
    page.emulate_media(color_scheme="dark")
    page.keyboard.press("1")
    page.wait_for_timeout(60)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("document.images.length") == 0
    assert opened.asked == [file.as_uri()]
    page.reload()
    page.wait_for_function("app.painted > 0")
    place = "(p) => [p.view.y, Math.max(38, (p.canvas.clientHeight - p.scene.height * p.view.scale) / 2)]"
    begins, wanted = page.evaluate(f"({place})(graphView.panes[0])")
    assert begins == pytest.approx(wanted, abs=1)  # in the room that the inspector leaves
    assert opened.said == []


@pytest.mark.sweep(0)
def test_five_thousand_nodes_open_and_are_found(browser: Any, tmp_path: Path) -> None:
    """A chain of different nodes without names of modules, with connections to far ones."""
    placed = [Placed((), k, (k - 1, k // 2) if k else ()) for k in range(5000)]
    groups, of = hierarchy(placed)
    nodes = tuple(NodeView(f"n{k}", "Add", of[k], placed[k].reads, (), ("f32[4]",)) for k in range(5000))
    write_page(tmp_path / "many.html", [ModelView("many", "model", groups=groups, nodes=nodes)])
    opened = Opened(browser.new_page(), tmp_path / "many.html")
    opened.page.keyboard.press("/")
    opened.page.keyboard.type("n1321")
    opened.page.keyboard.press("Enter")
    assert opened.page.locator("#inspector h2").inner_text() == "n1321"
    assert opened.page.evaluate("graphView.panes[0].scene.places.has('i1321')")
    assert opened.said == []
