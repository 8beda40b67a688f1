"""Options of the commands for language models, and what they mean."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tilewright.cli.language_models.weights import check_weights_options, say_certificate, weights_options
from tilewright.cli.models import activations_option, unique
from tilewright.cli.progress import compiling
from tilewright.frontends.decoders.source import CACHES
from tilewright.runtime.errors import InputError

if TYPE_CHECKING:
    from tilewright.llm.model import LanguageModel

F = TypeVar("F", bound=Callable[..., Any])

_SETTINGS = (
    ("--temperature", click.FloatRange(min=0), "Divide logits by it; 0 takes the most likely token.  [default: 0]"),
    ("--top-k", click.IntRange(min=0), "Draw from so many of the most likely tokens."),
    ("--top-p", click.FloatRange(min=0, max=1, min_open=True), "Draw from those that together are so likely."),
    ("--min-p", click.FloatRange(min=0, max=1), "Draw from those that are so likely, beside the most likely one."),
    ("--typical-p", click.FloatRange(min=0, max=1, min_open=True), "Draw from the most typical ones, of so much "
     "probability."),
    ("--repetition-penalty", click.FloatRange(min=0, min_open=True), "Divide logits of tokens that were there before."),
    ("--presence-penalty", float, "Subtract it from logits of tokens that the answer has."),
    ("--frequency-penalty", float, "Subtract it for each time that the answer has a token."),
    ("--seed", click.IntRange(min=0, max=2**64 - 1), "The same text each time.  [default: another one]"),
)  # fmt: skip

draft_option = click.option(
    "--draft", metavar="lookup|PATH",
    help="Guess tokens from what was there before, or with a smaller model of the same vocabulary: the same text, "
    "sooner where guesses come true. --stats tells how many do.",
)  # fmt: skip
caches_option = click.option(
    "--caches", type=click.Choice(CACHES), help="What keys and values are stored in  [default: float32]"
)
source_argument = click.argument("path", type=click.Path(path_type=Path))
stats_option = click.option("--stats", is_flag=True, help="Tell tokens and times on the error stream.")


def model_options(command: F) -> F:
    """The options that say how a language model is loaded."""
    for decorate in (
        click.option("--no-cache", is_flag=True, help="Neither use nor fill the cache of compiled models."),
        click.option("--template", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.jinja",
                     help="A chat template in place of the model's own."),
        click.option("--tokenizer", type=click.Path(path_type=Path), metavar="PATH",
                     help="A GGUF file or a folder with the vocabulary, if PATH has none."),
        click.option("--context", type=click.IntRange(min=1), metavar="POSITIONS",
                     help="The most tokens of prompt and answer together  [default: what the model was trained for]"),
        caches_option,
        activations_option,
        weights_options,
        click.option("--threads", type=click.IntRange(min=1),
                     help="Threads that run the model  [default: all it may use]"),
    ):  # fmt: skip
        command = decorate(command)
    return command


def sampling_options(command: F) -> F:
    """The options that say how answers are made."""
    for decorate in (
        *(click.option(name, type=kind, help=text) for name, kind, text in reversed(_SETTINGS)),
        click.option("--logit-bias", "biases", multiple=True, metavar="TOKEN=BIAS",
                     help="Add to the logit of a token, given by its number; -inf forbids it."),
        click.option("--stop", multiple=True, metavar="TEXT", help="End the answer before this text."),
        click.option("--max-tokens", type=click.IntRange(min=0), default=512, show_default=True,
                     help="The most tokens of an answer."),
    ):  # fmt: skip
        command = decorate(command)
    return command


def sampling_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of `LanguageModel.stream` for those options."""
    names = [option.removeprefix("--").replace("-", "_") for option, _, _ in _SETTINGS]
    settings = {name: options[name] for name in names if options.get(name) is not None}
    biases = unique("--logit-bias", map(_bias, options.get("biases", ())))
    bias = {"logit_bias": {int(token): value for token, value in biases.items()}} if biases else {}
    return {**settings, **bias, "max_tokens": options["max_tokens"], "stop": list(options["stop"])}


def opened(path: Path, options: Mapping[str, Any], sequences: int | None = None) -> LanguageModel:
    """The language model of a file or folder, compiled or from the cache; so many `sequences` go through it
    together."""
    from tilewright.llm.loading import load

    check_weights_options(options)
    template = options["template"]
    text = None if template is None else read_text(template)
    with compiling(path.name) as progress:
        model = load(
            path,
            weights=options["weights"],
            max_drop=options["max_drop"],
            text=options["text"],
            activations=options["activations"],
            threads=options["threads"],
            context=options["context"],
            sequences=sequences,
            caches=options["caches"],
            tokenizer=options["tokenizer"],
            template=text,
            draft=options.get("draft"),
            cache=not options["no_cache"],
            progress=progress,
        )
    if model.certificate is not None:
        say_certificate(model.certificate)
    return model


def read_text(path: Path) -> str:
    """A file of text in UTF-8, or a pipe."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"the file is no text in UTF-8: byte {error.start}", where=str(path)) from None
    except (OSError, ValueError) as error:  # ValueError: no path at all
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"the text cannot be read: {reason}", where=str(path), hint="check the path") from None


def timed(run: Callable[[], Any]) -> tuple[Any, float]:
    """What `run` returns, and the seconds that it took."""
    start = time.perf_counter()
    found = run()
    return found, time.perf_counter() - start


def _bias(text: str) -> tuple[str, float]:
    token, _, bias = text.partition("=")
    try:
        return str(int(token)), float(bias)
    except ValueError:
        raise click.UsageError(f"--logit-bias {text}: write TOKEN=BIAS, such as 198=-5") from None


def messages_of(system: str | None, said: Iterable[str]) -> list[dict[str, str]]:
    """Messages of users, behind one for the system where there is one."""
    first = [] if system is None else [{"role": "system", "content": system}]
    return [*first, *({"role": "user", "content": text} for text in said)]
