"""Places of ops: what several nodes become is of all of them."""

from __future__ import annotations

from tilewright.ir.diag import Loc

A, B, C = Loc("a", "MatMul"), Loc("b", "MatMul"), Loc("", "MatMul", value="c")


def test_a_place_of_one_node_is_itself() -> None:
    assert A.sources == (A,) and A.joined() == A and A.joined(A) == A


def test_joined_places_keep_each_node_once() -> None:
    both = A.joined(B)
    assert both.node == "a" and both.sources == (A, B)
    assert C.joined(both, A).sources == (C, A, B)
    assert str(both) == str(A)


def test_nodes_without_a_name_are_told_apart_by_what_they_give() -> None:
    assert Loc("", "Conv", value="x") != Loc("", "Conv", value="y")
    assert str(C) == "an unnamed MatMul node (of 'c')" and str(Loc("", "Conv")) == "an unnamed Conv node"
