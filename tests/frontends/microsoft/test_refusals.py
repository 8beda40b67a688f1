"""What is refused of ONNX Runtime's operators, and what is said then."""

from __future__ import annotations

import numpy as np
import pytest

from tests.frontends.microsoft.against import Case, f32, u8
from tests.frontends.microsoft.test_recurrent import lstm
from tilewright.frontends.onnx.load import load_onnx
from tilewright.ir.diag import TilewrightError

REFUSED = {
    "it runs a decoder, which it holds as a subgraph": Case("BeamSearch", [f32(3)]),
    "in the layout of one machine": Case("ReorderInput", [f32(1, 8, 4, 4)], domain="com.microsoft.nchwc"),
    "Rfft along several axes": Case("Rfft", [f32(4, 4)], {"signal_ndim": 2}),
    "Irfft: the last axis of input 0, f32[4, 3]": Case("Irfft", [f32(4, 3)]),
    "sections [4, 2, 3] for 8 pairs": Case(
        "MRotaryEmbedding", [f32(1, 2, 3, 16), np.zeros((3, 1, 3), np.int64), f32(9, 8), f32(9, 8)],
        {"mrope_section": [4, 2, 3]},
    ),
    "LinearAttention with state_window": Case(
        "LinearAttention", [f32(1, 2, 8)] * 3, {"state_window": 1, "q_num_heads": 2, "kv_num_heads": 2}
    ),
    "5 of 4 experts": Case("MoE", [f32(7, 8), f32(7, 4), f32(4, 6, 8), None, f32(4, 8, 6)], {"k": 5}),
    "swiglu_fusion 0 of 6 elements": Case(
        "MoE", [f32(7, 8), f32(7, 4), f32(4, 6, 8), None, f32(4, 8, 6)], {"activation_type": "swiglu"}
    ),
    "MoE with use_sparse_mixer": Case(
        "MoE", [f32(7, 8), f32(7, 4), f32(4, 6, 8), None, f32(4, 8, 6)], {"use_sparse_mixer": 1}
    ),
    "are not 24 x 32 weights of type 1": Case(
        "MatMulBnb4", [f32(3, 32), u8(100), f32(12)], {"K": 32, "N": 24, "block_size": 64, "quant_type": 1}
    ),
    "5 rows for distances up to 1": Case(
        "RelativePositionBias", [f32(5, 2), np.int64(3), np.int64(3)], {"max_distance": 1}
    ),
    "with a scale of 3 elements": Case("GatedRMSNorm", [f32(2, 8), f32(3), f32(2, 8)]),
    "has no 3 branches": Case("BranchwiseRMSNorm", [f32(2, 8)], {"num_branches": 3}),
    "UnfoldTensor into 0 elements 1 apart": Case("UnfoldTensor", [f32(2, 8)], {"size": 0}),
    "sequences of 0 tokens": Case("NGramRepeatBlock", [np.zeros((1, 3), np.int64), f32(1, 5)], {"ngram_size": 0}),
    "the last axis cannot be halved": Case("SwiGLU", [f32(2, 7)]),
    "does not hold two parts": Case("ComplexMul", [f32(2, 3), f32(2, 2)]),
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
    "mask i32[3] for 5 keys is not supported": Case(
        "Attention", [f32(2, 5, 16), f32(16, 48), f32(48), np.ones(3, np.int32)], {"num_heads": 2}
    ),
    "weights f32[16, 50] are not for queries": Case(
        "Attention", [f32(2, 5, 16), f32(16, 50)], {"num_heads": 2}
    ),
    "qkv_hidden_sizes [8, 8] do not fit": Case(
        "Attention", [f32(2, 5, 16), f32(16, 48)], {"num_heads": 2, "qkv_hidden_sizes": [8, 8]}
    ),
    "Attention with do_rotary": Case(
        "Attention", [f32(2, 5, 16), f32(16, 48)], {"num_heads": 2, "do_rotary": 1}
    ),
    "a width of 16 cannot be divided into 3 heads": Case(
        "MultiHeadAttention", [f32(2, 5, 16)] * 3, {"num_heads": 3}
    ),
    "operands have not 2 heads": Case(
        "MultiHeadAttention", [f32(2, 5, 16), *[f32(2, 3, 4, 8)] * 2], {"num_heads": 2}
    ),
    "does not hold queries, keys and values": Case(
        "MultiHeadAttention", [f32(2, 5, 2, 2, 8)], {"num_heads": 2}
    ),
    "4 heads cannot share 3": Case(
        "GroupQueryAttention",
        [f32(1, 2, 16)] * 3 + [None, None, np.ones(1, np.int32), np.ones(1, np.int32)],
        {"num_heads": 4, "kv_num_heads": 3},
    ),
    "GroupQueryAttention with k_quant_type": Case(
        "GroupQueryAttention",
        [f32(1, 2, 16)] * 3 + [None, None, np.ones(1, np.int32), np.ones(1, np.int32)],
        {"num_heads": 2, "kv_num_heads": 2, "k_quant_type": "PER_TENSOR"},
    ),
    "rotary_embedding_dim 4 contradicts": Case(
        "RotaryEmbedding",
        [f32(1, 2, 16), np.zeros((1, 2), np.int64), f32(5, 4), f32(5, 4)],
        {"rotary_embedding_dim": 4, "num_heads": 2},
    ),
    "16 elements are to be rotated": Case(
        "RotaryEmbedding", [f32(1, 2, 2, 8), np.zeros((1, 2), np.int64), f32(5, 8), f32(5, 8)]
    ),
    "of packed batches": Case(
        "RotaryEmbedding",
        [f32(1, 2, 16), np.zeros((1, 2), np.int64), f32(5, 4), f32(5, 4)],
        {"is_packed_batching": 1},
    ),
    "weights in the order of a device": Case(
        "MatMulNBits",
        [f32(2, 16), u8(3, 1, 8), f32(3)],
        {"K": 16, "N": 3, "block_size": 16, "weight_prepacked": 1},
    ),
    "with 3 bits in blocks of 16": Case(
        "MatMulNBits", [f32(2, 16), u8(3, 1, 6), f32(3)], {"K": 16, "N": 3, "block_size": 16, "bits": 3}
    ),
    "u8[3, 1, 9] does not hold 3 x 16 weights": Case(
        "MatMulNBits", [f32(2, 16), u8(3, 1, 9), f32(3)], {"K": 16, "N": 3, "block_size": 16}
    ),
    "along the axis of the blocks": Case(
        "GatherBlockQuantized",
        [u8(3, 16), np.zeros(2, np.int64), f32(3, 1)],
        {"gather_axis": 1, "block_size": 16},
    ),
    "scales f32[3] for data u8[3, 16]": Case(
        "GatherBlockQuantized", [u8(3, 16), np.zeros(2, np.int64), f32(3)], {"block_size": 16}
    ),
    "input 1 of QLinearSigmoid must be one number, it is f32[3]": Case("QLinearSigmoid", [u8(3), f32(3), None, f32(1)]),
    "QLinearConcat has 4 operands": Case("QLinearConcat", [f32(), u8(), u8(3), f32()], {"axis": 0}),
    "input 2 of MatMulIntegerToFloat must be one number": Case(
        "MatMulIntegerToFloat", [u8(2, 3), u8(3, 4), f32(2), f32(1)]
    ),
    "CropAndResize to 3 sizes": Case(
        "CropAndResize", [f32(1, 1, 4, 4), f32(1, 4), np.zeros(1, np.int32), np.ones(3, np.int32)], {}, (3,)
    ),
    "takes a tensor of three or more axes": Case(
        "QLinearGlobalAveragePool", [u8(3, 4), f32(), u8(), f32(), u8()]
    ),
    "clip must be above 0": Case("DynamicQuantizeLSTM", lstm(8, 1, 1).arrays, {"clip": -1.0}),
}


@pytest.mark.parametrize("said", REFUSED)
def test_the_reason_is_said(said: str) -> None:
    with pytest.raises(TilewrightError) as caught:
        load_onnx(REFUSED[said].model())
    assert said in str(caught.value)
