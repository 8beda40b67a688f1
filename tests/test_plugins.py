"""Plugins: how they are found and given, and that one which cannot be used is told and left out."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tilewright.ir.diag import InputError
from tilewright.plugins import (
    Plugin,
    Plugins,
    file_states,
    find_plugins,
    given_plugins,
    identity,
    load_plugins,
    use_file,
)


@dataclass(frozen=True)
class Part:
    name: str


class Reader:
    """A front end that reads nothing."""

    name = "nothing"
    formats = "nothing"

    def accepts(self, source: Any) -> bool:
        return False

    def digest(self, source: Any, remember: Any) -> bytes:
        return b""

    def load(self, source: Any, **given: Any) -> Any:
        raise NotImplementedError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that Python imports from, before all others."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def install(folder: Path, module: str, code: str, value: str = "PLUGIN", version: str = "1.0") -> None:
    """What an installer leaves in a folder of sys.path: a module, and metadata that names its plugin."""
    (folder / f"{module}.py").write_text(code)
    metadata = folder / f"{module}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "entry_points.txt").write_text(
        f"[console_scripts]\nrun = x:y\n\n[tilewright.plugins]\n{module} = {module}:{value}\n"
    )


GOOD = """
from types import SimpleNamespace
from tilewright.plugins import Plugin
PLUGIN = Plugin("good", machines=(SimpleNamespace(name="toy machine"),))
"""


def test_an_installed_plugin_is_found_and_imported_when_it_is_loaded(folder: Path) -> None:
    install(folder, "plugin_found", GOOD)
    (found,) = [c for c in find_plugins() if c.name == "plugin_found"]
    assert found.distribution == "plugin-found 1.0"
    assert "plugin_found" not in sys.modules
    plugins = load_plugins([found])
    assert [machine.name for machine in plugins.machines] == ["toy machine"]
    assert plugins.refused == ()


def test_of_a_distribution_that_is_installed_twice_the_first_counts(folder: Path, tmp_path: Path) -> None:
    install(folder, "plugin_twice", GOOD)
    other = tmp_path / "other"
    other.mkdir()
    install(other, "plugin_twice", GOOD, version="2.0")
    sys.path.append(str(other))
    try:
        assert [c.distribution for c in find_plugins() if c.name == "plugin_twice"] == ["plugin-twice 1.0"]
    finally:
        sys.path.remove(str(other))


BAD = {
    "fails": ("raise OSError('no licence')", "importing it failed: OSError: no licence"),
    "exits": ("raise SystemExit(3)", "importing it failed: SystemExit: 3"),
    "syntax": ("def", "importing it failed: SyntaxError: invalid syntax"),
    "lacks": ("", "importing it failed: AttributeError: module 'plugin_lacks' has no attribute 'PLUGIN'"),
    "type": ("PLUGIN = dict", "it is of type type, and not a tilewright.plugins.Plugin"),
    "no_tuple": (
        "from tilewright.plugins import Plugin\nPLUGIN = Plugin('p', machines=[1])",
        "machines is of type list, and not a tuple",
    ),
    "no_name": (
        "from tilewright.plugins import Plugin\nPLUGIN = Plugin('p', strategies=(1,))",
        "strategies[0] (1) has no name",
    ),
    "no_front_end": (
        "from types import SimpleNamespace\nfrom tilewright.plugins import Plugin\n"
        "PLUGIN = Plugin('p', front_ends=(SimpleNamespace(name='half', load=print),))",
        "the front end 'half' has no accepts and no digest and no formats",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_plugin_that_cannot_be_used_is_told_and_left_out(folder: Path, case: str) -> None:
    code, reason = BAD[case]
    install(folder, f"plugin_{case}", code)
    install(folder, f"plugin_good_beside_{case}", GOOD)
    ours = [c for c in find_plugins() if c.name.endswith(case)]
    plugins = load_plugins(ours)
    (remark,) = plugins.refused
    name = f"plugin_{case}"
    assert remark.subject == f"plugin '{name}' of {name.replace('_', '-')} 1.0"
    assert remark.message.startswith(f"the plugin is left out: {reason}")
    assert [plugin.name for _, plugin in plugins.used] == ["good"]


@pytest.mark.parametrize("kind", ["front_ends", "strategies", "machines", "back_ends"])
def test_a_name_that_exists_already_is_refused(kind: str) -> None:
    part = Reader() if kind == "front_ends" else Part("nothing")
    first, second = (Plugin(name, **{kind: (part,)}) for name in ("first", "second"))
    plugins = load_plugins(given_plugins([first, second]))
    assert [plugin.name for _, plugin in plugins.used] == ["first"]
    word = {"strategies": "strategy"}.get(kind, kind.removesuffix("s").replace("_", " "))
    (remark,) = plugins.refused
    assert (remark.subject, remark.message) == (
        "plugin 'second'",
        f"the plugin is left out: a {word} 'nothing' exists already",
    )
    assert plugins.without_name_clashes(kind, ["another"]) == plugins
    none = plugins.without_name_clashes(kind, ["nothing"])
    assert none.used == () and [r.subject for r in none.refused] == ["plugin 'second'", "plugin 'first'"]


def test_a_plugin_that_names_a_part_twice_is_refused() -> None:
    plugins = load_plugins(given_plugins([Plugin("p", machines=(Part("a"), Part("a")))]))
    assert plugins.used == ()
    assert plugins.refused[0].message == "the plugin is left out: a machine 'a' exists already"


def test_what_is_given_may_be_anything() -> None:
    plugins = load_plugins(given_plugins([3, Plugin("good")]))
    assert [plugin.name for _, plugin in plugins.used] == ["good"]
    assert plugins.refused[0].subject == "plugin '3'"


def test_the_identity_changes_with_a_plugins_version_and_its_files(folder: Path) -> None:
    def now() -> str | None:
        return identity(c for c in find_plugins() if c.name == "plugin_changes")

    seen = [now()]
    install(folder, "plugin_changes", GOOD)
    seen.append(now())
    (folder / "plugin_changes.py").write_text(GOOD + "\n# more\n")
    seen.append(now())
    (folder / "plugin_changes-1.0.dist-info").rename(folder / "plugin_changes-1.1.dist-info")
    seen.append(now())
    (folder / "plugin_changes.py").unlink()
    seen.append(now())
    assert None not in seen and len(set(seen)) == len(seen)


def test_the_identity_of_a_given_plugin_holds_the_values_of_its_parts(folder: Path) -> None:
    one, other = (identity(given_plugins([Plugin("p", machines=(Part(n),))])) for n in "ab")
    assert one is not None and one != other
    made = type("Made", (), {"name": "m", "__module__": "a_module_that_a_program_made"})
    sys.modules["a_module_that_a_program_made"] = SimpleNamespace()  # type: ignore[assignment]
    try:
        assert identity(given_plugins([Plugin("p", machines=(made(),))])) is None
    finally:
        del sys.modules["a_module_that_a_program_made"]


def test_states_of_files_tell_of_folders_below(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    before = file_states(tmp_path)
    (tmp_path / "inner" / "a.py").write_text("")
    assert file_states(tmp_path) != before


def test_no_plugins_are_the_default() -> None:
    assert Plugins().front_ends == Plugins().strategies == Plugins().back_ends == ()
    assert identity(()) == "[]"


def test_a_file_is_used_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.plugins._OF_FILES", [])
    path = tmp_path / "plugin_given_twice.py"
    path.write_text("from tilewright.plugins import Plugin\nPLUGIN = Plugin('given twice')\n")
    (tmp_path / "link").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path)
    for same in (path, Path(path.name), tmp_path / "link" / path.name):
        use_file(same)
    assert [c.name for c in find_plugins() if c.name == "given twice"] == ["given twice"]
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / path.name
    other.write_text("")
    with pytest.raises(InputError, match="has the name of another module, plugin_given_twice"):
        use_file(other)
