"""Tokens of texts, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto as T
from onnx import helper as h

import tilewright

TEXTS = np.array(
    [["The cat, sat", " naïve  café über;;a"], ["", "x"], ["a;b, c", "日本 語, ok; "]], dtype=object
)


def tokenizer(shape: tuple[int, ...], **attributes: Any) -> onnx.ModelProto:
    node = h.make_node("Tokenizer", ["x"], ["y"], domain="com.microsoft", **attributes)
    given = h.make_tensor_value_info("x", T.STRING, [None] * len(shape))
    graph = h.make_graph([node], "g", [given], [h.make_tensor_value_info("y", T.STRING, None)])
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 17), h.make_opsetid("com.microsoft", 1)], ir_version=8)


@pytest.mark.parametrize("mark", [0, 1])
@pytest.mark.parametrize(
    ("least", "how"),
    [
        (1, {"separators": [""]}),
        (1, {"separators": [" ", ","]}),
        (2, {"separators": ["[,;]+", " "]}),
        (2, {"tokenexp": "[a-zA-Z0-9_]+"}),
        (1, {"tokenexp": "[^ ]"}),
    ],
)
def test_tokens_are_those_of_onnx_runtime(how: dict[str, Any], least: int, mark: int) -> None:
    for texts in (TEXTS, TEXTS[:, 0], TEXTS[1:2], TEXTS[1:2, :1], TEXTS[1:2, 1:]):
        model = tokenizer(texts.shape, mark=mark, mincharnum=least, pad_value="#", **how)
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        (wanted,) = session.run(None, {"x": texts})
        found = tilewright.compile(model, cache=False)(texts)[0]
        assert found.shape == wanted.shape
        assert found.tolist() == wanted.tolist()


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"mincharnum": 1}, "takes either separators or an expression"),
        ({"mincharnum": 1, "separators": [" "], "tokenexp": "a"}, "takes either separators or an expression"),
        ({"mincharnum": 0, "separators": [" "]}, "mincharnum=0, which must be positive"),
        ({"mincharnum": 2, "separators": [""]}, "its tokens are characters"),
        ({"mincharnum": 1, "separators": ["a*"]}, "is found where there is nothing"),
    ],
)
def test_tokenizers_that_say_too_little_are_refused(attributes: dict[str, Any], message: str) -> None:
    model = tokenizer((3,), mark=0, pad_value="#", **attributes)
    with pytest.raises(tilewright.ModelError, match=message):
        tilewright.compile(model, cache=False)
