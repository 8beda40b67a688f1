"""Graphs that were compiled before, maybe by another process: neither AOTAutograd nor the compiler runs for them.

A note in the cache says of a graph of Dynamo's, by its text, and of the values of its parameters, which artefact
computes it and how that is called. Graphs that only compute have one: where inputs are written to, or results are views
of them, AOTAutograd adds to each call what no note holds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tilewright.frontends.torch.tensors import digest_of_tensors
from tilewright.ir.diag import TilewrightError
from tilewright.options import Options
from tilewright.runtime import Model
from tilewright.session import Session
from tilewright.torch.compiled import Compiled
from tilewright.torch.identity import graph_identity

Runner = Callable[..., Any]


@dataclass(frozen=True)
class Recall:
    """What notes of a graph are found by: its text with all that decides on its code (`about`), and the places of its
    inputs that are parameters."""

    about: str
    places: tuple[int, ...]
    options: Options

    @classmethod
    def of(
        cls, graph: torch.fx.GraphModule, inputs: Sequence[Any], frozen: Sequence[bool], options: Options
    ) -> Recall | None:
        """None for graphs that are not told from others, and where nothing is kept."""
        if not options.cache:
            return None
        stamp, identity = Session().stamp(options), graph_identity(graph, inputs, frozen)
        if stamp is None or identity is None:
            return None
        return cls(f"torch graph {identity} {stamp}", tuple(k for k, flag in enumerate(frozen) if flag), options)

    def find(self, args: Sequence[Any]) -> Compiled | None:
        """The code for the parameters among the inputs of a call; None where there is none."""
        session = Session()
        if session.recall(self.about) is None:  # a new graph: its parameters need not be read for a digest
            return None
        try:
            weights = digest_of_tensors((f"the parameter {k}", args[k].detach()) for k in self.places)
            found = session.recall(self._about(weights))
            return None if found is None else self._restored(session, json.loads(found))
        except (TilewrightError, ValueError, KeyError):
            return None

    def keep(self, compiled: Compiled) -> None:
        """Note what computes the graph, if the cache has it."""
        if compiled.kept is None:
            return
        fact = {
            "artifact": compiled.kept.key,
            "results": compiled.results,
            "taken": compiled.taken,
            "operators": compiled.operators,
        }
        session = Session()
        session.note(self._about(compiled.kept.weights), json.dumps(fact).encode())
        session.note(self.about, b"known")

    def _about(self, weights: bytes) -> str:
        return f"{self.about} {weights.hex()}"

    def _restored(self, session: Session, fact: dict[str, Any]) -> Compiled | None:
        artifact = session.find(fact["artifact"])
        if artifact is None:
            return None
        model = Model(artifact, self.options.threads, session.executor(artifact.target.kind))
        results = [None if r is None else (int(r[0]), bool(r[1])) for r in fact["results"]]
        return Compiled(model, results, fact["taken"], fact["operators"])


class Recalled:
    """A graph that is run by code of before, as long as its parameters have the values that there is code for; with
    others it is compiled anew."""

    def __init__(self, recall: Recall, compile: Callable[[], Runner], known: Compiled | None = None) -> None:
        self._recall, self._compile = recall, compile
        self._places = recall.places
        self._free: tuple[int, ...] | None = None
        self._other: Runner | None = None
        self._held: list[Any] = []
        self._known = known
        # One attribute, so that threads see a key with its own code.
        self._current: tuple[Any, Runner | None] = (None, None)

    def __call__(self, *args: Any) -> Any:
        if self._other is not None:
            return self._other(*args)
        key = tuple([(args[k].data_ptr(), args[k]._version) for k in self._places])
        last, run = self._current
        if key != last or run is None:
            run = self._turned_to(key, args)
            if run is None:
                return self._other(*args)  # type: ignore[misc]
        assert self._free is not None
        return run(*[args[k] for k in self._free])

    def _turned_to(self, key: Any, args: Sequence[Any]) -> Runner | None:
        found, self._known = self._known or self._recall.find(args), None
        if found is None:
            self._other = self._compile()
            return None
        if self._free is None:
            frozen = set(self._places)
            self._free = tuple(k for k in range(len(args)) if k not in frozen)
        # As long as their memory is held, no other parameters have these addresses.
        self._held = [args[k].untyped_storage() for k in self._places]
        self._current = (key, found)
        return found
