"""Random functions of PyTorch that broadcast, through torch.compile with dynamic sizes and through torch.export: they
give what PyTorch gives, for sizes of 0, 1 and n, and raise where it raises."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence

import torch

import tilewright
from tests.fuzz.registry import Tried
from tilewright.runtime.errors import TilewrightError

SIZES = (0, 1, 3, 4)
CALLS = 4

Function = Callable[..., torch.Tensor]

BINARY: dict[str, Function] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "maximum": torch.maximum,
    "where": lambda x, y: torch.where(x > y, x, y),
    "matmul": torch.matmul,
    "expanded": lambda x, y: x.expand(y.shape) + 1,
}
UNARY: dict[str, Function] = {
    "first": lambda x: x[:1],
    "last": lambda x: x[..., -1:],
    "sum": lambda x: x.sum(dim=-1, keepdim=True),
    "turned": lambda x: x.transpose(0, -1),
    "tanh": torch.tanh,
    "wider": lambda x: x.unsqueeze(1),
    "flat": lambda x: x.reshape(-1, x.shape[-1]),
}

Step = tuple[str, Sequence[int]]


def steps(chance: random.Random, inputs: int) -> list[Step]:
    made: list[Step] = []
    for _ in range(chance.choice((1, 2, 3, 4))):
        names = BINARY if chance.random() < 0.6 else UNARY
        count = 2 if names is BINARY else 1
        made.append((chance.choice(list(names)), [chance.randrange(inputs + len(made)) for _ in range(count)]))
    return made


class Steps(torch.nn.Module):
    """Applies steps to its inputs and to what the steps before have given; the last one gives the result."""

    def __init__(self, made: Sequence[Step]) -> None:
        super().__init__()
        self.made = made

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        values = list(inputs)
        for name, operands in self.made:
            values.append((BINARY | UNARY)[name](*[values[k] for k in operands]))
        return values[-1]


def fuzz(seed: int) -> Tried:
    chance = random.Random(seed)
    torch.manual_seed(seed)
    torch._dynamo.reset()
    ranks = [chance.choice((1, 2, 2, 3)) for _ in range(chance.choice((1, 2, 3)))]
    module = Steps(steps(chance, len(ranks))).eval()
    names = [[chance.choice("abc") for _ in range(rank)] for rank in ranks]
    tried: Tried = Counter()
    exported = seed % 3 == 0
    try:
        with torch.no_grad():
            run: Function | None
            if exported:
                run = through_export(module, names)
            else:
                run = torch.compile(module, backend="tilewright", dynamic=True)
            if run is None:
                return Counter({("export", "refused"): 1})
            for call in range(CALLS):
                sizes = {n: chance.choice(SIZES[1:] if call < 2 else SIZES) for n in "abc"}
                inputs = [torch.randn([sizes[n] for n in dims]) for dims in names]
                tried["export" if exported else "compile", checked(module, run, inputs, exported)] += 1
    except Exception as e:
        e.add_note(f"{module.made} of {names}")
        raise
    return tried


def through_export(module: Steps, names: Sequence[Sequence[str]]) -> Function | None:
    """A compiled model of the exported module; None where PyTorch cannot export it with these dims."""
    sizes = {"a": 5, "b": 6, "c": 7}
    examples = tuple(torch.randn([sizes[n] for n in dims]) for dims in names)
    dims = (tuple({k: torch.export.Dim.AUTO for k in range(len(d))} for d in names),)
    try:
        program = torch.export.export(module, examples, dynamic_shapes=dims)
    except Exception:  # whatever PyTorch says of sizes that contradict
        return None
    model = tilewright.compile(program, threads=1, verify=True, cache=False).with_outputs(torch)
    return lambda *inputs: model(*inputs)[0]


def checked(module: Steps, run: Function, inputs: Sequence[torch.Tensor], exported: bool) -> str:
    """Compare a call with PyTorch's; an exported program may refuse sizes that it was not exported for, and may know
    the size that is left open for a tensor without elements."""
    wanted, reason = None, ""
    try:
        wanted = module(*inputs)
    except (RuntimeError, IndexError) as e:
        reason = str(e)
    try:
        found = run(*inputs)
    except Exception as e:
        if wanted is not None and not (exported and isinstance(e, TilewrightError)):
            raise
        return "refused"
    if wanted is None and exported and "is ambiguous" in reason and not found.numel():
        return "right"
    if wanted is None:
        raise AssertionError(f"{[tuple(x.shape) for x in inputs]} are not refused")
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)
    return "right"
