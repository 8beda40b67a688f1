"""Kernels that one program of a comparison has are taken by the next one, which tells of them as of its own."""

from __future__ import annotations

import re
from dataclasses import replace

import onnx
import pytest

from tests.models import mlp
from tilewright.compilation import Compilation, Setting
from tilewright.frontends.onnx.load import load_onnx
from tilewright.options import Options
from tilewright.schedule.sharing import kernels as sharing
from tilewright.session import Session


def scheduled(model: onnx.ModelProto, setting: Setting) -> Compilation:
    return Compilation(load_onnx(model.SerializeToString()), setting).run("scheduled")


def renamed() -> onnx.ModelProto:
    """The same network, whose nodes have other names."""
    model = mlp()
    for node in model.graph.node:
        node.name = f"other_{node.name}"
    return model


def told(compilation: Compilation) -> list[str]:
    """All that names kernels or nodes, without the numbers of the kernels."""
    remarks = [f"{r.subject} {r.message}" for r in compilation.remarks]
    return [re.sub(r"\bk\d+_", "k_", text) for text in (*remarks, compilation.text(locs=True))]


def test_they_have_names_and_nodes_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = replace(Setting.chosen(Options(), Session()), known={})
    made: list[str] = []
    real = sharing.lower_region

    def counted(region, name, *others):  # type: ignore[no-untyped-def]
        made.append(name)
        return real(region, name, *others)

    monkeypatch.setattr(sharing, "lower_region", counted)
    first, again = scheduled(mlp(), setting), scheduled(mlp(), setting)
    count = len(made)
    other = scheduled(renamed(), setting)
    assert count == len({*first.module.funcs} - {"main"}) and len(made) == 2 * count
    assert again.module.funcs.keys().isdisjoint({*first.module.funcs} - {"main"})
    for found in (again, other):
        named = {name for r in found.remarks for name in re.findall(r"\bk\d+_\w+", f"{r.subject} {r.message}")}
        assert named and named <= found.module.funcs.keys()
    assert told(again) == told(first)
    alone = Setting.chosen(Options(), Session())
    assert told(other) == told(scheduled(renamed(), alone))
