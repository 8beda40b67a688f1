"""Ctrl-C ends a command at once with the exit code 130, whatever it is doing, and leaves nothing half-written."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

from tests import models
from tests.quantization import times
from tests.quantization.networks import classifier, samples
from tilewright.cli import interrupt
from tilewright.cli.app import commands
from tilewright.quantization.state import State

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals are sent as POSIX has them")

PATIENCE_S = 60


def long_loop(folder: Path) -> Path:
    """An LSTM over so many steps that one call takes far longer than this test."""
    steps, width = 2_000_000, 256
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [steps, 1, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, width])
    rng = np.random.default_rng(0)
    weights = [
        onnx.numpy_helper.from_array(rng.standard_normal((1, 4 * width, n)).astype(np.float32), name)
        for n, name in ((4, "w"), (width, "r"))
    ]
    node = helper.make_node("LSTM", ["x", "w", "r"], ["", "y"], hidden_size=width)
    graph = helper.make_graph([node], "long", [x], [y], weights)
    return models.written(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), folder, "long"
    )


def many_kernels(folder: Path) -> Path:
    """Convolutions of many different shapes: each is a kernel of its own."""
    nodes, weights, last, channels = [], [], "x", 16
    rng = np.random.default_rng(0)
    for k in range(40):
        more = 16 + 4 * ((7 * k) % 11)
        side = 3 + 2 * (k % 3)
        weight = rng.standard_normal((more, channels, side, side)).astype(np.float32)
        weights.append(onnx.numpy_helper.from_array(weight, f"w{k}"))
        nodes.append(helper.make_node("Conv", [last, f"w{k}"], [f"t{k}"], pads=[side // 2] * 4))
        last, channels = f"t{k}", more
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 24, 24])
    y = helper.make_tensor_value_info(last, TensorProto.FLOAT, [1, channels, 24, 24])
    graph = helper.make_graph(nodes, "many", [x], [y], weights)
    return models.written(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), folder, "many"
    )


def interrupted(seen: str, *arguments: object, cores: int = 2, **environment: str) -> tuple[int, str]:
    """Exit code and the rest of the error stream of a command on so many cores that is interrupted some time after it
    has written a line with `seen` there. `WAITS` in its environment names what of a quantisation it keeps last."""

    def prepare() -> None:
        # a shell lets commands in the background ignore the signal, and children inherit that
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])

    program = "import tests.cli.test_interrupt as t; t.talkative()"
    process = subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
        cwd=Path(__file__).parents[2],
        preexec_fn=prepare,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if seen in line:
            break
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    said = process.stderr.read()
    return process.wait(PATIENCE_S), said


def talkative() -> None:
    """The command line, which says on the error stream where it is, and for which smaller types are always faster."""
    import tilewright.compilation
    import tilewright.runtime.profile
    from tilewright.cli import main
    from tilewright.runtime import Model

    schedule, call = tilewright.compilation.schedule_regions, Model.__call__

    def scheduling(*args, **named):
        print("scheduling", file=sys.stderr, flush=True)
        return schedule(*args, **named)

    def calling(*args, **named):
        print("calling", file=sys.stderr, flush=True)
        results = call(*args, **named)
        print("called", file=sys.stderr, flush=True)
        return results

    put = State.put

    def keeping(self, name, value):
        put(self, name, value)
        print("kept", name, file=sys.stderr, flush=True)
        if name == os.environ.get("WAITS"):
            time.sleep(PATIENCE_S)

    State.put = keeping
    times.always_faster(pytest.MonkeyPatch())
    tilewright.runtime.profile.LEAST_S = 0.002
    tilewright.compilation.schedule_regions = scheduling
    Model.__call__ = calling
    main()


def disguised() -> None:
    """What Python makes of a Ctrl-C that comes while a class is made."""
    error = RuntimeError("Error calling __set_name__ on 'Field' instance")
    raise error from KeyboardInterrupt()


def test_an_interrupt_that_became_another_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a command, and where its modules are imported."""
    monkeypatch.setattr(importlib, "import_module", lambda name: disguised())
    monkeypatch.setattr(interrupt, "_TOLD", threading.Event())
    found = CliRunner().invoke(commands, ["info"])
    assert (found.exit_code, found.stderr) == (130, "interrupted\n")
    program = "import tests.cli.test_interrupt as t; t.interrupt.run_interruptible(t.disguised)"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_an_error_that_is_its_own_cause_is_no_interrupt() -> None:
    """As Python makes them of one that is raised from itself, or from what it has caused."""
    error, other = ValueError("once"), ValueError("twice")
    error.__cause__ = error
    assert not interrupt.is_interrupt(error)
    error.__cause__, other.__cause__ = other, error
    assert not interrupt.is_interrupt(error)


