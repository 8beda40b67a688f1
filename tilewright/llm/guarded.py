"""jinja2's sandbox with limits: what a stranger's template computes ends soon, and stays small.

The sandbox keeps templates away from Python; it does not keep them from computing for ever, or from filling the memory,
for which a few characters suffice. Python's own tracing ends what runs too long, as far as Python's own instructions
go. A single operation of C is out of its reach; so no value may become large: each text, number, list or tuple that an
expression makes is looked at, by its size with all that is in it, and operations that would make a large one at once
are refused by their operands. What is made as it is used (a generator) is counted as far as it was given to something.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import update_wrapper
from types import BuiltinMethodType, FrameType, GeneratorType
from typing import Any, ClassVar, TypeVar

import jinja2.nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

T = TypeVar("T")

_MOST_COUNT = 100_000
"""Widths, precisions and repetitions that operations are given."""
_MOST_BITS = 4096
_LONG_NUMBER = re.compile(r"\d{6}")
_GIVEN_WIDTH = re.compile(r"\*|\{[^}]*\{")
"""In a format: an operand says how wide another one is written."""
_UNKNOWN_SIZE = {"translate", "encode"}
"""Methods of texts whose results may be of any size, or no texts."""
_WITHOUT = ("urlize", "striptags", "pprint", "random", "xmlattr")
"""Filters that no chat needs: they run regular expressions over all of a text, or give another result each time."""


class LimitError(Exception):
    """A template computes too long, or makes too much."""


def within(seconds: float, run: Callable[[], T]) -> T:
    """What `run` returns; LimitError where its Python code runs longer. It must not run itself within another one."""
    end = time.monotonic() + seconds

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        if time.monotonic() > end:
            raise LimitError(f"it takes longer than {seconds:g} seconds")
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return run()
    finally:
        sys.settrace(before)


class _Code(CodeGenerator):
    """Values that no operator makes are looked at, too."""

    def visit_Concat(self, node: jinja2.nodes.Concat, frame: Frame) -> None:
        self.write("environment.joined((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_Tuple(self, node: jinja2.nodes.Tuple, frame: Frame) -> None:
        if node.ctx == "store":  # names of a loop
            super().visit_Tuple(node, frame)
        else:
            self._checked(super().visit_Tuple, node, frame)

    def visit_List(self, node: jinja2.nodes.List, frame: Frame) -> None:
        self._checked(super().visit_List, node, frame)

    def visit_Dict(self, node: jinja2.nodes.Dict, frame: Frame) -> None:
        self._checked(super().visit_Dict, node, frame)

    def _checked(self, visit: Callable[[Any, Frame], None], node: Any, frame: Frame) -> None:
        self.write("environment.checked(")
        visit(node, frame)
        self.write(")")


class GuardedEnvironment(ImmutableSandboxedEnvironment):
    """`most`: characters and elements of a value, with all that is in it."""

    code_generator_class = _Code
    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self, most: int, **options: Any) -> None:
        super().__init__(**options)
        self.most = most
        self.concat = self._concat  # type: ignore[method-assign]
        for name in _WITHOUT:
            self.filters.pop(name, None)
        self.globals.pop("lipsum", None)
        self.globals["namespace"] = _GuardedNamespace
        for name, function in list(self.filters.items()):
            self.guard_filter(name, function)

    def guard_filter(self, name: str, function: Callable[..., Any]) -> None:
        """A filter whose operands and results are looked at."""

        def guarded(*args: Any, **kwargs: Any) -> Any:
            self._check_operands(name, args, kwargs)
            return self.checked(function(*map(self._counted, args), **kwargs))

        # what jinja2 passes to it (a context, say) is an attribute of the function
        self.filters[name] = update_wrapper(guarded, function)

    def checked(self, value: T) -> T:
        """The value; LimitError where it is too large. What is made as it is used (a generator) is looked at then."""
        _Budget(self.most).take(value)
        return value

    def _counted(self, value: Any) -> Any:
        """What is made as it is used (by the filter `map`, say), looked at piece by piece, as it may be kept."""
        return self._pieces(value) if isinstance(value, GeneratorType) else value

    def _pieces(self, value: Iterable[T]) -> Iterator[T]:
        budget = _Budget(self.most)
        for piece in value:
            budget.take(piece)
            yield piece

    def joined(self, parts: Iterable[Any]) -> str:
        """What the operator ~ makes."""
        return self._concat(map(str, parts))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            self._check_repetition(left, right)
        elif operator == "**":
            _check_power(left, right)
        elif operator == "%" and isinstance(left, str):
            self._check_operands("format", (left, *(right if isinstance(right, tuple) else (right,))), {})
        return self.checked(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        text = getattr(__obj, "__self__", None)
        if isinstance(text, str):
            name = __obj.__name__
            if name in _UNKNOWN_SIZE:
                raise SecurityError(f"texts have no method '{name}' here")
            operands = (args[0], text) if name == "join" and args else (text, *args)
            __self._check_operands(name, operands, kwargs)
        elif isinstance(__obj, BuiltinMethodType):
            __self._check_operands("", args, kwargs)
        return __self.checked(super().call(__context, __obj, *map(__self._counted, args), **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        found = super().wrap_str_format(value)
        if found is None:
            return None
        form = value.__self__

        def guarded(*args: Any, **kwargs: Any) -> str:
            self._check_operands("format", (form, *args), kwargs)
            return found(*args, **kwargs)

        return guarded

    def _concat(self, parts: Iterable[str]) -> str:
        found = list(parts)
        self._check_size(sum(map(len, found)))
        return "".join(found)

    def _check_size(self, size: int) -> None:
        if size > self.most:
            raise LimitError(f"it makes a text of more than {self.most} characters")

    def _check_operands(self, operation: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """LimitError for what would make a large value at once."""
        given = [*args, *kwargs.values()]
        texts = [value for value in given if isinstance(value, str)]
        form = texts[0] if operation in ("format", "format_map") and texts else ""
        if _LONG_NUMBER.search(form):
            raise LimitError("a format has a number of more than five digits")
        counts = operation not in _OF_NUMBERS or _GIVEN_WIDTH.search(form) is not None
        if counts and any(isinstance(value, int) and abs(value) > _MOST_COUNT for value in given):
            raise LimitError(f"'{operation}' is given a number above {_MOST_COUNT}")
        if operation == "replace" and len(texts) >= 3:
            text, old, new = texts[:3]
            times = text.count(old) if old else len(text) + 1
            self._check_size(len(text) + times * len(new))
        if operation == "expandtabs":
            width = next((value for value in given if isinstance(value, int)), 8)
            self._check_size(len(texts[0]) + texts[0].count("\t") * width)
        if operation == "join" and len(texts) >= 1:
            lists = [value for value in given if isinstance(value, list | tuple)]
            between = max(map(len, texts))
            self._check_size(between * max(map(len, lists), default=0))

    def _check_repetition(self, left: Any, right: Any) -> None:
        for value, times in ((left, right), (right, left)):
            if isinstance(value, str | list | tuple) and isinstance(times, int):
                self._check_size(len(value) * max(times, 0))


_OF_NUMBERS = {
    "abs",
    "int",
    "float",
    "string",
    "tojson",
    "default",
    "d",
    "sum",
    "max",
    "min",
    "format",
    "format_map",
}
"""What takes numbers of any size: as values, not as widths."""


class _GuardedNamespace(Namespace):
    """Names with an underscore are Python's own."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # as jinja2 has it: `namespace(self=...)` is allowed
        self, *rest = args
        given = dict(*rest, **kwargs)
        for name in given:
            _check_name(name)
        Namespace.__init__(self, given)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace has no '{name}'")


class _Budget:
    """Counts what a value holds, with all that is within it as often as it is there."""

    _CONTAINERS: ClassVar = (list, tuple, dict, set, frozenset)

    def __init__(self, most: int) -> None:
        self.left = most
        self._most = most

    def take(self, value: Any) -> None:
        if isinstance(value, str | bytes):
            self.left -= len(value)
        elif isinstance(value, int):
            if value.bit_length() > _MOST_BITS:
                raise LimitError(f"it computes a number of more than {_MOST_BITS} bits")
        elif isinstance(value, self._CONTAINERS):
            self.left -= len(value)
            self._check()
            parts = [*value, *value.values()] if isinstance(value, dict) else value
            if set(map(type, parts)) <= {str}:  # long lists are of texts, which C counts
                self.left -= sum(map(len, parts))
            else:
                for part in parts:
                    self.take(part)
        self._check()

    def _check(self) -> None:
        if self.left < 0:
            raise LimitError(f"it makes a value of more than {self._most} characters and elements")


def _check_power(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * max(right, 0) > _MOST_BITS:
        raise LimitError(f"it computes a number of more than {_MOST_BITS} bits")
