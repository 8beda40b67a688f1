"""The page of emulated machines is that of its results, which say of each model that it gives what it gives here."""

from __future__ import annotations

from docs import emulated as docs

BOUND = 1e-4
"""Of a float model: sums in another order, and polynomials without fused multiply-adds."""
FEWEST = 12


def test_the_page_is_that_of_the_results() -> None:
    results = docs.load()
    assert docs.as_json(results) == docs.RESULTS.read_text()
    assert docs.page(results) == docs.PAGE.read_text(), "run `make docs`"


def test_all_models_give_the_same_on_all_machines() -> None:
    for machine, cells in docs.load().items():
        assert len(cells) >= FEWEST, machine
        for name, cell in cells.items():
            assert not cell.why and cell.difference <= (0 if cell.integers else BOUND), f"{machine}: {name}"
