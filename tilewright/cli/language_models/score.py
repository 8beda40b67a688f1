"""`tilewright score`: how likely a language model finds a text, and how far it is from its weights in float64."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from tilewright.cli.language_models.options import model_options, opened, source_argument
from tilewright.cli.output import console, json_option, print_json
from tilewright.cli.progress import compiling

if TYPE_CHECKING:
    from tilewright.llm.texts.score import TextScore

HELP = """Say how likely the language model at PATH finds the text of FILE (its perplexity; without FILE: that of a
built-in text of many kinds), and how long a token takes.

With --agreement the model is compared with the weights that PATH stores (or the checkpoint that --of names), computed
in float64: at how many places of the text both expect the same token most (what an answer without a temperature takes),
and how far apart what they expect is (the divergence of Kullback and Leibler). With --weights it is said what smaller
types do to the text. Tokens are fed one by one, as those of an answer are.

\b
Examples:
  tilewright score model.gguf book.txt
  tilewright score model.gguf --agreement
  tilewright score folder --weights int4 --agreement --threads 1
  tilewright score small.tw --tokenizer folder --agreement --of folder --json
"""


@click.command("score", help=HELP, short_help="Say how likely a model finds a text, and what its weights lose.")
@source_argument
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--agreement", is_flag=True, help="Compare with the weights that are stored, in float64.")
@click.option("--of", "source", type=click.Path(path_type=Path), metavar="MODEL",
              help="With --agreement: the checkpoint that PATH was made of  [default: PATH]")
@click.option("--window", type=click.IntRange(min=2), default=256, show_default=True,
              help="Tokens of the pieces into which the text is cut.")
@json_option
@model_options
def command(
    path: Path, file: Path | None, agreement: bool, source: Path | None, window: int, as_json: bool, **options: Any
) -> None:  # fmt: skip
    if source is not None and not agreement:
        raise click.UsageError("--of needs --agreement")
    model = opened(path, options)
    with compiling(path.name) as progress:
        how = {"threads": options["threads"], "cache": not options["no_cache"], "progress": progress}
        of = (source or path) if agreement else None
        found = model.score_text(file, of=of, window=window, **(how if agreement else {}))
    if as_json:
        print_json(found.record())
    else:
        console().print(_table(found))


def _table(found: TextScore) -> Table:
    table = Table(show_header=False, box=None)
    rows = {
        "tokens": f"{found.tokens}, in pieces of at most {found.window}",
        "perplexity": f"{found.perplexity:.4f}",
        "time": f"{1000 * found.seconds_per_token:.3f} ms for a token",
    }
    if found.agreement is not None:
        own = found.agreement
        rows |= {
            "perplexity in float64": f"{found.reference_perplexity:.4f}",
            "agreement": f"{100 * own.share:.2f} % take the same token ({own.tokens - own.agreed} of {own.tokens} "
            f"differ); at least {100 * (1 - own.bound):.2f} % with a confidence of {own.confidence:.0%}",
            "divergence": f"{own.divergence:.3g}, at most {own.divergence_bound:.3g}",
        }
    for name, value in rows.items():
        table.add_row(f"[bold]{name}", value)
    return table
