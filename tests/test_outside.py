"""Operators that users define: what they do is part of the cache's key."""

from __future__ import annotations

import functools
import json
import os
import pickle
import types
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright
from tests.processes import Stage, outputs
from tilewright.ir import dtype as dt
from tilewright.ir import outside
from tilewright.ir.outside import Definitions, Unreadable, outside_digest
from tilewright.ir.types import TensorType
from tilewright.ops.define import operator as define
from tilewright.options import Options, Request
from tilewright.session import Session

DOMAIN = "test.outside"


def a_model() -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Scaled", ["x"], ["y"], domain=DOMAIN)], "g", [x], [y])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


OPERATOR = """
from tilewright.ops.define import op
from tilewright.ops.elementwise import mul
{imports}

FACTOR = {factor}

@op
def scaled(x):
    return mul(x, {value})

scaled.onnx("Scaled", domain="test.outside")
"""

ADAPTER = """
from tilewright.frontends.onnx.registry import adapter
from tilewright.ops.elementwise import mul
{imports}

FACTOR = {factor}

@adapter("Scaled", domain="test.outside")
def scaled(node):
    return mul(node.inputs[0], {value})
"""

CALL = """
import json, pathlib, sys
for name, text in json.loads(sys.argv[1]).items():
    pathlib.Path(name).write_text(text)
sys.dont_write_bytecode = True
import numpy as np
import tilewright, user
from tilewright.session import Session

model = tilewright.compile("model.onnx", session=Session(pathlib.Path("cache")))
kept = len(list(pathlib.Path("cache").glob("*.tw")))
print(model(np.ones(3, np.float32))[0][0], kept, model.report().remarks)
"""


class Place:
    """A folder with a model, a user's module and a cache; each call is a process of its own."""

    def __init__(self, folder: Path, source: str) -> None:
        self._folder, self._source, self._runs = folder, source, list[list[str]]()
        onnx.save(a_model(), folder / "model.onnx")
        (folder / "call.py").write_text(CALL)

    def call(self, factor: float = 2.0, value: str = "FACTOR", imports: str = "", **files: str) -> None:
        """One more call with this operator, and files that are written before it."""
        source = self._source.format(factor=factor, value=value, imports=imports)
        written = {"user.py": source, **{name.replace("_", "."): text for name, text in files.items()}}
        self._runs.append([json.dumps(written)])

    def found(self) -> list[tuple[float, int, str]]:
        """Of each call the number that the operator gives for 1, that of models in the cache, and the remarks."""
        places = os.pathsep.join([str(self._folder), str(Path(tilewright.__file__).parents[1])])
        imported = ("onnx", "tilewright.compiler", "tilewright.frontends.onnx")
        stage = Stage(self._folder / "call.py", self._runs, imported)
        printed = outputs([stage], {"PYTHONPATH": places}, self._folder)
        parts = [text.split(" ", 2) for text in printed]
        return [(float(number), int(count), remarks) for number, count, remarks in parts]


def test_a_changed_adapter_does_not_give_its_old_numbers(tmp_path: Path) -> None:
    place = Place(tmp_path, ADAPTER)
    for factor in (2.0, 2.0, 3.0):
        place.call(factor)
    assert [found[:2] for found in place.found()] == [(2.0, 1), (2.0, 1), (3.0, 2)]


def test_a_changed_operator_does_not_give_its_old_numbers(tmp_path: Path) -> None:
    """Whatever it is that has changed; of adapters it is told by the same function."""
    place = Place(tmp_path, OPERATOR)
    place.call(2.0)
    place.call(2.0)
    place.call(3.0)
    place.call(3.0, "FACTOR + 1")
    for limit in (5.0, 6.0):
        helpers = f"LIMIT = {limit}\ndef factor():\n    return LIMIT\n"
        place.call(3.0, "helpers.factor()", "import helpers", helpers_py=helpers)
    place.call(2.0)
    numbers_and_kept = [found[:2] for found in place.found()]
    assert numbers_and_kept == [(2.0, 1), (2.0, 1), (3.0, 2), (4.0, 3), (5.0, 4), (6.0, 5), (2.0, 5)]


