"""The linker: lays out the sections of all objects, finds what each refers to, and writes the distances.

Code and what is only read come first, then what holds addresses: a table with a word for each function of others and
for each own function whose address is taken. Whatever code needs of others goes through that table, so that its own
pages are final.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from tilewright.codegen.cpu.linking.elf import (
    ABSOLUTE,
    UNDEFINED,
    ElfObject,
    ElfSection,
    cannot_link,
    read_elf,
)
from tilewright.codegen.cpu.linking.relocations import ELF_MACHINES, ElfMachine
from tilewright.runtime.storage.image import WORD, Image, ImageLayout

_LINE = 64
"""Tables and stubs begin with a line of a cache."""
_INSIDE = -1
"""Stands where the number of an import would, for what is in the image."""


def link(objects: Sequence[bytes], names: Sequence[str] = ()) -> Image:
    """One image of relocatable objects, of which errors tell the `names`. Symbols that none of them defines are
    imports. InternalError for what cannot be linked: other files, sections or relocations than those that are known,
    a symbol that is defined twice, and distances that do not fit."""
    what = [names[k] if k < len(names) else f"object {k}" for k in range(len(objects))]
    read = [read_elf(bytes(blob), name) for blob, name in zip(objects, what, strict=True)]
    return _Linker(read, what).image()


@dataclass(frozen=True)
class _Places:
    """All places that take an address, as arrays of one length: the offset in the image, the kind, the offset of the
    symbol or the number of its import (else _INSIDE), the addend, and the object that it belongs to."""

    at: np.ndarray
    kind: np.ndarray
    symbol: np.ndarray
    imported: np.ndarray
    addend: np.ndarray
    owner: np.ndarray


class _Linker:
    def __init__(self, objects: Sequence[ElfObject], what: Sequence[str]) -> None:
        self.objects, self.what = objects, what
        self.arch = self._machine()
        self.starts: dict[tuple[int, int], int] = {}
        """Where sections begin, by the numbers of their objects and their own."""
        self.imports: dict[str, int] = {}
        self.weak: set[str] = set()
        self.symbols: dict[str, int] = {}

    def _machine(self) -> ElfMachine:
        machines = {(found.machine, found.order): k for k, found in enumerate(self.objects)}
        if len(machines) > 1:
            raise cannot_link(self.what[-1], f"the objects are for {len(machines)} machines")
        (machine, order), number = next(iter(machines.items()), ((ELF_MACHINES[0].machine, "<"), 0))
        arch = next((a for a in ELF_MACHINES if (a.machine, a.order) == (machine, order)), None)
        if arch is None:
            known = ", ".join(f"{a.name} ({a.machine})" for a in ELF_MACHINES)
            raise cannot_link(self.what[number], f"it is for the machine {machine}, and known are {known}")
        return arch

    def image(self) -> Image:
        end = self._place(lambda s: s.executable and not s.written, 0)
        self.stubs_at = _up(end, _LINE)
        self.text_end = self._place(lambda s: not s.executable and not s.written, self.stubs_at + self._stub_room())
        self.data_at = _up(self.text_end, self.arch.page)
        end = self._place(lambda s: s.written and s.constant, self.data_at)
        end = self._place(lambda s: s.written and not s.constant, end)
        self._find_symbols()
        places = self._places()
        self.table = _up(end, _LINE)
        stubs = self._stubs(places)
        slots, own = self._slots(places)
        size = self.table + WORD * (len(self.imports) + len(own))
        memory = self._filled(size)
        based = self._write(memory, places, stubs, slots)
        if len(own):
            at = self.table + WORD * len(self.imports)
            memory[at : at + WORD * len(own)] = own.astype(f"{self.arch.order}i8").view(np.uint8)
            based.append((at, len(own)))
        layout = ImageLayout(
            self.data_at, size - self.data_at, self.arch.page, self.table, tuple(self.imports),
            tuple(name for name in self.imports if name in self.weak), tuple(based),
            {name: at for name, at in self.symbols.items() if at < self.data_at}, self._writes(),
        )  # fmt: skip
        return Image(layout, memory[: self.data_at].tobytes(), memory[self.data_at :].tobytes())

    def _sections(self) -> Iterable[tuple[tuple[int, int], ElfSection]]:
        for k, found in enumerate(self.objects):
            for number, section in found.sections.items():
                yield (k, number), section

    def _place(self, belongs: Callable[[ElfSection], bool], at: int) -> int:
        """Places for sections, from an offset on; where the last ends."""
        for key, section in self._sections():
            if belongs(section):
                at = _up(at, section.align)
                self.starts[key] = at
                at += section.data.size
        return at

    def _stub_room(self) -> int:
        """Bytes for a stub of each symbol that no object defines."""
        defined, needed = set[str](), set[str]()
        for found in self.objects:
            table = found.symbols
            for name, section in zip(table.names, table.section.tolist(), strict=True):
                (needed if section == UNDEFINED else defined).add(name)
        return len(needed - defined - {""}) * len(self.arch.stub)

    def _writes(self) -> bool:
        return any(section.written and not section.constant and section.data.size for _, section in self._sections())

    def _find_symbols(self) -> None:
        """The offsets of all global symbols, and numbers for those that are imported."""
        strong: set[str] = set()
        for k, found in enumerate(self.objects):
            table = found.symbols
            for j in np.flatnonzero(~table.is_local & (table.section != UNDEFINED)).tolist():
                name, is_weak = table.names[j], bool(table.is_weak[j])
                if not is_weak and name in strong:
                    raise cannot_link(self.what[k], f"the symbol '{name}' is defined a second time")
                if name not in self.symbols or not is_weak:
                    self.symbols[name] = self._offset(k, j)
                if not is_weak:
                    strong.add(name)

    def _offset(self, k: int, j: int) -> int:
        """The offset of a symbol that an object defines; -1 where that is in a section that no program needs."""
        table = self.objects[k].symbols
        section = int(table.section[j])
        if section == ABSOLUTE:
            raise cannot_link(self.what[k], f"the symbol '{table.names[j]}' has the same address wherever it lies")
        start = self.starts.get((k, section))
        return -1 if start is None else start + int(table.value[j])

    def _targets(self, k: int, used: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of the symbols of an object that are `used`: offsets, and numbers of imports."""
        table = self.objects[k].symbols
        at, imported = np.full(len(table.names), -1, np.int64), np.full(len(table.names), _INSIDE, np.int64)
        for j in used.tolist():
            name = table.names[j]
            if name in self.symbols:
                at[j] = self.symbols[name]
            elif table.section[j] != UNDEFINED:
                at[j] = self._offset(k, j)
            else:
                if table.is_weak[j] and name not in self.imports:
                    self.weak.add(name)
                elif not table.is_weak[j]:
                    self.weak.discard(name)
                at[j], imported[j] = 0, self.imports.setdefault(name, len(self.imports))
            if at[j] < 0:
                raise cannot_link(self.what[k], f"the symbol '{name}' ({j}) is in a section that no program needs")
        return at, imported

    def _places(self) -> _Places:
        found: list[_Places] = []
        nothing = [number for number, kind in self.arch.kinds.items() if kind.to == "nothing"]
        for k, one in enumerate(self.objects):
            relocations = [r.without(nothing) for r in one.relocations]
            used = [r.symbol for r in relocations]
            at, imported = self._targets(k, np.unique(np.concatenate(used)) if used else np.zeros(0, np.int64))
            for r in relocations:
                size = one.sections[r.section].data.size
                if len(r.offset) and not 0 <= int(r.offset.min()) <= int(r.offset.max()) < size:
                    raise cannot_link(self.what[k], f"a relocation is behind the end of section {r.section}")
                start = self.starts[k, r.section]
                owner = np.full(len(r.offset), k, np.int64)
                found.append(_Places(start + r.offset, r.kind, at[r.symbol], imported[r.symbol], r.addend, owner))
        columns = (np.concatenate([getattr(p, name) for p in found] or [np.zeros(0, np.int64)])
                   for name in _Places.__dataclass_fields__)  # fmt: skip
        places = _Places(*columns)
        for kind in np.unique(places.kind).tolist():
            if kind not in self.arch.kinds:
                first = int(places.owner[places.kind == kind][0])
                raise cannot_link(self.what[first], f"it has a relocation of the type {kind} of {self.arch.name}")
        return places

    def _of(self, places: _Places, *to: str) -> np.ndarray:
        """Which places refer to something in this way."""
        kinds = [number for number, kind in self.arch.kinds.items() if kind.to in to]
        return np.isin(places.kind, kinds)

    def _stubs(self, places: _Places) -> np.ndarray:
        """The offset of the stub of each import; -1 for those that are not called."""
        called = np.unique(places.imported[self._of(places, "branch") & (places.imported != _INSIDE)])
        found = np.full(len(self.imports), -1, np.int64)
        found[called] = self.stubs_at + len(self.arch.stub) * np.arange(len(called))
        return found

    def _slots(self, places: _Places) -> tuple[np.ndarray, np.ndarray]:
        """For each place the word that holds the address of its symbol, and what own words hold, in their order, after
        those of the imports."""
        wanted = self._of(places, "slot") & (places.imported == _INSIDE)
        own, number = np.unique(places.symbol[wanted], return_inverse=True)
        slots = self.table + WORD * places.imported
        slots[wanted] = self.table + WORD * (len(self.imports) + number)
        return slots, own

    def _filled(self, size: int) -> np.ndarray:
        """The memory of the image with all sections in their places."""
        memory = np.zeros(size, np.uint8)
        memory[: self.stubs_at] = self.arch.filler
        for key, section in self._sections():
            start = self.starts[key]
            memory[start : start + section.data.size] = section.data
        return memory

    def _write(
        self, memory: np.ndarray, places: _Places, stubs: np.ndarray, slots: np.ndarray
    ) -> list[tuple[int, int]]:
        """Write all that places need; the words that take addresses when the image is loaded."""
        target = places.symbol.copy()
        outside = places.imported != _INSIDE
        called, by_slot = self._of(places, "branch"), self._of(places, "slot")
        target[called & outside] = stubs[places.imported[called & outside]]
        target[by_slot] = slots[by_slot]
        wrong = outside & ~called & ~by_slot
        if wrong.any():
            self._refuse(places, int(np.argmax(wrong)), "refers to a symbol that another library has")
        target += places.addend
        at, kind, target = self._with_stubs(memory, places, stubs, target)
        values = self._values(at, kind, target)
        based = np.zeros(0, np.int64)
        for number in np.unique(kind).tolist():
            meant, which = self.arch.kinds[number], kind == number
            if meant.to == "address":
                based = np.concatenate([based, at[which]])
            fits = np.zeros(len(at), np.bool_)
            fits[which] = meant.write(memory, at[which], values[which])
            if not fits[which].all():
                k = int(np.argmax(which & ~fits))
                self._refuse(places, k, f"is {values[k]} bytes away from what it refers to, which does not fit")
        early = based < self.data_at
        if early.any() or (based % WORD).any():
            owner = int(places.owner[np.isin(places.at, based)][0])
            raise cannot_link(self.what[owner], "code, or what is only read, holds an address")
        return [(int(first), 1) for first in np.sort(based)]

    def _with_stubs(
        self, memory: np.ndarray, places: _Places, stubs: np.ndarray, target: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The places, kinds and targets of all, those of stubs with them, whose code is written."""
        arch, columns = self.arch, [(places.at, places.kind, target)]
        used = np.flatnonzero(stubs >= 0)
        for start in stubs[used].tolist():
            memory[start : start + len(arch.stub)] = np.frombuffer(arch.stub, np.uint8)
        for offset, kind, addend in arch.stub_places:
            goes_to = self.table + WORD * used + addend
            if arch.kinds[kind].to == "other":
                goes_to = stubs[used]
            columns.append((stubs[used] + offset, np.full(len(used), kind, np.int64), goes_to))
        at, kinds, targets = (np.concatenate(column) for column in zip(*columns, strict=True))
        return at, kinds, targets

    def _values(self, at: np.ndarray, kind: np.ndarray, target: np.ndarray) -> np.ndarray:
        """What each place takes."""
        values = np.zeros(len(at), np.int64)
        for number in np.unique(kind).tolist():
            which = kind == number
            values[which] = self.arch.kinds[number].value(target[which], at[which])
        others = [number for number, meant in self.arch.kinds.items() if meant.to == "other"]
        upper = [number for number, meant in self.arch.kinds.items() if others and meant.name.endswith("_HI20")]
        known = dict(zip(at[np.isin(kind, upper)].tolist(), values[np.isin(kind, upper)].tolist(), strict=True))
        for k in np.flatnonzero(np.isin(kind, others)).tolist():
            if int(target[k]) not in known:
                raise cannot_link("an object", f"there is no relocation at {int(target[k])}, to which another refers")
            values[k] = known[int(target[k])]
        return values

    def _refuse(self, places: _Places, k: int, why: str) -> NoReturn:
        """InternalError for a place; one behind the last is that of a stub."""
        owner = self.what[int(places.owner[k])] if k < len(places.owner) else "a stub"
        kind = self.arch.kinds[int(places.kind[k])].name if k < len(places.owner) else "a relocation"
        raise cannot_link(owner, f"{kind} {why}")


def _up(at: int, align: int) -> int:
    return -(-at // align) * align
