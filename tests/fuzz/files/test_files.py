"""Short runs of the fuzzers of files with fresh seeds, and what guides and limits the long ones."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from random import Random

import onnx
import pytest

from tests.fuzz.files import huge_sizes, loader, reader, weights
from tests.fuzz.files.limits import LimitError, Opened, limited
from tests.fuzz.registry import run_seed

ROOT = Path(__file__).parents[3]
MODELS, ARTEFACTS, SIZES, WEIGHTS = 90, 150, 20, 1000


@pytest.mark.fresh_seeds(1)
def test_models(fresh_seed: int) -> None:
    for seed in range(fresh_seed, fresh_seed + MODELS):
        run_seed("loader", seed)


@pytest.mark.fresh_seeds(1)
def test_artefacts(fresh_seed: int) -> None:
    for seed in range(fresh_seed, fresh_seed + ARTEFACTS):
        run_seed("reader", seed)


@pytest.mark.fresh_seeds(1)
def test_huge_sizes(fresh_seed: int) -> None:
    for seed in range(fresh_seed, fresh_seed + SIZES):
        run_seed("huge_sizes", seed)


@pytest.mark.fresh_seeds(1)
def test_weights(fresh_seed: int) -> None:
    for seed in range(fresh_seed, fresh_seed + WEIGHTS):
        run_seed("weights", seed)


@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="needs atheris")
@pytest.mark.parametrize("name", ["loader", "reader"])
def test_guided(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fuzz.files.guided", name, "--minutes", "0.1", "--folder", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list((tmp_path / "corpus").iterdir())) >= 5


def test_the_corpora_are_sound() -> None:
    assert len(loader.corpus()) > 1000 and len(huge_sizes.corpus()) > 500
    assert all(loader.target(data)["model", "refused"] == 0 for data in loader.corpus()[1:2])
    assert all(reader.target(data)["artefact", "run"] == 1 for data in reader.corpus())
    for data in weights.corpus():
        assert [outcome for _, outcome in weights.target(data)] == ["read"]


def test_changes_follow_from_the_seed() -> None:
    numbers = [huge_sizes.enlarged(huge_sizes.corpus()[7], Random(seed)) for seed in (1, 2, 1)]
    assert numbers[0] == numbers[2] != numbers[1]
    for fuzzer in (loader, reader):
        data = fuzzer.corpus()[0]
        found, again = ([fuzzer.mutated(data, Random(seed)) for seed in range(9)] for _ in range(2))
        assert found == again
        assert len(set(found)) > 5
        assert fuzzer.mutated(b"\xff nothing", Random(4))


def test_changed_models_are_models_still() -> None:
    random = Random(3)
    models = [loader.mutated(random.choice(loader.corpus()), random) for _ in range(40)]
    assert sum(bool(onnx.ModelProto.FromString(m).graph.node) for m in models) > 30


def test_what_takes_too_long_or_too_much() -> None:
    with pytest.raises(LimitError, match=r"0\.1 s"), limited(0.1):
        while True:
            pass
    if sys.platform == "linux":
        with pytest.raises(MemoryError), limited(5, 1 << 20):
            bytes(1 << 34)  # more than the process may have let go of


def test_files_outside_are_noticed(tmp_path: Path) -> None:
    inside, outside = tmp_path / "folder" / "a", tmp_path / "b"
    inside.parent.mkdir()
    opened = Opened()
    for path in (inside, outside):
        path.write_bytes(b"x")
    with opened.recorded():
        inside.read_bytes()
        outside.read_bytes()
    assert opened.outside(inside.parent) == [str(outside)]
