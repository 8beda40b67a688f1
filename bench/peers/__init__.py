"""The engines to measure beside, a file each: a `PEER` that describes it and an `Adapter` that runs it.

To add one, write such a file; nothing else names it. Descriptions are read everywhere, so the engine itself may only
be imported inside of the adapter's methods.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Protocol, runtime_checkable

import numpy as np

OURS = "tilewright"


def _no_variables(threads: int) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True)
class Peer:
    """What is to be known of an engine without importing it.

    `environment` names the virtual environment (engines may share one), `packages` is what pip installs there, and
    `variables` are environment variables for a process with a number of threads. `runtime` are the folders of packages
    that run a deployed model, without NumPy: `PACKAGE` or `PACKAGE/FOLDER`.
    """

    title: str
    environment: str
    packages: tuple[str, ...]
    variables: Callable[[int], Mapping[str, str]] = _no_variables
    runtime: tuple[str, ...] = ()


class Adapter(Protocol):
    """An engine with a model; made with the folder where it may keep what it converts or compiles."""

    def __init__(self, cache: Path) -> None: ...

    def load(self, model: Path, inputs: Mapping[str, np.ndarray], threads: int) -> None:
        """Everything that is done once: read, convert, compile, bind the inputs."""

    def run(self) -> None:
        """One inference; returns when the outputs are computed."""

    def outputs(self) -> Sequence[np.ndarray]:
        """The outputs of the last inference, in the order of the model."""

    def version(self) -> str: ...


@runtime_checkable
class Deployer(Protocol):
    """An adapter whose engine does not run the model's own file where it is deployed."""

    def files(self, model: Path, inputs: Mapping[str, np.ndarray], threads: int) -> Sequence[Path]:
        """What is deployed, made anew or found in the cache: first the file that `load` takes in the model's place."""


def openmp_variables(threads: int) -> Mapping[str, str]:
    """For engines whose threads are those of OpenMP or MKL."""
    return {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}


def names() -> list[str]:
    """All engines, ours first."""
    found = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return [OURS, *(name for name in found if name != OURS)]


def describe(name: str) -> Peer:
    """The description of an engine; ValueError says which there are."""
    peer: Peer = _module(name).PEER
    return peer


def adapter(name: str, cache: Path) -> Adapter:
    """An engine that has no model yet."""
    made: Adapter = _module(name).Adapter(cache)
    return made


def _module(name: str) -> ModuleType:
    if name not in names():
        raise ValueError(f"there is no engine '{name}': the engines are {', '.join(names())}")
    return importlib.import_module(f"bench.peers.{name}")
