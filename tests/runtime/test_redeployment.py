"""What happens to the file under a running model: replaced, written over, cut off, deleted."""

from __future__ import annotations

import dataclasses
import errno
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.runtime.native import STATIC_CONSTANTS, static_artifact
from tilewright.runtime import Artifact, load
from tilewright.runtime.errors import ArtifactError, OptionError
from tilewright.runtime.storage import container

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="SIGBUS as on Linux")

WEIGHTS = 1 << 20
X = np.ones((2, 3), np.float32)
Y = 2 * X + STATIC_CONSTANTS


def artifact_with(constants: np.ndarray) -> Artifact:
    """The static model, with weights of several pages of which it reads the first six numbers."""
    weights = constants.tobytes().ljust(WEIGHTS, b"w")
    return dataclasses.replace(static_artifact(), constants=weights)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The model's file; beside it another of the same size and one that is no model."""
    artifact_with(STATIC_CONSTANTS).save(tmp_path / "model.tw")
    artifact_with(STATIC_CONSTANTS + 100).save(tmp_path / "other.tw")
    (tmp_path / "small.tw").write_bytes(b"small")
    return tmp_path / "model.tw"


ACTIONS = {
    "cut off": "os.truncate(path, 0)",
    "cut in the middle": "os.truncate(path, os.path.getsize(path) // 2)",
    "written over by a smaller file": "shutil.copyfile(beside('small.tw'), path)",
    "written over by another model": "shutil.copyfile(beside('other.tw'), path)",
    "replaced": "os.replace(beside('other.tw'), path)",
    "saved again": "model.save(path)",
    "deleted": "os.unlink(path)",
}

PROGRAM = """
import os, shutil, sys, threading
from pathlib import Path
import numpy as np
from tilewright.runtime import load

path = sys.argv[1]
model = load(path, threads=2, mmap={mmap})
x = np.ones((2, 3), np.float32)
expected = model(x)[0].copy()
wrong, calls, stop = [], [0] * 3, threading.Event()

def beside(name):
    return Path(path).with_name(name)

def work(number):
    while not stop.is_set():
        if not np.array_equal(model(x)[0], expected):
            wrong.append(number)
        calls[number] += 1

def wait(more):
    before = list(calls)
    while any(now - then < more for now, then in zip(calls, before)):
        stop.wait(0.001)

threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(3)]
for thread in threads:
    thread.start()
wait(20)
{action}
wait(50)
stop.set()
for thread in threads:
    thread.join()
model.save(beside("again.tw"))
assert np.array_equal(load(beside("again.tw"))(x)[0], expected)
assert not wrong
print("done")
"""


NO_CORE = "import resource\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"


def run(path: Path, action: str, *, mmap: bool = False, first: str = "") -> subprocess.CompletedProcess[str]:
    program = first + PROGRAM.format(action=ACTIONS[action], mmap=mmap)
    return subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize("action", ACTIONS)
def test_nothing_done_to_the_file_reaches_a_running_model(path: Path, action: str) -> None:
    done = run(path, action)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


