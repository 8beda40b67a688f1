"""From what users have to a functional graph of ATen operators: modules are exported, programs decomposed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import sympy
import torch
from torch._decomp import core_aten_decompositions, decomposition_table
from torch._guards import detect_fake_mode
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op
from torch.export import ExportedProgram
from torch.export.exported_program import (
    _override_composite_implicit_decomp,
    _special_op_to_preserve_cia,
    _split_decomp_table_to_cia_and_python_decomp,
)
from torch.export.graph_signature import InputKind, OutputKind

from tilewright.frontends.problems import shown
from tilewright.frontends.torch import adapters as adapters
from tilewright.frontends.torch.autocast import autocast_of_composites
from tilewright.frontends.torch.custom import custom_decompositions
from tilewright.frontends.torch.recurrent import shapes_of_layers
from tilewright.frontends.torch.registry import find_adapter, find_complex, translated
from tilewright.frontends.torch.symbols.guards import Guards, guards_of
from tilewright.frontends.torch.tensors import digest_of_tensors
from tilewright.frontends.torch.trees import tree_of_numbers
from tilewright.ir.diag import ModelError, UnsupportedError

_STATE = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)

_CHECK = "aten::_linalg_check_errors"

_WRITES = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION, OutputKind.USER_INPUT_MUTATION)


@dataclass(frozen=True, eq=False)
class Captured:
    """A functional graph. `inputs` are the names of the placeholders that a caller gives, `state` the name and the
    tensor of each other one; `outputs` are the names of the results, and `results` what the graph's output node holds
    for them. `dims` names symbols ("s77") as the user does; `guards` are what it takes for granted of sizes.

    Buffers that the module writes to are among the inputs, and what they become among the outputs: `kept` has the names
    of both, and `state` what they hold at first."""

    graph: torch.fx.GraphModule
    inputs: tuple[str, ...]
    state: Mapping[str, tuple[str, torch.Tensor]]
    outputs: tuple[str, ...]
    results: tuple[Any, ...]
    dims: Mapping[str, str] = field(default_factory=dict)
    guards: Guards = field(default_factory=Guards)
    kept: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def weights(self) -> bytes:
        """A digest of the elements of `state`, in order."""
        return digest_of_tensors((f"'{target}'", tensor) for target, tensor in self.state.values())


def captured(
    program: ExportedProgram, dims: Mapping[str, str] | None = None, minima: Mapping[str, int] | None = None
) -> Captured:
    """The program, functional, in operators that have adapters as far as PyTorch can decompose it into these. `dims`
    are the names that the caller gave to symbols, `minima` the least sizes."""
    # A region of autocast around the call casts where PyTorch traces: what was exported says nothing of it.
    graph = None if torch.is_autocast_enabled("cpu") else _functional(program.graph_module)
    guards = guards_of(program, minima or {})
    if graph is None:
        before = _traced_guards(program)
        with without_checks():
            program = _decomposed(program)
        graph = program.graph_module
        guards = replace(guards, traced=tuple(g for g in _traced_guards(program) if g not in before))
    signature = program.graph_signature
    tensors = {**program.state_dict, **program.constants}
    inputs: list[str] = []
    state: dict[str, tuple[str, torch.Tensor]] = {}
    for spec in signature.input_specs:
        name = getattr(spec.arg, "name", "")
        if spec.kind in _STATE:
            assert spec.target is not None
            state[name] = (spec.target, tensors[spec.target])
        elif (
            spec.kind is InputKind.USER_INPUT and hasattr(spec.arg, "name") and not hasattr(spec.arg, "value")
        ):
            inputs.append(name)
        elif spec.kind is not InputKind.USER_INPUT:
            raise UnsupportedError(
                f"the program takes '{name}', a {spec.kind.name.lower().replace('_', ' ')}",
                hint="such inputs cannot be compiled: pass tensors",
            )
    results, written = [], []
    buffers = {s.target: s.arg.name for s in signature.input_specs if s.kind is InputKind.BUFFER}
    updates: dict[str, Any] = {}
    (output,) = graph.graph.find_nodes(op="output")
    for spec, result in zip(signature.output_specs, output.args[0], strict=True):
        if spec.kind is OutputKind.BUFFER_MUTATION and _can_be_kept(spec.target, tensors):
            updates[buffers[spec.target]] = result
        elif spec.kind in _WRITES:
            written.append(spec.target or spec.arg.name)
        elif spec.kind is OutputKind.USER_OUTPUT and result is not None:
            results.append(result)
    if written:
        raise keeps_no_state(written)
    names = [*_output_names(program, results)]
    kept: dict[str, str] = {}
    for name, result in updates.items():
        inputs.append(name)
        results.append(result)
        kept[name] = unique_name(state[name][0], names)
        names.append(kept[name])
    return Captured(graph, tuple(inputs), state, tuple(names), tuple(results), dims or {}, guards, kept)


def _can_be_kept(target: str, tensors: Mapping[str, Any]) -> bool:
    """Whether a buffer is memory of its own, of numbers that are not complex."""
    kept = tensors[target]
    others = [t for name, t in tensors.items() if name != target and isinstance(t, torch.Tensor)]
    own = kept.untyped_storage().data_ptr()
    return not kept.is_complex() and all(own != t.untyped_storage().data_ptr() or not own for t in others)


def unique_name(name: str, taken: Sequence[str]) -> str:
    """The name, with a number behind it where it is taken."""
    count, unique = 1, name
    while unique in taken:
        count += 1
        unique = f"{name}_{count}"
    return unique


def _traced_guards(program: ExportedProgram) -> list[sympy.Basic]:
    """What PyTorch has taken for granted of sizes so far, in symbols."""
    mode = detect_fake_mode([node.meta.get("val") for node in program.graph.find_nodes(op="placeholder")])
    environment = mode.shape_env if mode is not None else None
    return [] if environment is None else [guard.expr for guard in environment.guards]


def keeps_no_state(written: Sequence[str]) -> UnsupportedError:
    return UnsupportedError(
        f"the module writes to its {', '.join(f'{shown(name)!r}' for name in written)}",
        hint="a compiled model keeps buffers alone, and those that share no memory: return the new value, or call "
        ".eval() on the module; torch.compile(backend='tilewright') writes to all of them",
    )


def _written_states(program: ExportedProgram) -> list[str]:
    """The buffers, parameters and constants that the program writes to, themselves or by views."""
    names = {s.arg.name: s.target for s in program.graph_signature.input_specs if s.kind in _STATE}
    found: dict[str, None] = {}
    for node in program.graph.nodes:
        op, whole = node.target, node.args[0] if node.args else None
        if node.op != "call_function" or not isinstance(op, torch._ops.OpOverload) or not op._schema.is_mutable:
            continue
        while isinstance(whole, torch.fx.Node) and whole.op == "call_function" and whole.args:
            whole = whole.args[0]
        if isinstance(whole, torch.fx.Node) and whole.name in names:
            found[names[whole.name] or whole.name] = None
    return list(found)


_FRESH = frozenset(("conv1d", "conv2d", "conv3d", "linear", "batch_norm", "layer_norm", "group_norm", "matmul"))
"""Composite operators whose results share no memory with what they are given."""


def _functional(module: torch.fx.GraphModule) -> torch.fx.GraphModule | None:
    """The graph where nothing in it must be decomposed, its writes in place made new values: PyTorch would trace it
    anew, which takes as long as exporting it. None for a graph with subgraphs, writes to inputs, weights or what may be
    views, or operators without an adapter."""
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    written: dict[torch.fx.Node, torch.fx.Node] = {}
    chains: dict[torch.fx.Node, list[torch.fx.Node]] = {}  # a value, and the writes to it, which are the same memory
    for node in module.graph.nodes:
        new = graph.node_copy(node, lambda n: written.get(n, copies[n]))
        copies[node] = new
        new.name = node.name  # some names are others in a new graph, those of builtins
        op = node.target
        if node.op == "call_function" and "_functorch" in (getattr(op, "__module__", "") or ""):
            return None  # a region of torch.vmap
        if node.op != "call_function" or not isinstance(op, torch._ops.OpOverload | torch._ops.HigherOrderOperator):
            continue
        if not isinstance(op, torch._ops.OpOverload):
            return None
        if op._schema.is_mutable:
            target, whole = _out_of_place(op), node.args[0] if node.args else None
            if target is None or not isinstance(whole, torch.fx.Node):
                return None
            chain = chains.setdefault(whole, [whole])
            if not _own_memory(chain, node):
                return None
            chain.append(node)
            chains[node], new.target = chain, target
            written.update(dict.fromkeys(chain, new))
        elif not is_translated(node):
            return None
    return torch.fx.GraphModule(module, graph)


def _out_of_place(op: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """The operator that gives what another writes to its first argument, where it has an adapter."""
    name = op._schema.name.partition("::")[2]
    packet = getattr(torch.ops.aten, name[:-1], None) if op.namespace == "aten" and name.endswith("_") else None
    found = getattr(packet, op._overloadname, None) if packet is not None else None
    same = found is not None and [a.name for a in found._schema.arguments] == [a.name for a in op._schema.arguments]
    return found if same and kept(found) else None


def _own_memory(chain: Sequence[torch.fx.Node], writer: torch.fx.Node) -> bool:
    """Whether a value that was written to shares its memory with none that is read otherwise: neither it nor what reads
    it before `writer` is a view, as far as the schemas say, and it keeps its type."""
    first, written = chain[0].meta.get("val"), writer.meta.get("val")
    if not isinstance(first, torch.Tensor) or not isinstance(written, torch.Tensor) or first.dtype != written.dtype:
        return False
    readers = [user for value in chain for user in value.users if user < writer and user not in chain]
    return _is_fresh(chain[0]) and all(map(_is_fresh, readers))


def _is_fresh(node: torch.fx.Node) -> bool:
    op = node.target
    if node.op != "call_function" or not isinstance(op, torch._ops.OpOverload):
        return False
    if op._schema.is_mutable or any(r.alias_info is not None for r in op._schema.returns):
        return False
    return not op._can_decompose() or op._schema.name.partition("::")[2] in _FRESH


def _decomposed(program: ExportedProgram) -> ExportedProgram:
    table = decompositions() | custom_decompositions(program.graph_module, kept)
    try:
        with shapes_of_layers(), autocast_of_composites(), _without_guards(program):
            return program.run_decompositions(table)
    except Exception as error:
        if written := _written_states(program):  # where these share memory, PyTorch fails before it says so
            raise keeps_no_state(written) from error
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        hint = "is the program complete? it must also run with torch.export's own decompositions"
        if "alias" in first:
            hint = "what torch.cond, while_loop and their like take and give must be different tensors: call .clone()"
        raise ModelError(
            f"PyTorch cannot decompose the exported program: {type(error).__name__}: {first[:600]}", hint=hint
        ) from error


@contextmanager
def _without_guards(program: ExportedProgram) -> Iterator[None]:
    """Code that checks inputs is for calls of the program, and fails for some that are no tensors."""
    guards, program._guards_code = program._guards_code, []
    try:
        yield
    finally:
        program._guards_code = guards


def _output_names(program: ExportedProgram, results: list[Any]) -> tuple[str, ...]:
    """Of a dict, or a dataclass of Hugging Face's, its keys; "output" of a single tensor, else "output_0", ..."""
    spec = program.call_spec.out_spec
    if len(results) == 1:
        keys = _keys(spec)
        return (keys[0] if len(keys) == 1 and keys[0] else "output",)
    keys = _keys(spec)
    if len(keys) != len(results) or len(set(keys)) != len(keys):
        keys = [""] * len(results)
    return tuple(key or f"output_{k}" for k, key in enumerate(keys))


