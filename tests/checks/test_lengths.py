"""Costs as formulas of a length, against operations counted by hand."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from onnx import helper, numpy_helper, parser

from tests.frontends.decoders import encoded
from tests.frontends.decoders.checkpoints import write_folder
from tests.llm.small_decoder import Small
from tests.llm.test_compiled_decoder import exported
from tests.program.test_caches import decoder
from tilewright.checks.lengths import SequenceCosts, sequence_costs
from tilewright.checks.polynomials import Polynomial, polynomial
from tilewright.checks.recurrent_peer import recurrent_peer
from tilewright.ir.core import Module
from tilewright.ir.sym import maximum, minimum, var
from tilewright.runtime.errors import OptionError


def model(graph: str) -> bytes:
    return parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]>\n{graph}').SerializeToString()


def counted(source: object, **options: object) -> SequenceCosts:
    return sequence_costs(source, threads=1, **options)  # type: ignore[arg-type]


def of_small(small: Small, monkeypatch: pytest.MonkeyPatch) -> SequenceCosts:
    """A decoder as front ends for checkpoints give it."""

    def given(*_: object) -> Module:
        return small.module()

    monkeypatch.setattr("tilewright.compiler.import_request", given)
    return counted(b"")


def test_operations_of_an_exported_decoder() -> None:
    """For s tokens of 8 elements behind p: turned 2*8*s, added 8*s, scores and mixed 2*8 each for s*(p+s) pairs, a mask
    that multiplies 1, and 2*8*20 for the logits of each token."""
    found = counted(exported())
    for past, steps in ((0, 1), (0, 7), (5, 1), (6, 3)):
        assert found.flops.at(past, steps) == 33 * steps * (past + steps) + (16 + 8 + 320) * steps
    assert found.flops.token == Polynomial.of([344, 33]) and found.flops.whole == Polynomial.of([0, 344, 33])
    assert (found.cache, found.layers, found.context, found.has_cache) == (8 * 4, 1, None, True)
    assert found.serial(7).steps == 4  # turned, scores, mixed, logits
    assert found.serial(7).waiting == 0


def test_of_a_generation_everything_is_added_up() -> None:
    flops = counted(exported()).flops
    one, whole = (lambda n: 33 * n + 344), (lambda n: 33 * n * n + 344 * n)
    for count in (1, 2, 9):
        assert flops.cached is not None and flops.recomputed is not None
        assert flops.cached(count) == sum(one(n) for n in range(1, count + 1))
        assert flops.recomputed(count) == sum(whole(n) for n in range(1, count + 1))
    assert (flops.cached.degree, flops.recomputed.degree) == (2, 3)  # O(M N + N^2) and O(M N^2 + N^3)
    assert flops.recomputed.coefficients[3] == Fraction(33, 3)
    for prompt, new in ((1, 1), (5, 1), (5, 4)):  # the last token is drawn, and not fed
        steps = sum(map(one, range(prompt + 1, prompt + new)))
        assert flops.generation(prompt, new, cache=True) == whole(prompt) + steps
        assert flops.generation(prompt, new, cache=False) == sum(map(whole, range(prompt, prompt + new)))


def test_attention_alone_reads_its_cache_and_nothing_of_the_room_for_more() -> None:
    """Two layers of 2 heads of 4: for each pair 8 and 8 for products, 1 for the mask and 5 for softmax."""
    found, roomy = counted(decoder()), counted(decoder(), states=True, capacity=5000)
    assert found.flops.token == Polynomial.of([0, 2 * 2 * (8 + 1 + 5 + 8)])
    assert found.cache == 2 * 2 * 2 * 4 * 4 and found.layers == 2 and roomy.context == 5000
    assert [str(size) for size in found.dims.values()] == ["s + val_past_0"]
    for past in (1, 100):
        assert found.read.at(past, 1) == roomy.read.at(past, 1)
        assert found.written.at(past, 1) == roomy.written.at(past, 1)
    row, mask, heads = 2 * 4 * 4, 4, 2 * 4 * 4  # bytes: keys or values of a position, a mask, what a layer gives
    assert found.read.at(10, 1) - found.read.at(9, 1) == 4 * row + found.layers * mask
    assert found.written.at(9, 1) == found.written.at(10, 1) >= 4 * row + 2 * heads


def test_a_decoder_of_a_checkpoint_reads_its_weights_once(monkeypatch: pytest.MonkeyPatch) -> None:
    small = Small()
    found = of_small(small, monkeypatch)
    w = small.weights
    assert found.context == small.capacity and found.layers == small.layers
    assert found.cache == small.layers * 2 * small.groups * small.size * 4
    # all weights but the embedding, of which a token takes a row and the head all
    matrices = sum(x.size for x in w.values() if x.ndim == 2)
    products = 2 * matrices + 2 * small.layers * small.heads * 2 * small.size
    assert products <= found.flops.at(0, 1) < 1.1 * products
    pairs = small.layers * small.heads * (4 * small.size + 5)
    token, whole = found.flops.token, found.flops.whole
    assert token is not None and whole is not None
    assert pairs <= token.coefficients[1] <= pairs + 3 * small.layers * small.heads
    assert whole.coefficients[2] == token.coefficients[1]
    weights = 4 * sum(x.size for x in w.values())
    assert weights < found.read.at(0, 1) < 1.3 * weights
    assert found.written.at(23, 1) - found.written.at(1, 1) <= 22 * 4
    # projections, scores, mixed, back, gate or up, down for each layer; the head
    assert found.serial(5).steps == 6 * small.layers + 1


def test_a_window_bounds_what_a_token_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    found = of_small(Small(window=4, capacity=400), monkeypatch)
    token = found.flops.token
    assert token is not None and token.degree == 0 and 0 < token.since <= 5
    values = [found.flops.at(n - 1, 1) for n in range(1, 30)]
    assert values[0] < values[3] and len(set(values[token.since :])) == 1
    assert found.flops.cached is not None
    for count in (token.since, 17):
        assert found.flops.cached(count) == sum(values[:count])
    assert found.flops.generation(2, 20, cache=True) == found.flops.at(0, 2) + sum(values[2:21])


def test_recurrent_operators_wait_for_their_positions() -> None:
    """W x for all positions at once: 2*12*3 a token; R h for one after the other: 2*12*3, with gates and states."""
    graph = """net (float[n, 1, 3] x, float[1, 12, 3] w, float[1, 12, 3] r) => (float[n, 1, 1, 3] y) {
        y = LSTM <hidden_size = 3> (x, w, r)
    }"""
    found = counted(model(graph))
    assert not found.has_cache and found.cache == 0
    work = found.serial(10)
    assert work.steps == 1 + 10
    assert 10 * 72 <= work.waiting < 10 * 72 + 10 * 3 * 40 and work.flops - work.waiting >= 10 * 72
    assert 0.4 < work.share < 0.8
    with_length = found.flops.whole
    assert with_length is not None and with_length.degree == 1


def test_a_state_of_one_size_costs_the_same_at_any_length() -> None:
    graph = """step (float[n, 1, 3] x, float[1, 1, 3] h) => (float[n, 1, 1, 3] y, float[1, 1, 3] next) <
            float[1, 9, 3] w = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 5, 6},
            float[1, 9, 3] r = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 5, 6}> {
        y, next = GRU <hidden_size = 3> (x, w, r, , , h)
    }"""
    found = counted(model(graph), states={"h": "next"})
    assert (found.has_cache, found.cache, found.state) == (True, 0, 3 * 4)
    token, whole = found.flops.token, found.flops.whole
    assert token is not None and whole is not None and (token.degree, whole.degree) == (0, 1)
    assert found.flops.generation(5, 4, cache=True) == found.flops.at(0, 5) + 3 * found.flops.at(0, 1)


@pytest.mark.parametrize(("flops", "layers"), [(10_000_000, 4), (100_000, 1), (3_333_333, 7)])
def test_the_recurrent_network_beside_a_model_has_its_operations(flops: int, layers: int) -> None:
    peer, wider = recurrent_peer(flops, layers, 20), recurrent_peer(2 * flops, layers, 20)
    square = 16 * peer.layers  # two matrices of 4 gates, a multiply-add is two
    assert square * peer.width**2 < peer.flops <= flops < square * (peer.width + 1) ** 2 * 1.2
    assert wider.width > peer.width
    assert peer.serial.steps == layers * 21 and 0.5 <= peer.serial.share < 0.7
    assert peer.state == layers * 2 * peer.width * 4


def test_a_model_without_caches_has_a_length_that_is_named_or_its_only_dim() -> None:
    graph = """net (float[b, n, 4] x) => (float[b, n, n] y) {
        t = Transpose <perm = [0, 2, 1]> (x)
        y = MatMul (x, t)
    }"""
    found = counted(model(graph), length="n", sizes={"b": 3})
    assert found.flops.whole == Polynomial.of([0, 0, 3 * 8]) and not found.has_cache
    assert counted(model(graph), sizes={"b": 3}).flops == found.flops
    assert counted(model(graph), length="b").flops.whole == Polynomial.of([0, 8])  # n is 1
    assert found.seconds(0, 64) is None or found.seconds(0, 64) > 0  # type: ignore[operator]
    with pytest.raises(OptionError, match="which of the dims b, n is the length"):
        counted(model(graph))
    with pytest.raises(OptionError, match="no symbolic dim 'm'"):
        counted(model(graph), length="m")
    with pytest.raises(OptionError, match="no other symbolic dim 'n'"):
        counted(model(graph), length="n", sizes={"n": 3})
    with pytest.raises(OptionError, match="neither caches nor a symbolic dim"):
        counted(model("net (float[2, 3] x) => (float[2, 3] y) { y = Relu (x) }"))


def test_calls_of_one_length_have_no_formulas() -> None:
    graph = """step (float[1, 1, 1, 4] x, float[1, 1, p, 4] past) => (float[1, 1, 1, 4] y, float[1, 1, q, 4] now) {
        now = Concat <axis = 2> (past, x)
        turned = Transpose <perm = [0, 1, 3, 2]> (now)
        scores = MatMul (x, turned)
        y = MatMul (scores, now)
    }"""
    with pytest.raises(OptionError, match="a call has always 1 positions"):
        counted(model(graph))


def test_sizes_that_data_decide_have_no_formula() -> None:
    graph = """net (float[n] x) => (float[1, m] y) {
        where = NonZero (x)
        wide = Cast <to = 1> (where)
        y = Exp (wide)
    }"""
    with pytest.raises(OptionError, match="more than a length"):
        counted(model(graph))


def test_polynomials_are_exact() -> None:
    n = var("n", 0)
    line = polynomial(3 * n * n - 2 * n + 5)
    assert line == Polynomial.of([5, -2, 3]) and line.text("n") == "3 n^2 - 2 n + 5"
    assert polynomial(n // 2) is None
    for formula in (maximum(n - 7, 0), minimum(5 * n, n * n), maximum(n * n - 20 * n, 3), minimum(n, n)):
        found = polynomial(formula)
        assert found is not None
        values = [formula.evaluate({"n": k}) for k in range(200)]
        assert all(found(k) == values[k] for k in range(found.since, 200))
        sums = found.sums(values.__getitem__)
        assert all(sums(k) == sum(values[:k]) for k in range(found.since, 200))
    assert Polynomial.of([]).text("n") == "0" and Polynomial.of([0, -1]).text("n") == "-n"
    assert Polynomial.of([Fraction(1, 2), 0, 1]).text("n") == "n^2 + 1/2"


def test_rows_that_are_rounded_take_the_time_of_products_of_integers() -> None:
    """Weights of 8 bits stay integers: nothing makes floats of them, and sums are those of one or two bytes a row."""
    rng = np.random.default_rng(3)
    codes = numpy_helper.from_array(rng.integers(-9, 9, (1024, 1024)).astype(np.int8), "w")
    scales = numpy_helper.from_array(rng.random((32, 1024), np.float32), "s")
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["f"], axis=0, block_size=32),
        helper.make_node("MatMul", ["x", "f"], ["y"]),
    ]
    infos = [helper.make_tensor_value_info(name, 1, ["n", size]) for name, size in (("x", 1024), ("y", 1024))]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], [codes, scales])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()
    kinds = ("float32", "int16", "int8")
    found = [counted(proto, target="zen4", activations=kind) for kind in kinds]
    floats, words, single = (costs.cycles(0, 64) or 0.0 for costs in found)
    assert floats > 1.5 * words > 1.8 * single > 0
    assert len({costs.flops.at(0, 64) for costs in found}) == 1


def test_a_model_of_two_lengths_is_refused(tmp_path: Path) -> None:
    """What is read and what is written have a length each."""
    case = encoded.cases()["bart"]
    write_folder(tmp_path, case["config"], case["tensors"])
    with pytest.raises(OptionError, match="grow with encoded and past: its costs have no single length"):
        sequence_costs(tmp_path)
