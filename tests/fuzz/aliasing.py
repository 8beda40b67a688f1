"""Random programs with states: where the verifier allows one, nobody can tell that what is read is not a copy."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np

from tests.fuzz.registry import Tried
from tilewright.ir.diag import VerifyError
from tilewright.ir.text import parse_module, print_module
from tilewright.ir.verify import verify_func
from tilewright.program.interp import run_program
from tilewright.program.spec import program_spec

HEAD = """
func @step(x: f32[4], y: f32[4]) -> (f32[4]) {
  half = constant @half : f32[]
  z = mul(y, half) : f32[4]
  w = add(x, z) : f32[4]
  return w
}

program @main(x: f32[4], c: bool[], n: i64[], p: i64[]) -> (f32[4], f32[4]) {
  h = state() {name="h"} : state f32[4]
  g = state() {name="g"} : state f32[4]
  measure(p) {variables=[val_p]}
"""
DEEPEST = 2


def fuzz(seed: int) -> Tried:
    """Write a program, and run it with copies and without where it is allowed."""
    text = "constant @half: f32[] = [0.5]\n" + HEAD + _Text(random.Random(seed)).program()
    module = parse_module(text)
    assert print_module(parse_module(print_module(module))) == print_module(module)
    try:
        verify_func(module.main, program_spec(module))
    except VerifyError as error:
        reason = error.what.partition("\n")[0].rpartition(": ")[2]
        return Counter({("program", reason[:40]): 1})
    try:
        for c, n, p in ((True, 0, 0), (False, 1, 2), (True, 3, 1)):
            inputs = [np.arange(1, 5, dtype=np.float32), np.array(c), np.array(n), np.array(p)]
            kept: dict[str, np.ndarray] = {name: np.full(4, k, np.float32) for k, name in enumerate("hg")}
            shared = {name: array.copy() for name, array in kept.items()}
            copied = run_program(module, inputs, kept)
            found = run_program(module, inputs, shared, aliased=True)
            for a, b in zip([*copied, *kept.values()], [*found, *shared.values()], strict=True):
                np.testing.assert_array_equal(a, b)
    except Exception as error:
        error.add_note(text)
        raise
    return Counter({("program", "allowed"): 1})


class _Text:
    """Writes a program; of the values that are visible, whole ones are f32[4] and parts f32[2]."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.count = 0

    def program(self) -> str:
        whole, parts = ["x"], []
        lines = self.lines(whole, parts, 0)
        returned = ", ".join(self.rng.choice(whole) for _ in range(2))
        return "\n".join([*lines, f"return {returned}", "}"])

    def name(self) -> str:
        self.count += 1
        return f"a{self.count}"

    def lines(self, whole: list[str], parts: list[str], depth: int) -> list[str]:
        found: list[str] = []
        for _ in range(self.rng.randint(1, 6 - 2 * depth)):
            found += self.line(whole, parts, depth)
        return found

    def line(self, whole: list[str], parts: list[str], depth: int) -> list[str]:
        rng, made, state = self.rng, self.name(), self.rng.choice("hg")
        value = rng.choice(whole[-3:])
        kinds = ["read", "read", "call", "call", "update", "view", "part"]
        match rng.choice([*kinds, "branch", "loop"] if depth < DEEPEST else kinds):
            case "read":
                whole.append(made)
                return [f"{made} = read({state}) : f32[4]"]
            case "call":
                other = rng.choice(whole)
                whole.append(made)
                return [f'{made} = call({value}, {other}) {{part="step", sizes=()}} : f32[4]']
            case "view":
                whole.append(made)
                return [f"{made} = reshape({value}) {{shape=[4]}} : f32[4]"]
            case "part":
                parts.append(made)
                first = rng.choice((0, 1, 2))
                return [f"{made} = slice({value}) {{starts=({first},), sizes=(2,), steps=(1,)}} : f32[2]"]
            case "update":
                if parts and rng.random() < 0.6:
                    return [f"update({state}, {rng.choice(parts)}) {{at=[{rng.choice(('0', '2', '1', 'val_p'))}]}}"]
                return [f"update({state}, {value})"]
            case "branch":
                ways = [self.block(whole, parts, depth) for _ in range(2)]
                whole.append(made)
                (one, first), (other, second) = ways
                head = f"{made} = branch(c) : f32[4] () {{"
                return [head, *one, f"yield {first}", "} () {", *other, f"yield {second}", "}"]
        trip, on, carried = f"i{made}", f"on{made}", f"s{made}"
        body, last = self.block([*whole, carried], parts, depth)
        whole.append(made)
        head = f"{made} = loop(n, c, {value}) {{states=1, row_shapes=()}} : f32[4]"
        return [f"{head} ({trip}: i64[], {on}: bool[], {carried}: f32[4]) {{", *body, f"yield {on}, {last}", "}"]

    def block(self, whole: list[str], parts: list[str], depth: int) -> tuple[list[str], str]:
        """The lines of a block, and a value that it may yield."""
        inner = list(whole)
        lines = self.lines(inner, list(parts), depth + 1)
        return lines, self.rng.choice(inner)
