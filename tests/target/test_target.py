"""Targets: names, changes to them, and what is read from the machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.ir import dtype as dt
from tilewright.target.cpus import CPUS, with_facts
from tilewright.target.features import V3_FEATURES, V4_FEATURES
from tilewright.target.hardware import Caches, read_caches
from tilewright.target.host import host_target, make_host
from tilewright.target.machine import TargetError
from tilewright.target.named import ALIASES, NAMED, parse_target


def test_named_targets_have_the_registers_of_their_instruction_set() -> None:
    assert (NAMED["zen3"].vector_bits, NAMED["zen3"].vector_registers) == (256, 16)
    assert (NAMED["cascadelake"].vector_bits, NAMED["cascadelake"].vector_registers) == (512, 32)
    assert NAMED["aarch64-neon"].lanes(dt.f32) == 4
    assert NAMED["cascadelake"].lanes(dt.i8) == 64


def test_changes_apply_in_order() -> None:
    target = parse_target("zen3, cores=8, l2=1048576, +avx512vnni")
    assert (target.cores, target.caches.l2) == (8, 1048576)
    assert target.features[-1] == "avx512vnni"
    assert parse_target("zen3,+fma") == NAMED["zen3"]


def test_host_is_the_default() -> None:
    assert parse_target(None) is parse_target("host") is host_target()
    assert host_target().cores >= 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("zen33", "unknown target 'zen33'\n  hint: did you mean 'zen3'?"),
        ("gravitom3", "unknown target 'gravitom3'\n  hint: did you mean 'graviton3'?"),
        ("", "unknown target ''\n  hint: known targets: host, x86-64, x86-64-v2, x86-64-v3,"),
        ("pdp11", "unknown target 'pdp11'\n  hint: known targets: host, x86-64, x86-64-v2, x86-64-v3,"),
        (
            "zen3,+mmx9",
            "unknown feature 'mmx9' for target 'zen3' (x86_64)\n  hint: features that can be added: avx,",
        ),
        ("zen3,cores=-1", "'cores=-1' of target 'zen3' needs a positive whole number of at most 18 digits"),
        ("zen3,cores=\u00b2", "'cores=\u00b2' of target 'zen3' needs a positive whole number"),
        (
            "zen3,l2=" + "9" * 20,
            f"'l2={'9' * 20}' of target 'zen3' needs a positive whole number of at most 18",
        ),
        ("zen3,cores=0", "'cores=0' of target 'zen3' needs a positive whole number"),
        ("zen3,ram=5", "unknown change 'ram=5' of target 'zen3'\n  hint: changes are cores=N"),
    ],
)
def test_unknown_names_are_refused(text: str, message: str) -> None:
    with pytest.raises(TargetError) as caught:
        parse_target(text)
    assert str(caught.value).startswith(message)


def test_host_without_avx512_gets_narrow_registers_and_says_what_is_absent() -> None:
    features = dict.fromkeys(V4_FEATURES, False) | dict.fromkeys(V3_FEATURES, True)
    target = make_host("x86_64-unknown-linux-gnu", "cascadelake", features, Caches(), 2)
    assert (target.vector_bits, target.vector_registers, target.embedded_broadcast) == (256, 16, False)
    assert "-avx512f" in target.feature_text and "+avx2" in target.feature_text


HOSTS = sorted(name for name, t in NAMED.items() if t.arch != "wasm32" and "sve" not in t.features)


@pytest.mark.parametrize("name", HOSTS)
def test_host_has_the_facts_of_the_named_target_of_its_core(name: str) -> None:
    known = NAMED[name]
    features = dict.fromkeys(known.features, True)
    host = make_host(known.triple, known.cpu, features, known.caches, known.cores)
    assert set(host.features) == set(known.features)
    assert replace(host, name=name, features=known.features, absent=known.absent) == known


def test_a_host_with_sve_is_driven_as_one_with_neon() -> None:
    known = NAMED["neoverse-v1"]
    features = dict.fromkeys(NAMED["neoverse-v1-sve"].features, True)
    host = make_host(known.triple, known.cpu, features, known.caches, known.cores)
    assert (set(host.features), host.vector_bits, host.function_attributes) == (set(known.features), 128, "")
    assert "-sve" in host.feature_text.split(",") and "sve256" not in host.feature_text


def test_code_with_sve_is_for_one_length_of_vectors() -> None:
    for name, bits in (("neoverse-v1-sve", 256), ("a64fx", 512)):
        target = NAMED[name]
        assert target.vector_bits == bits and target.function_attributes == f"vscale_range({bits // 128},{bits // 128})"
        assert f"sve{bits}" in target.features and f"sve{bits}" not in target.feature_text
    assert parse_target("neoverse-v1,+sve").function_attributes == ""


def test_cores_that_halve_wide_vectors_begin_half_as_many() -> None:
    wide = NAMED["zen4"]
    narrow = with_facts(replace(wide, vector_bits=256)).pipes
    assert 2 * wide.pipes.multiply_adds == narrow.multiply_adds
    assert 2 * wide.pipes.loads == narrow.loads
    assert with_facts(replace(wide, cpu="unknown")).pipes == NAMED["cascadelake"].pipes


def test_host_of_another_architecture() -> None:
    target = make_host(
        "aarch64-unknown-linux-gnu", "neoverse-n1", {"neon": True, "dotprod": True}, Caches(), 4
    )
    assert target.features == ("neon", "dotprod")
    assert (target.vector_bits, target.vector_registers, target.function_attributes) == (128, 32, "")


@pytest.mark.parametrize(
    ("name", "lanes"),
    [("cascadelake", (16, 8, 4)), ("x86-64-v3,+avx512f,+avx512vl", (8, 4)), ("x86-64-v3,+avx512f", ()), ("zen3", ()),
     ("neoverse-n1", ())],
)  # fmt: skip
def test_only_vectors_of_the_target_are_scaled_by_an_instruction(name: str, lanes: tuple[int, ...]) -> None:
    scale = parse_target(name).scale
    assert (tuple(width for width, *_ in scale.calls) if scale else ()) == lanes


def _cache(folder: Path, index: int, level: str, kind: str, size: str) -> None:
    entry = folder / f"index{index}"
    entry.mkdir()
    for name, text in (("level", level), ("type", kind), ("size", size)):
        (entry / name).write_text(text + "\n")


def test_caches_are_read_from_sysfs(tmp_path: Path) -> None:
    _cache(tmp_path, 0, "1", "Data", "48K")
    _cache(tmp_path, 1, "1", "Instruction", "64K")
    _cache(tmp_path, 2, "2", "Unified", "2M")
    _cache(tmp_path, 3, "3", "Unified", "broken")
    assert read_caches(tmp_path) == Caches(48 << 10, 2 << 20, Caches().l3)


def test_no_cache_information_gives_usual_sizes(tmp_path: Path) -> None:
    assert read_caches(tmp_path / "absent") == Caches()


def test_aliases_are_other_names_of_the_same_facts() -> None:
    assert parse_target("graviton3") is NAMED["neoverse-v1"]
    assert parse_target("raspberry-pi-5,cores=4").cores == 4
    assert not ALIASES.keys() & NAMED.keys() and set(ALIASES.values()) <= NAMED.keys()


def test_every_cpu_has_one_entry_with_machines_that_have_it() -> None:
    cores = {(cpu.target.arch, cpu.target.cpu, cpu.target.features) for cpu in CPUS.values()}
    assert len(cores) == len(CPUS)
    assert all(cpu.about and cpu.target.name == name for name, cpu in CPUS.items())


def test_a_mac_is_an_aarch64_machine_whatever_its_triple_is_called() -> None:
    host = make_host("arm64-apple-darwin23.5.0", "apple-m2", {"neon": True, "i8mm": True}, Caches(), 8)
    assert host.arch == "aarch64" and host.features == ("neon", "i8mm")
    assert host.dots == replace(host, triple="aarch64-apple-macosx11.0").dots
    assert host.pipes == NAMED["apple-m2"].pipes
