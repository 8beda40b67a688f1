"""Which sources the front end takes, and what it says where the bindings are missing: needs no jaxlib."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import tilewright
from tilewright.frontends.stablehlo import StablehloFrontEnd

FRONT_END = StablehloFrontEnd()


def test_sources_are_told_by_suffix_first_bytes_and_type(tmp_path: Path) -> None:
    text = tmp_path / "model.txt"
    text.write_text("// a comment\n#loc = loc(unknown)\nmodule @m {}")
    other = tmp_path / "model.onnx"
    other.write_bytes(b"\x08\x07\x12\x00")
    exported = type("Exported", (), {"mlir_module_serialized": b""})()
    assert FRONT_END.accepts(tmp_path / "absent.mlir") and FRONT_END.accepts(tmp_path / "absent.stablehlo")
    assert FRONT_END.accepts(text) and FRONT_END.accepts(exported)
    assert FRONT_END.accepts(b"ML\xefR\rStableHLO_v1.0.0") and FRONT_END.accepts(b"module {\n}")
    export = (60).to_bytes(4, "little") + bytes(80) + b"ML\xefR\rStableHLO_v1.0.0"
    assert FRONT_END.accepts(export)
    for source in (other, b"", b"modules are", (60).to_bytes(4, "little") + bytes(80), object(), 3, "module {"):
        assert not FRONT_END.accepts(source)


def test_a_missing_package_is_told_with_the_way_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.startswith("tilewright.frontends.stablehlo.")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("jaxlib", "jaxlib.mlir"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(tilewright.TilewrightError) as caught:
        FRONT_END.load(b"module {}", constants={}, shapes={})
    assert "pip install jaxlib" in str(caught.value)
