"""Regular expressions of RE2, which ONNX has, as Python's `re` has them."""

from __future__ import annotations

import re

from tilewright.ir.diag import UnsupportedError

_SETS = {"d": "0-9", "s": "\\t\\n\\f\\r ", "w": "0-9A-Za-z_"}
_SETS |= {"D": "\\x00-/:-\\U0010ffff", "S": "\\x00-\\x08\\x0b\\x0e-\\x1f!-\\U0010ffff"}
_SETS |= {"W": "\\x00-/:-@\\[-\\^`{-\\U0010ffff"}
"""What the classes of RE2 hold, which are ASCII's."""

_NAMED = {
    "alnum": "0-9A-Za-z", "alpha": "A-Za-z", "ascii": "\\x00-\\x7f", "blank": "\\t ", "cntrl": "\\x00-\\x1f\\x7f",
    "digit": "0-9", "graph": "!-~", "lower": "a-z", "print": " -~", "punct": "!-/:-@\\[-`{-~",
    "space": "\\t\\n\\v\\f\\r ", "upper": "A-Z", "word": "0-9A-Za-z_", "xdigit": "0-9A-Fa-f",
}  # fmt: skip

_ASSERTIONS = {"A": "\\A", "z": "\\Z", "b": "(?a:\\b)", "B": "(?a:\\B)"}
_CONTROLS = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}
_GROUP = re.compile(r"\(\?(?:P?<(?P<name>\w+)>|(?P<on>[imsU]*)(?:-(?P<off>[imsU]+))?(?P<end>[:)]))", re.ASCII)
_REPEAT = re.compile(r"(?:[*+?]|\{[0-9]+(?:,[0-9]*)?\})(?P<lazy>\??)")
_CODE = re.compile(r"x\{(?P<long>[0-9A-Fa-f]{1,6})\}|x(?P<short>[0-9A-Fa-f]{2})|(?P<octal>0[0-7]{0,2})")


def python_pattern(pattern: str) -> str:
    """A pattern for `re.fullmatch` that matches the same texts; UnsupportedError for what Python cannot say, and for
    what is no pattern of RE2."""
    found = _Translator(pattern).run()
    try:
        re.compile(found)
    except (re.error, OverflowError, RecursionError) as error:
        raise UnsupportedError(f"the regular expression {pattern!r:.120} is not supported: {error}") from error
    return found


