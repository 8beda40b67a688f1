"""An engine's process, as seen from the one that measures."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import peers
from bench.cases import Case
from bench.turns import ContestantLost, Turn

ROOT = Path(__file__).parent.parent
REASON_CHARACTERS = 300


@dataclass(frozen=True)
class Timing:
    """How long a turn lasts: calls until `warm_s` do not count, then at least `least_s` and `least_calls`, and
    no new call after `most_s`."""

    warm_s: float = 0.1
    least_s: float = 0.15
    least_calls: int = 5
    most_s: float = 2.0
    realtime: bool = False


class Engine:
    """A started process; `load` must come before turns. Use as a context: leaving it ends the process.

    `name` is what results call it. With a `checkout` it is ours, as it is in that folder.
    """

    def __init__(
        self,
        name: str,
        python: str,
        case: Case,
        threads: int,
        cache: Path,
        timing: Timing,
        checkout: Path | None = None,
    ) -> None:
        self.name = name
        peer = name if checkout is None else peers.OURS
        self._timing = timing
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed when the process is ended)
        command = [python, "-m", "bench.worker", peer, str(case.model.resolve()), str(case.arrays.resolve())]
        self._process = subprocess.Popen(
            [*command, "--threads", str(threads), "--cache", str(cache.resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=checkout or ROOT,
            env=process_environment(peers.describe(peer).variables(threads), checkout),
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def load(self, timeout_s: float) -> dict[str, Any]:
        """What the worker answers; ContestantLost says why the model cannot be run."""
        return self._ask({"do": "load"}, timeout_s)

    def take_turn(self) -> Turn:
        """Calls until the timing is met."""
        answer = self._ask({"do": "turn", **vars(self._timing)}, 60 + 20 * self._timing.most_s)
        return Turn(tuple(answer["seconds"]), answer["disturbed"])

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def _ask(self, command: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ContestantLost(self._ended()) from None
        if not select.select([self._process.stdout], [], [], timeout_s)[0]:
            raise ContestantLost(f"no answer within {timeout_s:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise ContestantLost(self._ended())
        answer: dict[str, Any] = json.loads(line)
        if "failed" in answer:
            raise ContestantLost(" ".join(answer["failed"].split())[:REASON_CHARACTERS])
        return answer

    def _ended(self) -> str:
        code = self._process.wait()
        self._log.seek(0)
        lines = [line.strip() for line in self._log if line.strip()]
        return f"the process ended with {code}: {lines[-1] if lines else 'it said nothing'}"[
            :REASON_CHARACTERS
        ]

    def _signal(self, number: signal.Signals) -> None:
        """To all processes of the engine."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def process_environment(variables: Mapping[str, str], checkout: Path | None) -> dict[str, str]:
    """This process's variables, without those that would lead another Python astray; modules of another checkout come
    before all others."""
    inherited = {k: v for k, v in os.environ.items() if k not in ("PYTHONHOME", "PYTHONPATH")}
    found = {} if checkout is None else {"PYTHONPATH": str(checkout)}
    return {**inherited, **variables, **found, "PYTHONWARNINGS": "ignore"}
