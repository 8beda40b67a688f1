"""How many cycles of transfers can run beside operations, as room and order allow: a maximum flow from transfers to
operations, by shortest paths (Edmonds and Karp, "Theoretical improvements in algorithmic efficiency for network flow
problems", 1972)."""

from __future__ import annotations

from collections.abc import Sequence


def most_beside(transfers: Sequence[int], operations: Sequence[int], allowed: Sequence[Sequence[int]]) -> int:
    """The most cycles of `transfers` that run at the same time as `operations`, where transfers follow each other, and
    so do operations: the k-th beside those operations that `allowed[k]` lists."""
    left, room = list(transfers), list(operations)
    sent: list[dict[int, int]] = [{} for _ in operations]
    while (path := _shortest(left, room, sent, allowed)) is not None:
        back = list(zip((n for _, n in path), (k for k, _ in path[1:]), strict=False))
        amount = min([left[path[0][0]], room[path[-1][1]], *(sent[n][k] for n, k in back)])
        for k, n in path:
            sent[n][k] = sent[n].get(k, 0) + amount
        for n, k in back:
            sent[n][k] -= amount
        left[path[0][0]] -= amount
        room[path[-1][1]] -= amount
    return sum(transfers) - sum(left)


def _shortest(
    left: Sequence[int], room: Sequence[int], sent: Sequence[dict[int, int]], allowed: Sequence[Sequence[int]]
) -> list[tuple[int, int]] | None:
    """The shortest way from a transfer with cycles left to an operation with room: pairs of both, where a pair takes
    from the operation of the one before what its transfer sends there. None where there is no way."""
    pending = [k for k, cycles in enumerate(left) if cycles]
    came: dict[int, int] = {}  # from which operation a transfer was reached
    by: dict[int, int] = {}  # from which transfer an operation was
    started = set(pending)
    for k in pending:
        for n in allowed[k]:
            if n in by:
                continue
            by[n] = k
            if room[n]:
                return _way(n, by, came)
            for other, cycles in sent[n].items():
                if cycles and other not in came and other not in started:
                    came[other] = n
                    pending.append(other)
    return None


def _way(operation: int, by: dict[int, int], came: dict[int, int]) -> list[tuple[int, int]]:
    path = [(by[operation], operation)]
    while path[-1][0] in came:
        before = came[path[-1][0]]
        path.append((by[before], before))
    return path[::-1]