def test_what_cannot_be_told_is_not_kept_and_the_report_says_so(tmp_path: Path) -> None:
    place = Place(tmp_path, OPERATOR)
    factors = (2.0, 3.0)
    for factor in factors:
        place.call(value='float(open("factor.txt").read())', factor_txt=str(factor))
    for factor, (number, kept, remarks) in zip(factors, place.found(), strict=True):
        assert (number, kept) == (factor, 0)
        assert "stage='cache'" in remarks and "kind='missed'" in remarks
        assert "an operator from outside depends on the function open" in remarks


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Gives the digest of definitions as if they were all that come from outside."""

    def digest(*parts: object) -> str:
        monkeypatch.setattr(outside, "REGISTRIES", [])
        definitions = Definitions()
        definitions.note("of the package itself")
        assert outside_digest() == ""
        definitions.seal()
        definitions.note(*parts)
        return outside_digest()

    return digest


def test_what_a_type_has_found_out_of_itself_is_no_part_of_it(registered: Callable[..., str]) -> None:
    def of_type() -> tuple[TensorType, str]:
        made = TensorType(dt.f32, ())
        return made, registered(made)

    asked, fresh = of_type()
    assert (hash(asked), asked.size) == (hash(of_type()[0]), 1)
    assert registered(asked) == fresh
    copy = pickle.loads(pickle.dumps(asked))  # in another process texts have other hashes
    assert copy == asked
    assert copy._hash is None


def made(source: str, **names: object) -> types.FunctionType:
    """The function `f` of a source text, as one of a notebook: without a file."""
    space: dict[str, object] = {"__name__": "__main__", **names}
    exec(source, space)
    function = space["f"]
    assert isinstance(function, types.FunctionType)
    return function


CHANGES = {
    "body": ("def f(x): return x + 1", "def f(x): return x - 1"),
    "constant": ("def f(x): return x + 1", "def f(x): return x + 2"),
    "type of a constant": ("def f(x): return x + 1", "def f(x): return x + 1.0"),
    "sign of a zero": ("def f(x): return x + 0.0", "def f(x): return x + -0.0"),
    "default": ("def f(x, y=1): return x + y", "def f(x, y=2): return x + y"),
    "keyword's default": ("def f(x, *, y=1): return x + y", "def f(x, *, y=2): return x + y"),
    "global": ("G = 1\ndef f(x): return x + G", "G = 2\ndef f(x): return x + G"),
    "global of an inner function": (
        "G = 1\ndef f(x): return (lambda y: y + G)(x)",
        "G = 2\ndef f(x): return (lambda y: y + G)(x)",
    ),
    "helper": (
        "def g(x): return x + 1\ndef f(x): return g(x)",
        "def g(x): return x + 2\ndef f(x): return g(x)",
    ),
    "closure": (
        "def make(y):\n    return lambda x: x + y\nf = make(1)",
        "def make(y):\n    return lambda x: x + y\nf = make(2)",
    ),
    "recursion": (
        "def f(x): return x if x < 1 else f(x - 1)",
        "def f(x): return x if x < 1 else f(x - 2)",
    ),
    "method": (
        "class C:\n    def g(self, x): return x + 1\ndef f(x): return C().g(x)",
        "class C:\n    def g(self, x): return x + 2\ndef f(x): return C().g(x)",
    ),
    "base class": (
        "class B:\n    K = 1\nclass C(B): pass\ndef f(x): return x + C.K",
        "class B:\n    K = 2\nclass C(B): pass\ndef f(x): return x + C.K",
    ),
    "state of an object": (
        "class C:\n    def __init__(self): self.k = 1\nc = C()\ndef f(x): return x + c.k",
        "class C:\n    def __init__(self): self.k = 2\nc = C()\ndef f(x): return x + c.k",
    ),
    "slot of an object": (
        "class C:\n    __slots__ = ('k',)\nc = C()\nc.k = 1\ndef f(x): return x + c.k",
        "class C:\n    __slots__ = ('k',)\nc = C()\nc.k = 2\ndef f(x): return x + c.k",
    ),
    "array": (
        "import numpy as np\nA = np.arange(3)\ndef f(x): return x + A",
        "import numpy as np\nA = np.arange(3) * 2\ndef f(x): return x + A",
    ),
    "slice": (
        "S = slice(1, None)\ndef f(x): return x[S]",
        "S = slice(2, None)\ndef f(x): return x[S]",
    ),
    "dict": ("D = {'a': 1}\ndef f(x): return D['a']", "D = {'a': 2}\ndef f(x): return D['a']"),
    "set": ("S = {1, 'a'}\ndef f(x): return x in S", "S = {2, 'a'}\ndef f(x): return x in S"),
    "member of an enum": (
        "import enum\nclass E(enum.Enum):\n    A = 1\ndef f(x): return E.A",
        "import enum\nclass E(enum.Enum):\n    A = 2\ndef f(x): return E.A",
    ),
    "partial": (
        "import functools\ndef g(x, y): return x + y\nh = functools.partial(g, 1)\ndef f(x): return h(x)",
        "import functools\ndef g(x, y): return x + y\nh = functools.partial(g, 2)\ndef f(x): return h(x)",
    ),
    "remembered function": (
        "import functools\n@functools.cache\ndef g(x): return x + 1\ndef f(x): return g(x)",
        "import functools\n@functools.cache\ndef g(x): return x + 2\ndef f(x): return g(x)",
    ),
    "data class": (
        "import dataclasses\n@dataclasses.dataclass\nclass C:\n    k: int = 1\ndef f(x): return C().k",
        "import dataclasses\n@dataclasses.dataclass\nclass C:\n    k: int = 2\ndef f(x): return C().k",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("before", "after"), CHANGES.values(), ids=CHANGES)
def test_every_change_shows(registered: Callable[..., str], before: str, after: str) -> None:
    assert registered(made(before)) == registered(made(before))
    assert registered(made(before)) != registered(made(after))


def test_what_changes_nothing_does_not_show(registered: Callable[..., str]) -> None:
    one = made("A = 1\nB = 2\ndef f(x): return x + A")
    assert registered(one) == registered(
        made("\n\nA = 1\nB = 3\ndef f(x):\n    # a comment\n    return x + A")
    )


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("def f(x): return open('w').read()", "the function open"),
        ("def f(x): return getattr(x, 'y')", "the function getattr"),
        ("import numpy as np\ndef f(x): return np.load('w.npy')", "the function numpy.load"),
        ("import numpy as np\ndef f(x): return np.random.rand()", "the function numpy.random"),
        ("import numpy as np\nR = np.random.default_rng(0)\ndef f(x): return R.random()", "class Generator"),
        ("from numpy import load\ndef f(x): return load('w.npy')", "the function load"),
        ("import os\ndef f(x): return os.environ['K']", "the module os"),
        ("import time\ndef f(x): return time.time()", "the module time"),
        ("from time import time\ndef f(x): return time()", "time of the module time"),
        ("def f(x):\n    import os\n    return os.getpid()", "the module os"),
        ("import re\nR = re.compile('a')\ndef f(x): return R.match(x)", "class Pattern"),
        ("import numpy as np\nA = np.array([{}])\ndef f(x): return A", "an array of objects"),
        ("class L(list): pass\nv = L([1])\ndef f(x): return v[0]", "class L"),
        ("it = iter([1, 2])\ndef f(x): return next(it)", "class list_iterator"),
        ("v = [1]\nfor _ in range(5000): v = [v]\ndef f(x): return v", "without an end"),
    ],
)
def test_what_depends_on_more_than_code_has_no_digest(
    registered: Callable[..., str], source: str, named: str
) -> None:
    with pytest.raises(Unreadable, match=named):
        registered(made(source))


def test_what_the_package_and_numpy_define_is_told_by_name(registered: Callable[..., str]) -> None:
    from tilewright.ops.elementwise import add, mul

    source = "import math\nimport numpy as np\ndef f(x): return op(x, np.exp(math.pi) + np.float32(G))"
    one = functools.partial(made, source)
    assert registered(one(op=add, G=1)) == registered(one(op=add, G=1))
    assert registered(one(op=add, G=1)) != registered(one(op=mul, G=1))
    assert registered(one(op=add, G=1)) != registered(one(op=add, G=np.float32(1)))


def test_a_new_name_for_an_operator_of_the_package_is_another_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tilewright.ops.activation import elu

    monkeypatch.setattr(elu, "onnx_bindings", list(elu.onnx_bindings))
    monkeypatch.setattr(define.DEFINITIONS, "outside", [])
    request, options = Request.of(a_model(), None, None), Options()
    before = Session(tmp_path).key(request, options)
    elu.onnx("Curved", domain=DOMAIN)
    assert Session(tmp_path).key(request, options) not in (before, None)


def test_an_operator_may_be_defined_after_a_model_was_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(define.DEFINITIONS, "outside", [])
    monkeypatch.setattr(define, "OPERATORS", define.OPERATORS)
    with pytest.raises(tilewright.TilewrightError, match="unknown"):
        tilewright.compile(a_model(), cache=False)

    def scaled_later(x: object) -> object:
        return define.OPERATORS["mul"](x, 2.0)

    try:
        define.op(scaled_later).onnx("Scaled", domain=DOMAIN)
        (y,) = tilewright.compile(a_model(), cache=False)(np.ones(3, np.float32))
        assert y.tolist() == [2.0, 2.0, 2.0]
    finally:
        define.OPERATORS.pop("scaled_later", None)
