"""The group of commands: which there are, and how errors become messages and exit codes."""

from __future__ import annotations

import difflib
import errno
import importlib
import logging
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.markup import escape

import tilewright
from tilewright.cli.interrupt import INTERRUPTED, is_interrupt, say_interrupted
from tilewright.cli.output import error_console, log_to_stderr, print_json, say
from tilewright.runtime.errors import TilewrightError, TilewrightWarning, short_name

FAULT_OF_INPUT = 1
USAGE = 2
INTERNAL = 3

# Names, as the home of some is the compiler, which `tilewright run` must not import.
_BY_NAME = {"InternalError": INTERNAL, "OptionError": USAGE, "TargetError": USAGE}

_JSON = "tilewright.json"
"""Whether errors are told as JSON data, too."""

COMMANDS = (
    "check", "compile", "export", "run", "record", "bench", "profile", "show", "memory", "report", "explain", "opt",
    "convert", "quantize", "inspect", "sign", "verify", "diff", "info", "cache", "generate", "chat", "serve", "cost",
    "score", "embed",
)  # fmt: skip
_HOMES = {
    "language_models": ("generate", "chat", "serve", "cost", "score", "embed"),
    "measuring": ("profile",),
    "writing": ("compile", "export", "convert", "quantize", "sign"),
}
"""Rooms of commands that are not among the others."""

HELP = """Compile trained models to native code, run them, and look inside (`info` lists the formats).

\b
Examples:
  tilewright check model.onnx
  tilewright compile model.onnx -o model.tw
  tilewright export model.onnx -o libmodel.so
  tilewright run model.tw --input x=image.npy --output results
  tilewright record model.onnx photos/*.png -o calls
  tilewright bench model.onnx --vs onnxruntime --threads 1
  tilewright profile model.onnx --scaling
  tilewright show model.onnx --level loops --kernel k0
  tilewright memory model.onnx -o plan.svg
  tilewright report model.onnx -o report.html
  tilewright explain model.onnx
  tilewright convert model.pt2 -o model.onnx
  tilewright quantize model.onnx --data samples.npz --max-drop 0.5% -o small.onnx
  tilewright inspect model.tw
  tilewright sign model.tw --key key.pem
  tilewright diff model.onnx small.onnx --data samples.npz
  tilewright --plugin my_operators.py run model.onnx --input random
  tilewright generate model.gguf --prompt "Once upon a time"
  tilewright chat model.gguf
  tilewright serve model.gguf --port 8000
  tilewright cost model.gguf --prompt 512 --new 128
  tilewright score model.gguf --agreement
  tilewright embed model.gguf "a cat" "a dog"

\b
Exit codes:
  0  done
  1  the model, its inputs, or a file: the message says what to change
  2  the command line itself is wrong
  3  a defect of tilewright: please report it (--traceback shows where)
  130  interrupted (Ctrl-C)
With --json an error is also an object on the standard output, {"error": {"type", "what", "where", "hint"}, ...}.
"""


class Commands(click.Group):
    """Commands that live in a module each, imported when asked for, so that the command starts quickly."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        home = next((room for room, names in _HOMES.items() if cmd_name in names), "commands")
        command: click.Command = importlib.import_module(f"tilewright.cli.{home}.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        ctx.meta[_JSON] = "--json" in args  # known also where the arguments of the command are wrong
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            close = difflib.get_close_matches(args[0], COMMANDS, 1)
            said = f" Did you mean '{close[0]}'?" if close else ""
            ctx.fail(f"There is no command '{short_name(args[0])}'.{said}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("always", TilewrightWarning)
            warnings.showwarning = partial(_show_warning, warnings.showwarning)
            return self._invoke(ctx)

    def _invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            if sys.stdout is not None:
                sys.stdout.flush()  # errors of a full disk come here, where there is somebody to tell them
            return result
        except KeyboardInterrupt:
            say_interrupted()
            ctx.exit(INTERRUPTED)
        except click.ClickException as error:
            if ctx.meta.get(_JSON):
                print_json(_record(error, error.format_message(), error.exit_code))
            raise
        except Exception as error:
            if is_interrupt(error):
                say_interrupted()
                ctx.exit(INTERRUPTED)
            code = exit_code(error)
            if code is None or ctx.params.get("traceback"):
                raise
            _say(error, code)
            if ctx.meta.get(_JSON):
                print_json(_record(error, _text(error), code))
            ctx.exit(code)


def _show_warning(
    otherwise: Callable[..., None], message: Warning | str, category: type[Warning], *place: Any, **named: Any
) -> None:
    """Ours are for users of the command, who do not know of its source."""
    if issubclass(category, TilewrightWarning):
        say(f"warning: {message}", err=True)
    else:
        otherwise(message, category, *place, **named)


def exit_code(error: Exception) -> int | None:
    """The exit code that an error of a command means; None for those that click handles."""
    if isinstance(error, click.ClickException | click.exceptions.Exit | click.Abort):
        return None
    if isinstance(error, TilewrightError):
        return _BY_NAME.get(type(error).__name__, FAULT_OF_INPUT)
    if isinstance(error, OSError):
        return None if error.errno == errno.EPIPE else FAULT_OF_INPUT
    return FAULT_OF_INPUT if isinstance(error, MemoryError) else INTERNAL


def _say(error: Exception, code: int) -> None:
    console = error_console()
    text = _text(error)
    if code == INTERNAL:
        console.print(f"[bold red]internal error:[/] {type(error).__name__}: {escape(text)}")
        console.print("  this is a defect of tilewright; please report it with the model and this message")
        console.print("  hint: `tilewright --traceback ...` shows where it happened")
    else:
        console.print(f"[bold red]error:[/] {escape(text)}")


def _record(error: Exception, text: str, code: int) -> dict[str, Any]:
    """An error as JSON data, beside the text for people: TilewrightErrors say what, where, and how to go on."""
    said = {name: getattr(error, name, None) for name in ("what", "where", "hint")}
    return {"error": {"type": type(error).__name__, **said, "what": said["what"] or text}, "exit code": code}


def _text(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is None and error.errno is not None:
        return f"cannot write to the standard output: {error.strerror or error}"
    return str(error) or type(error).__name__


@click.group(cls=Commands, help=HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(tilewright.__version__)
@click.option("--traceback", is_flag=True, help="Show the Python traceback of an error.")
@click.option("-v", "--verbose", is_flag=True, help="Tell what is compiled, and what comes from the cache.")
@click.option(
    "--plugin", "plugins", multiple=True, metavar="FILE.py", type=click.Path(path_type=Path),
    help="Import a file that adds operators, or brings a plugin (PLUGIN = tilewright.plugins.Plugin(...)).",
)  # fmt: skip
def commands(traceback: bool, verbose: bool, plugins: Sequence[Path]) -> None:
    if verbose:
        log_to_stderr(logging.INFO)
    for path in plugins:
        importlib.import_module("tilewright.plugins").use_file(path)
