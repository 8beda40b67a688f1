"""Images in files: mapped where that is possible, checked before they can run, and loaded without LLVM."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.models import mlp
from tests.runtime.native import STATIC_CONSTANTS, dynamic_artifact, static_artifact
from tilewright.runtime import Artifact, Model, load
from tilewright.runtime.artifact import TargetInfo
from tilewright.runtime.errors import ArtifactError
from tilewright.runtime.storage import container, cpu, loader, pages
from tilewright.runtime.storage.image import Image, ImageLayout
from tilewright.runtime.storage.loader import check_target
from tilewright.target.features import FEATURES, LENGTHS

X = np.ones((2, 3), np.float32)
Y = 2 * X + STATIC_CONSTANTS


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    static_artifact().save(tmp_path / "model.tw")
    return tmp_path / "model.tw"


def files_of_code() -> set[str]:
    """The files that pages with the right to be run were mapped from."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split(maxsplit=5)[5] for line in lines if "x" in line.split()[1] and len(line.split()) > 5}


linux_only = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


@linux_only
def test_mapped_code_is_that_of_the_file_and_copied_code_is_not(saved: Path) -> None:
    with load(saved) as copied:
        np.testing.assert_array_equal(copied(X)[0], Y)
        assert str(saved) not in files_of_code()
    with load(saved, mmap=True) as mapped:
        np.testing.assert_array_equal(mapped(X)[0], Y)
        assert str(saved) in files_of_code()
    del mapped
    assert str(saved) not in files_of_code()


def test_mapped_code_is_saved_as_it_was(saved: Path) -> None:
    model = load(saved, mmap=True)
    (first,) = model(X)
    again = saved.with_name("again.tw")
    model.save(again)
    assert again.read_bytes() == saved.read_bytes()
    assert Artifact.load(again).image == model.artifact.image
    np.testing.assert_array_equal(load(again, mmap=True)(X)[0], first)


def test_models_of_one_artefact_share_code_and_each_may_go_first(saved: Path) -> None:
    artifact = Artifact.load(saved, mmap=True)
    one, other = Model(artifact), Model(artifact)
    codes = [model._loaded.programs[0].code._code for model in (one, other)]
    assert codes[0] is codes[1]
    del codes
    one.close()
    np.testing.assert_array_equal(other(X)[0], Y)
    other.close()
    del one, other
    np.testing.assert_array_equal(Model(artifact)(X)[0], Y)  # in the same pages once more