class _Translator:
    """Reads the pattern from left to right. Each open group has the texts that close it, and whether `$` is the end of
    a line in it."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0
        self.out: list[str] = []
        self.groups: list[tuple[str, bool]] = [("", False)]
        self.is_first = True  # may flags stand here, for all that follows in this group?
        self.repeats = False  # may what was read last be repeated?

    def run(self) -> str:
        while self.at < len(self.pattern):
            self.step(self.pattern[self.at])
        if len(self.groups) > 1:
            raise self.refusal("a group is not closed")
        return "".join(self.out) + self.groups[0][0]

    def refusal(self, why: str) -> UnsupportedError:
        return UnsupportedError(f"the regular expression {self.pattern!r:.120} is not supported: {why}")

    def step(self, c: str) -> None:
        repeat = _REPEAT.match(self.pattern, self.at)
        if repeat is not None:
            if not self.repeats:
                raise self.refusal(f"{repeat[0]!r} has nothing to repeat, or repeats a repetition")
            self.emit(repeat[0], repeat[0], repeats=False)
        elif c == "(":
            self.open()
        elif c == ")":
            if len(self.groups) == 1:
                raise self.refusal("a group is closed that was not opened")
            closing, _ = self.groups.pop()
            self.emit(c, closing)
        elif c == "|":
            self.emit(c, c, repeats=False)
        elif c == "[":
            self.set()
        elif c == "\\":
            self.escape()
        elif c == "$":
            self.emit(c, c if self.groups[-1][1] else "\\Z", repeats=False)
        elif c in "^.":
            self.emit(c, c, repeats=c == ".")
        else:
            self.emit(c, re.escape(c))

    def emit(self, read: str, written: str, repeats: bool = True) -> None:
        self.out.append(written)
        self.at += len(read)
        self.is_first, self.repeats = False, repeats

    def open(self) -> None:
        """A group, or flags for all that follows in the one around."""
        lines = self.groups[-1][1]
        if not self.pattern.startswith("(?", self.at):
            self.emit("(", "(", repeats=False)
            self.groups.append((")", lines))
        else:
            group = _GROUP.match(self.pattern, self.at)
            if group is None or "U" in (group["on"] or "") + (group["off"] or ""):
                raise self.refusal(f"{self.pattern[self.at : self.at + 4]!r} is none of RE2's groups, or not followed")
            if group["name"]:
                self.emit(group[0], f"(?P<{group['name']}>", repeats=False)
                self.groups.append((")", lines))
            else:
                self.flags(group, lines)
        self.is_first = True

    def flags(self, group: re.Match[str], lines: bool) -> None:
        on, off = group["on"] or "", group["off"] or ""
        lines = (lines or "m" in on) and "m" not in off
        was_first = self.is_first
        self.emit(group[0], f"(?{on}{'-' if off else ''}{off}:", repeats=False)
        if group["end"] == ":":
            self.groups.append((")", lines))
        elif was_first:  # a group of their own, which ends with that around
            self.groups[-1] = (")" + self.groups[-1][0], lines)
        else:
            raise self.refusal(f"the flags {group[0]!r} do not stand at the start of a group")

    def escape(self) -> None:
        """What follows a backslash outside of a set."""
        c = self.pattern[self.at + 1 : self.at + 2]
        if c == "Q":
            end = self.pattern.find("\\E", self.at)
            quoted = self.pattern[self.at + 2 : end if end >= 0 else None]
            self.emit(f"\\Q{quoted}" + "\\E" * (end >= 0), re.escape(quoted))
        elif c in _ASSERTIONS:
            self.emit(f"\\{c}", _ASSERTIONS[c], repeats=False)
        elif c in _SETS:
            self.emit(f"\\{c}", f"[{_SETS[c]}]")
        else:
            read, char = self.char()
            self.emit(read, re.escape(char))

    def char(self) -> tuple[str, str]:
        """An escape here that stands for one character: its text, and that."""
        c = self.pattern[self.at + 1 : self.at + 2]
        if c in _CONTROLS:
            return f"\\{c}", _CONTROLS[c]
        code = _CODE.match(self.pattern, self.at + 1)
        if code is not None:
            number = int(code["octal"], 8) if code["octal"] else int(code["long"] or code["short"], 16)
            if number <= 0x10FFFF:
                return f"\\{code[0]}", chr(number)
        if not c or (c.isascii() and (c.isalnum() or c == "_")):
            raise self.refusal(f"'\\{c}' is none of RE2's escapes, or not followed")
        return f"\\{c}", c

    def set(self) -> None:
        """A set of characters, such as [^a-z[:digit:]]."""
        start = self.at
        is_negated = self.pattern.startswith("[^", start)
        self.at += 1 + is_negated
        parts: list[str] = []
        while not (self.pattern.startswith("]", self.at) and parts):
            if self.at >= len(self.pattern):
                raise self.refusal("a set is not closed")
            parts.append(self.member())
        self.at += 1
        self.out.append(f"[{'^' if is_negated else ''}{''.join(parts)}]")
        self.is_first, self.repeats = False, True

    def member(self) -> str:
        """A class, a character, or a range of them."""
        named = re.compile(r"\[:(\^?)(\w+):\]").match(self.pattern, self.at)
        if named is not None:
            if named[1] or named[2] not in _NAMED:
                raise self.refusal(f"{named[0]!r} is none of RE2's classes, or not followed")
            self.at += len(named[0])
            return _NAMED[named[2]]
        if self.pattern[self.at] == "\\" and self.pattern[self.at + 1 : self.at + 2] in _SETS:
            self.at += 2
            return _SETS[self.pattern[self.at - 1]]
        low = self.one()
        is_range = self.pattern.startswith("-", self.at) and not self.pattern.startswith("-]", self.at)
        if not is_range:
            return re.escape(low)
        self.at += 1
        if self.at >= len(self.pattern):
            raise self.refusal("a set is not closed")
        return f"{re.escape(low)}-{re.escape(self.one())}"

    def one(self) -> str:
        """One character of a set."""
        read, char = self.char() if self.pattern[self.at] == "\\" else (self.pattern[self.at],) * 2
        self.at += len(read)
        return char
