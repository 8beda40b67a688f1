"""Operators of ONNX Runtime that models may hold and that are refused, each with the reason."""

from __future__ import annotations

from functools import partial

from tilewright.frontends.onnx.registry import refuse

_refuse = partial(refuse, domain="com.microsoft")

_refuse(
    "it runs a decoder, which it holds as a subgraph, until sequences end; export the decoder, and write that loop "
    "around its compiled model",
    "BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch",
)  # fmt: skip
_refuse(
    "it is for GPUs, and only programs that optimise models for these write it; optimise the model for CPUs, or not at "
    "all",
    "DecoderAttention", "DecoderMaskedSelfAttention", "DynamicSparseAttention", "GemmFloat8", "LongformerAttention",
    "MatMulBlockQuantizedFp4Weight", "MatMulBlockQuantizedFp8Weight", "MatMulNBitsMlp", "MatMulNBitsQLoRA",
    "MatMulNBitsQkv", "MatMulPacked", "MoEPacked", "PackedAttention", "PackedMultiHeadAttention",
    "PackedSparseAttentionIndexer", "PackedSparseAttentionIndexerMerge", "PagedAttention", "RMSNormRotary",
    "RemovePadding", "RestorePadding", "RouterGateUpProj", "SparseAttentionIndexer", "SparsePagedAttention",
    "DequantizeWithOrder", "QOrderedAttention", "QOrderedGelu", "QOrderedLayerNormalization",
    "QOrderedLongformerAttention", "QOrderedMatMul", "QuantizeWithOrder", "ConvStateReplay",
    "GatedDeltaNetStateReplay", "HyperConnectionLowRankMix", "Mamba2Verify", "SpeculativePrefixCommit",
)  # fmt: skip
_refuse(
    "it holds a program or numbers in a form of one device, of which nothing is published",
    "DequantizeBFP", "EPContext", "QuantizeBFP", "Snpe", "GatherPacked", "MatMulFpQ4",
)  # fmt: skip
_refuse("ONNX Runtime says of it that it is for internal use", "MaxpoolWithMask", "SampleOp", "BifurcationDetector")
_refuse(
    "it takes apart or makes features of one model, and no exporter in use writes it",
    "AttnLSTM", "DynamicTimeWarping", "EngramGate", "GatedDeltaNet", "HyperConnectionPostMix",
    "HyperConnectionPreMix", "MoEGroupRouter", "MurmurHash3", "NGramHashMapping", "SparseToDenseMatMul",
    "VarlenCausalConvWithState", "VarlenNGramHashMapping", "WordConvEmbedding",
)  # fmt: skip
for _domain in ("com.microsoft.nchwc", "com.ms.internal.nhwc"):
    refuse(
        "it works on tensors in the layout of one machine, which ONNX Runtime writes into models that are optimised at "
        "the level `all`; save the model at the level `extended`",
        "AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "DepthToSpace", "GlobalAveragePool",
        "GlobalLpPool", "GlobalMaxPool", "GridSample", "InstanceNormalization", "LRN", "LpPool", "MaxPool",
        "MaxUnpool", "QLinearAveragePool", "QLinearConv", "QLinearConvTranspose", "ReorderInput", "ReorderOutput",
        "Resize", "SpaceToDepth", "Upsample", domain=_domain,
    )  # fmt: skip
