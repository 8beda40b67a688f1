"""The distribution `tilewright-runtime`: small, the same bytes each time, and all that a compiled model needs."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

import tilewright
from tests.models import mlp
from tests.staging.models import model_of

ROOT = Path(__file__).parent.parent.parent

RUN = """
import sys
sys.path += sys.argv[1:3]
import numpy as np
import tilewright_runtime
assert tilewright_runtime.__version__ == sys.argv[3], tilewright_runtime.__version__
for mmap in (False, True):
    with tilewright_runtime.load(sys.argv[4], threads=2, mmap=mmap) as model:
        x = np.load(sys.argv[5])
        (y,) = model(x)
        np.save(sys.argv[6], y)
        print(model.report().kernels)
with tilewright_runtime.load(sys.argv[7]) as model:
    print(model(np.array([0, 3, 0, 5], np.float32))[0].tolist())
try:
    tilewright_runtime.load(sys.argv[5])
except tilewright_runtime.ArtifactError as error:
    print(error.what.split(" is ")[1])
rooms = {name.split(".")[0] for name, module in sys.modules.items() if "site-packages" in str(module)}
assert rooms <= {"numpy", "tilewright_runtime"}, rooms
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, str(ROOT / "release" / "runtime_wheel.py"), str(folder)]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=120)
    return Path(done.stdout.strip())


def test_it_is_small_and_the_same_each_time(wheel: Path, tmp_path: Path) -> None:
    assert wheel.stat().st_size < 1_000_000 / 4
    command = [sys.executable, str(ROOT / "release" / "runtime_wheel.py"), str(tmp_path)]
    env = {**os.environ, "PYTHONHASHSEED": "5", "TZ": "Asia/Tokyo"}
    subprocess.run(command, check=True, capture_output=True, timeout=120, env=env)
    assert (tmp_path / wheel.name).read_bytes() == wheel.read_bytes()


def test_it_has_no_import_of_the_compiler(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        texts = {name: archive.read(name).decode() for name in archive.namelist() if name.endswith(".py")}
    lines = [(name, line) for name, text in texts.items() for line in text.splitlines()]
    imports = [(n, words) for n, line in lines if (words := line.split())[:1] in (["from"], ["import"])]
    assert not [n for n, words in imports if words[1].split(".")[0] == "tilewright"]
    assert any(words[1].startswith("tilewright_runtime.") for _, words in imports)


@pytest.mark.without_room_for_zones  # which llvmlite makes
def test_models_run_where_only_numpy_is(wheel: Path, tmp_path: Path) -> None:
    from onnx import TensorProto, helper

    place, beside = tmp_path / "site-packages", tmp_path / "numpy" / "site-packages"
    offline = ["--no-deps", "--no-index", "--quiet", "--disable-pip-version-check"]
    install = [sys.executable, "-m", "pip", "install", *offline, "--target", str(place), str(wheel)]
    subprocess.run(install, check=True, capture_output=True, timeout=300)
    beside.mkdir(parents=True)
    for found in Path(np.__file__).parent.parent.glob("numpy*"):
        (beside / found.name).symlink_to(found)
    model = tilewright.compile(mlp(), cache=False)
    model.save(tmp_path / "mlp.tw")
    nodes = [helper.make_node("NonZero", ["x"], ["at"])]
    sized = model_of(nodes, [("x", TensorProto.FLOAT, [4])], ["at"], {})
    tilewright.compile(sized, cache=False).save(tmp_path / "sized.tw")
    (info,) = model.inputs
    x = np.random.default_rng(0).standard_normal((3, int(info.shape[1])), np.float32)
    np.save(tmp_path / "x.npy", x)
    files = [tmp_path / name for name in ("mlp.tw", "x.npy", "y.npy", "sized.tw")]
    arguments = map(str, (place, beside, tilewright.__version__, *files))
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", RUN, *arguments], capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    kernels = str(model.report().kernels)
    assert done.stdout.splitlines() == [kernels, kernels, "[[1, 3]]", "not a compiled model of tilewright"]
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), model(x)[0])
