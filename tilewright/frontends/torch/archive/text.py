"""The text of an exported program, checked before PyTorch makes a program of it: names and sizes become Python code
there, and are evaluated."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Container, Iterator
from contextlib import suppress
from typing import Any

from tilewright.frontends.problems import shown
from tilewright.frontends.torch.trees import names_in
from tilewright.ir.diag import ModelError, UnsupportedError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_SYMBOL = re.compile(r"[a-z]+[0-9]+\Z")
_FLOAT = re.compile(r"-?[0-9.]+(e[+-]?[0-9]{1,3})?\Z")
_TARGET = re.compile(
    r"(torch\.ops\.[a-zA-Z_]\w*(\._?[a-zA-Z]\w*|\.__[a-z]+_?_?){1,2}|_operator\.[a-z]+_?|math\.[a-z]+|torch\.sym_[a-z]+)\Z"
)
_FUNCTIONS = frozenset((
    "Symbol", "Integer", "Float", "Rational", "Add", "Mul", "Pow", "Abs", "Max", "Min", "Eq", "Ne", "Lt",
    "Le", "Gt", "Ge", "Equality", "Unequality", "StrictLessThan", "LessThan", "StrictGreaterThan",
    "GreaterThan", "And", "Or", "Not", "Piecewise", "ExprCondPair", "Tuple", "floor", "ceiling", "true",
    "false", "oo", "int_oo", "FloorDiv", "CleanDiv", "CeilDiv", "ModularIndexing", "Where", "Mod",
    "PythonMod", "CeilToInt", "FloorToInt", "TruncToInt", "TruncToFloat", "RoundToInt", "RoundDecimal",
    "ToFloat", "IntTrueDiv", "FloatTrueDiv", "FloatPow", "PowByNatural", "LShift", "RShift", "Identity",
    "IsNonOverlappingAndDenseIndicator", "BitwiseFn_bitwise_and", "BitwiseFn_bitwise_or",
    "BitwiseFn_bitwise_xor", "OpaqueUnaryFn_sqrt", "OpaqueUnaryFn_exp", "OpaqueUnaryFn_log",
    "OpaqueUnaryFn_log2", "OpaqueUnaryFn_sin", "OpaqueUnaryFn_cos", "OpaqueUnaryFn_tan",
    "OpaqueUnaryFn_tanh",
))  # fmt: skip
_POWERS = ("Pow", "PowByNatural", "FloatPow", "LShift")
_GREATEST_POWER = 64
_SYNTAX = (ast.Expression, ast.Call, ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.operator, ast.unaryop,
           ast.cmpop, ast.boolop, ast.expr_context, ast.Tuple)  # fmt: skip
_LONGEST = 10_000

_KEPT_METADATA = ("stack_trace", "nn_module_stack", "torch_fn")


def checked_program(text: Any) -> dict[str, Any]:
    """The program without what is evaluated elsewhere or not needed. ModelError where its names, operators or sizes are
    other than torch.export writes, UnsupportedError where it is for another device than the CPU."""
    if not isinstance(text, dict) or "graph_module" not in text:
        raise ModelError("the archive's program has no graph", hint="export the model again")
    for key, value in _pairs(text):
        if key in ("name", "as_name") and isinstance(value, str):
            _require(_NAME.match(value) or not value, "name", value)
        elif key == "expr_str":
            _check_size(value)
        elif key == "metadata" and isinstance(value, dict):
            for unused in set(value) - set(_KEPT_METADATA):
                del value[unused]
        elif key == "nodes" and isinstance(value, list):
            for node in value:
                target = node.get("target") if isinstance(node, dict) else None
                _require(isinstance(target, str) and _TARGET.match(target), "operator", target)
        elif key == "range_constraints" and isinstance(value, dict):
            for symbol in value:
                _check_size(symbol)
        elif key == "device" and isinstance(value, dict) and value.get("type") not in ("cpu", "meta"):
            raise UnsupportedError(
                f"the program is for the device '{shown(str(value.get('type')))}'",
                hint="move the module to the CPU with .cpu() before it is exported",
            )
    return {**text, "guards_code": []}


def with_known_containers(text: dict[str, Any], known: Container[str]) -> dict[str, Any]:
    """A checked program in which containers of other packages, which PyTorch knows while these are imported, are lists
    of what is in them, or dicts where their context is the names of it: the order of their parts stays."""
    for signature in _nodes(text):
        for name in ("in_spec", "out_spec"):
            with suppress(KeyError, TypeError, ValueError):  # none, or no JSON: PyTorch says what is wrong with it
                tree = json.loads(signature[name])
                if _replace_containers(tree, known):
                    signature[name] = json.dumps(tree)
    return text


def _replace_containers(tree: Any, known: Container[str]) -> bool:
    """Whether there were any."""
    others = [node for node in _nodes(tree) if isinstance(kind := node.get("type"), str) and kind not in known]
    for node in others:
        names = None
        with suppress(KeyError, TypeError, ValueError):
            names = names_in(json.loads(node["context"]), len(node["children_spec"]))
        kind = "list" if names is None else "dict"
        node["type"], node["context"] = f"builtins.{kind}", json.dumps(names)
    return bool(others)


def guards_in(text: Any) -> list[str]:
    """What the program takes for granted of sizes: lines of Python that are never run. ModelError for other things."""
    found = text.get("guards_code", []) if isinstance(text, dict) else []
    if not isinstance(found, list) or not all(isinstance(line, str) for line in found):
        raise ModelError("the archive's guards are no texts", hint="export the model again")
    return found


def operators_of(text: Any) -> set[tuple[str, str]]:
    """The namespace and the name of each operator that a checked program calls, in its subgraphs too."""
    found = set()
    for key, value in _pairs(text):
        if key == "target" and isinstance(value, str) and value.startswith("torch.ops."):
            found.add((value.split(".")[2], value.split(".")[3]))
    return found


def _pairs(tree: Any) -> Iterator[tuple[str, Any]]:
    """Every key with its value, however deep."""
    for node in _nodes(tree):
        yield from list(node.items())


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Every mapping, however deep, before what is in it."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node


def _check_size(text: Any) -> None:
    """An expression of numbers, symbols and functions of sizes, and nothing else."""
    _require(isinstance(text, str) and len(text) <= _LONGEST, "size", text)
    try:
        tree = ast.parse(text.strip(), mode="eval")
        safe, powers = all(map(_is_safe, ast.walk(tree))), list(_powers(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        safe, powers = False, []
    _require(safe and math.prod(powers) <= _GREATEST_POWER, "size", text)


def _is_safe(node: ast.AST) -> bool:
    """Whether a part of an expression is a number, a symbol, an operator or a function of sizes."""
    if isinstance(node, ast.Name):
        return node.id in _FUNCTIONS or bool(_SYMBOL.match(node.id))
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name)
    if isinstance(node, ast.keyword):
        return node.arg is not None and isinstance(node.value, ast.Constant)
    if isinstance(node, ast.Constant):  # strings are names of symbols, and floats
        value = node.value
        if isinstance(value, str):
            return bool(_SYMBOL.match(value) or _FLOAT.match(value))
        return isinstance(value, int | float)
    return isinstance(node, _SYNTAX)


def _powers(tree: ast.AST) -> Iterator[int]:
    """The exponents, which are small numbers in what PyTorch writes; greater ones would take long to evaluate."""
    for node in ast.walk(tree):
        exponent: ast.AST | None = None
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow | ast.LShift):
            exponent = node.right
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _POWERS:
            exponent = node.args[1] if len(node.args) == 2 else node
        if exponent is None:
            continue
        while isinstance(exponent, ast.Call) and len(exponent.args) == 1 and not exponent.keywords:
            exponent = exponent.args[0]  # Integer(2)
        if isinstance(exponent, ast.UnaryOp):
            exponent = exponent.operand
        number = exponent.value if isinstance(exponent, ast.Constant) else None
        yield max(int(number), 1) if isinstance(number, int | float) else _GREATEST_POWER + 1


def _require(holds: object, what: str, text: Any) -> None:
    if not holds:
        raise ModelError(
            f"the exported program has the {what} '{shown(str(text))}'",
            hint="the file is damaged, or was not written by torch.export.save: export the model again",
        )
