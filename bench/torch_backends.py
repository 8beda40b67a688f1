"""Backends of `torch.compile` on the networks of the zoo: pass rate, graph breaks, time to compile, time of a call.

Each backend has a process of its own for each network; they take turns, and the others wait for a line on their input
meanwhile.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

from bench.turns import shortest_ms

EAGER = "eager PyTorch"
BACKENDS: dict[str, dict[str, Any]] = {
    EAGER: {},
    "dynamo": {"backend": "eager"},  # what every backend needs at least to compile
    "tilewright": {"backend": "tilewright"},
    "inductor": {"backend": "inductor"},
    # without AOTAutograd it fails in PyTorch 2.13, with an assertion about symbols
    "openvino": {"backend": "openvino", "options": {"aot_autograd": True}},
}

KEPT = ("tilewright", "inductor")
"""Those whose code PyTorch can keep beside Dynamo's work."""


@dataclass
class Standing:
    """What one backend did with a network: seconds of the first call, of it again in a second process with the same
    caches, and in one that gets what PyTorch kept of Dynamo's work too; the shortest call in ms, the number of graphs
    and breaks, and how far results are off."""

    backend: str
    cold_s: float = math.nan
    warm_s: float = math.nan
    kept_s: float = math.nan
    ms: float = math.inf
    graphs: int = 0
    breaks: int = 0
    error: float = math.nan
    failure: str = ""


@dataclass
class _Worker:
    backend: str
    process: subprocess.Popen[str] = field(repr=False)
    log: IO[str] = field(repr=False)
    """What the process writes to stderr."""

    def tell(self, command: str) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return {"failure": self._why_ended()}
        for line in self.process.stdout:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        return {"failure": self._why_ended()}

    def _why_ended(self) -> str:
        code = self.process.wait()
        self.log.seek(0)
        lines = self.log.read().strip().splitlines()
        return f"the process ended with {code}: {lines[-1][:150] if lines else 'it said nothing'}"

    def end(self) -> None:
        """Let the process finish what it writes to its caches."""
        self.process.communicate()


def measure(
    name: str, backends: Sequence[str], threads: int, rounds: int, folder: Path, precompile: bool = False
) -> list[Standing]:
    """One network; caches of the backends lie in `folder`, which should be new. `precompile` asks PyTorch to keep
    Dynamo's work, too, in processes of their own."""
    standings = [Standing(backend) for backend in backends]
    workers = []
    for standing in standings:
        for attempt in ("cold_s", "warm_s"):
            worker = _start(standing.backend, name, threads, folder)
            found = worker.tell("compile")
            standing.failure = found.get("failure", "")
            if standing.failure:
                worker.process.kill()
                break
            setattr(standing, attempt, found["seconds"])
            standing.graphs, standing.breaks, standing.error = found["graphs"], found["breaks"], found["error"]
            if attempt == "warm_s":
                workers.append((standing, worker))
            else:
                worker.end()
        if precompile and not standing.failure and standing.backend in KEPT:
            standing.kept_s = _kept(standing.backend, name, threads, folder)
    for _ in range(rounds):
        for standing, worker in workers:
            standing.ms = min(standing.ms, worker.tell("run").get("ms", math.inf))
    for _, worker in workers:
        worker.process.kill()
    return standings


def _kept(backend: str, name: str, threads: int, folder: Path) -> float:
    """Seconds until the first call is done, with what another process has given PyTorch to keep."""
    for attempt in ("save", "load"):
        worker = _start(backend, name, threads, folder, {"TORCH_CACHING_PRECOMPILE": "1"})
        found = worker.tell(f"{attempt} {folder / backend}.kept")
        worker.end()
    seconds: float = found.get("seconds", math.nan)
    return seconds


def _start(
    backend: str, name: str, threads: int, folder: Path, settings: Mapping[str, str] = MappingProxyType({})
) -> _Worker:
    places = {
        **settings,
        "TILEWRIGHT_CACHE": str(folder / "tilewright"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "OMP_NUM_THREADS": str(threads),
    }
    if backend == "inductor":  # Dynamo captures other graphs with it
        places["TORCHINDUCTOR_FREEZING"] = "1"
    # Installed packages have their bytecode on disk.
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-m", "bench.torch_backends", backend, name, str(threads)]
    log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (open as long as the process)
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**inherited, **places}, stderr=log
    )
    return _Worker(backend, process, log)


