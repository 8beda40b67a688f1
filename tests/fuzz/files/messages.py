"""Random changes to protobuf messages, field by field as their descriptors have them.

Bytes that are changed at random stop at the decoder. These stay messages: fields are set, cleared, repeated, swapped
and taken from elsewhere, with values that stand in the message itself, in another one, or are known for trouble.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor  # type: ignore[import-untyped]
from google.protobuf.message import Message  # type: ignore[import-untyped]

INTEGERS = (0, 1, -1, 2, 3, 4, 7, 8, 16, 255, 2**31 - 1, -(2**31), 2**32, 2**40, 2**62, 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 1e30, -1e30, float("nan"), float("inf"), -float("inf"))
TEXTS = ("", " ", "x", "\0", "a/../b", "../../etc/passwd", "/etc/passwd", "%s{}", "\u202e", "N*(", "-1", "a" * 300)
WIDTHS = (1, 2, 4, 8)
COPIES = (1, 1, 2, 5, 50)

Places = Mapping[str, Sequence[str]]
"""Fields, by their full names, whose values are looked for under other names too: those of one namespace."""


def mutate(
    message: Message, random: Random, donor: Message, spaces: Places, known: Mapping[str, Sequence[Any]]
) -> None:
    """Change a field of the message or of one within it. Values come out of itself, a `donor`, the `known` ones of the
    field, or are random; fields of one of the `spaces` lend theirs to each other."""
    inner = list(_messages(message))
    target = random.choice(inner)
    fields = list(target.DESCRIPTOR.fields)
    given = [field for field, _ in target.ListFields()]
    field = random.choice(given if given and random.random() < 0.7 else fields)
    value = _Values(random, message, donor, spaces, known)
    if field.is_repeated:
        _change_repeated(target, field, random, value)
    elif random.random() < 0.15:
        target.ClearField(field.name)
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        found = value.message(field)
        if found is not None:
            getattr(target, field.name).CopyFrom(found)
    else:
        _set(target, field, value.scalar(field, getattr(target, field.name)))


def _messages(message: Message) -> Iterator[Message]:
    """The message and all within it."""
    yield message
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for item in value if field.is_repeated else [value]:
                yield from _messages(item)


def _copied(message: Message) -> Message:
    """Of its own: protobuf's C code must not copy a message into what is part of it, or into its own list."""
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


class _Values:
    def __init__(
        self,
        random: Random,
        own: Message,
        donor: Message,
        spaces: Places,
        known: Mapping[str, Sequence[Any]],
    ) -> None:
        self._random = random
        self._sources = (own, own, donor)
        self._spaces, self._known = spaces, known

    def message(self, field: Any) -> Message | None:
        """A message of the field's type, or None where there is none."""
        source = self._random.choice(self._sources)
        found = [m for m in _messages(source) if m.DESCRIPTOR is field.message_type]
        return _copied(self._random.choice(found)) if found else None

    def scalar(self, field: Any, now: Any) -> Any:
        random, name = self._random, field.full_name
        if name in self._known and random.random() < 0.6:
            return random.choice(self._known[name])
        if random.random() < 0.5:
            names = self._spaces.get(name, (name,))
            found = [
                v
                for m in _messages(random.choice(self._sources))
                for f, value in m.ListFields()
                if f.full_name in names
                for v in (value if f.is_repeated else [value])
            ]
            if found:
                return random.choice(found)
        return self._random_scalar(field, now)

    def _random_scalar(self, field: Any, now: Any) -> Any:
        random, kind = self._random, field.cpp_type
        if kind in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
            return random.choice((*FLOATS, random.uniform(-9, 9)))
        if kind == FieldDescriptor.CPPTYPE_STRING:
            if field.type == FieldDescriptor.TYPE_BYTES:
                return _bytes(now if isinstance(now, bytes) else b"", random)
            return random.choice(TEXTS)
        if kind == FieldDescriptor.CPPTYPE_ENUM:
            return random.choice([v.number for v in field.enum_type.values])
        if isinstance(now, int) and random.random() < 0.4:
            return now + random.choice((-1, 1))
        return random.choice((*INTEGERS, random.randint(-20, 20)))


def _bytes(data: bytes, random: Random) -> bytes:
    """A number in the bytes changed, or their count."""
    if not data or random.random() < 0.2:
        return random.choice((b"", data[:-1], data + b"\0", data * 2, data[: len(data) // 2]))
    width = random.choice([w for w in WIDTHS if w <= len(data)])
    at = random.randrange(len(data) // width) * width
    if width in (4, 8) and random.random() < 0.4:
        new = struct.pack("<f" if width == 4 else "<d", random.choice(FLOATS))
    else:
        new = (random.choice((*INTEGERS, random.randint(-20, 20))) % 256**width).to_bytes(width, "little")
    return data[:at] + new + data[at + width :]


def _change_repeated(target: Message, field: Any, random: Random, value: _Values) -> None:
    items = getattr(target, field.name)
    how = random.choice(("add", "remove", "copy", "swap", "change", "change", "change"))
    is_message = field.type == FieldDescriptor.TYPE_MESSAGE
    if how == "add" or not items:
        if not is_message:
            _insert(target, field, random, value.scalar(field, None))
        elif (found := value.message(field)) is not None:
            items.add().CopyFrom(found)
        else:
            items.add()
    elif how == "remove":
        del items[random.randrange(len(items))]
    elif how == "copy":
        item = random.choice(items)
        items.extend([_copied(item) if is_message else item] * random.choice(COPIES))
    elif how == "swap" and len(items) > 1:
        _reorder(target, field, random)
    elif is_message:
        if (found := value.message(field)) is not None:
            random.choice(items).CopyFrom(found)
    else:
        at = random.randrange(len(items))
        _set_item(target, field, at, value.scalar(field, items[at]))


def _insert(target: Message, field: Any, random: Random, value: Any) -> None:
    items = list(getattr(target, field.name))
    items.insert(random.randint(0, len(items)), value)
    _replace(target, field, items)


def _reorder(target: Message, field: Any, random: Random) -> None:
    items = list(getattr(target, field.name))
    a, b = random.sample(range(len(items)), 2)
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        first = _copied(items[a])
        items[a].CopyFrom(items[b])
        items[b].CopyFrom(first)
        return
    items[a], items[b] = items[b], items[a]
    _replace(target, field, items)


def _set(target: Message, field: Any, value: Any) -> None:
    try:
        setattr(target, field.name, value)
    except (ValueError, TypeError):  # of another field, and out of range here
        target.ClearField(field.name)


def _set_item(target: Message, field: Any, at: int, value: Any) -> None:
    items = list(getattr(target, field.name))
    items[at] = value
    _replace(target, field, items)


def _replace(target: Message, field: Any, items: Sequence[Any]) -> None:
    before = list(getattr(target, field.name))
    target.ClearField(field.name)
    try:
        getattr(target, field.name).extend(items)
    except (ValueError, TypeError):
        target.ClearField(field.name)
        with suppress(ValueError):  # text that no Python string can be
            getattr(target, field.name).extend(before)
