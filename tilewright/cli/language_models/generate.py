"""`tilewright generate`: text from a language model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from tilewright.cli.language_models.options import (
    draft_option,
    messages_of,
    model_options,
    opened,
    read_text,
    sampling_fields,
    sampling_options,
    source_argument,
    stats_option,
    timed,
)
from tilewright.cli.language_models.shown import Shown, record_of, say_stats
from tilewright.cli.output import json_option, print_json

HELP = """Continue a text with the language model at PATH: a GGUF file, or a folder with config.json, weights as
.safetensors and tokenizer.json.

A model with an encoder (T5, BART) reads the text, and answers to it.

The text goes to the standard output as it comes, and nothing else does. A model that was trained for chats answers
with --chat, or in `tilewright chat`.

\b
Examples:
  tilewright generate model.gguf --prompt "Once upon a time" --max-tokens 100
  tilewright generate model.gguf --chat --prompt "What is the capital of France?"
  tilewright generate folder --prompt "Once" --temperature 0.8 --top-p 0.95 --seed 1 --stats
  tilewright generate model.gguf --prompt-file question.txt --beams 4 --json
  tilewright generate whisper-folder --audio speech.wav --language en
  echo "Once upon a time" | tilewright generate model.gguf
"""


@click.command("generate", help=HELP, short_help="Continue a text with a language model.")
@source_argument
@click.option("--prompt", metavar="TEXT", help="The text  [default: the standard input]")
@click.option(
    "--prompt-file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="A file with the text.",
)
@click.option(
    "--chat", is_flag=True, help="The text is a message, of which the model's chat template makes a prompt."
)
@click.option("--system", metavar="TEXT", help="With --chat: the message of the system before it.")
@click.option(
    "--audio", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.wav",
    help="In place of a text: speech, of which a model such as Whisper writes the text.",
)  # fmt: skip
@click.option("--language", metavar="CODE", help="With --audio: what is spoken  [default: as the model hears it]")
@click.option("--begins", metavar="TEXT", help="What the answer begins with, such as the token of a language.")
@sampling_options
@click.option(
    "--beams", type=click.IntRange(min=1), help="The most likely text as a whole, among so many begins."
)
@click.option(
    "--log-probabilities", type=click.IntRange(min=0, max=100), metavar="N",
    help="With --json: how likely each token was, and the N most likely ones.",
)  # fmt: skip
@click.option(
    "--schema",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.json",
    help="A JSON schema that the answer keeps.",
)
@click.option(
    "--grammar", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.lark",
    help="A grammar that the answer keeps.",
)  # fmt: skip
@json_option
@draft_option
@stats_option
@model_options
def command(
    path: Path,
    prompt: str | None,
    prompt_file: Path | None,
    chat: bool,
    system: str | None,
    audio: Path | None,
    language: str | None,
    begins: str | None,
    beams: int | None,
    log_probabilities: int | None,
    schema: Path | None,
    grammar: Path | None,
    as_json: bool,
    stats: bool,
    **options: Any,
) -> None:
    if prompt is not None and prompt_file is not None:
        raise click.UsageError("--prompt and --prompt-file: give one of them")
    if system is not None and not chat:
        raise click.UsageError("--system needs --chat")
    if log_probabilities is not None and not as_json:
        raise click.UsageError("--log-probabilities needs --json")
    how = sampling_fields(options)
    if log_probabilities is not None:
        how["log_probabilities"] = log_probabilities
    if begins is not None:
        how["begins"] = begins
    if schema is not None and grammar is not None:
        raise click.UsageError("--schema and --grammar: give one of them")
    how |= {
        name: read_text(file) for name, file in (("schema", schema), ("grammar", grammar)) if file is not None
    }
    if audio is not None:
        if chat or as_json or any(given is not None for given in (begins, beams, prompt, prompt_file)):
            raise click.UsageError("--audio stands in place of a text: with --language, and how tokens are chosen")
        shown = Shown()
        shown.part(opened(path, options).transcribe(audio, language=language, **how))
        shown.end()
        return
    if language is not None:
        raise click.UsageError("--language needs --audio")
    text = _prompt(prompt, prompt_file)
    model, seconds = timed(lambda: opened(path, options))
    asked: Any = messages_of(system, [text]) if chat else text
    if beams is not None or as_json:
        answer = model.answer(asked, **({} if beams is None else {"beams": beams}), **how)
        if as_json:
            print_json(record_of(answer, lambda tokens: model.tokenizer.decode(tokens, control=True)))
        else:
            shown = Shown()
            shown.part(answer.text)
            shown.end()
    else:
        shown = Shown()
        with model.stream(asked, **how) as stream:
            for part in stream:
                shown.part(part)
        shown.end()
        answer = stream.answer
    if stats:
        say_stats(answer, model, seconds)


def _prompt(prompt: str | None, prompt_file: Path | None) -> str:
    if prompt is not None:
        return prompt
    if prompt_file is not None:
        return read_text(prompt_file)
    if sys.stdin is None or sys.stdin.isatty():
        raise click.UsageError("give a text with --prompt or --prompt-file, or on the standard input")
    return sys.stdin.buffer.read().decode("utf-8", "surrogateescape").removesuffix("\n")
