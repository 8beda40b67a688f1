"""Files of compiled models: round trip, damage, foreign files, full disks, other machines."""

from __future__ import annotations

import dataclasses
import errno
import io
import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest

from tests.runtime.native import STATIC_CONSTANTS, compile_ir, dynamic_artifact, static_artifact
from tilewright.codegen.cpu.linking.link import link
from tilewright.runtime import Artifact, Model, load
from tilewright.runtime.arena import address_of
from tilewright.runtime.artifact import TargetInfo
from tilewright.runtime.errors import ArtifactError, TilewrightError
from tilewright.runtime.storage.container import FORMAT, Section, read_container, write_container
from tilewright.runtime.storage.loader import check_target

X = np.ones((2, 3), np.float32)


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("saved") / "model.tw"
    static_artifact().save(path)
    return path.read_bytes()


def damaged(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "damaged.tw"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("make", [static_artifact, dynamic_artifact])
def test_round_trip(tmp_path: Path, make) -> None:
    artifact = make()
    artifact.save(tmp_path / "model.tw")
    again = Artifact.load(tmp_path / "model.tw")
    for field in dataclasses.fields(Artifact):
        before, after = getattr(artifact, field.name), getattr(again, field.name)
        if field.name == "constants":
            before, after = bytes(before), bytes(after)
        assert before == after, field.name


def test_loaded_model_runs_and_saves_again(tmp_path: Path) -> None:
    static_artifact().save(tmp_path / "model.tw")
    model = load(tmp_path / "model.tw", threads=1)
    np.testing.assert_array_equal(model(X)[0], 2 * X + STATIC_CONSTANTS)
    model.save(tmp_path / "model.tw")  # over the file that is mapped
    np.testing.assert_array_equal(model(X)[0], 2 * X + STATIC_CONSTANTS)
    np.testing.assert_array_equal(load(tmp_path / "model.tw")(X)[0], 2 * X + STATIC_CONSTANTS)
    assert (tmp_path / "model.tw").read_bytes()[:4] == b"\x89TWM"


def test_weights_are_used_in_place(tmp_path: Path, saved: bytes) -> None:
    path = damaged(tmp_path, saved)
    artifact = Artifact.load(path)
    address = np.frombuffer(artifact.constants, np.uint8).__array_interface__["data"][0]
    assert address % 64 == 0
    assert address_of(Model(artifact)._loaded.programs[0].constants) == address


def test_save_gives_the_usual_permissions_and_leaves_nothing_else(tmp_path: Path) -> None:
    static_artifact().save(tmp_path / "model.tw")
    (tmp_path / "other").touch()
    assert (tmp_path / "model.tw").stat().st_mode == (tmp_path / "other").stat().st_mode
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.tw", "other"]


def test_truncation_at_every_length(tmp_path: Path, saved: bytes) -> None:
    for length in [*range(0, 200), *range(200, len(saved), 97), len(saved) - 1]:
        with pytest.raises(ArtifactError, match=r"empty|cut off|damaged"):
            Artifact.load(damaged(tmp_path, saved[:length]))


def test_any_flipped_bit_is_found(tmp_path: Path, saved: bytes) -> None:
    for position in [*range(0, 128), *range(128, len(saved), 31), len(saved) - 1]:
        data = bytearray(saved)
        data[position] ^= 1 << position % 8
        with pytest.raises(ArtifactError):
            Artifact.load(damaged(tmp_path, bytes(data)))


def test_weights_may_stay_unchecked(tmp_path: Path, saved: bytes) -> None:
    data = bytearray(saved)
    data[-1] ^= 1
    path = damaged(tmp_path, bytes(data))
    with pytest.raises(ArtifactError, match=r"wrong checksum\n  where: section 1 \(weights\)"):
        load(path)
    load(path, check_weights=False)


def test_appended_bytes_are_found(tmp_path: Path, saved: bytes) -> None:
    with pytest.raises(ArtifactError, match="damaged"):
        Artifact.load(damaged(tmp_path, saved + b"\0"))


def test_foreign_missing_and_too_new_files(tmp_path: Path, saved: bytes) -> None:
    for data in (b"\x08\x07\x12\x07pytorch" * 20, b"x", bytes(1000)):
        with pytest.raises(ArtifactError, match="not a compiled model"):
            load(damaged(tmp_path, data))
    with pytest.raises(ArtifactError, match="is empty"):
        load(damaged(tmp_path, b""))
    newer = bytearray(saved)
    struct.pack_into("<I", newer, 8, FORMAT + 1)
    with pytest.raises(
        ArtifactError, match=rf"format {FORMAT + 1}.*reads format {FORMAT}\n  hint: update tilewright"
    ):
        load(damaged(tmp_path, bytes(newer)))
    with pytest.raises(ArtifactError, match="No such file"):
        load(tmp_path / "absent.tw")
    with pytest.raises(ArtifactError, match=r"Is a directory|not a regular file"):
        load(tmp_path)
    with pytest.raises(ArtifactError, match="not a regular file"):
        load("/dev/null")


@pytest.mark.parametrize(
    "metadata", [{}, {"inputs": 3}, {"target": {"no": 1}}, {"inputs": [{"name": "x", "colour": "red"}]}]
)
def test_well_signed_nonsense(tmp_path: Path, metadata: dict) -> None:
    sections = [Section("code", memoryview(b"abc")), Section("weights", memoryview(b"defg"))]
    write_container(tmp_path / "odd.tw", metadata, sections)
    with pytest.raises(ArtifactError, match="metadata is malformed"):
        Artifact.load(tmp_path / "odd.tw")


def test_container_lays_out_sections(tmp_path: Path) -> None:
    contents = [
        ("image", b"i" * 100),
        ("code", b"a" * 65),
        ("code", b""),
        ("weights", b"w" * 5000),
        ("weights", b""),
        ("weights", b"v"),
    ]
    path = tmp_path / "sections.tw"
    write_container(path, {"key": "ü"}, [Section(kind, memoryview(data)) for kind, data in contents])
    metadata, sections, *_ = read_container(path)
    assert metadata == {"key": "ü"}
    assert [(s.kind, bytes(s.data)) for s in sections] == contents
    raw = path.read_bytes()
    length = int.from_bytes(raw[16:24], "little")
    table = json.loads(raw[64 : 64 + length])["sections"]
    assert all(e["offset"] % (64 if e["kind"] == "code" else 4096) == 0 for e in table)


def test_a_failing_disk_leaves_the_old_file(tmp_path: Path, saved: bytes, monkeypatch) -> None:
    path = damaged(tmp_path, saved)

    class FullDisk(io.FileIO):
        def write(self, data) -> int:
            if self.tell() > 100:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(data)

    import builtins

    real = builtins.open

    def full(name, mode="r", *args, **kwargs):
        return FullDisk(name, mode) if "x" in mode else real(name, mode, *args, **kwargs)

    monkeypatch.setattr(builtins, "open", full)
    with pytest.raises(ArtifactError, match=r"cannot write .*No space left on device\n  hint: .*free space"):
        static_artifact().save(path)
    monkeypatch.undo()
    assert path.read_bytes() == saved
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    artifact = static_artifact()
    with pytest.raises(ArtifactError, match="No such file"):
        artifact.save(tmp_path / "absent" / "model.tw")
    with pytest.raises(ArtifactError, match="not a regular file"):
        artifact.save(tmp_path)
    with pytest.raises(ArtifactError, match="not a regular file"):
        artifact.save("/dev/full")
    assert Path("/dev/full").is_char_device()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ArtifactError, match="Permission denied"):
        static_artifact().save(tmp_path / "model.tw")


