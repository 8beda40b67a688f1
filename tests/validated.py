"""By night some models that tests compile as a means are compiled with validation: rules, passes and kernels are
replayed beside what they were made of, and what changes the meaning fails the test. Which ones is drawn with the seed
of the run, so that `--seed` repeats them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tilewright import api
from tilewright.compilation import Setting
from tilewright.compiler import compile_request
from tilewright.options import OnProgress, Options, Request
from tilewright.runtime import Artifact
from tilewright.session import Session
from tilewright.validation.validate import Validation

SHARE = 0.05
"""Of the compilations of a night."""

SECONDS = 2.0
"""That one program may be interpreted."""


class SilentValidation(Validation):
    """Leaves the report as it is without."""

    def finish(self, artifact: Artifact, setting: Setting) -> Artifact:
        super().finish(artifact, setting)
        return artifact


@contextmanager
def some_are_validated(item: pytest.Item, seed: int, *, share: float = SHARE) -> Iterator[None]:
    """Validate a share of what a test compiles, unless it changes something of the compiler or looks at what this
    does."""
    drawn = random.Random(f"{seed} {item.nodeid}")
    compiled = api._compiled

    def sometimes(request: Request, options: Options, progress: OnProgress | None, session: Session) -> Artifact:
        looks = options.validate or options.schedule is not None or options.override or options.dump is not None
        if looks or progress is not None or drawn.random() >= share:
            return compiled(request, options, progress, session)
        return compile_request(request, options, session=session, checks=SilentValidation(seconds=SECONDS))

    with pytest.MonkeyPatch.context() as patch:
        if "monkeypatch" not in getattr(item, "fixturenames", ()):
            patch.setattr(api, "_compiled", sometimes)
        yield
