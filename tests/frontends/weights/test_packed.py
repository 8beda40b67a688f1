"""Checkpoints of GPTQ and AWQ: packed here word by word, as those tools do, and compared with the plain formula."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.frontends.weights.test_expression import evaluated
from tilewright.frontends.weights.kinds import KINDS
from tilewright.frontends.weights.packed import QuantizationConfig, unpacked
from tilewright.frontends.weights.stored import StoredTensor
from tilewright.ir import dtype as dt
from tilewright.ir.diag import ModelError, UnsupportedError

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The output whose code is in each nibble of a word."""


def stored(name: str, array: np.ndarray) -> StoredTensor:
    kind = KINDS[dt.from_numpy(array.dtype).name.upper()]
    return StoredTensor(name, array.shape, kind, np.frombuffer(array.tobytes(), np.uint8))


def words(codes: np.ndarray, bits: int) -> np.ndarray:
    """i32[n, m * bits / 32] of codes [n, m]: a stream of bits for each row."""
    found = []
    for row in codes.tolist():
        stream = sum(code << bits * k for k, code in enumerate(row))
        found.append([stream >> 32 * k & 0xFFFFFFFF for k in range(-(-len(row) * bits // 32))])
    return np.array(found, np.uint32).view(np.int32).reshape(len(codes), -1)


def awq_words(codes: np.ndarray) -> np.ndarray:
    apart = codes.reshape(len(codes), -1, 8)[:, :, AWQ_ORDER]
    return words(apart.reshape(codes.shape), 4)


class Layer:
    """Codes, zeros and scales of a layer as the formula has them, packed."""

    def __init__(self, seed: int, method: str = "gptq", bits: int = 4, inputs: int = 256, outputs: int = 32,
                 group: int = 64, symmetric: bool = False, shuffled: bool = False, first: bool = True,
                 scale: Any = np.float16) -> None:  # fmt: skip
        rng = np.random.default_rng(seed)
        groups = -(-inputs // group) if group > 0 else 1
        self.config = {"quant_method": method, "bits": bits, "group_size": group, "checkpoint_format": "gptq_v2"}
        if first:
            del self.config["checkpoint_format"]
        self.codes = rng.integers(0, 1 << bits, (inputs, outputs))
        self.zeros = rng.integers(0, 1 << bits, (groups, outputs))
        if symmetric:
            self.zeros[:] = 1 << bits - 1
        self.scales = rng.uniform(0.001, 0.01, (groups, outputs)).astype(scale)
        self.groups = np.arange(inputs) // (group if group > 0 else inputs)
        if shuffled:
            rng.shuffle(self.groups)
        pack = awq_words if method == "awq" else lambda codes: words(codes, bits)
        mask = (1 << bits) - 1
        shown = self.zeros - 1 & mask if first and method == "gptq" else self.zeros
        tensors = {
            "a.qweight": pack(self.codes) if method == "awq" else pack(self.codes.T).T.copy(),
            "a.qzeros": pack(shown),
            "a.scales": self.scales,
            "a.g_idx": self.groups.astype(np.int32),
            "a.bias": np.ones(outputs, np.float32),
        }
        if method == "awq":
            del tensors["a.g_idx"]
        self.tensors = {name: stored(name, array) for name, array in tensors.items()}

    def expected(self) -> np.ndarray:
        centred = (self.codes - self.zeros[self.groups]).astype(np.float32)
        return (centred * self.scales.astype(np.float32)[self.groups]).T

    def weight(self) -> StoredTensor:
        found = unpacked(self.tensors, QuantizationConfig.of(self.config))
        assert found.keys() == {"a.weight", "a.bias"}
        return found["a.weight"]


CASES: dict[str, tuple[dict[str, Any], str]] = {
    "gptq": ({}, "INT4_G64_ZERO"),
    "gptq_v2": ({"first": False}, "INT4_G64_ZERO"),
    "symmetric": ({"symmetric": True}, "INT4_G64"),
    "symmetric of 32": ({"symmetric": True, "group": 32}, "Q4_0"),
    "whole columns": ({"group": -1}, "INT4_G256_ZERO"),
    "in another order": ({"shuffled": True}, "INT4_G64_ZERO"),
    "in another order, symmetric": ({"shuffled": True, "symmetric": True}, "INT4_G64"),
    "a shorter last group": ({"inputs": 224, "shuffled": True}, "INT4_G64_ZERO"),
    "2 bits": ({"bits": 2}, "INT2_G64_ZERO"),
    "3 bits": ({"bits": 3}, "INT3_G64_ZERO"),
    "3 bits, symmetric": ({"bits": 3, "symmetric": True}, "INT3_G64"),
    "8 bits": ({"bits": 8}, "INT8_G64_ZERO"),
    "8 bits, symmetric": ({"bits": 8, "symmetric": True}, "INT8_G64"),
    "scales in bf16": ({"scale": ml_dtypes.bfloat16}, "INT4_G64_ZERO_BF16"),
    "scales in f32": ({"scale": np.float32}, "INT4_G64_ZERO_F32"),
    "awq": ({"method": "awq"}, "INT4_G64_ZERO"),
    "awq of 128": ({"method": "awq", "group": 128, "outputs": 8}, "INT4_G128_ZERO"),
}


@pytest.mark.fresh_seeds(1)
@pytest.mark.parametrize("case", CASES)
def test_weights_are_what_the_formula_says(case: str, fresh_seed: int) -> None:
    arguments, kind = CASES[case]
    layer = Layer(fresh_seed, **arguments)
    weight = layer.weight()
    assert (weight.name, weight.shape, weight.kind.name) == ("a.weight", layer.codes.T.shape, kind)
    np.testing.assert_array_equal(weight.decoded(), layer.expected())
    np.testing.assert_array_equal(evaluated(weight), layer.expected())


def without(layer: Layer, name: str) -> None:
    del layer.tensors[name]


def replaced(layer: Layer, name: str, array: np.ndarray) -> None:
    layer.tensors[name] = stored(name, array)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: without(a, "a.scales"), r"the tensor is missing.*\n.*'a.scales'"),
        (lambda a: without(a, "a.qzeros"), r"the tensor is missing.*\n.*'a.qzeros'"),
        (lambda a: replaced(a, "a.scales", np.ones(3, np.float16)), r"F16\[3\] in place of f16 or bf16 or f32"),
        (lambda a: replaced(a, "a.qweight", np.ones((32, 32), np.int64)), r"I64\[32, 32\] in place of i32 of rank 2"),
        (lambda a: replaced(a, "a.qweight", np.ones((32, 31), np.int32)), "31 outputs, while the scales have 32"),
        (lambda a: replaced(a, "a.qweight", np.ones((31, 32), np.int32)), "does not divide 248 inputs into groups"),
        (lambda a: replaced(a, "a.qweight", np.ones((48, 32), np.int32)), "4 groups of 64 inputs for 384 inputs"),
        (lambda a: replaced(a, "a.qzeros", np.ones((4, 3), np.int32)), r"zeros of \[4, 24\], while the scales have"),
        (lambda a: replaced(a, "a.g_idx", np.zeros(256, np.int32)), "does not divide 256 inputs into groups of 64"),
        (lambda a: replaced(a, "a.g_idx", np.zeros(255, np.int32)), "does not divide 256 inputs into groups of 64"),
    ],
)
def test_tensors_that_do_not_fit(change: Any, message: str) -> None:
    layer = Layer(1)
    change(layer)
    with pytest.raises(ModelError, match=message) as error:
        layer.weight()
    assert "quantization_config" in str(error.value)


def test_groups_whose_codes_are_no_whole_bytes() -> None:
    with pytest.raises(ModelError, match="groups of 63 inputs, whose codes are no whole bytes"):
        Layer(1, group=63, inputs=252 + 4).weight()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "bitsandbytes"}, "the method 'bitsandbytes' in None bits are not supported"),
        ({}, "the method None in None bits"),
        ({"quant_method": "gptq", "bits": 5, "group_size": 64}, "the method 'gptq' in 5 bits"),
        ({"quant_method": "awq", "bits": 8, "group_size": 64}, "the method 'awq' in 8 bits"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, r"the method 'awq' in 4 bits \(gemv\) are not"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 0}, "group_size is 0, which is no number of inputs"),
        ({"quant_method": "gptq", "bits": 4, "group_size": "64"}, "group_size is '64', which is no"),
        ({"quant_method": "gptq", "bits": 4}, "group_size is None, which is no"),
        ({"quant_method": ["gptq"], "bits": 4}, "the method .'gptq'. in 4 bits"),
    ],
)
def test_other_methods(config: dict[str, Any], message: str) -> None:
    with pytest.raises((UnsupportedError, ModelError), match=message):
        QuantizationConfig.of(config)
