"""Splits a functional graph into what is compiled and what PyTorch runs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from tilewright import api
from tilewright.cost.factorizations import LARGEST_BY_ROTATIONS, rotations_are_faster
from tilewright.frontends.torch.capture import Captured, draws, has_complex, is_translated, kept
from tilewright.frontends.torch.symbols.declared import symbols_of_inputs, traced_ranges
from tilewright.frontends.torch.symbols.guards import Guards
from tilewright.frontends.torch.tensors import COMPLEX, DTYPES
from tilewright.ir.diag import TilewrightError, UnsupportedError
from tilewright.options import Options, Request
from tilewright.session import Session
from tilewright.torch.compiled import Compiled, Kept, Result
from tilewright.torch.layouts import Layout, Stored, eager_views, layouts_of
from tilewright.torch.records import GraphRecord, Piece
from tilewright.torch.views import views_of_results

State = Mapping[str, tuple[str, torch.Tensor]]
Tell = Callable[[GraphRecord], None]


def compiled_pieces(
    graph: torch.fx.GraphModule, state: State, options: Options, tell: Tell
) -> Callable[..., Any]:
    """A function of the inputs that are not in `state`, which gives what the graph gives."""
    eager = dict.fromkeys((*views_of_results(graph), *eager_views(graph, False)), _VIEW)
    for node in graph.graph.nodes:
        if node.op == "call_function" and (reason := _reason(node)):
            eager[node] = reason
    if not eager:
        whole = _whole(graph, state, options, eager)
        if whole is not None:
            tell(GraphRecord(graph, (whole.piece,)))
            return whole
    eager = {**dict.fromkeys(eager_views(graph, True), _VIEW), **eager}
    return _split(graph, state, options, eager, tell)


_VIEW = "it gives a view of an input or a result, which shares memory with it"


def _whole(
    graph: torch.fx.GraphModule,
    state: State,
    options: Options,
    eager: dict[torch.fx.Node, str],
    is_part: bool = False,
) -> Compiled | None:
    """The graph compiled; None, and the operators that prevent it in `eager`, where that cannot be. It may be a part of
    one that is split."""
    placeholders = graph.graph.find_nodes(op="placeholder")
    (output,) = graph.graph.find_nodes(op="output")
    listed = output.args[0] if isinstance(output.args[0], tuple | list) else (output.args[0],)
    nodes = [r for r in listed if isinstance(r, torch.fx.Node)]
    layouts = layouts_of(nodes, is_part)
    made = iter(zip(nodes, layouts.results, strict=True))
    results = [_result(*next(made)) if isinstance(r, torch.fx.Node) else None for r in listed]
    free = [node for node in placeholders if node.name not in state]
    given = _given(free)
    names = tuple(f"output_{k}" for k in range(len(layouts.stored)))
    program, outputs = _storing(graph, layouts.stored)
    guards = Guards(ranges=traced_ranges(given))
    captured = Captured(program, tuple(node.name for node in given), state, names, outputs, guards=guards)
    try:
        model = api.compile(captured, options=options)
    except TilewrightError as error:
        eager.update(_blamed(graph, error))
        return None
    key = Session().key(Request.of(captured, None, None), options) if options.cache else None
    kept = Kept(key, captured.weights) if key else None
    return Compiled(model, results, [k for k, node in enumerate(free) if node in given], _count(graph), kept)


def _storing(
    graph: torch.fx.GraphModule, stored: Sequence[Stored]
) -> tuple[torch.fx.GraphModule, tuple[torch.fx.Node, ...]]:
    """The graph with outputs as they are stored; itself where these are values of it."""
    if not any(what.order or what.single for what in stored):
        return graph, tuple(what.node for what in stored)
    copy, copies = _copied(graph)
    (end,) = copy.graph.find_nodes(op="output")
    outputs = []
    with copy.graph.inserting_before(end):
        for what in stored:
            node = copies[what.node]
            for axis in what.single:
                node = _added(copy, torch.ops.aten.slice.Tensor, node, axis, 0, 1)
            if what.order:
                node = _added(copy, torch.ops.aten.permute.default, node, list(what.order))
            outputs.append(node)
    return copy, tuple(outputs)


def _added(graph: torch.fx.GraphModule, op: Any, node: torch.fx.Node, *args: Any) -> torch.fx.Node:
    """One more call, of a value, at the end of a graph."""
    found = graph.graph.call_function(op, (node, *args))
    found.meta = {**node.meta, "val": op(node.meta["val"], *args)}
    return found


def _result(node: torch.fx.Node, made: tuple[int, Layout | None]) -> Result:
    place, layout = made
    return Result(place, not isinstance(node.meta.get("val"), torch.Tensor), layout)


def _blamed(graph: torch.fx.GraphModule, error: TilewrightError) -> dict[torch.fx.Node, str]:
    """The calls that an error names, each with its reason; all calls where it names none of the graph's."""
    problems = error.problems if isinstance(error, UnsupportedError) else ()
    labels = {p.node: p.reason for p in problems} or {error.where or "": error.what}
    reasons = {label.partition(" ")[0].rpartition("/")[2]: reason for label, reason in labels.items()}
    calls = [node for node in graph.graph.nodes if node.op == "call_function"]
    named = {_made_by(node): reasons[node.name] for node in calls if node.name in reasons}
    return named or dict.fromkeys(calls, error.what)


