import math

import pytest

from bench.torch_backends import EAGER, Standing, measure, ratio, table

pytest.importorskip("torch")


def test_a_process_that_ends_says_why(tmp_path):
    (standing,) = measure("no_such_network", [EAGER], threads=1, rounds=1, folder=tmp_path)
    assert standing.failure == "the process ended with 1: KeyError: 'no_such_network'"
    assert standing.failure in table({"no_such_network": [standing]})


def test_the_ratio_is_to_the_best_of_the_others():
    ours, eager = Standing("tilewright", ms=3.0), Standing(EAGER, ms=4.0)
    assert ratio([ours, eager, Standing("inductor", failure="no compiler")]) == pytest.approx(0.75)
    assert ratio([ours]) is None and ratio([Standing("tilewright", failure="no"), eager]) is None
    assert math.isinf(Standing(EAGER).ms)
