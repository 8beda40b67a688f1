"""Fuzzing what reads models: damaged, contradictory and hostile ONNX files give an error of the package, or load."""

from __future__ import annotations

import functools
import os
import tempfile
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.fuzz.files.limits import Opened, limited
from tests.fuzz.files.messages import mutate
from tests.fuzz.registry import Tried
from tests.models import gather, mlp
from tilewright.api import compile_artifact
from tilewright.frontends.onnx.load import load_onnx
from tilewright.frontends.onnx.registry import bind_operators, translated
from tilewright.ir.core import Module
from tilewright.ir.diag import InternalError, TilewrightError
from tilewright.options import Options
from tilewright.runtime import Model
from tilewright.runtime.values.dtypes import numpy_dtype

LARGEST_CASE = 3000  # bytes: more are models of many nodes, which take longer and have nothing new
COMPILED = 12  # one in so many of the models that load
MOST_OPS, MOST_ELEMENTS = 60, 1 << 16
CHANGES = (1, 1, 1, 2, 2, 3, 5)
SIZES = (0, 1, 2, 3, 7)

_NAMES = ("onnx.NodeProto.input", "onnx.NodeProto.output", "onnx.ValueInfoProto.name", "onnx.TensorProto.name")
_INTS = ("onnx.AttributeProto.ints", "onnx.AttributeProto.i", "onnx.TensorProto.int64_data")
_DIMS = ("onnx.TensorShapeProto.Dimension.dim_value", "onnx.TensorProto.dims")
SPACES = {name: names for names in (_NAMES, _INTS, _DIMS) for name in names}
TYPES = tuple(range(28))


@functools.cache
def known() -> dict[str, tuple[Any, ...]]:
    """Values that fields are known to have."""
    bind_operators()
    schemas = onnx.defs.get_all_schemas_with_history()
    return {
        "onnx.NodeProto.op_type": tuple(sorted({op for _, op in translated()})),
        "onnx.NodeProto.domain": ("", "ai.onnx.ml", "com.microsoft", "ai.onnx.training"),
        "onnx.AttributeProto.name": tuple(sorted({name for s in schemas for name in s.attributes})),
        "onnx.OperatorSetIdProto.version": tuple(range(1, 30)),
        "onnx.OperatorSetIdProto.domain": ("", "ai.onnx.ml", "com.microsoft"),
        "onnx.TensorProto.data_type": TYPES,
        "onnx.TypeProto.Tensor.elem_type": TYPES,
        "onnx.TensorShapeProto.Dimension.dim_param": ("n", "m", "n + 1", "2*n", "", "?", "N*("),
        "onnx.StringStringEntryProto.key": ("location", "offset", "length", "checksum"),
        "onnx.StringStringEntryProto.value": ("weights.bin", "../outside.bin", "link.bin", "pipe", ".", "0", "8", "99"),
    }  # fmt: skip


@functools.cache
def corpus() -> tuple[bytes, ...]:
    """Small models to begin with: one node of each operator with each of its attributes, and a few others."""
    from tests.onnx_cases import cases_of_nodes  # takes seconds

    texts = {case.model.SerializeToString() for case in cases_of_nodes() if case.model is not None}
    own = [m.SerializeToString() for m in (mlp(), gather(), with_external_data())]
    return (*own, *sorted(t for t in texts if len(t) <= LARGEST_CASE))


def with_external_data() -> onnx.ModelProto:
    """y = x + w, where `w` lies in a file."""
    weight = numpy_helper.from_array(np.ones(4, np.float32), "w")
    onnx.external_data_helper.set_external_data(weight, "weights.bin", offset=0, length=16)
    weight.ClearField("raw_data")
    values = [helper.make_tensor_value_info(n, 1, [4]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", values[:1], values[1:], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def mutated(data: bytes, random: Random) -> bytes:
    """The model of the bytes with a few changes; of bytes that are no model, one of the corpus."""
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception:
        model.ParseFromString(random.choice(corpus()))
    donor = onnx.ModelProto()
    donor.ParseFromString(random.choice(corpus()))
    for _ in range(random.choice(CHANGES)):
        mutate(model, random, donor, SPACES, known())
    text: bytes = model.SerializeToString()
    if random.random() < 0.02 and text:
        at = random.randrange(len(text))
        text = text[:at] + random.choice((b"", bytes([random.randrange(256)]))) + text[at + random.randint(0, 4) :]
    return text


def fuzz(seed: int) -> Tried:
    """A model of the corpus, changed."""
    random = Random(seed)
    return target(mutated(random.choice(corpus()), random))


def target(data: bytes) -> Tried:
    """Load a model, and compile and run some of those that can be loaded."""
    chosen = crc32(data)
    with limited():
        try:
            module = _from_folder(data) if b"location" in data else load_onnx(data)
        except InternalError:
            raise
        except TilewrightError:
            return Counter({("model", "refused"): 1})
    if chosen % COMPILED or not _is_cheap(module):
        return Counter({("model", "loaded"): 1})
    return Counter({("model", _compiled(data, chosen)): 1})


_opened: list[Opened] = []


def _from_folder(data: bytes) -> Module:
    """Load the model from a folder with some files that it may read, beside some that it may not."""
    if not _opened:
        _opened.append(Opened())
    with tempfile.TemporaryDirectory() as outer:
        folder = Path(outer, "model")
        folder.mkdir()
        (folder / "weights.bin").write_bytes(np.ones(4, np.float32).tobytes())
        Path(outer, "outside.bin").write_bytes(bytes(64))
        os.symlink("../outside.bin", folder / "link.bin")
        os.mkfifo(folder / "pipe")
        path = folder / "model.onnx"
        path.write_bytes(data)
        try:
            with _opened[0].recorded():
                return load_onnx(path)
        finally:
            outside = _opened[0].outside(folder)
            assert not outside, f"files outside of the model's folder were opened: {outside}"


def _is_cheap(module: Module) -> bool:
    """Whether it has few operations on tensors of which none is large."""
    ops = list(module.main.body.walk())
    values = [*module.main.args, *(v for op in ops for v in op.results)]
    sizes = [getattr(v.type, "shape", ()) for v in values]
    fixed = [[int(d) for d in map(str, shape) if d.lstrip("-").isdecimal()] for shape in sizes]
    return len(ops) <= MOST_OPS and all(np.prod(f, dtype=float) <= MOST_ELEMENTS for f in fixed)


def _compiled(data: bytes, chosen: int) -> str:
    """How far it comes."""
    options = Options(cache=False, verify=True, compile_threads=1)
    with limited(60, 4 << 30):
        try:
            model = Model(compile_artifact(data, options=options), 1)
        except InternalError:
            raise
        except TilewrightError:
            return "not compiled"
        model.max_seconds = 2
        try:
            model(*(_elements(info, np.random.default_rng(chosen)) for info in model.inputs))
        except TilewrightError:
            return "not run"
    return "run"


def _elements(info: Any, rng: np.random.Generator) -> Any:
    """Numbers for an input: small ones, as indices and sizes often are."""
    if info.kind != "tensor" or info.dtype == "string":
        return [] if info.kind == "sequence" else "a" if info.kind == "tensor" and not info.shape else None
    size = SIZES[rng.integers(len(SIZES))]
    shape = [d if isinstance(d, int) else size for d in info.shape]
    if np.prod(shape, dtype=float) > MOST_ELEMENTS:
        return None
    return rng.integers(-3, 4, shape).astype(numpy_dtype(info.dtype))
