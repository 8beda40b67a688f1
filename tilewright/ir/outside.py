"""Definitions that come from outside of the package, and a digest of all that they do.

What a user's operator computes is part of what a compiled model is, so the cache's key must change with it. The
package's own definitions are told by the state of its files; for others this module reads their code: bytes,
constants, defaults, the variables they close over, and the global names they use, through all functions and classes
that these lead to. What it cannot read for certain has no digest.
"""

from __future__ import annotations

import builtins
import dataclasses
import dis
import enum
import functools
import hashlib
import struct
import sys
import types
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

_OWN = __name__.partition(".")[0]
_PURE = frozenset({
    "__future__", "abc", "builtins", "cmath", "collections", "dataclasses", "enum", "fractions", "functools",
    "itertools", "math", "numbers", "operator", "typing",
})  # fmt: skip
"""Modules of the standard library whose functions compute with nothing but their arguments."""

_LIBRARIES = {"numpy": np.__version__}
"""Modules beside these that are told by their version."""

_IMPURE = frozenset({
    "__import__", "breakpoint", "compile", "delattr", "eval", "exec", "getattr", "globals", "id", "input", "locals",
    "open", "setattr", "vars",
    "fromfile", "fromregex", "genfromtxt", "load", "loadtxt", "memmap", "open_memmap", "random",
})  # fmt: skip
"""Functions of Python and NumPy that reach what no digest of the code can show."""


class Unreadable(Exception):
    """A definition that depends on something that has no digest; the message says on what."""


class Definitions:
    """The definitions of one registry. From outside of the package come functions of other modules, and whatever is
    defined after `seal`."""

    def __init__(self) -> None:
        self.outside: list[tuple[object, ...]] = []
        self._sealed = False
        REGISTRIES.append(self)

    def seal(self) -> None:
        """The package's own definitions are complete."""
        self._sealed = True

    @contextmanager
    def of_the_package(self) -> Iterator[None]:
        """What is defined meanwhile by modules of the package, which load when they are needed, is its own."""
        sealed, self._sealed = self._sealed, False
        try:
            yield
        finally:
            self._sealed = sealed

    def note(self, *parts: object) -> None:
        """Take note of a definition; whatever tells its meaning is among `parts`."""
        modules = (getattr(part, "__module__", None) or _OWN for part in parts if callable(part))
        if self._sealed or any(module.partition(".")[0] != _OWN for module in modules):
            self.outside.append(parts)


REGISTRIES: list[Definitions] = []
"""All that exist."""


def outside_digest() -> str:
    """A digest of all definitions from outside of the package, "" when there are none; Unreadable for what has no
    digest."""
    noted = [parts for registry in REGISTRIES for parts in registry.outside]
    if not noted:
        return ""
    try:
        digests = sorted(_Reader().digest(parts) for parts in noted)
    except RecursionError as error:
        raise Unreadable("definitions that lead to each other without an end") from error
    return _hash([sys.version.encode(), *digests]).hex()


def _hash(parts: Iterable[bytes]) -> bytes:
    digest = hashlib.blake2b(digest_size=20)
    for part in parts:
        digest.update(struct.pack("<Q", len(part)))
        digest.update(part)
    return digest.digest()


