"""What a page shows, as records, which become its JSON data. Nodes, kernels and groups refer to each other by their
numbers in the lists that hold them; -1 stands for none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SCHEMA = 1
"""Version of the data of a page."""


@dataclass(frozen=True, slots=True)
class GroupView:
    """A part of the hierarchy of modules: the `kind` is "module" for a path of the names of nodes, "repeat" for blocks
    of the same structure that follow each other (`count` of them), "block" for one that was found by its structure, and
    "piece" for some of many nodes without a hierarchy."""

    name: str
    parent: int
    kind: str = "module"
    count: int = 0


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node of the model, or an input or output of it (the operator is "input" or "output" then; of an artefact it is
    not known, and ""): the nodes that it reads, its constants, its results' types, its text, and the kernels that
    compute it. `error` is relative."""

    name: str
    operator: str
    group: int
    reads: tuple[int, ...]
    constants: tuple[str, ...]
    types: tuple[str, ...]
    text: str = ""
    kernels: tuple[int, ...] = ()
    error: float | None = None


@dataclass(frozen=True, slots=True)
class CallView:
    """A call of a kernel, in the order of execution: the number of its `code`, the calls that it reads results of, the
    inputs and outputs of the model (numbers of nodes) that it reads and gives, the nodes that it computes, and what it
    costs: operations, bytes of its arguments, and estimated cycles. Where it was timed, its median and least seconds,
    the percentage of the speed that the machine allows, what sets this (a dtype, or a level of memory), and how evenly
    its work is divided among the threads (1: all have the same)."""

    code: int
    node: str
    group: int
    reads: tuple[int, ...]
    ends: tuple[int, ...]
    nodes: tuple[int, ...]
    types: tuple[str, ...]
    flops: int | None = None
    bytes: int | None = None
    cycles: float | None = None
    seconds: float | None = None
    least: float | None = None
    percent: float | None = None
    bound: str = ""
    balance: float | None = None


@dataclass(frozen=True, slots=True)
class CodeView:
    """A kernel: the texts of its levels by name, compressed, the time in which LLVM made its code, and what was and was
    not done to it."""

    name: str
    texts: Mapping[str, str] = field(default_factory=dict)
    seconds: float | None = None
    strategy: str = ""


@dataclass(frozen=True, slots=True)
class RemarkView:
    """What a pass or a strategy did or did not do, and why: of a node, a kernel, or ("") all of it."""

    stage: str
    kind: str
    subject: str
    message: str


@dataclass(frozen=True, slots=True)
class TensorView:
    """A tensor of the arena: bytes, and the calls between which it is needed."""

    name: str
    offset: int
    size: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class MemoryView:
    """The arena of a program whose calls begin with number `first`: its bytes, what it would take if no tensors shared
    memory, the tensors, and the bytes that are in use at each call."""

    first: int
    total: int
    unshared: int
    tensors: tuple[TensorView, ...]
    alive: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RooflineView:
    """What a machine can do in a second on `threads`: operations on numbers of a dtype, and bytes that are read from
    where they are, the nearest first; `measured`, or by the facts that the cost model has."""

    machine: str
    threads: int
    flops: Mapping[str, float]
    bandwidth: Mapping[str, float]
    measured: bool


@dataclass(frozen=True, slots=True)
class StageTime:
    """How long a stage, or a pass of one, took, in seconds."""

    stage: str
    step: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ModelView:
    """All that is shown of a model or an artefact. `facts` are names and values of a summary, `notes` say what is not
    shown, and why; `hertz` are the cycles of this machine in a second."""

    name: str
    kind: str
    facts: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    groups: tuple[GroupView, ...] = ()
    nodes: tuple[NodeView, ...] = ()
    calls: tuple[CallView, ...] = ()
    codes: tuple[CodeView, ...] = ()
    remarks: tuple[RemarkView, ...] = ()
    memory: tuple[MemoryView, ...] = ()
    roofline: RooflineView | None = None
    hertz: float | None = None
    compiling: tuple[StageTime, ...] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """One page: a model, or two beside each other."""

    title: str
    version: str
    models: tuple[ModelView, ...]
    schema: int = SCHEMA
