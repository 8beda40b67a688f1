"""States in the memory of a device: they stay there from call to call, and come back for those who look."""

from __future__ import annotations

import copy
import gc
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
from tests.llm.small_decoder import Small
from tests.machines.board import board
from tests.machines.test_cuda import TARGET, FakeCuda, driver, fake  # noqa: F401
from tests.runtime.test_states import CASES, floats, source
from tilewright import Session
from tilewright.compiler import compile_module
from tilewright.llm.decoder import CompiledDecoder
from tilewright.options import Options
from tilewright.runtime import Model
from tilewright.runtime.kept.state_memory import StateMemory
from tilewright.stages import programs
from tilewright.target.gpu.cuda import CUDA
from tilewright.target.host import host_target

GROWN = """g (float[1, 2, s, 4] x, float[1, 2, p, 4] c) => (float[1, 2, 1, 4] y, float[1, 2, t, 4] all) {
    all = Concat <axis = 2> (c, x)
    axis = Constant <value_ints = [2]> ()
    y = ReduceSum (all, axis)
}"""
"""A cache of two parts, which grow by rows of 16 bytes."""
CAPACITY = 12
ALL = {name: case for name, case in CASES.items() if name != "loop"}
ALL["grown"] = GROWN, {"c": "all"}, lambda k: [floats(1, 2, 1 + k % 3, 4)], "in place"


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(folder=tmp_path, plugins=(board().PLUGIN,))


def pair(name: str, session: Session, **options: Any) -> list[tilewright.Model]:
    """On the board, and on the CPU."""
    return [compiled(name, t, session, **options) for t in ("board", "host")]


def compiled(name: str, target: str, session: Session, **options: Any) -> tilewright.Model:
    graph, states, _, _ = ALL[name]
    options |= {"capacity": CAPACITY} if name == "grown" else {}
    return tilewright.compile(source(graph), target=target, states=states, session=session, **options)


