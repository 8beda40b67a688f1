"""Nodes in modules: by names, by blocks that repeat, and in pieces."""

from __future__ import annotations

import pytest

from tilewright.viewer.hierarchy import MOST_CHILDREN, Placed, group_of_kernel, hierarchy, path_of, repeats
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