def table(found: Mapping[str, Sequence[Standing]]) -> str:
    """One row for each network and backend; ratios are to the best of the other compilers and eager PyTorch."""
    lines = ["| network | backend | ms | cold s | warm s | kept s | graphs, breaks | largest error |", "|---" * 8 + "|"]
    for name, standings in found.items():
        for s in standings:
            if s.failure:
                lines.append(f"| {name} | {s.backend} | {s.failure} | | | | | |")
                continue
            counts = f"{s.graphs}, {s.breaks}"
            times = f"{s.ms:.2f} | {s.cold_s:.1f} | {s.warm_s:.1f} | {s.kept_s:.2f}"
            lines.append(f"| {name} | {s.backend} | {times} | {counts} | {s.error:.1e} |")
    ratios = [r for standings in found.values() if (r := ratio(standings)) is not None]
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        lines.append(f"\ntilewright / best: {mean:.2f} (geometric mean of {len(ratios)}), most {max(ratios):.2f}")
    return "\n".join(lines)


def ratio(standings: Sequence[Standing]) -> float | None:
    ours = [s.ms for s in standings if s.backend == "tilewright" and not s.failure]
    others = [s.ms for s in standings if s.backend != "tilewright" and not s.failure]
    return ours[0] / min(others) if ours and others else None


# In a process of its own


def _serve(backend: str, name: str, threads: int) -> None:
    import torch

    from bench.zoo.build import MODELS

    torch.set_num_threads(threads)
    torch._dynamo.config.allow_rnn = backend == "tilewright"  # Inductor would unroll all steps
    torch.manual_seed(0)
    made = MODELS[name]()
    args = tuple(made.inputs.values())
    torch.set_grad_enabled(False)
    expected = made.module(*args)
    # What PyTorch imports when it compiles for the first time is no backend's time.
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    torch._dynamo.utils.counters.clear()
    function = made.module if backend == EAGER else torch.compile(made.module, **_settings(backend, threads))
    for line in sys.stdin:
        try:
            answer = _answer(line.strip(), function, args, expected)
        except Exception as error:
            answer = {"failure": f"{type(error).__name__}: {str(error).splitlines()[0][:150]}"}
        print(json.dumps(answer), flush=True)


def _answer(command: str, function: Any, args: Sequence[Any], expected: Any) -> dict[str, Any]:
    import torch

    verb, _, place = command.partition(" ")
    if verb == "run":
        return {"ms": shortest_ms(lambda: function(*args))}
    start = time.perf_counter()
    if verb == "load":
        torch.compiler.load_cache_artifacts(Path(place).read_bytes())
    loading = time.perf_counter() - start
    answer = _compiled(function, args, expected)
    if verb == "save":
        content, _ = torch.compiler.save_cache_artifacts()
        Path(place).write_bytes(content)
    return {**answer, "seconds": answer["seconds"] + loading}


def _settings(backend: str, threads: int) -> dict[str, Any]:
    if backend != "openvino":
        return BACKENDS[backend]
    # OpenVINO has threads of its own, which PyTorch's setting does not reach, and computes in bfloat16 where it can.
    config = {"INFERENCE_NUM_THREADS": str(threads), "INFERENCE_PRECISION_HINT": "f32"}
    options = {**BACKENDS[backend]["options"], "config": config}
    return {**BACKENDS[backend], "options": options}


def _compiled(function: Any, args: Sequence[Any], expected: Any) -> dict[str, Any]:
    import torch

    start = time.perf_counter()
    found = function(*args)
    seconds = time.perf_counter() - start
    pairs = zip(_flat(found), _flat(expected), strict=True)
    error = max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)
    counters = torch._dynamo.utils.counters
    return {
        "seconds": seconds,
        "error": error,
        "graphs": counters["stats"]["unique_graphs"],
        "breaks": sum(counters["graph_break"].values()),
    }


def _flat(x: Any) -> list[Any]:
    return [y for part in x for y in _flat(part)] if isinstance(x, tuple | list) else [x]


if __name__ == "__main__":
    _serve(sys.argv[1], sys.argv[2], int(sys.argv[3]))
