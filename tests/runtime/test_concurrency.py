"""Several Python threads, forks, and the life of thread pools."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.runtime.native import dynamic_artifact
from tests.runtime.native_threads import end_soon, fall_asleep, native_threads, own_pools
from tilewright.runtime import Model, load
from tilewright.runtime.threads import SharedPools, available_cpus

fork_only = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def pair(n: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n + m)
    return rng.integers(0, 1000, (n, m)).astype(np.float32), rng.integers(0, 1000, (n, m)).astype(np.float32)


def test_four_threads_share_a_model() -> None:
    model = Model(dynamic_artifact(), threads=2)
    wrong: list[str] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(200):
            x, y = pair(int(rng.integers(1, 60)), 2 * int(rng.integers(1, 60)))
            if not np.array_equal(model(x, y)[0], x + y):
                wrong.append(f"thread {seed}: {x.shape}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("threads", [1, 2, 3, 5, 16])
def test_any_thread_count_gives_the_same(threads: int) -> None:
    model = Model(dynamic_artifact(), threads=threads)
    for n in (1, 2, 3, 4, 15, 16, 17, 1000):
        x, y = pair(n, 10)
        np.testing.assert_array_equal(model(x, y)[0], x + y)


@pytest.mark.usefixtures("own_garbage")
@linux_only
def test_pool_starts_at_the_first_call_and_ends_with_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    own_pools(monkeypatch)
    before = native_threads()
    model = Model(dynamic_artifact(), threads=4)
    assert not native_threads() - before
    model(*pair(8, 2))
    begun = native_threads() - before
    assert len(begun) == 3
    del model
    gc.collect()
    assert end_soon(begun)


@linux_only
def test_workers_sleep_when_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    own_pools(monkeypatch)
    before = native_threads()
    model = Model(dynamic_artifact(), threads=3)
    x, y = pair(8, 2)
    model(x, y)
    begun = native_threads() - before
    assert len(begun) == 2 and fall_asleep(begun)
    np.testing.assert_array_equal(model(x, y)[0], x + y)


def in_child(action) -> None:
    """Run `action` in a forked child; fails unless it returns within 20 seconds."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(20)
            action()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


@fork_only
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_both_sides_of_a_fork() -> None:
    model = Model(dynamic_artifact(), threads=3)
    x, y = pair(64, 8)
    model(x, y)

    def work() -> None:
        for _ in range(50):
            np.testing.assert_array_equal(model(x, y)[0], x + y)

    in_child(work)
    work()


@pytest.mark.usefixtures("own_garbage")
@fork_only
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_may_drop_its_parents_model() -> None:
    models = [Model(dynamic_artifact(), threads=3)]
    models[0](*pair(64, 8))

    def drop() -> None:
        models.clear()
        gc.collect()

    in_child(drop)
    x, y = pair(64, 8)
    np.testing.assert_array_equal(models[0](x, y)[0], x + y)


@fork_only
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_fork_while_other_threads_run() -> None:
    model = Model(dynamic_artifact(), threads=2)
    x, y = pair(200, 200)
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            model(x, y)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            in_child(lambda: np.testing.assert_array_equal(model(x, y)[0], x + y))
    finally:
        stop.set()
        for thread in threads:
            thread.join()


PROGRAM = """
import sys, threading, numpy as np
from tilewright.runtime import load
model = load(sys.argv[1], threads=4)
x = np.ones((500, 500), np.float32)
model(x, x)
def forever():
    while True:
        model(x, x)
for _ in range({daemons}):
    threading.Thread(target=forever, daemon=True).start()
print("done", flush=True)
"""


@pytest.mark.parametrize("daemons", [0, 2])
def test_the_interpreter_exits(tmp_path: Path, daemons: int) -> None:
    dynamic_artifact().save(tmp_path / "model.tw")
    command = [sys.executable, "-c", PROGRAM.format(daemons=daemons), str(tmp_path / "model.tw")]
    for _ in range(3):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_many_models_come_and_go(tmp_path: Path) -> None:
    dynamic_artifact().save(tmp_path / "model.tw")
    x, y = pair(9, 4)
    for _ in range(20):
        np.testing.assert_array_equal(load(tmp_path / "model.tw", threads=3)(x, y)[0], x + y)


@linux_only
@pytest.mark.usefixtures("own_garbage")
def test_models_share_the_threads_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many models are called at once, in however many threads."""
    own_pools(monkeypatch)
    before, models = native_threads(), [Model(dynamic_artifact(), threads=7) for _ in range(6)]
    x, y = pair(300, 40)
    for model in models:
        model(x, y)
    pools = {model._loaded.programs[0].pool for model in models}
    assert len(pools) == max(1, available_cpus() // 7)
    begun = native_threads() - before
    assert len(begun) == 6 * len(pools)
    wrong: list[int] = []

    def work(k: int) -> None:
        for _ in range(100):
            if not np.array_equal(models[k](x, y)[0], x + y):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and begun <= native_threads()
    while len(models) > 1:  # also that which made the pool
        models.pop(0).close()
    np.testing.assert_array_equal(models[0](x, y)[0], x + y)
    del model
    models.clear()
    pools.clear()
    gc.collect()
    assert end_soon(begun)


def test_pools_fit_the_cpus() -> None:
    class Code:
        def create_pool(self, threads: int, spin_ns: int) -> int | None:
            return None

        def destroy_pool(self, address: int) -> None: ...

    shared, users = SharedPools(lambda: 9), [Code() for _ in range(12)]
    fours = [shared.pool(user, 4, user) for user in users]  # type: ignore[arg-type]
    assert len(set(fours)) == 2 and {len(pool.users) for pool in fours} == {6}
    assert shared.pool(users[0], 16, users[0]) is shared.pool(users[1], 16, users[1])  # type: ignore[arg-type]
    assert shared.pool(users[0], 4, users[0]) in fours  # type: ignore[arg-type]