def test_where_files_may_hold_no_code_it_is_copied(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on file systems that are mounted with noexec: the first time is the one with the pages of the file."""
    refused = []

    def protect(address: int, size: int, rights: int) -> None:
        if rights == pages.READ_EXECUTE and not refused:
            refused.append(address)
            raise PermissionError(13, "Permission denied")
        pages.protect(address, size, rights)

    monkeypatch.setattr(loader, "protect", protect)
    with load(saved, mmap=True) as model:
        np.testing.assert_array_equal(model(X)[0], Y)
        assert refused


def test_where_nothing_may_be_run_an_error_says_so(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def protect(address: int, size: int, rights: int) -> None:
        if rights == pages.READ_EXECUTE:
            raise PermissionError(13, "Permission denied")
        pages.protect(address, size, rights)

    monkeypatch.setattr(loader, "protect", protect)
    for mmap in (False, True):
        with pytest.raises(ArtifactError, match=r"does not let the process run code.*\n  hint: .*execmem"):
            load(saved, mmap=mmap)


FORBIDDEN = """
import ctypes
import sys
refuse_gain = 1
if ctypes.CDLL(None).prctl(65, refuse_gain, 0, 0, 0):  # PR_SET_MDWE
    sys.exit(7)
if sys.argv[2] == "without":
    sys.modules.update({"llvmlite": None, "llvmlite.binding": None})
from tilewright.runtime import ArtifactError, load
for mmap in (False, True):
    try:
        load(sys.argv[1], mmap=mmap)
    except ArtifactError as error:
        print(error.what)
"""


@linux_only
@pytest.mark.parametrize("llvmlite", ["with", "without"])
def test_a_system_that_forbids_code_says_so_also_where_the_cpu_is_to_be_asked(saved: Path, llvmlite: str) -> None:
    """As systemd does with MemoryDenyWriteExecute: the page of code that asks the CPU is the first that is refused."""
    done = subprocess.run(
        [sys.executable, "-c", FORBIDDEN, str(saved), llvmlite], capture_output=True, text=True, timeout=120
    )
    if done.returncode == 7:
        pytest.skip("this kernel has no such right to take away")
    assert done.stdout.splitlines() == ["this system does not let the process run code that it has loaded"] * 2, done


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_loads_models_whatever_its_parent_was_loading(saved: Path) -> None:
    """The thread that holds the lock in the parent is none of the child's."""
    with loader._LOCK:
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            os._exit(0 if load(saved)(X)[0].tolist() == Y.tolist() else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_file_that_is_cut_off_before_its_code_is_mapped(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = container._view

    def cut(source: container._Source, *others: object) -> memoryview | None:
        os.truncate(saved, 100)
        return real(source, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(container, "_view", cut)
    with pytest.raises(ArtifactError, match="was cut off while it was read"):
        load(saved, mmap=True)


@pytest.mark.parametrize("mmap", [False, True])
def test_damaged_code_never_becomes_code(saved: Path, mmap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytearray(saved.read_bytes())
    length = int.from_bytes(data[16:24], "little")
    (section,) = [s for s in json.loads(data[64 : 64 + length])["sections"] if s["kind"] == "image"]
    monkeypatch.setattr(loader, "protect", lambda *_: pytest.fail("rights were given"))
    for at in (0, section["size"] // 2, section["size"] - 1):
        broken = bytearray(data)
        broken[section["offset"] + at] ^= 1
        saved.write_bytes(broken)
        with pytest.raises(ArtifactError, match=r"wrong checksum\n  where: section 0 \(image\)"):
            load(saved, mmap=mmap, check_weights=False)


LAYOUT = ImageLayout(text=4096, data=64, page=4096, table=4096, imports=("free",), symbols={"f": 16})


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"page": 4095}, "the page"),
        ({"page": 1 << 20}, "the page"),
        ({"text": 100}, "the size"),
        ({"text": -4096}, "the size"),
        ({"data": 1 << 40}, "the size"),
        ({"table": 4092}, "a table"),
        ({"table": 4156}, "a table"),
        ({"table": 0}, "a table"),
        ({"imports": ("free",) * 9}, "a table"),
        ({"based": ((4096, 9),)}, "a table"),
        ({"based": ((4096, -1),)}, "a table"),
        ({"based": ((0, 1),)}, "a table"),
        ({"based": ((1 << 62, 1 << 62),)}, "a table"),
        ({"symbols": {"f": 4096}}, "a symbol"),
        ({"symbols": {"f": -1}}, "a symbol"),
    ],
)
def test_a_layout_that_leads_astray(change: dict, wrong: str) -> None:
    with pytest.raises(ValueError, match=f"{wrong} of the code's image is wrong"):
        dataclasses.replace(LAYOUT, **change)


def test_an_image_has_the_bytes_that_its_layout_says() -> None:
    with pytest.raises(ValueError, match="4095 and 64 bytes in place of 4096 and 64"):
        Image(LAYOUT, bytes(4095), bytes(64))


def test_names_that_are_none_are_imports_that_nobody_has() -> None:
    for name in ("", "\0", "nul\0inside", "ä", "no such name"):
        layout = dataclasses.replace(LAYOUT, imports=(name,))
        with pytest.raises(ArtifactError, match="this system lacks"):
            loader.LoadedImage(Image(layout, bytes(4096), bytes(64)))


def test_features_are_those_that_llvm_finds() -> None:
    from llvmlite import binding

    facts = cpu.cpu_facts()
    if facts is None:
        pytest.skip("LLVM is asked here")
    found = binding.get_host_cpu_features()
    arch = binding.get_process_triple().split("-")[0]
    assert {name for name in FEATURES[arch] if found.get(name)} == facts.features


def test_every_feature_of_a_target_can_be_asked_for() -> None:
    """Lengths of vectors are asked of the system in another way (`_sve_length`)."""
    assert set(cpu._X86) == set(FEATURES["x86_64"]) and set(cpu._AARCH64) == set(FEATURES["aarch64"]) - LENGTHS


def test_arm_cpus_by_what_linux_tells(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    core = "processor\t: {}\nBogoMIPS\t: 243.75\nFeatures\t: fp asimd aes {}\nCPU part\t: 0xd0c\n\n"
    info.write_text(core.format(0, "asimdhp asimddp") + core.format(1, "asimdhp asimddp"))
    facts = cpu.arm_facts(info)
    assert facts is not None and facts.features == {"neon", "fullfp16", "dotprod"}
    info.write_text(core.format(0, "i8mm bf16"))
    other = cpu.arm_facts(info)
    assert other is not None and other.features == {"neon", "i8mm", "bf16"} and other.identity != facts.identity
    info.write_text("processor\t: 0\n")
    assert cpu.arm_facts(info) is None is cpu.arm_facts(tmp_path / "absent")


def test_a_cpu_of_which_nothing_can_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "cpu_facts", lambda: None)
    loader._features.cache_clear()
    try:
        assert "sse2" in loader._features() or "neon" in loader._features()  # LLVM is asked
        monkeypatch.setitem(sys.modules, "llvmlite", None)
        monkeypatch.setitem(sys.modules, "llvmlite.binding", None)
        loader._features.cache_clear()
        here = loader.this_machine()
        with pytest.raises(ArtifactError, match=r"nothing here can tell.*\n  hint: install the package llvmlite"):
            check_target(TargetInfo(here.triple, "znver5", ("avx2",)), here)
        check_target(TargetInfo(here.triple, "generic"), here)
    finally:
        loader._features.cache_clear()


RUN = """
import sys
sys.modules.update(dict.fromkeys(("llvmlite", "onnx", "ml_dtypes", "click", "rich")))  # their import fails
import numpy as np
import tilewright
for mmap in (False, True):
    model = tilewright.load(sys.argv[1], mmap=mmap, threads=2)
    x = np.ones((4, 6), np.float32)
    assert (model(x, x)[0] == 2).all()
ours = {name.split(".")[1] for name in sys.modules if name.startswith("tilewright.")}
assert ours == {"runtime"}, ours
(model(x, x)[0] == 2).all()  # and the end, while the threads of the model are awake
"""


def test_loading_and_running_need_numpy_alone(tmp_path: Path) -> None:
    dynamic_artifact().save(tmp_path / "model.tw")
    for _ in range(3):
        subprocess.run([sys.executable, "-c", RUN, str(tmp_path / "model.tw")], check=True, timeout=120)


CACHED = """
import sys
import tilewright
model = tilewright.compile(sys.argv[1])
names = [name.split(".") for name in sys.modules]
print(*{name[1] if name[0] == "tilewright" else name[0] for name in names if name != ["tilewright"]})
print(*(name for name in sys.modules if name.startswith(("tilewright.target", "tilewright.runtime.devices"))))
"""


def test_a_compilation_that_the_cache_answers_needs_no_compiler(tmp_path: Path) -> None:
    onnx.save(mlp(), tmp_path / "model.onnx")
    command = [sys.executable, "-c", CACHED, str(tmp_path / "model.onnx")]
    env = {**os.environ, "TILEWRIGHT_CACHE": str(tmp_path / "cache")}

    def imported() -> set[str]:
        done = subprocess.run(command, check=True, timeout=120, env=env, capture_output=True, text=True)
        return set(done.stdout.split())

    needless = {"llvmlite", "onnx", "compiler", "codegen", "schedule", "loops", "ops", "graph"}
    needless.add("tilewright.target.named")
    unused = {"tilewright.runtime.devices", "tilewright.runtime.devices.external"}  # no part is of a compiler
    assert imported() >= needless
    found = imported()
    assert "session" in found and found.isdisjoint({*needless, *unused, "statistics", "zipfile", "difflib", "html"})
