"""The part of TFLite's schema that is read: numbers of operators, element types and fields of options.

Numbers of a FlatBuffers schema never change: new operators and fields come behind those that there are. The tests
compare this table with classes that are generated from the schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tilewright.frontends.tflite.flatbuffer import Table
from tilewright.ir import dtype as dt
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.ir.dtype import DType

OPERATORS = (
    "ADD", "AVERAGE_POOL_2D", "CONCATENATION", "CONV_2D", "DEPTHWISE_CONV_2D", "DEPTH_TO_SPACE", "DEQUANTIZE",
    "EMBEDDING_LOOKUP", "FLOOR", "FULLY_CONNECTED", "HASHTABLE_LOOKUP", "L2_NORMALIZATION", "L2_POOL_2D",
    "LOCAL_RESPONSE_NORMALIZATION", "LOGISTIC", "LSH_PROJECTION", "LSTM", "MAX_POOL_2D", "MUL", "RELU",
    "RELU_N1_TO_1", "RELU6", "RESHAPE", "RESIZE_BILINEAR", "RNN", "SOFTMAX", "SPACE_TO_DEPTH", "SVDF", "TANH",
    "CONCAT_EMBEDDINGS", "SKIP_GRAM", "CALL", "CUSTOM", "EMBEDDING_LOOKUP_SPARSE", "PAD",
    "UNIDIRECTIONAL_SEQUENCE_RNN", "GATHER", "BATCH_TO_SPACE_ND", "SPACE_TO_BATCH_ND", "TRANSPOSE", "MEAN", "SUB",
    "DIV", "SQUEEZE", "UNIDIRECTIONAL_SEQUENCE_LSTM", "STRIDED_SLICE", "BIDIRECTIONAL_SEQUENCE_RNN", "EXP",
    "TOPK_V2", "SPLIT", "LOG_SOFTMAX", "DELEGATE", "BIDIRECTIONAL_SEQUENCE_LSTM", "CAST", "PRELU", "MAXIMUM",
    "ARG_MAX", "MINIMUM", "LESS", "NEG", "PADV2", "GREATER", "GREATER_EQUAL", "LESS_EQUAL", "SELECT", "SLICE",
    "SIN", "TRANSPOSE_CONV", "SPARSE_TO_DENSE", "TILE", "EXPAND_DIMS", "EQUAL", "NOT_EQUAL", "LOG", "SUM", "SQRT",
    "RSQRT", "SHAPE", "POW", "ARG_MIN", "FAKE_QUANT", "REDUCE_PROD", "REDUCE_MAX", "PACK", "LOGICAL_OR", "ONE_HOT",
    "LOGICAL_AND", "LOGICAL_NOT", "UNPACK", "REDUCE_MIN", "FLOOR_DIV", "REDUCE_ANY", "SQUARE", "ZEROS_LIKE", "FILL",
    "FLOOR_MOD", "RANGE", "RESIZE_NEAREST_NEIGHBOR", "LEAKY_RELU", "SQUARED_DIFFERENCE", "MIRROR_PAD", "ABS",
    "SPLIT_V", "UNIQUE", "CEIL", "REVERSE_V2", "ADD_N", "GATHER_ND", "COS", "WHERE", "RANK", "ELU",
    "REVERSE_SEQUENCE", "MATRIX_DIAG", "QUANTIZE", "MATRIX_SET_DIAG", "ROUND", "HARD_SWISH", "IF", "WHILE",
    "NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5", "SCATTER_ND", "SELECT_V2", "DENSIFY", "SEGMENT_SUM",
    "BATCH_MATMUL", "PLACEHOLDER_FOR_GREATER_OP_CODES", "CUMSUM", "CALL_ONCE", "BROADCAST_TO", "RFFT2D", "CONV_3D",
    "IMAG", "REAL", "COMPLEX_ABS", "HASHTABLE", "HASHTABLE_FIND", "HASHTABLE_IMPORT", "HASHTABLE_SIZE",
    "REDUCE_ALL", "CONV_3D_TRANSPOSE", "VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "BROADCAST_ARGS",
    "RANDOM_STANDARD_NORMAL", "BUCKETIZE", "RANDOM_UNIFORM", "MULTINOMIAL", "GELU", "DYNAMIC_UPDATE_SLICE",
    "RELU_0_TO_1", "UNSORTED_SEGMENT_PROD", "UNSORTED_SEGMENT_MAX", "UNSORTED_SEGMENT_SUM", "ATAN2",
    "UNSORTED_SEGMENT_MIN", "SIGN", "BITCAST", "BITWISE_XOR", "RIGHT_SHIFT", "STABLEHLO_LOGISTIC", "STABLEHLO_ADD",
    "STABLEHLO_DIVIDE", "STABLEHLO_MULTIPLY", "STABLEHLO_MAXIMUM", "STABLEHLO_RESHAPE", "STABLEHLO_CLAMP",
    "STABLEHLO_CONCATENATE", "STABLEHLO_BROADCAST_IN_DIM", "STABLEHLO_CONVOLUTION", "STABLEHLO_SLICE",
    "STABLEHLO_CUSTOM_CALL", "STABLEHLO_REDUCE", "STABLEHLO_ABS", "STABLEHLO_AND", "STABLEHLO_COSINE",
    "STABLEHLO_EXPONENTIAL", "STABLEHLO_FLOOR", "STABLEHLO_LOG", "STABLEHLO_MINIMUM", "STABLEHLO_NEGATE",
    "STABLEHLO_OR", "STABLEHLO_POWER", "STABLEHLO_REMAINDER", "STABLEHLO_RSQRT", "STABLEHLO_SELECT",
    "STABLEHLO_SUBTRACT", "STABLEHLO_TANH", "STABLEHLO_SCATTER", "STABLEHLO_COMPARE", "STABLEHLO_CONVERT",
    "STABLEHLO_DYNAMIC_SLICE", "STABLEHLO_DYNAMIC_UPDATE_SLICE", "STABLEHLO_PAD", "STABLEHLO_IOTA",
    "STABLEHLO_DOT_GENERAL", "STABLEHLO_REDUCE_WINDOW", "STABLEHLO_SORT", "STABLEHLO_WHILE", "STABLEHLO_GATHER",
    "STABLEHLO_TRANSPOSE", "DILATE", "STABLEHLO_RNG_BIT_GENERATOR", "REDUCE_WINDOW", "STABLEHLO_COMPOSITE",
    "STABLEHLO_SHIFT_LEFT", "STABLEHLO_CBRT", "STABLEHLO_CASE",
)  # fmt: skip
"""Built-in operators by number."""

_NEWEST_OF_ONE_BYTE = 127
"""What the first field for an operator's number holds where the number stands in the second."""