class _Reader:
    """Digests of one definition's parts. What has been entered before, as in a recursion, is told by the place where
    it first was."""

    def __init__(self) -> None:
        self._entered: dict[int, int] = {}
        self._kept: list[object] = []  # so that no other object gets the identity of one that was read

    def digest(self, value: object) -> bytes:
        """The digest of any value; Unreadable."""
        simple = _simple(value)
        if simple is not None:
            return _hash([type(value).__name__.encode(), simple])
        # equal constants are one object or several, depending on whether the code comes from a file of bytecode
        if not isinstance(value, tuple | frozenset | types.CodeType):
            if id(value) in self._entered:
                return _hash([b"again", str(self._entered[id(value)]).encode()])
            self._entered[id(value)] = len(self._entered)
            self._kept.append(value)
        return _hash([type(value).__name__.encode(), *self._parts(value)])

    def _all(self, values: Iterable[object]) -> list[bytes]:
        return [self.digest(value) for value in values]

    def _parts(self, value: Any) -> list[bytes]:
        match value:
            case _ if type(value) in (tuple, list):
                return self._all(value)
            case _ if type(value) in (set, frozenset):
                return sorted(_Reader().digest(item) for item in value)
            case _ if type(value) in (dict, types.MappingProxyType):
                return self._all(part for item in value.items() for part in item)
            case slice():
                return self._all([value.start, value.stop, value.step])
            case np.ndarray() | np.generic():
                return self._array(value)
            case types.ModuleType():
                return [_library(value.__name__, "")]
            case types.CodeType():
                return self._code(value)
            case types.FunctionType():
                return self._function(value)
            case types.MethodType():
                return self._all([value.__func__, value.__self__])
            case types.BuiltinFunctionType() | np.ufunc():
                return self._builtin(value)
            case _ if type(value) in (functools.partial, staticmethod, classmethod, property, _CACHED):
                names = ("func", "args", "keywords", "__func__", "fget", "fset", "fdel", "__wrapped__")
                return self._all(getattr(value, name, None) for name in names)
            case type():
                return self._type(value)
            case enum.Enum():
                return self._all([type(value), value.name])
        return self._object(value)

    def _array(self, value: Any) -> list[bytes]:
        if value.dtype.hasobject:
            raise Unreadable("an array of objects")
        return [f"{value.dtype}{value.shape}".encode(), np.ascontiguousarray(value).tobytes()]

    def _code(self, code: types.CodeType) -> list[bytes]:
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        return [code.co_code, code.co_exceptiontable, *self._all([counts, names, code.co_consts])]

    def _function(self, function: types.FunctionType) -> list[bytes]:
        closed = self._all(_content(cell) for cell in function.__closure__ or ())
        module = str(function.__globals__.get("__name__"))
        if _is_library(module):
            if function.__name__ in _IMPURE:
                raise Unreadable(f"the function {function.__qualname__}")
            return [_library(module, function.__qualname__), *closed]
        attributes = (function.__defaults__, function.__kwdefaults__, function.__dict__)
        return [self.digest(function.__code__), *self._all(attributes), *closed, *self._globals(function)]

    def _globals(self, function: types.FunctionType) -> list[bytes]:
        """What the global names of a function's code mean now."""
        found: list[bytes] = []
        names = function.__globals__
        for code in _codes(function.__code__):
            for step in dis.get_instructions(code):
                if step.opname == "IMPORT_NAME":
                    found.append(_library(str(step.argval), ""))
            for name in code.co_names:
                if name in names:
                    found += self._used(name, names[name], code.co_names)
                elif hasattr(builtins, name) and name in _IMPURE:
                    raise Unreadable(f"the function {name}")
        return found

    def _used(self, name: str, value: object, attributes: Iterable[str]) -> list[bytes]:
        """A global value; of a module of the user's those of its names that the code may use."""
        if not isinstance(value, types.ModuleType):
            return [name.encode(), self.digest(value)]
        used = [one for one in attributes if one != name and hasattr(value, one)]
        if _is_library(value.__name__):
            impure = [one for one in used if one in _IMPURE]
            if impure:
                raise Unreadable(f"the function {value.__name__}.{impure[0]}")
            return [name.encode(), self.digest(value)]
        if value.__name__.partition(".")[0] in sys.stdlib_module_names:
            raise Unreadable(f"the module {value.__name__}")
        return [
            name.encode(),
            *(part for one in used for part in self._used(one, getattr(value, one), attributes)),
        ]

    def _builtin(self, value: Any) -> list[bytes]:
        owner = getattr(value, "__self__", None)
        if value.__name__ in _IMPURE:
            raise Unreadable(f"the function {value.__name__}")
        if owner is None or isinstance(owner, types.ModuleType):
            return [_library(getattr(value, "__module__", None) or "numpy", value.__name__)]
        return [value.__name__.encode(), self.digest(owner)]

    def _type(self, kind: type) -> list[bytes]:
        if _is_library(kind.__module__):
            return [_library(kind.__module__, kind.__qualname__)]
        members = dict(vars(kind))
        if issubclass(kind, enum.Enum):  # whose other members are made by its metaclass
            functions = [member for member in members.values() if isinstance(member, types.FunctionType)]
            return self._all([kind.__qualname__, {m.name: m.value for m in kind}, functions])
        members = {name: member for name, member in members.items() if name not in _BOOKKEEPING}
        slots = [name for name, member in members.items() if isinstance(member, types.MemberDescriptorType)]
        others = {name: member for name, member in members.items() if name not in slots}
        return self._all([kind.__qualname__, kind.__bases__, slots, others])

    def _object(self, value: Any) -> list[bytes]:
        """An object of a class that is written in Python: its attributes and its class."""
        kind = type(value)
        if _is_library(kind.__module__) and dataclasses.is_dataclass(value):
            given = [f.name for f in dataclasses.fields(value) if f.init]  # others are what it has found out of them
            return self._all([kind, {name: getattr(value, name, None) for name in given}])
        classes = kind.__mro__[:-1]
        if any(_is_library(c.__module__) or c.__module__ in sys.stdlib_module_names for c in classes):
            raise Unreadable(f"an object of the class {kind.__qualname__}")
        members = [(name, member) for c in classes for name, member in vars(c).items()]
        slots = [name for name, member in members if isinstance(member, types.MemberDescriptorType)]
        slots = [name for name in slots if hasattr(value, name)]
        return self._all(
            [kind, getattr(value, "__dict__", {}), [(name, getattr(value, name)) for name in slots]]
        )


_CACHED = type(functools.lru_cache(_hash))
_BOOKKEEPING = frozenset({
    "__abstractmethods__", "__annotate_func__", "__annotations__", "__annotations_cache__", "__dataclass_fields__",
    "__dataclass_params__", "__dict__", "__doc__", "__firstlineno__", "__module__", "__static_attributes__",
    "__weakref__", "_abc_impl",
})  # fmt: skip
"""Members that Python itself gives to classes."""


def _simple(value: object) -> bytes | None:
    """The bytes of a value that holds no others; None for another."""
    if value is None or value is Ellipsis or value is NotImplemented:
        return repr(value).encode()
    if type(value) in (bool, int, complex, str, range):
        return repr(value).encode()
    if type(value) is float:
        return value.hex().encode()
    if isinstance(value, np.dtype):
        return str(value).encode()
    return bytes(value) if type(value) in (bytes, bytearray) else None  # type: ignore[call-overload]


def _is_library(module: str) -> bool:
    """Whether a module's content is told by the version of something."""
    root = module.partition(".")[0]
    return root == _OWN or root in _PURE or root in _LIBRARIES


def _library(module: str, name: str) -> bytes:
    """A name of such a module; Unreadable for another module."""
    if not _is_library(module) or "random" in module.split("."):
        raise Unreadable(f"{name} of the module {module}" if name else f"the module {module}")
    return f"{module}:{name}:{_LIBRARIES.get(module.partition('.')[0], '')}".encode()


def _codes(code: types.CodeType) -> Iterable[types.CodeType]:
    """A function's code and that of the functions inside of it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # an empty one
        return None