def test_refused_writes_name_the_reason(tmp_path: Path, monkeypatch) -> None:
    def refuse(*args):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(ArtifactError, match=r"cannot write.*Permission denied"):
        static_artifact().save(tmp_path / "model.tw")
    assert list(tmp_path.iterdir()) == []


def test_a_link_keeps_pointing(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link.tw").symlink_to(tmp_path / "real" / "model.tw")
    static_artifact().save(tmp_path / "link.tw")
    assert (tmp_path / "link.tw").is_symlink() and (tmp_path / "real" / "model.tw").is_file()


def test_other_machines_are_refused() -> None:
    here = TargetInfo("x86_64-unknown-linux-gnu", "znver3", ("avx2", "fma"))
    check_target(TargetInfo("x86_64-pc-linux", "haswell", ("avx2",)), here)
    check_target(TargetInfo("arm64-apple-macosx14", "m1"), TargetInfo("aarch64-apple-darwin23", "m2"))
    with pytest.raises(ArtifactError, match="needs CPU features that this znver3 lacks: amx-int8, avx512f"):
        check_target(TargetInfo(here.triple, "sapphirerapids", ("avx512f", "avx2", "amx-int8")), here)
    for triple in ("aarch64-unknown-linux-gnu", "x86_64-apple-darwin", "x86_64-pc-windows-msvc"):
        with pytest.raises(ArtifactError, match="this machine is x86_64 linux"):
            check_target(TargetInfo(triple, "other"), here)


def test_missing_features_stop_loading(tmp_path: Path) -> None:
    artifact = static_artifact()
    target = dataclasses.replace(artifact.target, features=("no-such-feature",))
    dataclasses.replace(artifact, target=target).save(tmp_path / "model.tw")
    with pytest.raises(ArtifactError, match="lacks: no-such-feature"):
        load(tmp_path / "model.tw")


NEEDY_IR = """
declare void @tw_nowhere()
declare float @expf(float)
declare extern_weak void @tw_maybe()
define i32 @tw_run(ptr %call) {
  call void @tw_nowhere()
  %e = call float @expf(float 1.0)
  ret i32 0
}
"""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"run_symbol": "tw_absent"}, "lacks the function tw_absent"),
        ({"run_symbol": "\0tw_run"}, "lacks the function"),
        ({"static_plan": None}, "lacks the function tw_plan"),
        ({"image": None}, "has no code for this CPU"),
        ({"image": link([compile_ir(NEEDY_IR)])}, "this system lacks: tw_nowhere"),
    ],
)
def test_code_that_does_not_fit(change: dict, message: str) -> None:
    with pytest.raises(TilewrightError, match=message):
        Model(dataclasses.replace(static_artifact(), **change))
