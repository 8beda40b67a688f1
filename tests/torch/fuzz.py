"""Random small modules through `torch.compile` beside eager PyTorch: weights that are written to between calls, results
that are views, inputs and results with any strides, graph breaks, sizes that change."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._dynamo as dynamo

from tests.fuzz.registry import Tried
from tests.torch.writes import WRITES
from tilewright.torch import backend

# Functions of a number that decides where there is a choice, and a tensor.
_CHANGES: dict[str, Callable[[int, Any], Any]] = {
    "relu": lambda r, x: x.relu(),
    "exp": lambda r, x: (x * 0.1).exp(),
    "add": lambda r, x: x + 1,
    "pair": lambda r, x: x * x.flip(0),
    "empty product": lambda r, x: x[..., :0] * 2 if r % 3 == 0 else x * 2,
    "sum": lambda r, x: x.sum(r % x.dim(), keepdim=True),
    "half": lambda r, x: x.half().float(),
    "cat": lambda r, x: torch.cat([x, x], r % x.dim()),
    "clone": lambda r, x: x.clone(),
    "contiguous": lambda r, x: x.contiguous(),
}
_VIEWS: dict[str, Callable[[int, Any], Any]] = {
    "transpose": lambda r, x: x.transpose(r % x.dim(), r // 5 % x.dim()),
    "select": lambda r, x: x.select(0, 0) if x.dim() > 2 else x,
    "slice": lambda r, x: x[..., r % 2 :],
    "step": lambda r, x: x[::2],
    "flat": lambda r, x: x.reshape(-1, x.shape[-1]),
    "unsqueeze": lambda r, x: x.unsqueeze(r % (x.dim() + 1)) if x.dim() < 4 else x,
    "expand": lambda r, x: x[:1].expand(3, *x.shape[1:]),
    "split": lambda r, x: x.chunk(2, r % x.dim())[-1],
    "same": lambda r, x: x.view(x.shape),
    "empty": lambda r, x: x[..., x.shape[-1] :] if r % 3 == 0 else x,
    "permute": lambda r, x: x.permute(*range(1, x.dim()), 0),
}
_WRITES: dict[str, Callable[[int, Any], Any]] = {
    "add_": lambda r, x: x.add_(1),
    "mul_": lambda r, x: x.mul_(2),
    "fill part": lambda r, x: x[..., :1].fill_(3) if x.numel() else x,
}


_MADE = {**_CHANGES, **_VIEWS}


class Net(torch.nn.Module):
    """Values, one made of another, of which some are given back."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        rng = random.Random(seed)
        torch.manual_seed(seed)
        self.plan = [self._step(rng) for _ in range(rng.randint(2, 6))]
        self.given = [rng.randrange(1, len(self.plan) + 1) for _ in range(rng.randint(1, 4))]
        self.size = rng.choice([4, 6, 130])
        self.linear = torch.nn.Linear(self.size, self.size)
        self.weight, self.bias = self.linear.weight, self.linear.bias

    @staticmethod
    def _step(rng: random.Random) -> tuple[str, int, int]:
        kinds = [*_CHANGES, *_VIEWS, *_VIEWS, *_WRITES, "linear", "linear", "break"]
        return rng.choice(kinds), rng.randrange(3), rng.randrange(10**6)

    def forward(self, x: Any) -> list[Any]:
        values = [x]
        for kind, back, number in self.plan:
            source = values[max(0, len(values) - 1 - back)]
            values.append(self._applied(kind, source, number))
        return [values[k] for k in self.given]

    def _applied(self, kind: str, x: Any, r: int) -> Any:
        if kind == "break":
            torch._dynamo.graph_break()
            return x
        if kind == "linear":
            return self.linear(x) if x.shape[-1] == self.size else x * 3
        if kind in _WRITES:
            # Elements that lie in one place cannot be written to.
            _WRITES[kind](r, x if not any(step == 0 for step in x.stride()) else x.clone())
            return x
        return _MADE[kind](r, x)


def fuzz(seed: int) -> Tried:
    """One module, called several times; it raises for a difference from eager PyTorch, unless PyTorch's own graphs, run
    operator by operator, differ, too."""
    try:
        return _tried(seed, backend=backend, options={"cache": False, "threads": 1})
    except AssertionError:
        try:
            _tried(seed, backend="aot_eager")
        except AssertionError:
            return Counter({("modules", "wrong in PyTorch"): 1})
        raise