def _given(free: Sequence[torch.fx.Node]) -> list[torch.fx.Node]:
    """The inputs of a graph that are inputs of the model: sizes that tensors tell are not."""
    used = [node for node in free if node.users and node.meta.get("val") is not None]
    told = symbols_of_inputs(used)
    return [
        node for node in used
        if not isinstance(size := node.meta["val"], torch.SymInt) or size.node.expr not in told
    ]  # fmt: skip


def _made_by(node: torch.fx.Node) -> torch.fx.Node:
    """The call that gives a result: one of several is taken of what it gives, and runs where that does."""
    while node.target is operator.getitem:
        node = node.args[0]
    return node


def _reason(node: torch.fx.Node) -> str:
    """Why a call is not compiled; "" where it may be."""
    target = node.target
    if target is operator.getitem or not isinstance(target, torch._ops.OperatorBase):
        return ""
    if isinstance(target, torch._ops.OpOverload) and not kept(target):
        return "the operator has no binding"
    if has_complex(node) and not is_translated(node):
        return "it is not supported for complex numbers"
    for value in _tensors(node):
        if value.dtype not in DTYPES and value.dtype not in COMPLEX:
            return f"tensors of {value.dtype} are not supported"
        if value.device.type != "cpu":
            return f"tensors of the device '{value.device}' are not supported"
    return _theirs(node)


def _theirs(node: torch.fx.Node) -> str:
    """Why a result must be PyTorch's own, as another is as right but not the same: compiled modules agree with eager
    ones, and `torch.manual_seed` decides what both draw."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return ""
    if draws(target):
        return "it draws from PyTorch's random generator"
    arbitrary = _ARBITRARY.get(target._schema.name, ())
    if _is_taken(node, arbitrary):
        return "its vectors have arbitrary signs"
    if _depends_on_ties(node, target):
        return "which of equal elements comes first is not said"
    if target is torch.ops.aten.linalg_matrix_exp.default:
        return "PyTorch's error is that of its greatest element, and ours another"
    if target._schema.name in _ARBITRARY and not _is_small(node.all_input_nodes[0]):
        return f"LAPACK is faster for matrices of more than {LARGEST_BY_ROTATIONS} rows"
    return ""


def _is_small(node: torch.fx.Node) -> bool:
    sizes = node.meta["val"].shape[-2:]
    return all(isinstance(n, int) and rotations_are_faster(n) for n in sizes)


_ARBITRARY = {"aten::_linalg_eigh": (1,), "aten::_linalg_svd": (0, 2)}
"""Operators, and which of their results are not unique."""


def _is_taken(node: torch.fx.Node, places: Sequence[int]) -> bool:
    """Whether one of these results of a call is used."""
    return any(user.target is operator.getitem and user.args[1] in places for user in node.users)


_ORDERS = {"aten::topk": True, "aten::kthvalue": True, "aten::sort": False, "aten::argsort": False}
"""Operators that give positions, and whether PyTorch's are any among equal integers, too, and not among bools alone."""


def _depends_on_ties(node: torch.fx.Node, target: torch._ops.OpOverload) -> bool:
    """Whether positions are asked for among elements of which many are equal."""
    name = target._schema.name
    if name not in _ORDERS or node.kwargs.get("stable"):
        return False
    dtype = _tensors(node.all_input_nodes[0])[0].dtype
    is_asked = name == "aten::argsort" or _is_taken(node, (1,))
    return is_asked and (dtype is torch.bool or (_ORDERS[name] and not dtype.is_floating_point))


