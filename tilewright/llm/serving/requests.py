"""What clients ask for, and what they are told as it comes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tilewright.llm.generation import Reason, Wanted
from tilewright.llm.sampling.sampler import Drawn
from tilewright.runtime.errors import InputError, OptionError


class BusyError(InputError):
    """There is no room for a request now, and there will be later."""


class PromptSizeError(InputError):
    """A prompt that the context has no room for, or one of no tokens."""


class StoppedError(InputError):
    """Nothing is computed any more: the server ends."""


@dataclass(frozen=True, eq=False)
class AnswerRequest:
    """Answers to one prompt i64[n] (or a list): one for each of `wanted`. `client` is for whom, among which time is
    shared evenly."""

    prompt: np.ndarray
    wanted: tuple[Wanted, ...]
    client: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt", np.asarray(self.prompt, np.int64))


@dataclass(frozen=True)
class AnswerPart:
    """What has come of one answer of a request since it was last told: a part of its text, and the tokens that were
    drawn. `reason` is why it is over, "" while it is not; `reused` tokens of the prompt were known before; `seed`
    repeats it."""

    answer: int
    text: str
    drawn: tuple[Drawn, ...] = ()
    reason: Reason = ""
    reused: int = 0
    seed: int = 0


@dataclass(frozen=True)
class Failed:
    """A request is over: none of its answers goes on. The error is one of the package, unless there is a defect."""

    error: Exception


Event = AnswerPart | Failed
Tell = Callable[[Event], None]
"""Called with what comes of a request, in order: for each answer until one has a reason, or `Failed`, which is the
last. It returns soon, and raises nothing."""


@dataclass(eq=False)
class Ticket:
    """A request that was submitted. `open`: so many of its answers are not over."""

    number: int
    request: AnswerRequest
    tell: Tell
    open: int = field(init=False)

    def __post_init__(self) -> None:
        self.open = len(self.request.wanted)


@dataclass(frozen=True)
class Limits:
    """What a scheduler may use.

    parallel: the most answers that are computed at once.
    waiting: the most that wait for that; others are refused.
    piece: the tokens of a prompt that are fed in one step beside those of answers that go on; also, prompts are cut at
        multiples of it, wherever they are fed.
    kept: the most begins of prompts that are kept for later requests.
    positions: the most tokens in the caches of all sequences together (None: as many as `parallel` of them can have).
    """

    parallel: int = 8
    waiting: int = 64
    piece: int = 64
    kept: int = 8
    positions: int | None = None

    def __post_init__(self) -> None:
        bounds = {"parallel": 1, "waiting": 0, "piece": 1, "kept": 0}
        if self.positions is not None:
            bounds["positions"] = 1
        for limit, least in bounds.items():
            value = getattr(self, limit)
            whole = isinstance(value, int) and not isinstance(value, bool)
            if not whole or not least <= value < 2**40:
                raise OptionError(f"{limit}={value!r:.40} is not allowed: give an integer from {least} on")

    @property
    def slots(self) -> int:
        """The sequences that are open at once."""
        return self.parallel + self.kept


def wrong_size(tokens: int, context: int, *, least: bool = False) -> PromptSizeError:
    """The error for a prompt of so many tokens, or of at `least` so many."""
    return PromptSizeError(
        f"the prompt has {'at least ' * least}{tokens} tokens, but there is room for 1 to {context}",
        hint="shorten it, or serve the model with a larger context where it was trained for one",
    )
