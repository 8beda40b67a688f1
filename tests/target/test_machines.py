"""Code for every machine that has a name: it is made, in the right format, with its vectors; and where none can be."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright
import tilewright.target.host as host_module
from tilewright.api import compile_artifact
from tilewright.options import Options
from tilewright.runtime import Artifact
from tilewright.stages import programs
from tilewright.target.hardware import Caches
from tilewright.target.machine import TargetError
from tilewright.target.named import NAMED

X86 = [name for name, target in NAMED.items() if target.arch == "x86_64"]
RISC_V = [name for name, target in NAMED.items() if target.arch == "riscv64"]
WASM = [name for name, target in NAMED.items() if target.arch == "wasm32"]
SVE = [name for name, target in NAMED.items() if "sve" in target.features]
ARM = [name for name, target in NAMED.items() if target.arch == "aarch64" and name not in SVE]
IBM_Z = [name for name, target in NAMED.items() if target.arch == "s390x"]


def product() -> onnx.ModelProto:
    """x @ w for x: float32[24, 64]."""
    w = onnx.numpy_helper.from_array(np.ones((64, 96), np.float32), "w")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [24, 64])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [24, 96])
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "product", [x], [y], [w])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.sweep(8)
@pytest.mark.parametrize("name", sorted(NAMED.keys() - set(WASM)))
def test_an_artefact_is_made(name: str, tmp_path: Path) -> None:
    artifact = compile_artifact(product(), options=Options(target=name, cache=False))
    artifact.save(tmp_path / "m.tw")
    target = NAMED[name]
    loaded = Artifact.load(tmp_path / "m.tw")
    assert loaded.target.triple == target.triple and loaded.target.features == target.features
    assert loaded.image == artifact.image
    if target.arch == "wasm32":  # has a linker and a loader of its own
        assert loaded.image is None and loaded.objects
        return
    assert loaded.image is not None
    assert {"tw_run", "tw_pool_create"} <= loaded.image.layout.symbols.keys()
    assert "pthread_create" in loaded.image.layout.imports


@pytest.mark.parametrize("name", ARM)
def test_arm_machines_multiply_in_vectors_of_neon(name: str) -> None:
    (text,) = programs(product(), "asm", options=Options(target=name)).values()
    # macOS's assembler writes `fmla.4s v0, v1, v2[0]`, others `fmla v0.4s, v1.4s, v2.s[0]`
    assert len(re.findall(r"\bfmla(?:\.4s\s+v\d+|\s+v\d+\.4s),", text)) >= 16
    assert not re.search(r"\bz\d+\.[bhsd]\b", text)  # registers of SVE


@pytest.mark.parametrize("name", SVE)
def test_arm_machines_multiply_in_vectors_of_sve(name: str) -> None:
    (text,) = programs(product(), "asm", options=Options(target=name)).values()
    assert len(re.findall(r"\bfml?ad?\s+z\d+\.s, p\d/m", text)) >= 16
    assert not re.search(r"\bfml?a\s+v|\[sp, #\d+, mul vl\]", text)  # neither NEON nor spills


@pytest.mark.parametrize("name", IBM_Z)
def test_ibm_z_multiplies_in_vectors(name: str) -> None:
    (text,) = programs(product(), "asm", options=Options(target=name)).values()
    assert len(re.findall(r"\bvfmasb\s", text)) >= 8 and "fmaf" not in text


@pytest.mark.parametrize("name", RISC_V)
def test_risc_v_machines_multiply_in_vectors(name: str) -> None:
    (text,) = programs(product(), "asm", options=Options(target=name)).values()
    assert len(re.findall(r"\bvfmacc\.v[vf]", text)) >= 4  # each of several registers
    assert not re.search(r"\bfmadd\.s|\bcall\b", text)


@pytest.mark.parametrize("name", WASM)
def test_webassembly_multiplies_in_vectors(name: str) -> None:
    (text,) = programs(product(), "asm", options=Options(target=name)).values()
    add = r"f32x4\.relaxed_madd" if "relaxed-simd" in NAMED[name].features else r"f32x4\.mul"
    assert len(re.findall(add, text)) >= 8 and "fmaf" not in text
    artifact = compile_artifact(product(), options=Options(target=name, cache=False))
    assert artifact.image is None and all(bytes(blob[:4]) == b"\0asm" for blob in artifact.objects)


@pytest.mark.sweep(5)
@pytest.mark.parametrize("name", sorted(X86))
def test_x86_machines_multiply_in_their_vectors(name: str) -> None:
    (text,) = programs(product(), "asm", options=Options(target=name)).values()
    register = {128: "xmm", 256: "ymm", 512: "zmm"}[NAMED[name].vector_bits]
    add = r"vfmadd\w+ps" if NAMED[name].has_fma else "mulps"
    assert len(re.findall(rf"\b{add}\b.*%?{register}\d+", text)) >= 8
    assert NAMED[name].vector_bits > 128 or not re.search(r"\bv\w+ps\b|%ymm|fmaf", text)


@pytest.mark.parametrize(
    ("triple", "what"),
    [
        ("x86_64-pc-windows-msvc", "operating system of x86_64-pc-windows-msvc"),
        ("x86_64-unknown-freebsd14.0", "operating system"),
        ("i686-unknown-linux-gnu", "architecture of i686"),
        ("powerpc64-ibm-linux-gnu", "architecture"),
    ],
)
def test_a_machine_that_is_not_supported_is_told_so(
    monkeypatch: pytest.MonkeyPatch, triple: str, what: str
) -> None:
    host = host_module.make_host(triple, "generic", {"avx": True}, Caches(), 2)
    monkeypatch.setattr("tilewright.target.named.host_target", lambda: host)
    with pytest.raises(TargetError, match=rf"{what}.*\n  hint: models run on Linux and macOS"):
        tilewright.compile(product(), cache=False)
    compile_artifact(product(), options=Options(target="zen3", cache=False))  # for another machine it can be
