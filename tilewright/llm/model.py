"""A language model as users have it: texts in, texts out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.ir.diag import ModelError
from tilewright.llm.beams import Beam, beam_search
from tilewright.llm.conversation import Conversation
from tilewright.llm.decoder import Decoder, Embedder, checked_pooling, normalised
from tilewright.llm.extras import needing_extra
from tilewright.llm.generation import DEFAULT_TOKENS, Answer, Constraint, Reason, Stream, Wanted, check_prompt
from tilewright.llm.prompts import Message, Prompt, Template, prompt_kind, tokens_of
from tilewright.llm.reading.decoder import ReadingDecoder
from tilewright.llm.reading.speech import STEP, log_mel, wave_samples
from tilewright.llm.reading.transcription import begin_of
from tilewright.llm.sampling.sampler import Drawn, check_finite, log_sum_exp
from tilewright.llm.sampling.settings import Sampling
from tilewright.llm.sampling.stops import StopStrings
from tilewright.llm.sequences import ForkedSequences, SequenceDecoder, Sequences
from tilewright.llm.serving.together import answered_together
from tilewright.llm.speculation.gains import Drafted
from tilewright.llm.speculation.speculating import SpeculatingDecoder
from tilewright.llm.texts.score import WINDOW, TextScore, pieces_of, scored_text, text_of
from tilewright.llm.tokens.tokenizer import Tokenizer
from tilewright.runtime.errors import InputError, OptionError
from tilewright.runtime.process.forks import free_in_children

if TYPE_CHECKING:
    from tilewright.llm.grammars import Grammars
    from tilewright.quantization.decoders.certificate import AgreementCertificate

_CONSTRAINTS = ("schema", "grammar", "regex", "constraint")
_MOST_IDLE = 4
"""Decoders that are kept for the next answers."""


@dataclass(frozen=True)
class Score:
    """How likely the model finds tokens: the logarithm of the probability of each behind those before it."""

    tokens: tuple[int, ...]
    log_probabilities: tuple[float, ...]

    @property
    def log_likelihood(self) -> float:
        """Of all of them together."""
        return math.fsum(self.log_probabilities)

    @property
    def perplexity(self) -> float:
        """Among how many equally likely tokens the model would choose as uncertainly, on average."""
        return math.exp(-self.log_likelihood / len(self.log_probabilities))


@dataclass(frozen=True)
class _Said:
    """What goes with a prompt: variables of the template, and what the answer begins with."""

    variables: Mapping[str, Any] = field(default_factory=dict)
    begins: str | None = None


@dataclass(frozen=True)
class _Asked:
    """A prompt for the decoder: what its encoder reads, None where it has none; tokens that it is fed; how many tokens
    the prompt has; and whether the answer has nothing before it."""

    read: np.ndarray | None
    tokens: list[int]
    count: int
    is_first: bool = False


class LanguageModel:
    """A decoder with its vocabulary and chat template, as `tilewright.llm.load` gives it.

    A prompt is a text, a list of tokens, or a list of messages ({"role": "user", "content": "..."}), of which the
    model's template makes a text. Of a model with an encoder it is what the encoder reads. Answers depend on the
    prompt, the settings and the seed alone: calls from several threads, and prompts in one list, give what each gives
    by itself.
    """

    def __init__(
        self,
        decoder: Decoder,
        tokenizer: Tokenizer,
        template: Template | None = None,
        embedder: Callable[[], Embedder] | None = None,
    ) -> None:
        tokenizer.check(decoder.vocabulary)
        self._make_embedder, self._embedding = embedder, free_in_children(Lock())
        self._embedder: Embedder | None = None
        self.tokenizer = tokenizer
        self.template = template
        self.certificate: AgreementCertificate | None = None
        """Of weights that `load` has chosen."""
        self.position_bytes = 0
        """What the caches of a sequence take for a position, where `load` knows it."""
        self._root = decoder
        self._idle: list[Decoder] = []

    @property
    def context(self) -> int:
        """The most tokens that prompt and answer have together."""
        return self._root.context

    def generate(self, prompt: Prompt | Sequence[Prompt], **how: Any) -> Any:
        """The text of an answer; of a list of prompts a list of texts (see `answers`). `how` is that of `stream`."""
        if prompt_kind(prompt) == "several":
            return [answer.text for answer in self.answers(prompt, **how)]  # type: ignore[arg-type]
        return self.answer(prompt, **how).text  # type: ignore[arg-type]

    def answer(
        self, prompt: Prompt, *, beams: int | None = None, length_penalty: float = 1.0, **how: Any
    ) -> Answer:
        """An answer with its tokens, reason and times. `beams`: the most likely text as a whole among so many begins
        (see `beams`), in place of a drawn one."""
        if beams is None:
            return self.stream(prompt, **how).rest()
        wanted, said = self._wanted(how)
        return self._beam_answer(self._asked(prompt, said), wanted, beams, length_penalty)

    def answers(self, prompts: Sequence[Prompt], **how: Any) -> list[Answer]:
        """Of each prompt the answer that it has alone. They are computed together by a model that was loaded for
        several sequences, and one after the other by others."""
        if not isinstance(self._root, SequenceDecoder) or "beams" in how or len(prompts) < 2:
            return [self.answer(prompt, **how) for prompt in prompts]
        wanted, said = self._wanted(how)
        asked = [(self._asked(prompt, said).tokens, wanted) for prompt in prompts]
        return answered_together(self.sequences, self.tokenizer, asked)

    def stream(self, prompt: Prompt, **how: Any) -> Stream:
        """The text of an answer in parts, as they come.

        max_tokens: the most tokens of the answer (None: as many as the context has room for).
        stop: a text, or several, before which the answer ends.
        sampling: a `Sampling`; its settings may be given by their names, too (temperature=0.8, top_p=0.95, seed=1).
        log_probabilities: tell for each token how likely it was, and so many of the most likely ones.
        ends: False goes on where the model would end; an answer that has a form ends where nothing can follow.
        schema: a JSON schema that the answer keeps; grammar: a grammar in Lark's language; regex: an expression that
            the answer matches (with the package llguidance). An answer of max_tokens may be cut off before its end.
        constraint: in place of these a function that makes a `Constraint`.
        template: variables for the chat template, such as {"tools": [...], "enable_thinking": False}.
        begins: what the answer begins with, of which it goes on; names of control tokens in it are these.
        """
        wanted, said = self._wanted(how)
        asked = self._asked(prompt, said)
        decoder = self._borrowed(asked.read)
        stream: Stream

        def over() -> None:
            if not stream.failed and len(self._idle) < _MOST_IDLE:
                self._idle.append(decoder)

        stream = Stream(
            decoder, self.tokenizer, asked.tokens, self._without_never(wanted), prompt_tokens=asked.count,
            is_first=asked.is_first, done=over,
        )  # fmt: skip
        return stream

    def chat(self, messages: str | Sequence[Message], **how: Any) -> str:
        """The text of the answer to the messages of a chat, or to one message of a user."""
        said = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        if prompt_kind(said) != "messages":
            raise InputError(
                "a chat is a list of messages", hint='such as [{"role": "user", "content": "Hello"}]'
            )
        return self.answer(said, **how).text

    def transcribe(
        self, speech: str | Path | np.ndarray, *, language: str | None = None, task: str = "transcribe", **how: Any
    ) -> str:
        """What is said in a WAVE file, or in samples f[n] between -1 and 1 at 16,000 Hz, by a model that reads speech.

        language: its code, such as "en" (None: as the model hears it); task: "transcribe", or "translate" to English.
        `how` is that of `stream`. InputError for more speech than is read at once (30 s), for languages that the model
        does not know, and for files of other kinds; OptionError for models that read no speech.
        """
        reader = self._reader
        if reader is None or reader.channels is None:
            raise OptionError("the model reads no speech", hint="load one that does, such as Whisper, or use generate")
        frames = 2 * reader.room
        samples = speech if isinstance(speech, np.ndarray) else wave_samples(Path(speech), frames * STEP)
        read = log_mel(samples, reader.channels, frames)
        start = self.tokenizer.special.start
        first = self._using(lambda decoder: decoder.feed(start), read) if language is None and start else None
        begin = begin_of(self.tokenizer, language, task, first)
        names = "".join(map(self.tokenizer.control_text, begin))
        return self.answer(read, begins=names, **how).text  # type: ignore[arg-type]

    def conversation(
        self, messages: Sequence[Message] = (), *, template: Mapping[str, Any] | None = None
    ) -> Conversation:
        """A chat that goes on, in which only what is new is computed for each answer. OptionError for a model with an
        encoder, which reads a chat anew each time."""
        self._need_decoder("a conversation goes on behind what was said")
        return Conversation(self._root.fork, self.tokenizer, self.template, messages, template)

    def wanted(self, **how: Any) -> Wanted:
        """The record of `how`, for answers of a `Conversation`."""
        return self._wanted(how)[0]

    def tokens(self, prompt: Prompt, /, **variables: Any) -> list[int]:
        """The tokens of a prompt, as the model is fed them, or as its encoder reads them."""
        if self._reader is not None and isinstance(prompt, str):
            return self.tokenizer.encode_read(prompt)
        return tokens_of(prompt, self.tokenizer, self.template, variables)

    @property
    def drafted(self) -> Drafted | None:
        """What was guessed until now, where the model was loaded with a draft."""
        return self._root.drafted if isinstance(self._root, SpeculatingDecoder) else None

    def sequences(self, slots: int) -> Sequences:
        """So many sequences of tokens at once, apart from all that is asked here (for `serving`). They go through a
        model together that was loaded for several, and one after the other through others. OptionError for a model
        with an encoder."""
        self._need_decoder("several sequences at once continue tokens")
        if isinstance(self._root, SequenceDecoder):
            return self._root.apart(slots)
        return ForkedSequences(self._root, slots)

    def logits(self, prompt: Prompt) -> np.ndarray:
        """The logits f32[size of the vocabulary] of the token behind a prompt."""
        asked = self._asked(prompt, _Said())
        return self._using(lambda decoder: decoder.feed(asked.tokens)[: self.tokenizer.size], asked.read)

    def embed(
        self, prompts: Prompt | Sequence[Prompt], *, pooling: str = "mean", normalise: bool = True
    ) -> np.ndarray:
        """f32[n, width] of n prompts, or of one: of what the last norm gives for their tokens the "mean", that of the
        "last" token, or that of the first ("cls"), of length 1 if `normalise`. The first call compiles the model anew,
        without its head. OptionError for a model that was not loaded from a file or folder of weights."""
        checked_pooling(pooling)
        asked = [prompts] if prompt_kind(prompts) != "several" else list(prompts)
        self._need_decoder("embeddings are those of a decoder's tokens")
        tokens = [self._asked(prompt, _Said()).tokens for prompt in asked]
        embedder = self._embedding_model()
        vectors = np.stack([embedder.embed(one, pooling) for one in tokens])
        return normalised(vectors) if normalise else vectors

    def _embedding_model(self) -> Embedder:
        with self._embedding:
            if self._embedder is None:
                if self._make_embedder is None:
                    raise OptionError(
                        "this model gives logits alone, and no embeddings",
                        hint="load it from its GGUF file or folder, and not from an artefact or an export",
                    )
                self._embedder = self._make_embedder()
            return self._embedder

    def score(self, text: Prompt, *, after: Prompt | None = None) -> Score:
        """How likely the model finds a text, behind another one where there is one. The first token of all has nothing
        before it, and no probability. InputError where no token is left."""
        read, before = self._before(after)
        if isinstance(text, str) and before:
            tokens = [*before, *self.tokenizer.encode(text, begin=False)]
        else:
            tokens = [*before, *tokens_of(text, self.tokenizer, self.template, {})]
        first = max(len(before), 1)
        if len(tokens) <= first:
            raise InputError("there is no token to score: the text has none behind its begin")
        check_prompt(tokens, self._root)

        def run(decoder: Decoder) -> list[float]:
            logits, found = decoder.feed(tokens[:first]), []
            for n in range(first, len(tokens)):
                named = logits[: self.tokenizer.size]
                check_finite(named)
                found.append(float(named[tokens[n]]) - log_sum_exp(named))
                if n + 1 < len(tokens):
                    logits = decoder.feed(tokens[n : n + 1])
            return found

        wrong = next((token for token in tokens if not 0 <= token < self.tokenizer.size), None)
        if wrong is not None:
            raise InputError(f"there is no token {wrong}: the vocabulary has {self.tokenizer.size}")
        return Score(tuple(tokens[first:]), tuple(self._using(run, read)))

    def _before(self, after: Prompt | None) -> tuple[Any, list[int]]:
        """What is read, and what tokens that are scored follow."""
        if after is not None:
            asked = self._asked(after, _Said())
            return asked.read, asked.tokens
        self._need_decoder("a text is scored as an answer: say to what (after=), as")
        return None, []

    def score_text(
        self,
        text: str | Path | None = None,
        *,
        of: str | Path | None = None,
        window: int = WINDOW,
        confidence: float = 0.95,
        **how: Any,
    ) -> TextScore:
        """How likely the model finds the text of a file (None: a built-in one of many kinds), and how long a token
        takes. `of`: the checkpoint whose weights, computed in float64, it is compared with. The text is cut into pieces
        of at most `window` tokens. `how`: threads, session, progress and cache of the reference's compilation."""
        self._need_decoder("a text is scored token by token")
        pieces = pieces_of(text_of(text)[0], self.tokenizer, self.context, window=window)
        reference = None
        if of is not None:
            from tilewright.llm.texts.promised import reference_of

            reference = reference_of(Path(of), max(map(len, pieces)), **how)
        return self._using(
            lambda decoder: scored_text(
                decoder, self.tokenizer, pieces, reference=reference, confidence=confidence
            )
        )

    def beams(
        self, prompt: Prompt, width: int, *, max_tokens: int = 64, length_penalty: float = 1.0
    ) -> list[Beam]:
        """The most likely continuations of a prompt as wholes, the best first (see `beam_search`)."""
        asked = self._asked(prompt, _Said())
        return self._using(
            lambda decoder: self._searched(decoder, asked.tokens, width, max_tokens, length_penalty), asked.read
        )

    def _searched(
        self, decoder: Decoder, tokens: list[int], width: int, max_tokens: int, length_penalty: float, ends: bool = True
    ) -> list[Beam]:
        return beam_search(
            decoder,
            tokens,
            width=width,
            max_tokens=max_tokens,
            ends=self.tokenizer.special.ends if ends else frozenset(),
            size=self.tokenizer.size,
            length_penalty=length_penalty,
            never=self.tokenizer.special.never if self._reader is not None else frozenset(),
        )

    def _beam_answer(self, asked: _Asked, wanted: Wanted, width: int, length_penalty: float) -> Answer:
        if wanted.sampling != Sampling() or wanted.constraint or wanted.log_probabilities is not None:
            raise OptionError("beams= takes the most likely text: it goes with max_tokens=, stop= and ends= alone")
        most = self.context if wanted.max_tokens is None else wanted.max_tokens
        start = time.perf_counter()
        best = self._using(
            lambda decoder: self._searched(decoder, asked.tokens, width, most, length_penalty, wanted.ends), asked.read
        )[0]
        seconds = time.perf_counter() - start
        stops = StopStrings(wanted.stop)
        text = stops.push(self.tokenizer.decode(best.tokens)) + stops.end()
        reason: Reason = "stop" if stops.found else "end" if best.ended else "length"
        return Answer(text, tuple(map(Drawn, best.tokens)), reason, asked.count, 0, seconds, seconds)

    def _wanted(self, how: Mapping[str, Any]) -> tuple[Wanted, _Said]:
        rest = dict(how)
        variables = rest.pop("template", None) or {}
        if not isinstance(variables, Mapping):
            raise OptionError(f"template={variables!r:.80} is not allowed: give its variables by their names")
        said = _Said(dict(variables), rest.pop("begins", None))
        max_tokens = rest.pop("max_tokens", DEFAULT_TOKENS)
        stop = rest.pop("stop", None)
        told = rest.pop("log_probabilities", None)
        ends = rest.pop("ends", True)
        constraint = self._constraint(rest)
        sampling = Sampling.of(rest.pop("sampling", None), **rest)
        return Wanted(sampling, max_tokens, stop, told, ends, constraint), said

    def _without_never(self, wanted: Wanted) -> Wanted:
        """The same, in which tokens that are in no answer of an encoder-decoder do not come."""
        never = self.tokenizer.special.never
        if self._reader is None or not never:
            return wanted
        bias = {**dict.fromkeys(never, -math.inf), **wanted.sampling.logit_bias}
        return replace(wanted, sampling=replace(wanted.sampling, logit_bias=bias))

    def _constraint(self, rest: dict[str, Any]) -> Callable[[], Constraint] | None:
        """That of the settings, which are taken out of them."""
        given = {name: value for name in _CONSTRAINTS if (value := rest.pop(name, None)) is not None}
        if len(given) > 1:
            raise OptionError(f"{'= and '.join(given)}= were given: an answer keeps one of them")
        for name, value in given.items():
            if name != "constraint":
                return getattr(self._grammars, f"of_{name}")(value)
            if not callable(value):
                raise OptionError(f"constraint={value!r:.80} is not allowed: give a function that makes a Constraint")
            return value
        return None

    @cached_property
    def _grammars(self) -> Grammars:
        return needing_extra(self._made_grammars)

    def _made_grammars(self) -> Grammars:
        from tilewright.llm.grammars import Grammars

        return Grammars(self.tokenizer)

    def _asked(self, prompt: Any, said: _Said) -> _Asked:
        """What is read and fed for a prompt. InputError for what has no room."""
        if said.begins is not None and not isinstance(said.begins, str):
            raise InputError(f"begins={said.begins!r:.80} is not allowed: give a text")
        more = self.tokenizer.encode(said.begins, begin=False) if said.begins else []
        if self._reader is None:
            tokens = [*self.tokens(prompt, **said.variables), *more]
            check_prompt(tokens, self._root)
            return _Asked(None, tokens, len(tokens))
        read = self._read_of(prompt, said.variables)
        special = self.tokenizer.special
        if not special.start:
            raise ModelError(
                "no configuration says what answers begin with (decoder_start_token_id)",
                where=self.tokenizer.source,
                hint="config.json or generation_config.json must be beside the vocabulary",
            )
        tokens = [*special.start, *(more or special.forced)]
        check_prompt(tokens, self._root)
        return _Asked(read, tokens, read.shape[-1], not more)

    def _read_of(self, prompt: Any, variables: Mapping[str, Any]) -> np.ndarray:
        """What an encoder is given for a prompt: tokens, or features as they are."""
        if isinstance(prompt, np.ndarray) and prompt.ndim > 1:
            return prompt
        return np.array(self.tokens(prompt, **variables))

    @property
    def _reader(self) -> ReadingDecoder | None:
        """The decoder, where it stands behind an encoder."""
        return self._root if isinstance(self._root, ReadingDecoder) else None

    def _need_decoder(self, why: str) -> None:
        if self._reader is not None:
            raise OptionError(f"{why}, and this model reads them with an encoder", hint="use generate or stream")

    def _borrowed(self, read: Any = None) -> Decoder:
        """A decoder that has been fed nothing, and that nobody else uses; one with an encoder is to read."""
        try:
            decoder = self._idle.pop()
            decoder.rewind(0)
        except IndexError:
            decoder = self._root.fork()
        if isinstance(decoder, ReadingDecoder):
            decoder.read(read)
        return decoder

    def _using(self, run: Callable[[Decoder], Any], read: Any = None) -> Any:
        decoder = self._borrowed(read)
        found = run(decoder)
        if len(self._idle) < _MOST_IDLE:
            self._idle.append(decoder)
        return found
