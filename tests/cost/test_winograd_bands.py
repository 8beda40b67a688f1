"""Bands of tiles and panels of columns: filters are read once where they are far, bands stay in the cache, and no core
waits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.cost.conv.winograd_bands import Band, Tiles, choose_band, cost
from tilewright.target.named import parse_target
from tilewright.target.target import Target

AVX2 = parse_target("zen3,cores=1")
AVX512 = parse_target("x86-64-v4,cores=2")
IMAGE = Tiles(
    images=1, rows=7, across=7, points=36, depth=512, columns=32, lanes=16, element=4, made_here=False
)


@pytest.mark.parametrize("core", [AVX2, AVX512], ids=["avx2", "avx512"])
@pytest.mark.parametrize("side", [3, 4, 7, 13])
@pytest.mark.parametrize(("depth", "columns"), [(512, 32), (1024, 64), (256, 32)])
def test_many_filters_are_read_once(core: Target, side: int, depth: int, columns: int) -> None:
    tiles = replace(IMAGE, rows=side, across=side, depth=depth, columns=columns)
    band = choose_band(tiles, core)
    assert (band.rows, band.across) == (side, side)


def held(tiles: Tiles, band: Band) -> int:
    """Bytes of the tiles of a band and of the sums of a panel."""
    return band.rows * band.across * tiles.points * (tiles.depth + band.panel * tiles.lanes) * tiles.element


@pytest.mark.parametrize("core", [AVX2, AVX512], ids=["avx2", "avx512"])
@pytest.mark.parametrize(("side", "depth", "columns"), [(56, 64, 4), (28, 128, 8), (14, 64, 4), (26, 64, 8)])
def test_tiles_made_here_stay_in_the_second_level_cache(
    core: Target, side: int, depth: int, columns: int
) -> None:
    tiles = replace(IMAGE, rows=side, across=side, depth=depth, columns=columns, made_here=True)
    band = choose_band(tiles, core)
    assert held(tiles, band) < core.caches.l2
    assert band.rows * band.across >= 8, "enough rows for the registers"


def test_extents_divide_the_tiles() -> None:
    for made_here in (False, True):
        for rows, across, columns in ((1, 1, 1), (13, 13, 5), (12, 9, 6), (1, 100, 3)):
            tiles = replace(IMAGE, rows=rows, across=across, columns=columns, made_here=made_here)
            band = choose_band(tiles, AVX2)
            assert (rows % band.rows, across % band.across, columns % band.panel) == (0, 0, 0)
            assert band.rows == 1 or band.across == across


@pytest.mark.parametrize("cores", [1, 2, 4, 16])
def test_every_core_has_work(cores: int) -> None:
    for made_here in (False, True):
        tiles = replace(IMAGE, rows=28, across=28, made_here=made_here)
        band = choose_band(tiles, replace(AVX512, cores=cores))
        bands = 28 // band.rows * (28 // band.across)
        tasks = bands if made_here else bands * (tiles.columns // band.panel)
        assert tasks >= max(cores, 2), "threads may be more than the cores of the target"
        assert -(-tasks // cores) * cores / tasks <= 1.15


def test_a_batch_shares_the_reading_of_no_filters() -> None:
    """Images have bands of their own: the cost is that of each, several times."""
    band = choose_band(IMAGE, AVX2)
    assert cost(replace(IMAGE, images=3), band, AVX2) == pytest.approx(3 * cost(IMAGE, band, AVX2), rel=0.01)
