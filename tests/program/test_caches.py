"""Caches that travel through inputs and outputs become states that grow, and the model gives what it gave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import parser

import tilewright
from tilewright.runtime import Artifact
from tilewright.runtime.errors import ArtifactError, InputError, OptionError
from tilewright.session import Session

RNG = np.random.default_rng(17)
GROUPS, SIZE, WIDTH, CAPACITY = 2, 4, 8, 10


def decoder(past: str = "p", other: str = "p", keys: str = "past_key_values.0.key") -> bytes:
    """Attention over what was before and what is new, with a mask over all of it; the second cache is continued by
    what the first layer gives."""
    inputs = ", ".join(f"float[1, {GROUPS}, {d}, {SIZE}] v{k}" for k, d in enumerate((past, past, other, other)))
    layers = "".join(
        f"""
        now_k{n} = Concat <axis = -2> (v{2 * n}, heads{n})
        now_v{n} = Concat <axis = 2> (v{2 * n + 1}, heads{n})
        turned{n} = Transpose <perm = [0, 1, 3, 2]> (now_k{n})
        scores{n} = MatMul (heads{n}, turned{n})
        masked{n} = Add (scores{n}, mask)
        weights{n} = Softmax <axis = -1> (masked{n})
        heads{n + 1} = MatMul (weights{n}, now_v{n})"""
        for n in (0, 1)
    )
    graph = f"""step (float[1, {GROUPS}, s, {SIZE}] heads0, {inputs}, float[1, 1, s, t] mask)
        => (float[a, b, c, d] heads2, float[1, {GROUPS}, e, {SIZE}] now_k0, float[1, {GROUPS}, f, {SIZE}] now_v0,
            float[1, {GROUPS}, g, {SIZE}] now_k1, float[1, {GROUPS}, h, {SIZE}] now_v1) {{{layers}
    }}"""
    return parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]>\n{graph}').SerializeToString()


def compiled(model: bytes, **options: Any) -> tilewright.Model:
    return tilewright.compile(model, cache=False, threads=1, verify=True, **options)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def causal(n: int, filled: int) -> np.ndarray:
    return np.where(np.arange(filled + n) > np.arange(n)[:, None] + filled, -np.inf, 0)[None, None].astype(np.float32)


@pytest.fixture(scope="module")
def plain() -> tilewright.Model:
    """The model without states."""
    return compiled(decoder())


@pytest.mark.parametrize("states", [True, {f"v{k}": f"now_{'kv'[k % 2]}{k // 2}" for k in range(4)}])
def test_they_grow_as_callers_would_have_it(plain: tilewright.Model, states: Any) -> None:
    model = compiled(decoder(), states=states, capacity=CAPACITY)
    assert [info.name for info in model.inputs] == ["heads0", "mask"]
    assert {(state.info.name, state.way, state.counter) for state in model.states} == {
        ("past", model.states[0].way, ""), *((f"v{k}", "in place", "past") for k in range(4)),
    }  # fmt: skip
    assert model.artifact.program is None
    kept = [r.subject for r in model.report().remarks if "continues is a state" in r.message]
    assert kept == [f"v{k}" for k in range(4)]
    held = [np.zeros((1, GROUPS, 0, SIZE), np.float32)] * 4
    filled = 0
    for n in (3, 1, 1, 4, 1):
        x, mask = floats(1, GROUPS, n, SIZE), causal(n, filled)
        wanted, *held = plain(x, *held, mask)
        (found,) = model(x, mask)
        filled += n
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
        for k, array in enumerate(held):
            np.testing.assert_array_equal(model.state(f"v{k}")[:, :, :filled], array)
    assert model.state("past") == filled == CAPACITY
    with pytest.raises(InputError, match=r"cannot put elements|of 10 elements"):
        model(floats(1, GROUPS, 1, SIZE), causal(1, filled))
    model.reset()
    x = floats(1, GROUPS, 2, SIZE)
    none = [np.zeros((1, GROUPS, 0, SIZE), np.float32)] * 4
    np.testing.assert_allclose(model(x, causal(2, 0))[0], plain(x, *none, causal(2, 0))[0], rtol=1e-5, atol=1e-6)


def test_some_of_them_may_stay_inputs() -> None:
    model = compiled(decoder(other="q"), states={"v0": "now_k0", "v1": "now_v0"}, capacity=CAPACITY)
    assert [info.name for info in model.inputs] == ["heads0", "v2", "v3", "mask"]
    assert [info.name for info in model.outputs] == ["heads2", "now_k1", "now_v1"]


def apart(rows: str) -> bytes:
    """Two caches with lengths of their own, of which the second gets so many rows."""
    graph = f"""step (float[1, s, 4] x, float[1, {rows}, 4] y, float[1, p, 4] c, float[1, q, 4] d)
        => (float[1, t, 4] all, float[1, u, 4] others) {{
        v = Relu (x)
        w = Relu (y)
        all = Concat <axis = 1> (c, v)
        others = Concat <axis = 1> (d, w)
    }}"""
    return bytes(parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]>\n{graph}').SerializeToString())


def test_caches_that_get_as_much_are_of_one_length() -> None:
    model = compiled(apart("s"), states=True, capacity=CAPACITY)
    x, y = floats(1, 3, 4), floats(1, 3, 4)
    model(x[:, :2], y[:, :2])
    model(x[:, 2:], y[:, 2:])
    assert [state.counter for state in model.states] == ["", "past", "past"] and model.state("past") == 3
    np.testing.assert_array_equal(model.state("d")[:, :3], np.maximum(y, 0))


@pytest.mark.parametrize(
    ("model", "options", "said"),
    [
        (decoder(), {"states": True, "capacity": 0}, "capacity=0 is not allowed"),
        (decoder(), {"capacity": 9}, "capacity= is that of states"),
        (decoder("3", "3"), {"states": True, "capacity": 9}, "the model has none among its states"),
        (apart("r"), {"states": True, "capacity": 9}, "do not grow together"),
        (decoder(), {"states": {"v0": "now_k0"}, "capacity": 9}, "'p', the length of 'v0', is a dim of another input"),
    ],
)
def test_what_does_not_fit(model: bytes, options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        compiled(model, **options)


def joined(inputs: str) -> bytes:
    graph = f"""step (float[1, s, 4] x, float[1, p, 4] c) => (float[1, t, 4] all) {{
        v = Relu (x)
        all = Concat <axis = 1> ({inputs})
    }}"""
    return bytes(parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]>\n{graph}').SerializeToString())


def test_what_may_be_either_is_asked_for() -> None:
    with pytest.raises(OptionError, match="joins the inputs 'x' and 'c', of which either may be the cache") as error:
        compiled(joined("x, c"), states=True, capacity=CAPACITY)
    assert "states={'x': 'all'}" in str(error.value)
    model = compiled(joined("x, c"), states={"x": "all"}, capacity=CAPACITY)
    assert [info.name for info in model.inputs] == ["c"]
    assert [info.name for info in compiled(joined("c, v"), states=True, capacity=CAPACITY).inputs] == ["x"]


def test_frequent_sizes_of_caches() -> None:
    with pytest.raises(OptionError, match="frequent= names 'p', the length of the cache 'c'") as error:
        compiled(joined("c, v"), states=True, capacity=CAPACITY, frequent=[{"p": 4}])
    assert "leave 'p' out" in str(error.value)
    model = compiled(joined("c, v"), states=True, capacity=CAPACITY, frequent=[{"s": 1}])
    model(floats(1, 1, 4))
    model(floats(1, 3, 4))
    assert model.state("past") == 4


@pytest.mark.parametrize("capacity", [1 << 44, 1 << 70])
def test_capacities_beyond_any_memory(capacity: int) -> None:
    with pytest.raises(OptionError, match=f"capacity={capacity} is too large: the cache 'c'") as error:
        compiled(joined("c, v"), states=True, capacity=capacity)
    assert f"{(1 << 43) - 1} positions at most" in str(error.value)


@pytest.mark.parametrize("output", ["all", "same"])
def test_an_output_of_two_names(output: str) -> None:
    """Either may be what the cache becomes; the other one stays an output."""
    graph = """step (float[2, s] x, float[2, p] held) => (float[2, t] all, float[2, u] same) {
        all = Concat <axis = 1> (held, x)
        same = Identity (all)
    }"""
    source = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]>\n{graph}').SerializeToString()
    model = compiled(source, states={"held": output}, capacity=CAPACITY)
    assert [info.name for info in model.outputs] == [name for name in ("all", "same") if name != output]
    first, second = floats(2, 3), floats(2, 2)
    np.testing.assert_array_equal(model(first)[0], first)
    np.testing.assert_array_equal(model(second)[0], np.concatenate([first, second], 1))


@pytest.mark.parametrize("lacks", ["nothing", "memory", "room"])
def test_weights_of_cached_decoders_are_read_and_those_of_others_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    """They are read for each token; where there is no memory for a copy, or little, from the file."""
    asked: list[bool] = []
    load = Artifact.load

    def loading(*given: Any, **how: Any) -> Artifact:
        asked.append(how.get("mmap", False))
        if lacks == "memory" and not asked[-1]:
            raise ArtifactError("no memory")
        return load(*given, **how)

    monkeypatch.setattr(Artifact, "load", staticmethod(loading))
    plain, grown = ({}, {"states": True, "capacity": CAPACITY})
    if lacks == "room":
        monkeypatch.setattr("tilewright.session.available_memory", lambda: -1)
    for options, wanted in ((plain, [True]), (grown, [True] if lacks == "room" else [True, False])):
        models = [tilewright.compile(decoder(), threads=1, session=Session(tmp_path), **options) for _ in range(2)]
        assert asked == wanted
        asked.clear()
        given = {i.name: floats(1, GROUPS, 3, SIZE) for i in models[0].inputs if i.name != "mask"}
        given["mask"] = causal(3, 0 if options else 3)
        for found, again in zip(*(m.run(given) for m in models), strict=True):
            np.testing.assert_array_equal(found, again)
