"""Random kernels: the text reads back as a program that computes the same, and as the same text."""

import random

import numpy as np
import pytest

from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Func, Value
from tilewright.ir.sym import Sym, ge0, minimum, var
from tilewright.ir.text import parse_func, print_func
from tilewright.ir.types import ScalarType, buffer
from tilewright.ir.verify import verify_func
from tilewright.ops.define.loop_programs import run_kernel

SIZE = 16
F64, BOOL, I64 = ScalarType(dt.f64), ScalarType(dt.bool_), ScalarType(dt.i64)


class Writer:
    """Writes random statements; values stay usable until their block ends."""

    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)
        self.n = var("n", 1, SIZE)
        body = Block([buffer(dt.f64, [SIZE])] * 3, ["a", "b", "b"])
        self.b = Builder(body)
        self.buffers = list(body.args)
        self.variables: list[Sym] = [self.n]
        self.values: list[Value] = []
        self.fresh = 0
        self.statements(3)
        self.b.emit("return")
        self.func = Func("k", body, "loops", {"outputs": 3, "work": self.n * 5}, (self.n,))

    def statements(self, depth: int) -> None:
        for _ in range(self.r.randint(1, 6)):
            self.statement(depth)

    def statement(self, depth: int) -> None:
        r, b = self.r, self.b
        match r.randrange(10):
            case 0 | 1 if depth:
                self.loop(depth)
            case 2 if depth:
                guard = tuple(ge0(self.index() - r.randint(0, 9)) for _ in range(r.randrange(3)))
                values = [self.condition()] if not guard or r.random() < 0.3 else []
                self.nested("if", values, {"guard": guard}, depth)
            case 3:
                name = self.next_name("k")
                v = var(name, 0, SIZE - 1)
                expr = minimum(self.index(), SIZE - 1)
                b.emit("bind", [b.emit("index", [], [I64], {"expr": expr}).result], [], {"var": v})
                self.variables.append(v)
            case 4:
                kind = {"kind": "ExecutionError", "message": 'bad "thing"\n'}
                b.emit("check", [b.emit("or", [self.condition(), self.truth()], [BOOL]).result], [], kind)
            case 5:
                memory = b.emit("alloc", [], [buffer(dt.f64, [SIZE], r.choice(["scratch", "reg"]))]).result
                memory.name = r.choice(["", "acc", "for", "v3"])
                self.fill(memory)
                self.buffers.append(memory)
            case 6:
                value = self.number(2)
                value.name = r.choice(["", "t", "t", "v1", "a"])
                self.values.append(value)
            case _:
                self.store()

    def fill(self, memory: Value) -> None:
        for k in range(SIZE):
            zero = self.b.emit("const", [], [F64], {"value": self.r.choice([0.0, 1, -2.5])}).result
            self.b.emit("store", [zero, memory], [], {"idx": (self.n * 0 + k,)})

    def store(self) -> None:
        target = self.r.choice(self.buffers)
        attrs = self.access()
        if self.r.random() < 0.4:
            old = self.b.emit("load", [target], [F64], dict(attrs)).result
            value = self.b.emit("add", [old, self.number(2)], [F64]).result
        else:
            value = self.number(3)
        if self.r.random() < 0.3:
            attrs["guard"] = (ge0(self.index() - 3),)
        self.b.emit("store", [value, target], [], attrs)

    def loop(self, depth: int) -> None:
        v = var(self.next_name("i"), 0, self.r.choice([None, SIZE - 1]))
        kind = self.r.choice(["serial", "unroll"])
        attrs = {"var": v, "extent": self.r.choice([self.n, self.n * 0 + 3, (self.n + 3) // 4]), "kind": kind}
        self.nested("for", [], attrs, depth, [v])

    def nested(
        self, name: str, operands: list[Value], attrs: dict, depth: int, new: tuple | list = ()
    ) -> None:
        outer = list(self.variables), list(self.values), list(self.buffers)
        self.variables += new
        inner = Block()
        self.b.emit(name, operands, [], attrs, [inner])
        with self.b.inside(inner):
            self.statements(depth - 1)
        self.variables, self.values, self.buffers = outer

    def next_name(self, prefix: str) -> str:
        self.fresh += 1
        return f"{prefix}{self.fresh if self.r.random() < 0.5 else f'.{self.fresh}'}" if prefix else ""

    def index(self) -> Sym:
        r = self.r
        v, w = r.choice(self.variables), r.choice(self.variables)
        return r.choice([v, v + w, 3 * v + 1, v // 2 + w % 3, v * w])

    def access(self) -> dict:
        return {"idx": (self.index() % SIZE,)}

    def number(self, depth: int) -> Value:
        """An f64 value: sometimes one that exists, which is then used more than once."""
        r, b = self.r, self.b
        choice = r.random()
        if self.values and choice < 0.15:
            return r.choice(self.values)
        if choice < 0.3:
            return b.emit(
                "const", [], [F64], {"value": r.choice([1, 0.5, -3.0, -7, 1e-9, float("inf")])}
            ).result
        if not depth or choice < 0.55:
            attrs = self.access()
            if r.random() < 0.3:
                attrs |= {"guard": (ge0(self.index() - 2),), "other": r.choice([0, 1.5, -2])}
            made = b.emit("load", [r.choice(self.buffers)], [F64], attrs).result
        elif choice < 0.85:
            x, y = self.number(depth - 1), self.number(depth - 1)
            operands = [x, y] if r.random() < 0.7 else [y, x]
            made = b.emit(r.choice(["add", "sub", "mul", "max", "min"]), operands, [F64]).result
        elif choice < 0.9:
            condition = self.condition()
            made = b.emit("select", [condition, self.number(depth - 1), self.number(depth - 1)], [F64]).result
        elif choice < 0.92:
            made = b.emit("bitcast", [b.emit("index", [], [I64], {"expr": self.index()}).result], [F64]).result
        elif choice < 0.95:
            made = b.emit("cast", [b.emit("index", [], [I64], {"expr": self.index()}).result], [F64]).result
        else:
            made = b.emit(r.choice(["neg", "abs", "floor"]), [self.number(depth - 1)], [F64]).result
        if r.random() < 0.1:
            self.values.append(made)
        return made

    def condition(self) -> Value:
        operands = [self.number(1), self.number(1)]
        return self.b.emit(self.r.choice(["lt", "ge", "ne"]), operands, [BOOL]).result

    def truth(self) -> Value:
        return self.b.emit("const", [], [BOOL], {"value": True}).result


def results(func: Func, n: int, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    arrays = [rng.integers(-4, 5, SIZE).astype(np.float64) for _ in range(3)]
    with np.errstate(all="ignore"):
        run_kernel(func, arrays, {"n": n})
    return arrays


@pytest.mark.parametrize("seed", range(120))
def test_random_kernels(seed):
    func = Writer(seed).func
    verify_func(func)
    text = print_func(func)
    back = parse_func(text)
    verify_func(back)
    assert print_func(back) == text
    assert max(map(len, text.splitlines())) < 600
    for n in (1, 5):
        for before, after in zip(results(func, n, seed), results(back, n, seed), strict=True):
            np.testing.assert_array_equal(before, after)