def _tensors(node: torch.fx.Node) -> list[torch.Tensor]:
    values = [n.meta.get("val") for n in (node, *node.all_input_nodes)]
    flat = [x for v in values for x in (v if isinstance(v, tuple | list) else (v,))]
    return [x for x in flat if isinstance(x, torch.Tensor)]


def _count(graph: torch.fx.GraphModule) -> int:
    return sum(node.op == "call_function" for node in graph.graph.nodes)


class _Supported(OperatorSupportBase):
    def __init__(self, eager: Mapping[torch.fx.Node, str]) -> None:
        self._eager = eager

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: torch.fx.Node) -> bool:
        return node.op == "call_function" and node not in self._eager


def _split(
    graph: torch.fx.GraphModule, state: State, options: Options, eager: dict[torch.fx.Node, str], tell: Tell
) -> Callable[..., Any]:
    """The graph with each compiled part as one call. Other parameters may ask for it again: a copy is what is split."""
    reasons = _reasons(eager)
    copy, copies = _copied(graph)
    _keep_order(copy)
    own_eager = {copies[node]: reason for node, reason in eager.items()}
    partitioner = CapabilityBasedPartitioner(copy, _Supported(own_eager), allows_single_node_partition=True)
    split = partitioner.fuse_partitions(partitioner.propose_partitions())
    pieces: list[Piece] = []
    given = {
        node.name: state[node.name] for node in graph.graph.find_nodes(op="placeholder") if node.name in state
    }
    for node in list(split.graph.nodes):
        if node.op != "call_module":
            continue
        part = getattr(split, str(node.target))
        inner = part.graph.find_nodes(op="placeholder")
        own = {p.name: given[a.name] for p, a in zip(inner, node.args, strict=True) if a.name in given}
        failed: dict[torch.fx.Node, str] = {}
        compiled = _whole(part, own, options, failed, is_part=True)
        free = [k for k, p in enumerate(inner) if p.name not in own]
        if compiled is not None:
            pieces.append(compiled.piece)
            is_many = isinstance(part.graph.find_nodes(op="output")[0].args[0], tuple | list)
            setattr(split, str(node.target), _Call(compiled if is_many else partial(_first, compiled), free))
        elif len(failed) < _count(part):
            records: list[GraphRecord] = []
            setattr(split, str(node.target), _Call(_split(part, own, options, failed, records.append), free))
            pieces += records[0].pieces or ()
            reasons += records[0].eager
        else:
            reasons += _reasons(failed)
    split.recompile()
    tell(GraphRecord(graph, tuple(pieces), eager=reasons))
    order = [node.name for node in split.graph.find_nodes(op="placeholder")]

    def run(*args: Any) -> Any:
        free = iter(args)
        return split(*[state[name][1] if name in state else next(free) for name in order])

    return run


def _copied(graph: torch.fx.GraphModule) -> tuple[torch.fx.GraphModule, dict[torch.fx.Node, torch.fx.Node]]:
    """A graph with the same names, and its nodes by those of the given one."""
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    found = torch.fx.Graph()
    for node in graph.graph.nodes:
        copies[node] = found.node_copy(node, copies.__getitem__)
        copies[node].name = node.name
    return torch.fx.GraphModule(graph, found), copies


def _keep_order(graph: torch.fx.GraphModule) -> None:
    """Make each operator that draws random numbers wait for the one before: what is around them may be moved."""
    before: torch.fx.Node | None = None
    for node in graph.graph.nodes:
        if draws(node.target):
            if before is not None:
                node.args, node.target = (before, node.target, *node.args), _drawn_after
            before = node


def _drawn_after(before: Any, op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs)


def _reasons(eager: Mapping[torch.fx.Node, str]) -> tuple[tuple[str, str, str], ...]:
    return tuple((str(node.target), node.name, reason) for node, reason in eager.items())


def _first(run: Callable[..., Sequence[Any]], *args: Any) -> Any:
    return run(*args)[0]


class _Call(torch.nn.Module):
    """What runs a part as a module that takes all inputs of the part."""

    def __init__(self, run: Callable[..., Any], free: Sequence[int]) -> None:
        super().__init__()
        self._run, self._free = run, tuple(free)

    def forward(self, *args: Any) -> Any:
        return self._run(*[args[k] for k in self._free])
