"""Decoders that exporters wrote answer as others do: their caches become states, and what follows from the length of
the text is computed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

import tilewright
from tests.llm.vocabularies import written_folder
from tilewright import llm
from tilewright.frontends.exported import ExportedDecoder
from tilewright.frontends.exported.one_sequence import decided
from tilewright.ir import sym as s
from tilewright.llm.decoder import CompiledDecoder
from tilewright.llm.loading import load_decoder
from tilewright.runtime.errors import InputError, OptionError

ROWS, WIDTH, HEADS, GROUPS, SIZE, LAYERS, POSITIONS = 703, 16, 4, 2, 16, 2, 64
TOKENS = [5, 9, 300, 41, 7, 88, 2, 610, 33, 5]
CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}


def grouped(size: str = "size", keeps: int = 1) -> onnx.ModelProto:
    """As ONNX Runtime's builder writes it: lengths are counted in the mask, and GroupQueryAttention has the caches."""
    caches = [f"past_key_values.{k}.{name}" for k in range(LAYERS) for name in ("key", "value")]
    presents = [name.replace("past_key_values", "present") for name in caches]
    past = ", ".join(f'float[batch, {GROUPS}, past, {size}] "{name}"' for name in caches)
    now = ", ".join(f'float[batch, {GROUPS}, total, {size}] "{name}"' for name in presents)
    flat = "" if keeps else "counted = Unsqueeze (one, axis)\n"
    body = []
    for k in range(LAYERS):
        key, value = caches[2 * k : 2 * k + 2]
        body.append(f"""
        qkv{k} = MatMul (x{k}, w{k})
        y{k}, "{presents[2 * k]}", "{presents[2 * k + 1]}" = com.microsoft.GroupQueryAttention
            <num_heads = {HEADS}, kv_num_heads = {GROUPS}, do_rotary = 1>
            (qkv{k}, "", "", "{key}", "{value}", last, whole, cosines, sines)
        z{k} = MatMul (y{k}, o{k})
        x{k + 1} = Add (x{k}, z{k})""")
    graph = f"""decoder (int64[batch, s] input_ids, int64[batch, total] attention_mask, {past})
        => (float[batch, s, {ROWS}] logits, {now}) {{
        axis = Constant <value_ints = [1]> ()
        one = ReduceSum <keepdims = {keeps}> (attention_mask, axis)
        minus = Constant <value_ints = [-1]> ()
        {flat}less = Add ({'one' if keeps else 'counted'}, minus)
        last32 = Cast <to = 6> (less)
        flat = Constant <value_ints = [-1]> ()
        last = Reshape (last32, flat)
        shape = Shape (attention_mask)
        place = Constant <value_int = 1> ()
        number = Gather (shape, place)
        whole = Cast <to = 6> (number)
        x0 = Gather (table, input_ids)
        {''.join(body)}
        back = Transpose <perm = [1, 0]> (table)
        logits = MatMul (x{LAYERS}, back)
    }}"""
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]>\n{graph}')
    rng = np.random.default_rng(0)
    angles = np.arange(POSITIONS)[:, None] * 100.0 ** (-np.arange(SIZE // 2) / (SIZE // 2))
    weights = {"table": rng.standard_normal((ROWS, WIDTH)), "cosines": np.cos(angles), "sines": np.sin(angles)}
    for k in range(LAYERS):
        weights[f"w{k}"] = rng.standard_normal((WIDTH, (HEADS + 2 * GROUPS) * SIZE)) / 4
        weights[f"o{k}"] = rng.standard_normal((HEADS * SIZE, WIDTH)) / 4
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()
    )
    return model


def plain(mask: str = "int64", batch: str = "batch") -> onnx.ModelProto:
    """As exporters of PyTorch write it: caches are joined, a mask is added, positions are an input."""
    code = {"int64": 7, "bool": 9, "float": 1}[mask]
    graph = f"""decoder (int64[{batch}, s] input_ids, {mask}[mask_batch, total] attention_mask,
            int64[{batch}, s] position_ids, float[{batch}, 1, past, {WIDTH}] "past.key",
            float[{batch}, 1, past, {WIDTH}] "past.value", bool[1] use_cache_branch)
        => (float[{batch}, s, {ROWS}] logits, float[{batch}, 1, total, {WIDTH}] "present.key",
            float[{batch}, 1, total, {WIDTH}] "present.value") {{
        one = Constant <value_ints = [1]> ()
        two = Constant <value_ints = [2]> ()
        words = Gather (table, input_ids)
        places = Gather (positions, position_ids)
        x = Add (words, places)
        heads = Unsqueeze (x, one)
        keys = MatMul (heads, wk)
        values = MatMul (heads, wv)
        "present.key" = Concat <axis = 2> ("past.key", keys)
        "present.value" = Concat <axis = 2> ("past.value", values)
        across = Transpose <perm = [0, 1, 3, 2]> ("present.key")
        scores = MatMul (heads, across)
        seen = Cast <to = 1> (attention_mask)
        count = CumSum (seen, place)
        hidden = Unsqueeze (count, one)
        last = Cast <to = 1> (position_ids)
        column = Unsqueeze (last, two)
        allowed = LessOrEqual (hidden, column)
        first = Equal (hidden, column)
        after = Constant <value_float = 1.0> ()
        ends = Add (column, after)
        visible = LessOrEqual (hidden, ends)
        wide = Unsqueeze (visible, one)
        nothing = Constant <value_float = -10000.0> ()
        masked = Where (wide, scores, nothing)
        weights = Softmax <axis = -1> (masked)
        mixed = MatMul (weights, "present.value")
        y = Squeeze (mixed, one)
        sum = Add (x, y)
        back = Transpose <perm = [1, 0]> (table)
        logits = MatMul (sum, back)
    }}"""
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]>\n{graph}')
    assert model.graph.input[1].type.tensor_type.elem_type == code
    rng = np.random.default_rng(1)
    weights: dict[str, np.ndarray] = {
        "table": rng.standard_normal((ROWS, WIDTH)), "positions": rng.standard_normal((POSITIONS, WIDTH)),
        "wk": rng.standard_normal((WIDTH, WIDTH)) / 4, "wv": rng.standard_normal((WIDTH, WIDTH)) / 4,
    }  # fmt: skip
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(1), "place"))
    return model


