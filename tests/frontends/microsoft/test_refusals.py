"""What is refused of ONNX Runtime's operators, and what is said then."""

from __future__ import annotations

import numpy as np
import pytest

from tests.frontends.microsoft.against import Case, f32
from tests.frontends.microsoft.test_recurrent import lstm
from tilewright.frontends.onnx.load import load_onnx
from tilewright.ir.diag import TilewrightError

REFUSED = {
    "attribute 'softness' of FastGelu is not supported": Case("FastGelu", [f32(3)], {"softness": 1.0}),
    "input 2 of BiasGelu is not supported": Case("BiasGelu", [f32(2, 3), f32(3), f32(3)]),
    "FusedGemm with activation 'Mish'": Case("FusedGemm", [f32(3, 4), f32(4, 5)], {"activation": "Mish"}),
    "LeakyRelu takes 1 numbers, not 0": Case(
        "FusedGemm", [f32(3, 4), f32(4, 5)], {"activation": "LeakyRelu"}
    ),
    "input 1 is f32[4]; it needs 2 axes": Case("FusedGemm", [f32(3, 4), f32(4)]),
    "cannot be seen which axis": Case("NhwcConv", [f32(1, 5, 5, 3), f32(4, 3, 3, 3)], {}, (1,)),
    "has 3 pads for 2 spatial axes": Case(
        "ConvTransposeWithDynamicPads", [f32(1, 2, 4, 5), f32(2, 3, 3, 3), np.ones(3, np.int64)], {}, (2,)
    ),
    "channels cannot be halved": Case("BiasSplitGelu", [f32(2, 3, 5), f32(5)]),
    "bias of other axes": Case("BiasSoftmax", [f32(2, 3, 5), f32(3, 5)], {"is_inner_broadcast": 1}),
    "sum of f32[3, 4] and f32[2, 3, 4] has another shape": Case(
        "SkipLayerNormalization", [f32(3, 4), f32(2, 3, 4), f32(4)]
    ),
    "input 2 is f32[5] for 4 elements": Case("SkipLayerNormalization", [f32(3, 4), f32(3, 4), f32(5)]),
    "6 channels do not make 4 groups": Case(
        "GroupNorm", [f32(1, 2, 2, 6), f32(6), f32(6)], {"groups": 4, "activation": 0}
    ),
    "input 1 is i8[1, 5, 32] for a hidden size of 9": Case(
        "DynamicQuantizeLSTM", [*lstm(8, 1, 1).arrays[:2], lstm(9, 1, 1).arrays[2], *lstm(9, 1, 1).arrays[3:]]
    ),
    "hidden_size 7 contradicts R": Case("DynamicQuantizeLSTM", lstm(8, 1, 1).arrays, {"hidden_size": 7}),
    "with clip is not supported": Case("DynamicQuantizeLSTM", lstm(8, 1, 1).arrays, {"clip": 1.0}),
}


@pytest.mark.parametrize("said", REFUSED)
def test_the_reason_is_said(said: str) -> None:
    with pytest.raises(TilewrightError) as caught:
        load_onnx(REFUSED[said].model())
    assert said in str(caught.value)
