"""Models that are written as ONNX and run by ONNX Runtime, beside what they were before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnxruntime as ort

from tilewright.exporters.onnx.whole import whole_composites
from tilewright.exporters.onnx.write import onnx_model
from tilewright.frontends.onnx.load import load_onnx
from tilewright.ops.define.operator import staying_whole

Feeds = Mapping[str, np.ndarray]


def parsed(text: str, opset: int = 21, **initializers: np.ndarray) -> onnx.ModelProto:
    """A model from the text of its graph."""
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]>\n{text}')
    for name, array in initializers.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return proto


def converted(proto: onnx.ModelProto, opset: int | None = None) -> onnx.ModelProto:
    """The model read and written again; it is what the checker of the onnx package accepts."""
    with staying_whole(whole_composites()):
        module = load_onnx(proto)
    written = onnx_model(module, opset=opset)
    onnx.checker.check_model(written, full_check=True)
    return written


def run(proto: onnx.ModelProto, feeds: Feeds) -> Sequence[np.ndarray]:
    """What ONNX Runtime gives."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, dict(feeds))


def agree(proto: onnx.ModelProto, *feeds: Feeds, opset: int | None = None, rtol: float = 1e-5) -> onnx.ModelProto:
    """Write the model again, and have ONNX Runtime give for it what it gives for the model; gives what was written."""
    written = converted(proto, opset)
    for given in feeds:
        for a, b in zip(run(proto, given), run(written, given), strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            np.testing.assert_allclose(b.astype(np.float64), a.astype(np.float64), rtol=rtol, atol=rtol)
    return written


def operators(proto: onnx.ModelProto) -> list[str]:
    """What the nodes of a model are."""
    return [node.op_type for node in proto.graph.node]