class _Streams:
    """Models on the device beside ones on the CPU, with which the same is done."""

    def __init__(self, models: list[tilewright.Model], name: str, seed: int) -> None:
        self.rng, self.inputs = random.Random(seed), ALL[name][2]
        self.names = [info.info.name for info in models[0].states]
        self.streams = [models]
        self.memories: list[list[StateMemory]] = []

    def step(self) -> None:
        ours, host = pair = self.rng.choice(self.streams)
        what = self.rng.choice(("call", "call", "call", "look", "set", "reset", "copy", "pickle", "memory", "own"))
        if what == "call":
            self.call(ours, host)
        elif what == "look":
            self.look(ours, host)
        elif what == "set":
            name = self.rng.choice(self.names)
            value = host.state(name)
            for made in pair:  # a counter goes back; others get something else
                made.set_state(name, value // 2 if value.dtype.kind == "i" else value + 1)
        elif what == "reset":
            for made in pair:
                made.reset()
        elif what in ("copy", "pickle"):
            is_copied = [what == "copy", True]  # the plugin of the test is in no other process
            made = [copy.copy(m) if c else pickle.loads(pickle.dumps(m)) for m, c in zip(pair, is_copied, strict=True)]
            self.streams = [*self.streams, made][-3:]
        elif what == "memory":
            self.memories.append([made.new_state_memory(self.names) for made in pair])
            for made, memory in zip(pair, self.memories[-1], strict=True):
                made.use_state_memory(self.names, memory)
        else:
            for made in pair:
                made.use_state_memory(self.names, None)

    def call(self, ours: tilewright.Model, host: tilewright.Model) -> None:
        counts = [int(value.reshape(-1)[0]) for n in self.names if (value := host.state(n)).dtype.kind == "i"]
        if counts and max(counts) >= CAPACITY - 3:  # there is room for no more
            return
        given = self.inputs(self.rng.randint(1, 5))
        for found, expected in zip(ours(*given), host(*given), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)

    def look(self, ours: tilewright.Model, host: tilewright.Model) -> None:
        for name in self.names:
            np.testing.assert_allclose(ours.state(name), host.state(name), rtol=1e-4, atol=1e-5)


@pytest.mark.fresh_seeds(1)
@pytest.mark.parametrize("name", ALL)
def test_whatever_is_done_they_are_those_of_the_cpu(name: str, fresh_seed: int, session: Session) -> None:
    """Streams that share the code, memory apart, and looks and settings between calls."""
    streams = _Streams(pair(name, session), name, fresh_seed)
    for _ in range(60):
        streams.step()
    for models in streams.streams:
        streams.look(*models)


def test_variants_and_the_general_program_share_them(session: Session) -> None:
    ours, host = pair("sums", session, frequent=[{"n": 2}])
    for n in (2, 3, 3, 2, 5):
        x = np.full((n, 4), 0.1, np.float32)
        np.testing.assert_allclose(ours(x)[0], host(x)[0], rtol=1e-5)
    np.testing.assert_allclose(ours.state("h"), host.state("h"), rtol=1e-5)


def test_a_model_that_is_closed_has_them_still(session: Session) -> None:
    ours, host = pair("sums", session)
    for made in (ours, host):
        made(np.ones((2, 4), np.float32))
        made.close()
    np.testing.assert_allclose(ours.state("h"), host.state("h"), rtol=1e-5)


COPIES = ("cuMemcpyHtoD_v2", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoH_v2", "cuMemcpyDtoHAsync_v2", "cuMemcpyDtoDAsync_v2")


def on_cuda(name: str, fake: FakeCuda, folder: Path) -> tilewright.Model:  # noqa: F811
    graph, states, _, _ = ALL[name]
    session, capacity = Session(folder=folder), CAPACITY if name == "grown" else None
    options = Options(target=TARGET, states=states, capacity=capacity)
    fake.kernels(programs(source(graph), "llvm", options=options, session=session))
    return compiled(name, TARGET, session)


def test_a_call_copies_its_inputs_and_outputs_and_no_state(fake: FakeCuda, tmp_path: Path) -> None:  # noqa: F811
    """Each tensor begins at a multiple of 256 bytes, and so does the word for errors."""
    ours, x = on_cuda("sums", fake, tmp_path), np.ones((3, 4), np.float32)
    ours(x)
    before = [fake.bytes(name) for name in COPIES]
    for _ in range(3):
        ours(x)
    sent, sent_with, looked, back, within = (
        fake.bytes(name) - n for name, n in zip(COPIES, before, strict=True)
    )
    assert (sent, sent_with, looked, back, within) == (0, 3 * 2 * 256, 0, 3 * 2 * 256, 0)
    state = ours.state("h")
    assert fake.bytes("cuMemcpyDtoH_v2") == state.nbytes
    ours.state("h")
    assert fake.bytes("cuMemcpyDtoH_v2") == state.nbytes  # the host has it
    ours.set_state("h", state)
    ours(x)
    assert fake.bytes("cuMemcpyHtoD_v2") - before[0] == state.nbytes
    assert fake.fault == ""


def test_what_is_swapped_is_copied_on_the_device(fake: FakeCuda, tmp_path: Path) -> None:  # noqa: F811
    ours, x = on_cuda("swapped", fake, tmp_path), np.ones((1, 40), np.float32)
    host = tilewright.compile(source(CASES["swapped"][0]), states=CASES["swapped"][1], session=Session(folder=tmp_path))
    ours(x), host(x)
    before = [fake.bytes(name) for name in COPIES]
    np.testing.assert_allclose(ours(x)[0], host(x)[0], rtol=1e-5)
    assert [fake.bytes(name) - n for name, n in zip(COPIES, before, strict=True)] == [0, 512, 0, 512, 160]
    np.testing.assert_allclose(ours.state("h"), host.state("h"), rtol=1e-5)


def test_of_a_cache_rows_alone_are_copied_that_are_new(fake: FakeCuda, tmp_path: Path) -> None:  # noqa: F811
    ours, row = on_cuda("grown", fake, tmp_path), np.ones((1, 2, 1, 4), np.float32)
    (cache,) = [info for info in ours.states if info.counter]
    for k in (1, 2, 3):
        np.testing.assert_array_equal(ours(k * row)[0], np.full((1, 2, 1, 4), k * (k + 1) / 2))

    def held() -> list[float]:
        return [float(x) for x in ours.state(cache.info.name)[0, 1, :5, 3]]

    assert fake.bytes("cuMemcpyDtoH_v2") == 0
    assert held() == [1, 2, 3, 0, 0] and fake.bytes("cuMemcpyDtoH_v2") == 2 * 3 * 16
    ours(4 * row)
    assert held() == [1, 2, 3, 4, 0] and fake.bytes("cuMemcpyDtoH_v2") == 2 * 4 * 16
    ours.set_state(cache.counter, np.full_like(ours.state(cache.counter), 2))
    ours(5 * row)
    assert held() == [1, 2, 5, 0, 0] and fake.bytes("cuMemcpyDtoH_v2") == 2 * 5 * 16
    assert fake.fault == ""


def test_a_device_without_memory_gives_states_back(fake: FakeCuda, tmp_path: Path) -> None:  # noqa: F811
    ours, x = on_cuda("sums", fake, tmp_path), np.ones((3, 4), np.float32)
    ours(x)
    fake.fail("cuMemAlloc_v2", 2)
    with pytest.raises(tilewright.DeviceError, match="CUDA_ERROR_OUT_OF_MEMORY"):
        ours(np.ones((300, 4), np.float32))
    np.testing.assert_array_equal(ours.state("h"), np.full((1, 8), 12))
    ours(x)
    assert (ours.state("h") > 12).all()


def test_states_on_a_device_that_fails_are_lost_and_it_is_said(fake: FakeCuda, tmp_path: Path) -> None:  # noqa: F811
    ours, x = on_cuda("sums", fake, tmp_path), np.ones((3, 4), np.float32)
    ours(x)
    fake.fail("cuStreamSynchronize", 700)
    with pytest.raises(tilewright.DeviceError, match="cuStreamSynchronize"):
        ours(x)
    for look in (lambda: ours(x), lambda: ours.state("h")):
        with pytest.raises(tilewright.ExecutionError, match="state 'h' is lost"):
            look()
    ours.reset()
    ours(x)
    np.testing.assert_array_equal(ours.state("h"), np.full((1, 8), 12))


def test_memory_that_nobody_holds_is_no_longer_fetched(fake: FakeCuda, tmp_path: Path) -> None:  # noqa: F811
    ours, x = on_cuda("sums", fake, tmp_path), np.ones((3, 4), np.float32)
    memory = ours.new_state_memory(["h"])
    ours.use_state_memory(["h"], memory)
    ours(x)
    ours.use_state_memory(["h"], None)
    del memory
    gc.collect()
    ours(x)
    assert fake.bytes("cuMemcpyDtoH_v2") == 0
    np.testing.assert_array_equal(ours.state("h"), np.full((1, 8), 12))


@pytest.mark.sweep
def test_a_step_of_a_decoder_copies_tokens_and_logits(fake: FakeCuda, tmp_path: Path) -> None:  # noqa: F811
    """Caches stay on the device."""
    small, options, machine = Small(seed=2), Options(states=True, target=TARGET), CUDA["sm_90"]
    session = Session(folder=tmp_path)
    fake.kernels(programs(small.module(), "llvm", options=options, session=session))
    ours = CompiledDecoder(Model(compile_module(small.module(), options, machine), 1))
    host = CompiledDecoder(Model(compile_module(small.module(), Options(states=True), host_target()), 1))
    tokens, steps = [3, 1, 4, 1, 5, 9, 2, 6], []
    for _ in range(6):
        new, before = tokens[ours.length :], [fake.bytes(name) for name in COPIES]
        found, expected = ours.feed(new), host.feed(new)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
        steps.append([fake.bytes(name) - n for name, n in zip(COPIES, before, strict=True)])
        tokens.append(int(np.argmax(expected)))
    assert fake.fault == ""
    for sent, _, looked, back, within in steps[1:]:
        assert sent <= 8 and looked == within == 0  # the counter, where lengths are others
        assert back == 256 * (1 + -(-small.vocabulary * 4 // 256) + 1)  # the word for errors, logits, the counter