def _tried(seed: int, **how: Any) -> Tried:
    rng = random.Random(seed)
    dynamo.reset()
    module = Net(rng.randrange(10**9)).eval()
    dynamic = rng.choice([None, False, True])
    compiled = torch.compile(module, dynamic=dynamic, **how)
    done: list[str] = [f"plan {module.plan} of {module.size}, given {module.given}, dynamic {dynamic}"]
    tried: Tried = Counter({(kind, "tried"): 1 for kind, _, _ in module.plan})
    shape = [rng.randint(2, 4) for _ in range(rng.randint(1, 2))]
    try:
        with torch.no_grad():
            for _ in range(rng.randint(2, 4)):
                x = _input(rng, (*shape, module.size))
                done.append(f"called with {tuple(x.shape)}, strides {x.stride()}, from {x.storage_offset()}")
                if not compare(module, compiled, x):
                    tried["calls", "refused by PyTorch"] += 1
                    break
                tried["calls", "tried"] += 1
                if rng.random() < 0.7:
                    name = rng.choice([n for n in WRITES if n not in _SLOW])
                    done.append(f"written: {name}")
                    WRITES[name](module)
                    tried[name, "tried"] += 1
                if rng.random() < 0.3:
                    shape[0] = rng.randint(2, 5)
    except Exception as error:
        for line in done:
            error.add_note(line)
        raise
    return tried


_SLOW = ("another process", "another parameter")
"""Processes; and what `linear` would not see, as it has a parameter of its own then."""


def _input(rng: random.Random, shape: Sequence[int]) -> Any:
    x = torch.randn(*shape) * 0.5
    kind = rng.randrange(4)
    if kind == 1:
        return x.transpose(0, 1).contiguous().transpose(0, 1)
    if kind == 2:
        return torch.cat([x, x], -1)[..., : shape[-1]]
    return torch.randn(2, *shape)[1] if kind == 3 else x


def _same_place(x: Any) -> Any:
    """A tensor with the same elements, strides and surroundings."""
    whole = torch.empty(0).set_(x.untyped_storage()).clone()
    return whole.as_strided(x.shape, x.stride(), x.storage_offset())


def compare(module: Any, compiled: Any, x: Any) -> bool:
    """Whether eager PyTorch computes it, and whether the results are the same then: elements, types, strides, what of
    inputs and results lies in one place, and what is left in the input."""
    theirs_in, ours_in = _same_place(x), _same_place(x)
    try:
        theirs = module(theirs_in)
    except RuntimeError:
        return False
    ours = compiled(ours_in)
    torch.testing.assert_close(ours_in, theirs_in, rtol=1e-3, atol=1e-3, msg=lambda t: f"the input: {t}")
    for k, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3, msg=lambda t, k=k: f"result {k}: {t}")
        assert _strides(a, b) == _strides(b, b), (
            f"strides of result {k}: {a.stride()}, and {b.stride()} in PyTorch"
        )
        assert (a.is_conj(), a.is_neg()) == (b.is_conj(), b.is_neg()), f"result {k} is a conjugate, or is none"
    found, expected = _places([ours_in, *ours]), _places([theirs_in, *theirs])
    assert found == expected, f"memory that is shared: {found}, and {expected} in PyTorch"
    return True


def _strides(x: Any, expected: Any) -> list[int]:
    """The strides that are compared. Those of axes with one element, and of empty tensors that PyTorch does not lay out
    as new ones, it traces otherwise than it gives them."""
    if not expected.numel():
        return list(x.stride()) if expected.stride() == torch.empty(expected.shape).stride() else []
    return [step for n, step in zip(x.shape, x.stride(), strict=True) if n > 1]


def _places(tensors: Sequence[Any]) -> list[tuple[int, int]]:
    """For each tensor the first whose memory it shares, and how far its first element is from that one's."""
    owners = [t.untyped_storage().data_ptr() if t.numel() else -k - 1 for k, t in enumerate(tensors)]
    firsts = [owners.index(owner) for owner in owners]
    return [
        (first, t.data_ptr() - tensors[first].data_ptr()) for first, t in zip(firsts, tensors, strict=True)
    ]
