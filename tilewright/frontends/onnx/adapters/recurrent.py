"""RNN, GRU and LSTM: layouts, directions and defaults."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter
from tilewright.frontends.unroll import element, stacked
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.sym import Sym
from tilewright.ops import elementwise as ew
from tilewright.ops.composites.recurrent import ACTIVATIONS, GATES, Direction, layer
from tilewright.ops.contract import matmul
from tilewright.ops.index import within
from tilewright.ops.view import section, transpose

_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


@adapter("RNN", "GRU", "LSTM")
def recurrent_network(node: Node) -> tuple[Value, ...]:
    """The directions one by one, stacked: Y [time, directions, batch, hidden], Y_h and Y_c without time."""
    directions = directions_of(node)
    hidden = _checked_sizes(node, len(directions))
    batch_first = node.flag("layout", 0)
    x = transpose(node.input(0), perm=(1, 0, 2)) if batch_first else node.input(0)
    y, *finals = stacked_layers(
        x, [_direction(node, k, reverse, hidden) for k, reverse in enumerate(directions)]
    )
    if batch_first:
        return (transpose(y, perm=(2, 0, 1, 3)), *[transpose(s, perm=(1, 0, 2)) for s in finals])
    return (y, *finals)


def directions_of(node: Node) -> tuple[bool, ...]:
    """For each direction whether it is backward."""
    given = node.has("direction")  # the default of GRU is misspelt in opset 1
    return _DIRECTIONS[node.one_of("direction", *_DIRECTIONS) if given else "forward"]


def stacked_layers(x: Value, directions: Sequence[Direction]) -> tuple[Value, ...]:
    """The results of all directions for x [time, batch, width]: [time, directions, batch, hidden], and the last states
    [directions, batch, hidden]."""
    over_time, *states = zip(*[layer(x, d) for d in directions], strict=True)
    return (stacked(over_time, 1), *[stacked(state, 0) for state in states])


def _checked_sizes(node: Node, directions: int) -> int:
    """The hidden size; ModelError when operands disagree with it."""
    if node.rank(0) != 3 or node.rank(1) != 3 or node.rank(2) != 3:
        raise ModelError(
            f"{node.op} takes x, W and R of three axes, not {', '.join(str(node.type(k)) for k in range(3))}"
        )
    hidden = node.attr("hidden_size", None)
    hidden = node.known_dim(2, 2) if hidden is None else hidden
    rows = GATES[node.op] * hidden
    batch_first = node.attr("layout", 0)
    batch = node.shape(0)[0 if batch_first else 1]
    state = (batch, directions, hidden) if batch_first else (directions, batch, hidden)
    wanted: dict[int, tuple[Sym | int, ...]] = {
        1: (directions, rows, node.shape(0)[2]),
        2: (directions, rows, hidden),
        3: (directions, 2 * rows),
        5: state,
        6: state,
        7: (directions, 3 * hidden),
    }
    for k, shape in wanted.items():
        if node.optional(k) is not None:
            listed = ", ".join(map(str, shape))
            node.demand_shape(
                k, shape, f"input {k} is {node.type(k)}; with hidden size {hidden} its shape is [{listed}]"
            )
    return int(hidden)


def _direction(node: Node, k: int, reverse: bool, hidden: int) -> Direction:
    rows = GATES[node.op] * hidden

    def part(operand: int) -> Value | None:
        value = node.optional(operand)
        if value is not None and operand in (5, 6) and node.attr("layout", 0):
            value = transpose(value, perm=(1, 0, 2))
        return None if value is None else element(value, 0, k)

    w, r, biases = element(node.input(1), 0, k), element(node.input(2), 0, k), part(3)
    input_bias, bias = (
        None if biases is None else section(biases, 0, n, rows)
        for n in (0, rows)
    )
    lstm = node.op == "LSTM"
    return Direction(
        node.op,
        hidden,
        lambda x: matmul(x, w, transpose_b=True),
        r,
        input_bias,
        bias,
        part(5),
        part(6) if lstm else None,
        part(7) if lstm else None,
        lengths_of(node),
        activations_of(node, node.op, k),
        reverse,
        linear_before_reset=node.flag("linear_before_reset", 0),
        couple=node.flag("input_forget", 0),
        limit=limit_of(node),
    )


def limit_of(node: Node) -> float:
    """The bound of what activations are applied to; 0 where there is none."""
    limit: float = node.attr("clip", 0.0)
    if node.has("clip") and not limit > 0:
        raise ModelError(f"{node.op}: clip must be above 0, it is {limit}")
    return limit


def lengths_of(node: Node) -> Value | None:
    """The number of steps of each entry; None where all entries last for all steps."""
    if node.optional(4) is None:
        return None
    known, steps = node.constant_or_none(4), node.shape(0)[1 if node.attr("layout", 0) else 0]
    if (
        known is not None
        and steps.is_const
        and known.size
        and not 0 <= known.min() <= known.max() <= steps.value
    ):
        raise ModelError(f"{node.op}: lengths up to {known.max()} for {steps} steps")
    lengths = ew.cast(node.input(4), dtype=dt.i64)
    if known is not None and steps.is_const:
        return lengths
    return within(lengths, low=0, high=steps, what=f"{node.op}: a length is not one of 0 to the number of steps")


def activations_of(node: Node, kind: str, direction: int) -> tuple[str, ...]:
    """The activations of a direction of a layer of `kind`, in lower case."""
    count = len(ACTIVATIONS[kind])
    named = node.attr("activations", None) or ACTIVATIONS[kind] * 2
    chosen = tuple(name.lower() for name in named[direction * count :][:count])
    if len(chosen) != count:
        raise ModelError(f"{node.op} needs {count} activations for each direction")
    return chosen