@pytest.mark.parametrize("cores", [1, 2])
def test_compiling(tmp_path: Path, cores: int) -> None:
    """With one core LLVM runs on the main thread."""
    (tmp_path / "out").mkdir()
    model, output, cache = many_kernels(tmp_path), tmp_path / "out" / "m.tw", tmp_path / "cache"
    code, said = interrupted(
        "scheduling", "compile", model, "-o", output, cores=cores, TILEWRIGHT_CACHE=str(cache)
    )
    assert (code, said) == (130, "interrupted\n")
    assert os.listdir(tmp_path / "out") == []
    assert not cache.exists() or not list(cache.glob("*tw*"))


def test_running_native_code(tmp_path: Path) -> None:
    code, said = interrupted(
        "calling",
        "run",
        long_loop(tmp_path),
        "--input",
        "zeros",
        "--threads",
        1,
        "--output",
        tmp_path / "out",
    )
    assert (code, said) == (130, "interrupted\n")
    assert os.listdir(tmp_path) == ["long.onnx"]


def test_quantizing_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found stays beside the output, and the same command ends the work and removes it."""
    onnx.save(classifier(hidden=64), tmp_path / "model.onnx")
    np.savez(tmp_path / "data.npz", x=samples(16)[0])
    output = tmp_path / "small.onnx"
    command = ["quantize", tmp_path / "model.onnx", "--data", tmp_path / "data.npz", "--max-drop", "90%",
               "--batch", 2, "--kinds", "int8", "--metric", "cosine", "-o", output, "--threads", 1]  # fmt: skip
    code, said = interrupted("kept times", *command, WAITS="times")
    assert code == 130 and said.endswith("interrupted\n")
    assert not output.exists() and len(os.listdir(tmp_path / "small.onnx.work")) >= 3
    times.always_faster(monkeypatch)
    kept: list[str] = []
    put = State.put
    monkeypatch.setattr(State, "put", lambda self, name, value: (kept.append(name), put(self, name, value))[1])
    done = CliRunner().invoke(commands, [*map(str, command)])
    assert done.exit_code == 0 and output.exists(), done.output
    assert kept and "times" not in kept and not (tmp_path / "small.onnx.work").exists()


def test_a_command_that_is_long_on_its_way_out_tells_it_once() -> None:
    program = (
        "import signal, time\n"
        "from tilewright.cli import interrupt\n"
        "def command():\n"
        "    try:\n"
        "        signal.raise_signal(signal.SIGINT)\n"
        "    except KeyboardInterrupt:\n"
        "        interrupt.say_interrupted()\n"
        f"        time.sleep({PATIENCE_S})\n"
        "interrupt.GRACE_S = 0.05\n"
        "interrupt.run_interruptible(command)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


@pytest.mark.parametrize("command", ["diff", "report"])
def test_what_a_command_leaves_is_told(tmp_path: Path, command: str) -> None:
    (tmp_path / "out").mkdir()
    model, output = many_kernels(tmp_path), tmp_path / "out" / "found"
    arguments = {"diff": [model, "--bisect", "-o", output], "report": [model, "-o", output.with_suffix(".html")]}
    code, said = interrupted("scheduling", command, *arguments[command], TILEWRIGHT_CACHE=str(tmp_path / "cache"))
    told = said.splitlines()[-1]
    assert code == 130 and told.startswith("interrupted: noth") and f"nothing was written to {output}" in told
    assert os.listdir(tmp_path / "out") == []


def test_what_is_kept_so_far_is_told_whichever_thread_tells_it() -> None:
    program = (
        "import signal, time\n"
        "from tilewright.cli import interrupt\n"
        "def command():\n"
        "    with interrupt.leaving('nothing is kept') as keep:\n"
        "        keep('this is kept')\n"
        "        try:\n"
        "            signal.raise_signal(signal.SIGINT)\n"
        "        except KeyboardInterrupt:\n"
        "            if {0}: raise\n"
        f"            time.sleep({PATIENCE_S})\n"
        "interrupt.GRACE_S = {1}\n"
        "interrupt.run_interruptible(command)"
    )
    for is_raised, grace in ((True, PATIENCE_S), (False, 0.05)):
        text = program.replace("{0}", str(is_raised)).replace("{1}", str(grace))
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=PATIENCE_S)
        assert (done.returncode, done.stderr) == (130, "interrupted: this is kept\n")


def test_where_the_signal_is_ignored_it_stays_so(tmp_path: Path) -> None:
    """As of a command that a script runs in the background."""
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN);"
        "from tilewright.cli.interrupt import run_interruptible;"
        "run_interruptible(lambda: (signal.raise_signal(signal.SIGINT), print('done')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout) == (0, "done\n")
