"""Nodes in modules: by names, by blocks that repeat, and in pieces."""

from __future__ import annotations

import pytest

from tilewright.viewer.hierarchy import (
    DEEPEST,
    MOST_CHILDREN,
    Placed,
    group_of_kernel,
    hierarchy,
    path_of,
    repeats,
)
from tilewright.viewer.records import GroupView


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("/encoder/layer.1/attention/Add", ("encoder", "layer.1", "attention")),
        ("encoder.layer.10.dense/linear_3", ("encoder", "layer.10", "dense")),
        ("model/conv/BiasAdd;model/conv/Conv2D", ("model", "conv")),
        ("Conv_0", ()),
        ("/Add", ()),
        ("", ()),
        ("a.b.c", ()),
    ],
)
def test_paths_of_names(name: str, path: tuple[str, ...]) -> None:
    assert path_of(name) == path


def chain(paths: list[tuple[str, ...]], labels: list[str]) -> list[Placed]:
    return [
        Placed(p, label, (k - 1,) if k else ()) for k, (p, label) in enumerate(zip(paths, labels, strict=True))
    ]


def named(groups: tuple[GroupView, ...], number: int) -> str:
    return "" if number < 0 else f"{named(groups, groups[number].parent)}/{groups[number].name}"


def test_equal_modules_that_follow_each_other_are_put_together() -> None:
    layers = [("net", f"layer.{k}") for k in range(4)]
    paths = [("net",), *(layer for layer in layers for _ in range(2)), ("net",)]
    labels = ["begin", *["conv", "relu"] * 3, "conv", "sigmoid", "end"]
    groups, placed = hierarchy(chain(paths, labels))
    assert named(groups, placed[1]) == "/net/layer.0 to layer.2/layer.0"
    assert [g.count for g in groups if g.kind == "repeat"] == [3]
    assert named(groups, placed[7]) == "/net/layer.3"  # it has another operator
    assert named(groups, placed[0]) == "/net"


def test_repetitions_are_found_by_structure() -> None:
    labels = ["begin", *(["a", "b", "c", "d"] * 5), "x", *(["e", "f", "g"] * 4), "end"]
    nodes = chain([()] * len(labels), labels)
    assert repeats(range(len(nodes)), nodes) == [(1, 4, 5), (22, 3, 4)]


def test_many_short_repetitions_are_not_all_looked_for() -> None:
    labels = [f"{k}{at}" for k in range(500) for at in "abcabcabcabc"]
    assert repeats(range(len(labels)), chain([()] * len(labels), labels)) == []


def test_groups_in_one_have_names_of_their_own() -> None:
    """A page opens groups by their paths."""
    labels = ["begin", *["a", "b", "c", "d"] * 30, "x", *["e", "f", "g", "h"] * 30, "end"]
    groups, _ = hierarchy(chain([()] * len(labels), labels))
    assert [g.count for g in groups if g.kind == "repeat"] == [30, 30]
    assert len({named(groups, number) for number in range(len(groups))}) == len(groups)


def test_names_of_thousands_of_modules() -> None:
    groups, placed = hierarchy([Placed(path_of("a/" * 5000 + name), name, ()) for name in "xy"])
    assert len(groups) == 1 and placed == [0, 0] and groups[0].name == "/".join("a" * DEEPEST)


def test_many_nodes_without_names_are_cut_into_blocks_and_pieces() -> None:
    labels = ["begin", *(["a", "b", "c", "d"] * 100), *(f"single {k}" for k in range(700))]
    groups, placed = hierarchy(chain([()] * len(labels), labels))
    (repeat,) = [number for number, group in enumerate(groups) if group.kind == "repeat"]
    assert groups[repeat].count == 100
    pieces = [number for number, group in enumerate(groups) if group.kind == "piece"]
    sizes = [placed.count(number) for number in pieces]
    assert sum(sizes) == 700 and max(sizes) <= MOST_CHILDREN
    assert [number for number, group in enumerate(placed) if group < 0] == [0]


def test_a_kernel_stands_where_most_of_its_nodes_are() -> None:
    groups = (GroupView("a", -1), GroupView("b", 0), GroupView("c", 0))
    assert group_of_kernel([0, 1], [1, 1, 2], groups) == 1
    assert group_of_kernel([0, 2], [1, 1, 2], groups) == 0
    assert group_of_kernel([], [], groups) == -1


def test_nothing_has_no_groups() -> None:
    assert hierarchy([]) == ((), [])
