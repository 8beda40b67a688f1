"""Where a real model gets no memory for a sequence: kept begins give theirs back, and who fails, fails alone."""

from __future__ import annotations

from typing import Any

import pytest

import tilewright
from tests.llm.checkpoints import model_folder
from tests.llm.serving.simulated import WORDS, Client, prompt_of, wanted_of
from tilewright.frontends.decoders.source import DecoderSource
from tilewright.llm.sequences import CompiledSequences
from tilewright.llm.serving.http.problems import refused
from tilewright.llm.serving.requests import AnswerRequest, Limits
from tilewright.llm.serving.scheduler import Scheduler
from tilewright.runtime import Model
from tilewright.runtime.errors import ExecutionError
from tilewright.runtime.kept import reserved


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = model_folder(tmp_path_factory.mktemp("model"))
    return tilewright.compile(DecoderSource(folder, sequences=2), cache=False, threads=1)


class Served:
    """A scheduler whose sequences get no memory once so many of them are open, None: as many as are wanted."""

    def __init__(self, model: Model, monkeypatch: pytest.MonkeyPatch, **limits: Any) -> None:
        limited = Limits(**{"piece": 16, "parallel": 4, **limits})
        self.sequences = CompiledSequences(model, limited.slots)
        self.scheduler = Scheduler(self.sequences, WORDS, limited)
        self.most: int | None = None
        given = reserved.mmap.mmap

        def limiting(*args: Any, **named: Any) -> Any:
            if self.most is not None and len(self.sequences._open) >= self.most:
                raise OSError(12, "Cannot allocate memory")
            return given(*args, **named)

        monkeypatch.setattr(reserved.mmap, "mmap", limiting)

    def ask(self, seed: int, answers: int = 1) -> Client:
        client = Client()
        wanted = tuple(wanted_of(6, seed=seed + k) for k in range(answers))
        client.ticket = self.scheduler.submit(AnswerRequest(prompt_of(40, seed), wanted), client.tell)
        return client

    def run(self) -> None:
        while self.scheduler.busy:
            self.scheduler.step()


def texts(client: Client, answers: int = 1) -> list[str]:
    assert client.error is None
    return [client.text(k) for k in range(answers)]


def test_kept_begins_give_theirs_back(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served(model, monkeypatch)
    served.ask(1)
    served.run()
    assert len(served.sequences._open) == 1
    served.most = 1
    other = served.ask(2)
    served.run()
    served.most = None
    wanted = served.ask(2)
    served.run()
    assert texts(other) == texts(wanted)


def test_answers_that_cannot_fork_read_by_themselves_and_nobody_else_fails(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(model, monkeypatch, kept=0)
    wanted = [served.ask(3, 3), served.ask(7)]
    served.run()
    served.most = 2
    found = [served.ask(3, 3), served.ask(7)]
    served.run()
    assert texts(found[1]) == texts(wanted[1])
    assert isinstance(found[0].error, MemoryError)


def test_what_is_told(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served(model, monkeypatch)
    served.most = 0
    client = served.ask(5)
    served.run()
    assert isinstance(client.error, ExecutionError)
    told = refused(client.error)
    assert (told.status, told.code) == (503, "no_memory")
