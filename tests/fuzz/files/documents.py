"""Random changes to JSON data: as in messages, values stand elsewhere in it or are known for trouble."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from random import Random
from typing import Any

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 8, 64, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63), 2**64, 10**30, 0.5, -1.5, 1e300,
    "", "x", "0", "float32", "float8", "string", "object", "sequence", "map", "\0", "a" * 300, [], {}, [[]], [0], ["n"],
    [-1], {"float": "inf"}, {"float": "x"},
)  # fmt: skip
DEPTHS = (1, 1, 2, 40, 300)

Place = tuple[Any, Any]
"""A list or dict, and an index or key of it."""


def mutate(data: dict[str, Any], random: Random, donor: dict[str, Any]) -> None:
    """Change one entry of a document; some values come from a `donor`."""
    places = list(_places(data))
    if not places:
        data["x"] = random.choice(VALUES)
        return
    holder, key = random.choice(places)
    how = random.random()
    if how < 0.1:
        del holder[key]
    elif how < 0.25 and isinstance(holder, list):
        holder.insert(random.randint(0, len(holder)), copy.deepcopy(holder[key]))
    elif how < 0.35:
        other, its = random.choice(places)
        holder[key] = copy.deepcopy(other[its])
    elif how < 0.45 and (found := [h[k] for h, k in _places(donor) if k == key]):
        holder[key] = copy.deepcopy(random.choice(found))
    elif how < 0.6 and type(holder[key]) is int:
        holder[key] += random.choice((-1, 1, 2, 64))
    elif how < 0.65:
        for _ in range(random.choice(DEPTHS)):
            holder[key] = [holder[key]] if random.random() < 0.5 else {"element": holder[key]}
    elif how < 0.7 and isinstance(holder, dict):
        holder[random.choice((key + "s", "x", "kind", "element"))] = holder.pop(key)
    else:
        holder[key] = copy.deepcopy(random.choice(VALUES))


def _places(data: Any) -> Iterator[Place]:
    """All entries of lists and dicts."""
    stack = [data]
    while stack:
        holder = stack.pop()
        for key in list(holder) if isinstance(holder, dict) else range(len(holder)):
            yield holder, key
            if isinstance(holder[key], dict | list):
                stack.append(holder[key])