def reference(model: onnx.ModelProto, pieces: list[list[int]]) -> list[np.ndarray]:
    """The last logits of each piece by ONNX Runtime, caches handed on."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    held = {
        info.name: np.zeros((1, info.shape[1], 0, WIDTH if info.shape[1] == 1 else SIZE), np.float32)
        for info in session.get_inputs()
        if info.name.startswith("past")
    }
    found, length = [], 0
    for part in pieces:
        length += len(part)
        given: dict[str, np.ndarray] = {"input_ids": np.array([part]), **held}
        for info in session.get_inputs():
            if info.name == "attention_mask":
                dtype = {"tensor(int64)": np.int64, "tensor(bool)": np.bool_, "tensor(float)": np.float32}[info.type]
                given[info.name] = np.ones((1, length), dtype)
            elif info.name == "position_ids":
                given[info.name] = np.arange(length - len(part), length)[None]
            elif info.name == "use_cache_branch":
                given[info.name] = np.ones(1, np.bool_)
        logits, *presents = session.run(None, given)
        held = dict(zip(held, presents, strict=True))
        found.append(logits[0, -1])
    return found


def saved(path: Path, model: onnx.ModelProto) -> Path:
    onnx.save(model, path)
    return path


MODELS = {
    "grouped": grouped, "grouped, of a known size": lambda: grouped(str(SIZE)),
    "grouped, counted without the axis": lambda: grouped(keeps=0), "plain": plain,
    "plain, a mask of bools": lambda: plain("bool"), "plain, of one": lambda: plain("float", "1"),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_they_are_decoders_of_tokens_alone(tmp_path: Path, name: str) -> None:
    model = MODELS[name]()
    path = saved(tmp_path / "m.onnx", model)
    found = load_decoder(path, threads=1, cache=False, context=12)
    assert [info.name for info in found.model.inputs] == ["input_ids"]
    assert {state.counter for state in found.model.states if state.info.name != "past"} == {"past"}
    for pieces in ((4, 1, 1, 3, 1), (10,), (1,) * 10):
        parts = [part.tolist() for part in np.split(np.array(TOKENS), np.cumsum(pieces)[:-1])]
        for part, wanted in zip(parts, reference(model, parts), strict=True):
            np.testing.assert_allclose(found.feed(part), wanted, **CLOSE)
        assert (found.length, found.context, found.vocabulary) == (10, 12, ROWS)
        with pytest.raises(InputError, match="more than the context of 12 positions"):
            found.feed([1, 2, 3])
        found.rewind(2)
        np.testing.assert_allclose(found.feed(TOKENS[2:]), reference(model, [TOKENS])[0], **CLOSE)
        found.rewind(0)


def test_text_comes_from_them(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.onnx", grouped())
    written_folder(tmp_path, "bytes")
    model = llm.load(path, threads=1, cache=False, context=40)
    past = model.tokens("the state")
    for token in model.answer("the state", max_tokens=6, ends=False).tokens:
        assert token == int(reference(grouped(), [past])[0][: model.tokenizer.size].argmax())
        past.append(token)
    assert len(model.beams("the", 3, max_tokens=4)) == 3
    assert model.generate(["the", "a"], max_tokens=3)[0] == model.generate("the", max_tokens=3)


@pytest.mark.parametrize(
    ("name", "fields", "context"),
    [
        ("config.json", {"max_position_embeddings": 21}, 21),
        ("config.json", {"n_positions": 22, "max_position_embeddings": None}, 22),
        ("genai_config.json", {"model": {"context_length": 23}}, 23),
        ("config.json", {"max_position_embeddings": "no"}, 4096),
    ],
)
def test_the_context_is_that_of_files_beside_it(tmp_path: Path, name: str, fields: Any, context: int) -> None:
    path = saved(tmp_path / "m.onnx", plain())
    (tmp_path / name).write_text(json.dumps(fields))
    assert load_decoder(path, threads=1, cache=False).context == context


def test_sizes_follow_from_equations_and_not_from_remainders() -> None:
    n, m = s.var("n"), s.var("m")
    for condition, wanted in (
        (s.eq(n, 5), [(n, 5)]), (s.eq(7, n + 1), [(n, 6)]), (s.eq(n % 2, 0), []), (s.eq(n * n, 4), []),
        (s.eq(n * n + n, 6), []), (s.eq(n, m), []), (s.le(n, 0), []),
    ):  # fmt: skip
        assert list(decided([condition])) == wanted, condition


def test_what_is_no_decoder_is_refused_with_what_is_missing(tmp_path: Path) -> None:
    for source, wanted in (
        ("m (float[n, 4] x) => (float[n, 4] y) { y = Relu (x) }", r"tokens are an input input_ids or .* x f32\[n, 4\]"),
        ("m (int64[n, s] input_ids) => (int64[n, s] y) { y = Neg (input_ids) }", "caches are inputs of floats"),
    ):
        other = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]>\n{source}')
        with pytest.raises(OptionError, match=wanted):
            load_decoder(saved(tmp_path / "m.onnx", other), threads=1, cache=False)
    no_caches = parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 17]>\nm (int64[1, s] input_ids) => (float[1, s, 4] y) '
        "<float[9, 4] table> { y = Gather (table, input_ids) }"
    )
    no_caches.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((9, 4), np.float32), "table"))
    path = saved(tmp_path / "m.onnx", no_caches)
    with pytest.raises(OptionError, match="caches are inputs of floats with a symbolic length"):
        load_decoder(path, threads=1, cache=False)
    with pytest.raises(OptionError, match="weights= needs a GGUF file or a folder"):
        load_decoder(path, weights="int8")


def test_the_source_is_one_for_all_tools(tmp_path: Path) -> None:
    source = ExportedDecoder(saved(tmp_path / "m.onnx", grouped()))
    model = tilewright.compile(source, states=True, capacity=16, cache=False, threads=1)
    assert isinstance(CompiledDecoder(model).feed([1, 2]), np.ndarray)
    loose = tilewright.compile(source, cache=False, threads=1)
    assert [info.shape[0] for info in loose.inputs] == [1] * len(loose.inputs)