ELEMENT_TYPES: tuple[DType | str, ...] = (
    dt.f32, dt.f16, dt.i32, dt.u8, dt.i64, "STRING", dt.bool_, dt.i16, "COMPLEX64", dt.i8, dt.f64, "COMPLEX128", dt.u64,
    "RESOURCE", "VARIANT", dt.u32, dt.u16, dt.i4, dt.bf16, dt.i2, dt.u4, "FLOAT8_E4M3FN", "FLOAT8_E5M2",
)  # fmt: skip
"""By number; the names of those that no tensor of ours has."""

OPTIONS: Mapping[str, tuple[int, str]] = MappingProxyType(
    {
        "ADD": (11, "activation:b@0"),
        "AVERAGE_POOL_2D": (
            5,
            "padding:b@0 stride_w:i@1 stride_h:i@2 filter_width:i@3 filter_height:i@4 activation:b@5",
        ),
        "CONCATENATION": (10, "axis:i@0 activation:b@1"),
        "CONV_2D": (
            1,
            "padding:b@0 stride_w:i@1 stride_h:i@2 activation:b@3 dilation_w:i@4=1 dilation_h:i@5=1",
        ),
        "DEPTHWISE_CONV_2D": (
            2,
            "padding:b@0 stride_w:i@1 stride_h:i@2 "
            "depth_multiplier:i@3 activation:b@4 dilation_w:i@5=1 dilation_h:i@6=1",
        ),
        "DEPTH_TO_SPACE": (94, "block_size:i@0"),
        "FULLY_CONNECTED": (8, "activation:b@0 weights_format:b@1 keep_num_dims:?@2"),
        "L2_NORMALIZATION": (12, "activation:b@0"),
        "L2_POOL_2D": (
            5,
            "padding:b@0 stride_w:i@1 stride_h:i@2 filter_width:i@3 filter_height:i@4 activation:b@5",
        ),
        "LOCAL_RESPONSE_NORMALIZATION": (13, "radius:i@0 bias:f@1 alpha:f@2 beta:f@3"),
        "LSTM": (14, "activation:b@0 cell_clip:f@1 proj_clip:f@2 kernel_type:b@3"),
        "MAX_POOL_2D": (
            5,
            "padding:b@0 stride_w:i@1 stride_h:i@2 filter_width:i@3 filter_height:i@4 activation:b@5",
        ),
        "MUL": (21, "activation:b@0"),
        "RESHAPE": (17, "new_shape:[i@0"),
        "RESIZE_BILINEAR": (15, "align_corners:?@2 half_pixel_centers:?@3"),
        "RNN": (7, "activation:b@0"),
        "SOFTMAX": (9, "beta:f@0"),
        "SPACE_TO_DEPTH": (19, "block_size:i@0"),
        "SVDF": (6, "rank:i@0 activation:b@1"),
        "CALL": (16, "subgraph:I@0"),
        "UNIDIRECTIONAL_SEQUENCE_RNN": (31, "time_major:?@0 activation:b@1"),
        "GATHER": (23, "axis:i@0 batch_dims:i@1"),
        "MEAN": (27, "keep_dims:?@0"),
        "SUB": (28, "activation:b@0"),
        "DIV": (29, "activation:b@0"),
        "SQUEEZE": (30, "squeeze_dims:[i@0"),
        "UNIDIRECTIONAL_SEQUENCE_LSTM": (
            71,
            "activation:b@0 cell_clip:f@1 proj_clip:f@2 time_major:?@3 diagonal_recurrent_tensors:?@5",
        ),
        "STRIDED_SLICE": (
            32,
            "begin_mask:i@0 end_mask:i@1 ellipsis_mask:i@2 new_axis_mask:i@3 shrink_axis_mask:i@4 offset:?@5",
        ),
        "SPLIT": (35, "num_splits:i@0"),
        "BIDIRECTIONAL_SEQUENCE_LSTM": (
            69,
            "activation:b@0 cell_clip:f@1 proj_clip:f@2 merge_outputs:?@3 time_major:?@4=1",
        ),
        "CAST": (37, "in_data_type:b@0 out_data_type:b@1"),
        "ARG_MAX": (40, "output_type:b@0"),
        "TRANSPOSE_CONV": (49, "padding:b@0 stride_w:i@1 stride_h:i@2 activation:b@3"),
        "SUM": (27, "keep_dims:?@0"),
        "SHAPE": (55, "out_type:b@0"),
        "ARG_MIN": (57, "output_type:b@0"),
        "FAKE_QUANT": (58, "min:f@0 max:f@1 num_bits:i@2 narrow_range:?@3"),
        "REDUCE_PROD": (27, "keep_dims:?@0"),
        "REDUCE_MAX": (27, "keep_dims:?@0"),
        "PACK": (59, "values_count:i@0 axis:i@1"),
        "ONE_HOT": (61, "axis:i@0"),
        "UNPACK": (64, "num:i@0 axis:i@1"),
        "REDUCE_MIN": (27, "keep_dims:?@0"),
        "REDUCE_ANY": (27, "keep_dims:?@0"),
        "RESIZE_NEAREST_NEIGHBOR": (74, "align_corners:?@0 half_pixel_centers:?@1"),
        "LEAKY_RELU": (75, "alpha:f@0"),
        "MIRROR_PAD": (77, "mode:b@0"),
        "SPLIT_V": (79, "num_splits:i@0"),
        "REVERSE_SEQUENCE": (87, "seq_dim:i@0 batch_dim:i@1"),
        "IF": (92, "then_subgraph_index:i@0 else_subgraph_index:i@1"),
        "WHILE": (93, "cond_subgraph_index:i@0 body_subgraph_index:i@1"),
        "BATCH_MATMUL": (101, "adj_x:?@0 adj_y:?@1"),
        "CUMSUM": (102, "exclusive:?@0 reverse:?@1"),
        "CALL_ONCE": (103, "init_subgraph_index:i@0"),
        "CONV_3D": (
            106,
            "padding:b@0 stride_d:i@1 stride_w:i@2 stride_h:i@3 "
            "activation:b@4 dilation_d:i@5=1 dilation_w:i@6=1 dilation_h:i@7=1",
        ),
        "REDUCE_ALL": (27, "keep_dims:?@0"),
        "CONV_3D_TRANSPOSE": (
            106,
            "padding:b@0 stride_d:i@1 stride_w:i@2 stride_h:i@3 "
            "activation:b@4 dilation_d:i@5=1 dilation_w:i@6=1 dilation_h:i@7=1",
        ),
        "RANDOM_STANDARD_NORMAL": (114, "seed:q@0 seed2:q@1"),
        "BUCKETIZE": (115, "boundaries:[f@0"),
        "RANDOM_UNIFORM": (114, "seed:q@0 seed2:q@1"),
        "MULTINOMIAL": (114, "seed:q@0 seed2:q@1"),
        "GELU": (116, "approximate:?@0"),
    }
)
"""For each operator that has any the number of the table of its options, and their fields as name:kind@number=default;
the kind is a letter of `struct`, after [ for a vector."""

