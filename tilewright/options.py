"""What a user may choose: one frozen dataclass, passed explicitly; its fingerprint is part of cache keys."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from tilewright.runtime.errors import OptionError

NUMERICS = ("default", "strict")


@dataclass(frozen=True)
class Options:
    """Options of `tilewright.compile`.

    threads: threads that run the model; None takes what the process may use (affinity and cgroup quota).
    target: machine to compile for; None is this one (see `tilewright info` for names).
    numerics: "strict" gives up rewrites that round differently (constant factors are not folded into weights); sums
        still run in vector lanes, in an order that depends on the target but not on the threads.
    cache: keep and reuse compiled artefacts on disk.
    compile_threads: threads that run LLVM; None takes what the process may use.
    verify: check every program after every pass (slow; for tests and bug reports).
    """

    threads: int | None = None
    target: str | None = None
    numerics: str = "default"
    cache: bool = True
    compile_threads: int | None = None
    verify: bool = False

    def __post_init__(self) -> None:
        for name in ("threads", "compile_threads"):
            count = getattr(self, name)
            if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
                raise OptionError(f"{name}={count!r} is not allowed: give a whole number from 1 up, or None")
        if self.numerics not in NUMERICS:
            raise OptionError(f"numerics={self.numerics!r} is not allowed: one of {', '.join(NUMERICS)}")

    @classmethod
    def of(cls, options: Options | None, **fields: object) -> Options:
        """`options` (or the defaults) with `fields` replaced; OptionError for a name that does not exist."""
        known = {f.name for f in dataclasses.fields(cls)}
        for name in fields:
            if name not in known:
                raise OptionError(f"unknown option '{name}'; options are: {', '.join(sorted(known))}")
        return dataclasses.replace(options or cls(), **fields)  # type: ignore[arg-type]

    def fingerprint(self) -> str:
        """Text of everything that changes the artefact (threads do not: they are chosen when it is loaded)."""
        return f"numerics={self.numerics};target={self.target or 'host'}"
