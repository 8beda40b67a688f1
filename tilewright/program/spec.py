"""The Spec of the program level: what a model does from call to call.

    program @main(x: f32[n, 64]) -> (f32[n, 8]) {
      h = state() {name="h"} : state f32[1, 8]
      before = read(h) : f32[1, 8]
      y, after = call(x, before) {kernel="k0_step", dims=[n]} : f32[n, 8], f32[1, 8]
      update(h, after)
      return y
    }

- `call` of a `kernel` of the module, with the values of its `dims`, or of a `part`, a function of another level, which
  takes the values of the variables `sizes` behind its operands.
- `constant`, and the views `reshape`, `slice` and `concat`, which need no code.
- `measure`, `host`, `branch` and `loop` as in a graph (`ops/define/staged.py`): a measured variable is known from there
  on, and so are the dims of values.
- `native` runs its block without the host, in native code that is made of it; it gives what the block yields.
- `state` is memory that a call finds as the one before it has left it. `read` gives what it holds, without a copy;
  `update` writes a value into it, all of it or from the position `at` on. What may be read and written in which order
  is in `aliasing.py`.
"""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.ir.core import Func, Module, Op
from tilewright.ir.sym import Sym
from tilewright.ir.types import BufferType, TensorType, Type
from tilewright.ir.verify import OpRule, Spec
from tilewright.ops.define.spec import graph_spec
from tilewright.ops.define.staged import ASSUME, STAGED
from tilewright.program.aliasing import broken_aliasing
from tilewright.program.memory.places import SCRATCH
from tilewright.program.memory.views import VIEWS

LEVEL = "program"

STATE, READ, UPDATE = "state", "read", "update"
NATIVE = "native"

SPACE = "state"
"""The memory of states, in their types: `state f32[1, 8]`."""



def program_spec(module: Module) -> Spec:
    """The rules of programs of a module, whose functions and constants they name."""
    graph = graph_spec(module).ops
    kept = ("constant", "return", "yield", *VIEWS, *(STAGED - {ASSUME}))
    rules: dict[str, OpRule] = {name: graph[name] for name in kept}
    rules["call"] = lambda op: _call_rule(op, module)
    rules |= {STATE: _state_rule, READ: _read_rule, UPDATE: _update_rule, NATIVE: _native_rule}
    return Spec(LEVEL, rules, broken_aliasing, memory=frozenset({SCRATCH}))


def _call_rule(op: Op, module: Module) -> str | None:
    if op.blocks:
        return "has no blocks"
    kind = next((k for k in ("kernel", "part") if k in op.attrs), None)
    if kind is None:
        return "has the attribute 'kernel' or 'part', which names a function of the module"
    values = "dims" if kind == "kernel" else "sizes"
    given = op.attrs.get(values)
    if not isinstance(given, tuple) or not all(isinstance(d, Sym) for d in given):
        return f"has the attribute '{values}', a tuple of expressions"
    if unknown := op.attrs.keys() - {kind, values, "concurrent", "at", "scratch"}:
        return f"has no attribute {', '.join(sorted(unknown))}"
    func = module.funcs.get(op.attrs[kind])
    if func is None or (func.level == "loops") != (kind == "kernel"):
        return f"the module has no {kind} @{op.attrs[kind]}"
    return _kernel_call_rule(op, func) if kind == "kernel" else _part_call_rule(op, func)


def _kernel_call_rule(op: Op, kernel: Func) -> str | None:
    values = (*op.operands, *op.results)
    wanted = [a.buffer.dtype for a in kernel.args]
    found = [v.type.dtype if isinstance(v.type, TensorType) else None for v in values]
    if found != wanted:
        return f"@{kernel.name} takes and gives ({_listed(a.type for a in kernel.args)}), not " \
               f"({_listed(v.type for v in values)})"  # fmt: skip
    if len(op.attrs["dims"]) != len(kernel.dims):
        return f"@{kernel.name} has {len(kernel.dims)} dims, and {len(op.attrs['dims'])} are given"
    return None


def _part_call_rule(op: Op, part: Func) -> str | None:
    sizes = bool(op.attrs["sizes"])
    wanted = [a.type for a in part.args[: len(part.args) - sizes]]
    if [v.type for v in op.operands] != wanted:
        return f"@{part.name} takes ({_listed(wanted)}), not ({_listed(v.type for v in op.operands)})"
    given = [v.type for v in part.returns]
    if [v.type for v in op.results] != given:
        return f"@{part.name} gives ({_listed(given)}), not ({_listed(v.type for v in op.results)})"
    return None


def _native_rule(op: Op) -> str | None:
    (body, *more) = op.blocks or (None,)
    if body is None or more or body.args or op.operands or op.attrs or not body.ops or body.ops[-1].name != "yield":
        return "has one block without arguments, which ends in a yield, and no operands"
    given, wanted = ([v.type for v in values] for values in (op.results, body.ops[-1].operands))
    return None if given == wanted else f"gives ({_listed(wanted)}), not ({_listed(given)})"


def _state_rule(op: Op) -> str | None:
    if op.operands or op.blocks or len(op.results) != 1 or op.attrs.keys() - {"initial"} != {"name"}:
        return "has a name and one result, and no operands"
    type = op.result.type
    if not isinstance(type, BufferType) or type.space != SPACE or not type.is_dense:
        return f"is of a type such as 'state f32[1, 8]', not {type}"
    if not all(d.is_const for d in type.shape):
        return f"has fixed dims, as its memory lives longer than a call: not {type}"
    return None


def _read_rule(op: Op) -> str | None:
    if len(op.operands) != 1 or len(op.results) != 1 or op.attrs or op.blocks:
        return "has a state, one result and no attributes"
    state = op.operands[0].type
    if not isinstance(state, BufferType) or state.space != SPACE:
        return f"reads a state, not {state}"
    held = TensorType(state.dtype, state.shape)
    return None if op.result.type == held else f"gives {held}, not {op.result.type}"


def _update_rule(op: Op) -> str | None:
    if len(op.operands) != 2 or op.results or op.blocks or op.attrs.keys() - {"at"}:
        return "has a state, a value, perhaps the attribute 'at', and no results"
    state, value = (v.type for v in op.operands)
    if not isinstance(state, BufferType) or state.space != SPACE:
        return f"writes a state, not {state}"
    if not isinstance(value, TensorType) or value.dtype is not state.dtype:
        return f"writes {value} into {state}"
    at = op.attrs.get("at")
    if at is None:
        return None if value.shape == state.shape else f"writes {value} over {state}, without a position 'at'"
    if not isinstance(at, tuple) or len(at) != len(state.shape) or not all(isinstance(i, Sym) for i in at):
        return f"the position 'at' has an expression for each of the {len(state.shape)} axes of the state"
    if len(value.shape) != len(state.shape):
        return f"writes {value} into {state}, which has another rank"
    for axis, (i, n, most) in enumerate(zip(at, value.shape, state.shape, strict=True)):
        end = i + n
        if (i.is_const and i.value < 0) or (end.is_const and end.value > most.value):
            return f"writes {i} to {end} along axis {axis}, of {most} elements"
    return None


def _listed(types: Iterable[Type]) -> str:
    return ", ".join(map(str, types))
