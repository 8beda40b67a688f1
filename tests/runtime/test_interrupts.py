"""Ctrl-C while native code runs in the main thread."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from onnx import parser

import tilewright
from tests.runtime.test_cancel import KERNELS, LOOP
from tilewright.runtime import context
from tilewright.runtime.errors import CancelledError
from tilewright.runtime.process import interrupts
from tilewright.runtime.staged import native

X = np.ones(4, np.float32)
SOME, MANY, FOREVER = np.array(3), np.array(100_000), np.array(1 << 40)

pytestmark = pytest.mark.skipif(
    signal.getsignal(signal.SIGINT) is not signal.default_int_handler, reason="Ctrl-C is somebody else's"
)


def compiled(graph: str) -> tilewright.Model:
    source = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]>\n{graph}')
    return tilewright.compile(source.SerializeToString(), cache=False, threads=1)


@pytest.fixture(scope="module")
def whole_loop() -> tilewright.Model:
    return compiled(LOOP)


@pytest.fixture(autouse=True)
def all_may_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """No loop looks at signals by itself."""
    monkeypatch.setattr(context, "MUCH", 0)
    monkeypatch.setattr(native, "POLL_NS", 10**18)


@pytest.fixture
def loop(whole_loop: tilewright.Model, monkeypatch: pytest.MonkeyPatch) -> tilewright.Model:
    for steps in whole_loop._loaded.native:  # type: ignore[union-attr]
        steps._lasting = {*steps._functions}
        steps.trim()
    return whole_loop


@contextmanager
def meanwhile(do: Callable[[], Any]) -> Iterator[None]:
    """Done by another thread as soon as a run begins, which has to last until then."""
    over = threading.Event()

    def run() -> None:
        while not (interrupts._RUNNING and interrupts._RUNNING[-1].host):
            if over.wait(0.001):
                return
        do()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@contextmanager
def host() -> Iterator[socket.socket]:
    """A descriptor of the host's, as that of an event loop; it has its place again."""
    here, there = socket.socketpair()
    here.setblocking(False)
    there.setblocking(False)
    before = signal.set_wakeup_fd(there.fileno())
    try:
        yield here
    finally:
        assert signal.set_wakeup_fd(before) == there.fileno()
        here.close()
        there.close()


def test_between_kernels() -> None:
    model, w = compiled(KERNELS), np.eye(64, dtype=np.float32)
    rows, descriptors = np.ones((200_000, 64), np.float32), len(os.listdir("/dev/fd"))
    given = np.full((200_000, 64), np.nan, np.float32)
    with meanwhile(press), pytest.raises(KeyboardInterrupt):
        model(rows, w, out=[given])
    assert np.isnan(given).all()  # the last kernel has not begun
    assert len(os.listdir("/dev/fd")) == descriptors and not interrupts._RUNNING
    assert signal.set_wakeup_fd(-1) == -1
    small = np.full((2, 64), 1 / 64, np.float32)
    np.testing.assert_allclose(model(np.ones((2, 64), np.float32), w)[0], small, rtol=1e-6)


def test_the_host_is_told(loop: tilewright.Model) -> None:
    with host() as heard:
        with meanwhile(press), pytest.raises(KeyboardInterrupt):
            loop(X, FOREVER)
        assert heard.recv(9) == bytes([signal.SIGINT])


def test_other_signals_end_nothing(loop: tilewright.Model) -> None:
    came: list[int] = []
    runs: list[bool] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: came.append(number))

    def other(heard: socket.socket) -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        select.select([heard], [], [], 60)
        threading.Event().wait(0.02)
        runs.append(bool(interrupts._RUNNING))
        cancel_all(loop)

    try:
        with host() as heard:
            with meanwhile(lambda: other(heard)), pytest.raises(CancelledError):
                loop(X, FOREVER)
            assert heard.recv(9) == bytes([signal.SIGUSR1]) and came and runs == [True]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_handlers_of_the_host_are_its_own(loop: tilewright.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "set_wakeup_fd", None)
    monkeypatch.setattr(interrupts, "_set_wakeup", None)
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        loop(X, SOME)
    finally:
        signal.signal(signal.SIGINT, before)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(loop(X, SOME)))  # signals are none of its business
    thread.start()
    thread.join()
    assert found


def test_calls_of_other_threads_go_on(loop: tilewright.Model) -> None:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(loop(X, MANY)))

    def both() -> None:
        thread.start()
        press()

    with meanwhile(both), pytest.raises(KeyboardInterrupt):
        loop(X, FOREVER)
    thread.join()
    assert found


def cancel_all(model: tilewright.Model) -> None:
    """Again and again, as a run may not have begun."""
    while interrupts._RUNNING:
        model.cancel()
        threading.Event().wait(0.001)


def test_cancelling(loop: tilewright.Model) -> None:
    with meanwhile(lambda: cancel_all(loop)), pytest.raises(CancelledError):
        loop(X, FOREVER)
    assert np.isfinite(loop(X, SOME)[0]).all()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_has_the_descriptor_of_the_host(loop: tilewright.Model) -> None:
    codes: list[int] = []

    def fork() -> None:
        child = os.fork()
        if not child:
            try:
                loop(X, SOME)
                os._exit(0 if signal.set_wakeup_fd(-1) == expected and not interrupts._RUNNING else 1)
            finally:
                os._exit(2)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        press()

    with host():
        expected = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(expected)
        with meanwhile(fork), pytest.raises(KeyboardInterrupt):
            loop(X, FOREVER)
    assert codes == [0]
