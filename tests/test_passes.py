"""Running passes, and their text form."""

from dataclasses import dataclass
from typing import ClassVar

import pytest

from tilewright.ir.core import Module
from tilewright.ir.diag import Remark, TextError, VerifyError
from tilewright.passes import PassContext, parse_passes, run_passes


@dataclass(frozen=True)
class Fold:
    name: ClassVar[str] = "fold"
    limit: int = 64
    ratio: float = 2.0
    deep: bool = False
    label: str = ""
    tile: tuple[int, ...] = ()

    def run(self, module, ctx):
        ctx.remark("fold", "@main", f"limit {self.limit}", applied=True)


@dataclass(frozen=True)
class Fuse:
    name: ClassVar[str] = "fuse"

    def run(self, module, ctx):
        ctx.remark("fuse", "@main", "nothing to fuse")


REGISTRY = {"fold": Fold, "fuse": Fuse}


def test_passes_run_in_order_and_share_remarks():
    ctx, seen = PassContext(), []
    module = Module()
    assert run_passes(module, [Fuse(), Fold(8)], ctx, after=lambda p, m: seen.append((p.name, m))) is module
    assert ctx.remarks == [
        Remark("fuse", "@main", "nothing to fuse"),
        Remark("fold", "@main", "limit 8", "applied"),
    ]
    assert seen == [("fuse", module), ("fold", module)]


def test_a_pass_that_breaks_the_program_is_named():
    calls = []

    def verify(module):
        calls.append(module)
        if len(calls) == 2:
            raise VerifyError("value x is used before it is defined", where="@main", hint="h")

    with pytest.raises(VerifyError, match="pass 'fold' left an illegal program: value x is used before") as e:
        run_passes(Module(), [Fuse(), Fold(), Fuse()], PassContext(), verify=verify)
    assert (e.value.where, e.value.hint, len(calls)) == ("@main", "h", 2)


def test_parse_options_of_every_type():
    options = 'limit=-3, ratio=1, deep=true, label="a \\"b\\" \\\\", tile=(1, 2)'
    text = f"fuse, fold{{{options}}} , fold"
    passes = parse_passes(text, REGISTRY)
    assert passes == [Fuse(), Fold(-3, 1.0, True, 'a "b" \\', (1, 2)), Fold()]
    assert type(passes[1].ratio) is float
    assert parse_passes("fold{limit=4, ratio=2.5e-3}", REGISTRY) == [Fold(limit=4, ratio=0.0025)]
    assert parse_passes("", REGISTRY) == []


@pytest.mark.parametrize(
    ("text", "message", "column"),
    [
        ("fuse,fodl", "there is no pass 'fodl'; there are: fold, fuse", 6),
        ("fold{limits=3}", "pass 'fold' has no option 'limits'; its options: limit, ratio, deep,", 6),
        ("fuse{a=1}", "pass 'fuse' has no option 'a'; its options: none", 6),
        ("fold{limit=true}", "option 'limit' of pass 'fold' is int, not true", 12),
        ("fold{limit=2.5}", "option 'limit' of pass 'fold' is int, not 2.5", 12),
        ("fold{deep=1}", "option 'deep' of pass 'fold' is bool, not 1", 11),
        ("fold{label=3}", "option 'label' of pass 'fold' is str, not 3", 12),
        ("fold{tile=(1, true)}", r"option 'tile' of pass 'fold' is tuple[int, ...], not (1, true)", 11),
        ("fold{limit=1, limit=2}", "option 'limit' is given twice", 15),
        ("fold{limit 3}", "expected '='", 12),
        ("fold{limit=3", "expected ','", 13),
        ("fold{limit=}", "expected an attribute: a number,", 12),
        ("fold fuse", "expected ',' or the end", 6),
        ("fold,", "expected the name of a pass", 6),
        ("fold,  $", "no token starts here", 8),
    ],
)
def test_errors_point_at_the_place(text, message, column):
    with pytest.raises(TextError) as e:
        parse_passes(text, REGISTRY)
    first, line, caret = e.value.what.split("\n")
    assert first.startswith(message)
    assert line == "    " + text and caret == " " * (3 + column) + "^"
    assert e.value.where == f"passes:1:{column}"