def _keys(spec: Any) -> list[str]:
    """A name for each leaf of a result, from the keys of the mappings around it."""
    paths, _ = torch.utils._pytree.tree_flatten_with_path(tree_of_numbers(spec))
    return ["_".join(str(k.key) for k in path if hasattr(k, "key")) for path, _ in paths]


# Which operators stay whole


def kept(op: Any) -> bool:
    """Whether an operator has an adapter, so that it need not be decomposed."""
    if not isinstance(op, torch._ops.OpOverload):
        return False
    return find_adapter(op_name(op)) is not None or find_complex(op_name(op)) is not None


def is_translated(node: torch.fx.Node) -> bool:
    """Whether a call of an operator has an adapter for its operands."""
    op = node.target
    if not isinstance(op, torch._ops.OpOverload) or not has_complex(node):
        return kept(op)
    return find_complex(op_name(op)) is not None


def has_complex(node: torch.fx.Node) -> bool:
    """Whether a result, an operand or a number that is given is complex."""
    leaves = torch.utils._pytree.tree_leaves((node.args, node.kwargs, node.meta.get("val")))
    values = (x.meta.get("val") if isinstance(x, torch.fx.Node) else x for x in leaves)
    return any(isinstance(x, complex) or (isinstance(x, torch.Tensor) and x.is_complex()) for x in values)


