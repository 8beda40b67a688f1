"""Fuzzing attributes: an integer of a node beyond what makes sense. The model is refused, or gives what ONNX Runtime
gives, if it gives anything."""

from __future__ import annotations

import functools
import pickle
import subprocess
import sys
import threading
import warnings
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import onnx
from onnx import helper

from tests.fuzz.files.limits import limited
from tests.fuzz.registry import Tried
from tilewright.api import compile_artifact
from tilewright.ir.diag import InternalError, TilewrightError
from tilewright.options import Options
from tilewright.runtime import Model
from tilewright.runtime.errors import PerformanceWarning

NUMBERS = (-(2**63), -(2**31) - 1, -3, -2, -1, 0, 1, 2, 3, 7, 2**31, 2**62, 2**63 - 1)
SECONDS, BYTES = 40.0, 3 << 30
THEIR_SECONDS, THEIR_BYTES = 10.0, 1 << 30
LARGEST_CASE = 3000  # bytes

Case = tuple[bytes, tuple[np.ndarray, ...]]
_THEIRS = {
    ("TreeEnsemble", "post_transform"),  # numbered in another way than the standard says
    ("TopK", "sorted"),  # 0 leaves the order to the engine
    # where the shape of the result is given, positions count in that there, and in what the window gives in ONNX's own
    # reference, of which the case of the package looks the same
    ("MaxUnpool", "kernel_shape"), ("MaxUnpool", "strides"), ("MaxUnpool", "pads"),
    ("Resize", "axes"),  # one counted from the end is not taken by the policies for aspect ratios
}  # fmt: skip
"""Attributes of which ONNX Runtime does not give what is meant, or need not: nothing is compared."""

_UNLIKE = ("Random", "Bernoulli", "Multinomial", "Dropout")
"""What beginnings of operators' names tell that results are drawn by chance."""


@functools.cache
def corpus() -> tuple[Case, ...]:
    """The cases of single nodes with integers as attributes that the onnx package brings, and their inputs."""
    from tests.onnx_cases import cases_of_nodes  # takes seconds

    found: dict[bytes, Case] = {}
    for case in cases_of_nodes():
        if case.model is None or not case.data_sets or case.model.graph.node[0].op_type.startswith(_UNLIKE):
            continue
        values = case.data_sets[0][0]
        text = case.model.SerializeToString()
        if len(text) <= LARGEST_CASE and _places(case.model) and all(isinstance(v, np.ndarray) for v in values):
            found[text] = text, tuple(values)
    return tuple(found[text] for text in sorted(found))


def _places(model: onnx.ModelProto) -> list[tuple[int, int | None]]:
    """The integers of the first node's attributes: which attribute, and which of its elements if it has many."""
    found: list[tuple[int, int | None]] = []
    for k, attribute in enumerate(model.graph.node[0].attribute):
        if attribute.type == onnx.AttributeProto.INT:
            found.append((k, None))
        found += [(k, i) for i in range(len(attribute.ints))]
    return found


def changed(data: bytes, random: Random) -> tuple[bytes, str]:
    """The model with one of its attributes' integers replaced, and the attribute's name."""
    model = onnx.ModelProto.FromString(data)
    (k, i), number = random.choice(_places(model)), random.choice(NUMBERS)
    attribute = model.graph.node[0].attribute[k]
    if i is None:
        attribute.i = number
    else:
        attribute.ints[i] = number
    for info in model.graph.output:  # what the case declares does not fit any more
        info.type.tensor_type.ClearField("shape")
    return bytes(model.SerializeToString()), attribute.name


def fuzz(seed: int) -> Tried:
    random = Random(seed)
    data, inputs = random.choice(corpus())
    model, name = changed(data, random)
    return target(model, inputs, name)


def target(data: bytes, inputs: tuple[np.ndarray, ...], name: str = "") -> Tried:
    """Compile and run a model within limits, and compare its results; `name` is that of the attribute changed."""
    model = onnx.ModelProto.FromString(data)
    kind = model.graph.node[0].op_type
    try:
        with limited(SECONDS, BYTES), warnings.catch_warnings(action="ignore", category=PerformanceWarning):
            artifact = compile_artifact(data, options=Options(cache=False, verify=True, compile_threads=1))
            ours = Model(artifact, 1)(*inputs)
        outcome = "run" if (kind, name) in _THEIRS else _compared(ours, data, inputs)
        return Counter({(kind, outcome): 1})
    except InternalError:
        raise
    except TilewrightError:
        return Counter({(kind, "refused"): 1})
    except BaseException as error:
        error.add_note(f"the model: {helper.printable_graph(model.graph)}")
        raise


def _compared(ours: tuple[np.ndarray, ...], data: bytes, inputs: tuple[np.ndarray, ...]) -> str:
    theirs = answers(data, inputs)
    if theirs is None:
        return "run"
    masks = b"Attention" in data
    for k, (found, wanted) in enumerate(zip(ours, theirs, strict=True)):
        if isinstance(wanted, np.ndarray) and wanted.dtype.kind in "fiub":
            assert found.shape == wanted.shape, f"output {k}: {found.shape}, ONNX Runtime gives {wanted.shape}"
            if masks and wanted.dtype.kind == "f":  # where a mask is false, it gives the lowest number
                wanted = np.where(wanted <= np.finfo(wanted.dtype).min / 2, -np.inf, wanted)
            tolerance = 1e-2 if wanted.dtype == np.float16 else 1e-3
            np.testing.assert_allclose(
                found.astype(np.float64), wanted.astype(np.float64), tolerance, tolerance, err_msg=f"output {k}"
            )
    return "compared"


class Engine:
    """ONNX Runtime in a process of its own, which it may end."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.fuzz.attributes"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, cwd=Path(__file__).parents[2], **pipes)  # type: ignore[call-overload]

    def ask(self, data: bytes, inputs: tuple[np.ndarray, ...]) -> list[np.ndarray] | None:
        """What it gives; None where it refuses. EOFError where it is lost, or takes too long."""
        timer = threading.Timer(THEIR_SECONDS * 6, self._process.kill)
        timer.start()
        try:
            pickle.dump((data, inputs), self._process.stdin)
            self._process.stdin.flush()
            found: list[np.ndarray] | None = pickle.load(self._process.stdout)
            return found
        except (OSError, pickle.UnpicklingError) as error:
            raise EOFError from error
        finally:
            timer.cancel()


_ENGINES: list[Engine] = []


def answers(data: bytes, inputs: tuple[np.ndarray, ...]) -> list[np.ndarray] | None:
    """What ONNX Runtime gives; None where it refuses, takes too long or ends its process."""
    if not _ENGINES:
        _ENGINES.append(Engine())
    try:
        return _ENGINES[0].ask(data, inputs)
    except EOFError:
        _ENGINES.clear()
        return None


def serve() -> None:
    """Answer what comes through the standard input, until it ends."""
    while True:
        try:
            data, inputs = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pickle.dump(their_answers(data, inputs), sys.stdout.buffer)
        sys.stdout.flush()


def their_answers(data: bytes, inputs: tuple[np.ndarray, ...]) -> list[np.ndarray] | None:
    import onnxruntime as ort

    ort.set_default_logger_severity(4)
    try:
        with limited(THEIR_SECONDS, THEIR_BYTES):
            session = ort.InferenceSession(data, providers=["CPUExecutionProvider"])
            names = [i.name for i in session.get_inputs()]
            found: list[np.ndarray] = session.run(None, dict(zip(names, inputs, strict=True)))
            return found
    except Exception:
        return None


if __name__ == "__main__":
    serve()