_COMPOSITE = 21
"""The table of options of STABLEHLO_COMPOSITE, among the second options."""

_VARIABLE = 111
"""The table of options of VAR_HANDLE, whose second field is the variable's name."""

ACTIVATIONS = ("NONE", "RELU", "RELU_N1_TO_1", "RELU6", "TANH", "SIGN_BIT")
PADDINGS = ("SAME", "VALID")
MIRRORS = ("reflect", "symmetric")


def operator_name(code: Table) -> str:
    """The name of an operator code; of a custom operator its own, in brackets."""
    early, late = code.integer(0, "b"), code.integer(3)
    number = max(early, late)
    if early > _NEWEST_OF_ONE_BYTE or not 0 <= number < len(OPERATORS):
        return f"operator {number}"
    name = OPERATORS[number]
    return f"CUSTOM({code.text(1)})" if name == "CUSTOM" else name


def element_type(number: int, what: str) -> DType:
    """ModelError for a number that stands for nothing, UnsupportedError for what no tensor of ours has."""
    if not 0 <= number < len(ELEMENT_TYPES):
        raise ModelError(f"{what} has the element type {number}, which does not exist")
    found = ELEMENT_TYPES[number]
    if isinstance(found, str):
        raise UnsupportedError(f"tensors of {found} are not supported")
    return found


def options_of(operator: Table, name: str) -> dict[str, Any]:
    """The options of an operator, with defaults for those that it leaves out."""
    if name == "STABLEHLO_COMPOSITE":
        second = operator.table(12) if operator.integer(11, "B") == _COMPOSITE else None
        return {} if second is None else {"name": second.text(0), "subgraph": second.integer(1)}
    if name == "VAR_HANDLE":
        table = operator.table(4) if operator.integer(3, "B") == _VARIABLE else None
        return {"name": "" if table is None else table.text(1)}
    if name not in OPTIONS:
        return {}
    number, fields = OPTIONS[name]
    given = operator.integer(3, "B")
    if given not in (0, number):
        raise ModelError(f"{name} has the options of another operator")
    table = operator.table(4) if given else None
    return dict(_option(table, field) for field in fields.split())


def _option(table: Table | None, field: str) -> tuple[str, Any]:
    name, _, place = field.partition(":")
    kind, _, place = place.partition("@")
    number, _, default = place.partition("=")
    if kind.startswith("["):
        return name, None if table is None or not table.has(int(number)) else table.ints(
            int(number), kind[1:]
        )
    least = float(default or 0) if kind == "f" else int(default or 0)
    return name, least if table is None else table.number(int(number), kind, least)
