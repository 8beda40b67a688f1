"""Decoders compute what transformers computed with them in float64, in one call or token by token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
from tests.frontends.decoders.checkpoints import IDS, SHOWN, VOCABULARY, cases, write_folder
from tilewright.compilation import Compilation, Setting
from tilewright.frontends.decoders.architectures.registry import ARCHITECTURES
from tilewright.frontends.decoders.load import load_decoder
from tilewright.frontends.decoders.source import DecoderSource
from tilewright.ir.core import Module
from tilewright.loops.kernel_info import kernel_info
from tilewright.ops.define.interp import evaluate_func
from tilewright.options import Options
from tilewright.target.named import parse_target

CASES = cases()
PIECES = (4, 1, 1, 5)


def stepped(module: Module, pieces: tuple[int, ...]) -> np.ndarray:
    """The logits of all positions by the graph itself, what it keeps handed on."""
    names = module.main.attrs["inputs"]
    kept = [np.zeros([d.value for d in arg.tensor.shape], arg.tensor.dtype.storage) for arg in module.main.args[1:]]
    assert names[0] == "ids"
    found = []
    for ids in np.split(np.array([IDS]), np.cumsum(pieces)[:-1], axis=1):
        logits, *kept = evaluate_func(module.main, module, [ids, *kept])
        found.append(logits)
    return np.concatenate(found, axis=1)[0]


def check(found: np.ndarray, case: Any) -> None:
    wanted = np.array(case["logits"])
    assert found.shape == (len(IDS), VOCABULARY)
    assert np.abs(found[:, ::SHOWN] - wanted).max() < 1e-5 * np.abs(wanted).max()


@pytest.mark.parametrize("name", CASES)
def test_graphs_compute_what_transformers_computes(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    write_folder(tmp_path, case["config"], case["tensors"])
    module = load_decoder(DecoderSource(tmp_path, logits="all", capacity=16))
    check(stepped(module, PIECES), case)
    check(stepped(module, (len(IDS),)), case)


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name]["config"].get("use_sliding_window")])
def test_older_configs_name_no_kinds_of_layers(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    config = {field: value for field, value in case["config"].items() if field != "layer_types"}
    write_folder(tmp_path, config, case["tensors"])
    check(stepped(load_decoder(DecoderSource(tmp_path, logits="all", capacity=16)), (len(IDS),)), case)


UNSAID = {"mixtral": 1e6, "smollm3": 2e6, "gemma3": 1e6, "qwen2": 1e4}


@pytest.mark.parametrize("name", UNSAID)
def test_a_base_that_no_config_says_is_that_of_the_architecture(tmp_path: Path, name: str) -> None:
    """And not 10000 for all: logits with the base are those without it."""
    case, found = CASES[name], []
    rest = {field: value for field, value in case["config"].items() if not field.startswith("rope_")}
    for said in ({}, {"rope_theta": UNSAID[name]}):
        path = write_folder(tmp_path, {**rest, **said}, case["tensors"])
        found.append(stepped(load_decoder(DecoderSource(path, logits="all", capacity=16)), (len(IDS),)))
    np.testing.assert_array_equal(*found)


def test_activations_of_gemma_are_those_that_were_meant(tmp_path: Path) -> None:
    """The first configs say gelu, and later ones both: the approximation is meant."""
    for name, said in (
        ("gemma", {"hidden_act": "gelu"}),
        ("gemma", {"hidden_act": "gelu", "hidden_activation": "gelu_pytorch_tanh"}),
        ("gemma2", {"hidden_act": "relu", "hidden_activation": "gelu_pytorch_tanh"}),
    ):
        case = CASES[name]
        write_folder(tmp_path, {**case["config"], **said}, case["tensors"])
        check(stepped(load_decoder(DecoderSource(tmp_path, logits="all", capacity=16)), (len(IDS),)), case)


def test_all_architectures_are_recorded() -> None:
    plain = {name for name, architecture in ARCHITECTURES.items() if architecture.encoder is None}
    assert {case["config"]["model_type"] for case in CASES.values()} == plain


def test_capped_scores_stay_in_the_attention_kernel(tmp_path: Path) -> None:
    """As those without a cap do: the kernels have the same versions."""
    steps = {}
    for name in ("gemma2", "gemma3"):
        write_folder(tmp_path / name, CASES[name]["config"], CASES[name]["tensors"])
        module = load_decoder(DecoderSource(tmp_path / name, capacity=64))
        compilation = Compilation(module, Setting.of(Options(threads=1), parse_target("zen4"))).run("scheduled")
        kernels = [f for f in compilation.module.funcs.values() if f.name.endswith("_attention")]
        assert kernels
        capped = [any(op.name == "tanh" for op in f.body.walk()) for f in kernels]
        assert all(capped) == any(capped) == (name == "gemma2")
        steps[name] = {len(kernel_info(f).schedule) for f in kernels}
    assert steps["gemma2"] == steps["gemma3"]


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.sweep(2)) for name in CASES])
def test_compiled_models_do(tmp_path: Path, name: str, by_night: bool) -> None:
    case = CASES[name]
    write_folder(tmp_path, case["config"], case["tensors"])
    source = DecoderSource(tmp_path, logits="all", capacity=16)
    model = tilewright.compile(source, cache=False, threads=1, verify=by_night)
    for pieces in (PIECES, (len(IDS),)):
        rows = [model(ids)[0] for ids in np.split(np.array([IDS]), np.cumsum(pieces)[:-1], axis=1)]
        check(np.concatenate(rows, axis=1)[0], case)
        assert model.state("past") == len(IDS)
        model.reset()
    assert [info.name for info in model.inputs] == ["ids"]
