"""Options that say what weights of a language model become, and the source that they mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tilewright.cli.amounts import Share, bytes_text
from tilewright.cli.output import say
from tilewright.cli.progress import compiling

if TYPE_CHECKING:
    from tilewright.quantization.decoders.certificate import AgreementCertificate
    from tilewright.quantization.decoders.promise import Chosen

F = TypeVar("F", bound=Callable[..., Any])


def weights_options(command: F) -> F:
    """--weights, --max-drop and --text."""
    for decorate in (
        click.option("--text", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
                     help="With --weights auto: the text on which tokens are compared  [default: a built-in one]"),
        click.option("--max-drop", type=Share(), metavar="SHARE",
                     help="With --weights auto: how many tokens may become others: 2%."),
        click.option("--weights", metavar="TYPE",
                     help="float32, float16, bfloat16, int8 or int4 (also int4:64, int8:row, int4:32:min) for weights "
                          "that are stored in more bits; auto: for each the smallest that --max-drop allows."),
    ):  # fmt: skip
        command = decorate(command)
    return command


def check_weights_options(options: Mapping[str, Any]) -> None:
    """UsageError for those that do not go together."""
    is_auto = options["weights"] == "auto"
    if is_auto and options["max_drop"] is None:
        raise click.UsageError("--weights auto needs --max-drop, such as --max-drop 2%")
    for name in ("max_drop", "text"):
        if not is_auto and options[name] is not None:
            raise click.UsageError(f"--{name.replace('_', '-')} needs --weights auto")


def chosen_weights(path: Path, tokenizer: Path | None, options: Mapping[str, Any], **how: Any) -> Chosen:
    """What `--weights auto` means for a checkpoint, told on the error stream."""
    from tilewright.llm.texts.promised import promised_weights
    from tilewright.llm.vocabulary import read_vocabulary

    words = read_vocabulary(tokenizer or path)
    with compiling(path.name) as progress:
        found = promised_weights(
            path, words.tokenizer, max_drop=options["max_drop"], text=options["text"], progress=progress, **how
        )
    say_certificate(found.certificate)
    return found


def say_certificate(found: AgreementCertificate) -> None:
    """In a line of the error stream."""
    sizes = f"{bytes_text(found.bytes_after)} of matrices in place of {bytes_text(found.bytes_before)}"
    say(f"{found.outcome}; {found.agreement}; {sizes}", err=True)