@pytest.mark.parametrize("action", ["replaced", "saved again", "deleted"])
def test_what_a_mapped_model_survives(path: Path, action: str) -> None:
    done = run(path, action, mmap=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


@linux_only
def test_what_a_mapped_model_does_not_survive(path: Path) -> None:
    assert run(path, "cut off", mmap=True, first=NO_CORE).returncode == -signal.SIGBUS


WHILE_LOADING = """
import os, sys
from tilewright.runtime import load
from tilewright.runtime.storage import container
from tilewright.runtime.errors import ArtifactError

path, size = sys.argv[1], int(sys.argv[2])
checksum = container._checksum

def cut_before(kind, pieces):
    if kind == "weights":
        os.truncate(path, size)
    return checksum(kind, pieces)

container._checksum = cut_before
try:
    load(path, mmap={mmap}, check_weights=True)
except ArtifactError as error:
    print(error)
"""


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("left", [0, 5000, 100_000])
def test_a_file_that_is_cut_off_while_it_is_loaded(path: Path, left: int, mmap: bool) -> None:
    command = [sys.executable, "-c", WHILE_LOADING.format(mmap=mmap), str(path), str(left)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{path} was cut off while it was read" in done.stdout and "hint: replace files by renaming" in done.stdout


def test_a_file_that_is_written_over_while_it_is_loaded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checksum = container._checksum

    def write_before(kind, pieces):
        if kind == "weights":
            data = path.with_name("other.tw").read_bytes()
            path.write_bytes(data)
        return checksum(kind, pieces)

    monkeypatch.setattr(container, "_checksum", write_before)
    for mmap in (False, True):
        with pytest.raises(ArtifactError, match="damaged: wrong checksum"):
            load(path, mmap=mmap, check_weights=True)
        artifact_with(STATIC_CONSTANTS).save(path)


def test_a_file_that_cannot_be_read_on() -> None:
    def fill(offset: int, block: memoryview) -> int:
        raise OSError(errno.EIO, "Input/output error")

    source = container._Source("model.tw", 100, fill, lambda: memoryview(b""))
    with pytest.raises(ArtifactError, match=r"cannot read model\.tw: Input/output error"):
        source.read(0, 10)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda data: memoryview(b"?" + data)[1:]])
def test_models_load_from_bytes(path: Path, kind) -> None:
    data = kind(path.read_bytes())
    model = load(data, threads=1)
    np.testing.assert_array_equal(model(X)[0], Y)
    assert model._loaded.programs[0].constants.ctypes.data % 64 == 0


def test_a_buffer_may_change_afterwards(path: Path) -> None:
    data = bytearray(path.read_bytes())
    model = load(data)
    data[:] = bytes(len(data))
    data.clear()  # nobody holds it
    np.testing.assert_array_equal(model(X)[0], Y)


def test_strided_buffers(path: Path) -> None:
    twice = np.repeat(np.frombuffer(path.read_bytes(), np.uint8), 2)
    np.testing.assert_array_equal(load(memoryview(twice)[::2])(X)[0], Y)


def test_bytes_are_checked_like_files(path: Path) -> None:
    data = path.read_bytes()
    flipped = bytearray(data)
    flipped[-1] ^= 1
    for wrong, message in (
        (b"", "the given buffer is empty"),
        (b"onnx" * 100, "the given buffer is not a compiled model"),
        (data[:-1], "the given buffer is cut off"),
        (data[:70], "the given buffer is cut off"),
        (flipped, r"the given buffer is damaged: wrong checksum\n  where: section 1 \(weights\)"),
    ):
        with pytest.raises(ArtifactError, match=message):
            load(wrong)
    load(flipped, check_weights=False)


def test_bytes_cannot_be_mapped(path: Path) -> None:
    with pytest.raises(OptionError, match="mmap=True needs a file"):
        load(path.read_bytes(), mmap=True)


@pytest.mark.parametrize("wrong", [None, 3, ["model.tw"], np.zeros(3)])
def test_what_cannot_be_loaded(wrong) -> None:
    with pytest.raises(ArtifactError, match=r"cannot load .*\n  hint: give the path of a compiled model, or its bytes"):
        load(wrong)


def test_a_model_that_does_not_fit_into_memory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = container.aligned_bytes

    def little(nbytes: int) -> np.ndarray:
        if nbytes == WEIGHTS:
            raise MemoryError
        return real(nbytes)

    monkeypatch.setattr(container, "aligned_bytes", little)
    with pytest.raises(ArtifactError, match=r"no memory for 1048576 bytes of .*\n  hint: load it with mmap=True"):
        load(path)
    np.testing.assert_array_equal(load(path, mmap=True)(X)[0], Y)


def test_mapped_weights_are_those_of_the_file(path: Path) -> None:
    model = load(path, mmap=True)
    weights = np.frombuffer(model.artifact.constants, np.uint8)
    assert model._loaded.programs[0].constants.ctypes.data == weights.ctypes.data
    assert weights.ctypes.data % 4096 == 0
