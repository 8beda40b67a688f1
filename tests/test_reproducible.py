"""The same model, options and compiler give the same bytes, in whatever process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnx

from tests.models import mlp
from tests.test_concurrent_compiles import network

PROGRAM = """
import sys
import tilewright
for k, model in enumerate(sys.argv[3:]):
    options = {"frequent": ({"batch": 4},)} if k == 1 else {}
    made = tilewright.compile(model, cache=False, compile_threads=int(sys.argv[2]), **options)
    made.save(f"{sys.argv[1]}/{k}.tw")
    tilewright.load(f"{sys.argv[1]}/{k}.tw").save(f"{sys.argv[1]}/{k}.again.tw")
"""


def test_neither_time_nor_place_nor_threads_nor_hashes_are_in_the_bytes(tmp_path: Path) -> None:
    found = []
    for number, (zone, threads) in enumerate((("UTC", 1), ("Asia/Tokyo", 2))):
        here = tmp_path / str(number)
        here.mkdir()
        models = {"mlp.onnx": mlp(), "small.onnx": network(1)}
        for name, model in models.items():
            onnx.save(model, here / name)
        given = [name if number else str(here / name) for name in models]
        env = {**os.environ, "PYTHONHASHSEED": str(1 + 7 * number), "TZ": zone, "SOURCE_DATE_EPOCH": str(number)}
        command = [sys.executable, "-c", PROGRAM, str(here), str(threads), *given]
        subprocess.run(command, cwd=here, env=env, check=True, timeout=120)
        found.append({path.name: path.read_bytes() for path in here.glob("*.tw")})
    assert len(found[0]) == 4 and found[0] == found[1]
    assert all(found[0][f"{k}.tw"] == found[0][f"{k}.again.tw"] for k in range(2))