def op_name(op: torch._ops.OpOverload) -> str:
    """As adapters are registered: "aten::sum.dim_IntList"; the default overload has no suffix."""
    packet = f"{op.namespace}::{op._schema.name.partition('::')[2]}"
    return packet if op._overloadname == "default" else f"{packet}.{op._overloadname}"


@lru_cache(maxsize=1)
def _known_decompositions() -> Mapping[Any, Callable[..., Any]]:
    """Every decomposition that PyTorch has, by operator."""
    table = dict(core_aten_decompositions().items())
    for op, function in decomposition_table.items():
        table.setdefault(op, function)
    return table


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Those of operators that have no adapter."""
    return {op: function for op, function in _known_decompositions().items() if not kept(op)}


def draws(op: Any) -> bool:
    """Whether an operator draws from PyTorch's random generator in every call, not only where it is asked to drop."""
    if not isinstance(op, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded not in op.tags:
        return False
    return not any(a.name in ("dropout", "dropout_p", "training") for a in op._schema.arguments)


@contextmanager
def decompositions_kept() -> Iterator[dict[Any, Callable[..., Any]]]:
    """The same as a table for AOTAutograd, without those that draw random numbers in another way than the operator;
    while the context lasts, PyTorch's dispatcher keeps composite operators that have adapters, as it does for
    torch.export."""
    composites, table = _split(frozenset(translated()))
    with _override_composite_implicit_decomp(dict(composites)), autocast_of_composites(), without_checks():
        yield dict(table)


@lru_cache(maxsize=1)
def _split(adapters: frozenset[str]) -> tuple[Mapping[Any, Callable[..., Any]], Mapping[Any, Callable[..., Any]]]:
    """What composite operators become that PyTorch would not decompose as it does by itself, and the decompositions of
    the others; the same as long as no adapter is added."""
    same = {op: function for op, function in decompositions().items() if not draws(op)}
    composites, table = _split_decomp_table_to_cia_and_python_decomp(same)
    ours = {op: fn for op, fn in composites.items() if op in decomposition_table or fn is _special_op_to_preserve_cia}
    return ours, table


@contextmanager
def without_checks() -> Iterator[None]:
    """PyTorch keeps checks for singular matrices in order by tokens, which become inputs and outputs of the graph; here
    such a check is an operator without a result, which is left out."""
    _register_effectful_op(_CHECK, None)
    try:
        yield
    finally:
        _register_effectful_op(_CHECK, _EffectType.ORDERED)
