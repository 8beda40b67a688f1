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
from tilewright.torch.compiled import Compiled, Result
from tilewright.torch.identity import graph_identity
from tilewright.torch.layouts import Layout
from tilewright.torch.watch import Watch
from tilewright.torch.weights import FROZEN, addresses_in, key_of, watch

Runner = Callable[..., Any]


@dataclass(frozen=True)
class Recall:
    """What notes of a graph are found by: its text with all that decides on its code (`about`), and the places of its
    inputs that are parameters. `weights` says how these are watched."""

    about: str
    places: tuple[int, ...]
    options: Options
    weights: str

    @classmethod
    def of(
        cls,
        graph: torch.fx.GraphModule,
        inputs: Sequence[Any],
        frozen: Sequence[bool],
        options: Options,
        weights: str,
    ) -> Recall | None:
        """None for graphs that are not told from others, and where nothing is kept."""
        if not options.cache:
            return None
        stamp, identity = Session().stamp(options), graph_identity(graph, inputs, frozen)
        if stamp is None or identity is None:
            return None
        places = tuple(k for k, flag in enumerate(frozen) if flag)
        return cls(f"torch graph {identity} {stamp}", places, options, weights)

    def find(self, args: Sequence[Any]) -> Compiled | None:
        """The code for the parameters among the inputs of a call; None where there is none."""
        session = Session()
        if session.recall(self.about) is None:  # a new graph: its parameters need not be read for a digest
            return None
        try:
            weights = digest_of_tensors((f"the parameter {k}", args[k].detach()) for k in self.places)
            found = session.recall(self._about(weights))
            return None if found is None else self._restored(session, json.loads(found))
        except (TilewrightError, ValueError, KeyError, TypeError):
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
        results = [None if r is None else _result(*r) for r in fact["results"]]
        return Compiled(model, results, fact["taken"], fact["operators"])


def _result(place: int, is_number: bool, layout: Any) -> Result:
    if layout is None:
        return Result(int(place), bool(is_number))
    kind, size, stride, offset = layout
    sizes, strides = (tuple(map(int, n)) for n in (size, stride))
    return Result(int(place), bool(is_number), Layout(str(kind), sizes, strides, int(offset)))


class Recalled:
    """A graph that is run by code of before, as long as its parameters have the values that there is code for; with
    others it is compiled anew."""

    def __init__(self, recall: Recall, compile: Callable[[], Runner], known: Compiled | None = None) -> None:
        self._recall, self._compile = recall, compile
        self._places, self._key_of = recall.places, key_of(recall.weights, recall.places)
        self._free: tuple[int, ...] | None = None
        self._other: Runner | None = None
        self._first = known
        self._known: dict[Any, _CodeInUse] = {}
        # One attribute, so that threads see a key with its own code.
        self._current: _CodeInUse | None = None

    def __call__(self, *args: Any) -> Any:
        if self._other is not None:
            return self._other(*args)
        key = self._key_of(args)
        current = self._current
        if current is None or key != current.key or not current.is_unchanged():
            current = self._code_for(key, args)
            if current is None:
                return self._other(*args)  # type: ignore[misc]
        assert self._free is not None
        return current.run(*[args[k] for k in self._free])

    def _code_for(self, key: Any, args: Sequence[Any]) -> _CodeInUse | None:
        addresses = addresses_in(key)
        last = self._known.get(addresses)
        if last is not None and last.key == key and last.is_unchanged():
            self._current = last
            return last
        watched = watch([args[k] for k in self._places], self._recall.weights)
        if last is not None and last.watch.contents == watched.contents:
            run: Runner | None = last.run
        else:
            run, self._first = self._first or self._recall.find(args), None
        if run is None:
            self._other = self._compile()
            return None
        if self._free is None:
            frozen = set(self._places)
            self._free = tuple(k for k in range(len(args)) if k not in frozen)
        if len(self._known) >= MAX_KNOWN_WEIGHTS:
            del self._known[next(iter(self._known))]
        held = [args[k].untyped_storage() for k in self._places] if self._recall.weights == FROZEN else []
        self._current = self._known[addresses] = _CodeInUse(key, run, watched, held)
        return self._current


MAX_KNOWN_WEIGHTS = 16
"""How many sets of parameters, in different memory, are known without reading them again: layers that share a graph
are called with one after the other."""


@dataclass(frozen=True, eq=False)
class _CodeInUse:
    """Code, the memory and counts of the parameters that it is for, and the watch over what these hold. Where that
    trusts the counts, the memory is held: no other parameters have these addresses then."""

    key: Any
    run: Runner
    watch: Watch
    held: Sequence[Any]

    @property
    def is_unchanged(self) -> Callable[[], bool]:
        return self.watch.is_unchanged
