from bench.jax_programs import Pair, table


def test_the_table_has_ratios_and_their_mean():
    text = table([Pair("a", 2.0, 1.0, 0.1, 0.2, 0.0), Pair("b", 1.0, 2.0, 0.1, 0.2, 1e-6)])
    assert "| a | 2 | 1 | 2.00 |" in text and "| b | 1 | 2 | 0.50 |" in text
    assert "XLA / ours: 1.00 (geometric mean of 2)" in text
