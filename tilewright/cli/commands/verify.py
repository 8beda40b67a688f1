"""`tilewright verify`: runs the call that a compiled model keeps, or measures a quantised model again and compares with
its certificate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import tilewright
from tilewright.cli.models import is_artefact, threads_option
from tilewright.cli.output import SafeConsole, json_option, print_json
from tilewright.cli.progress import compiling, working
from tilewright.llm.texts.verified import VerifiedAgreement, certificate_of_decoder, verify_agreement
from tilewright.quantization.verify import Verification, verify
from tilewright.runtime import Artifact
from tilewright.runtime.errors import InputError
from tilewright.runtime.values.known_call import KnownCall

HELP = """Run the call that a compiled MODEL keeps, and compare with the results that it keeps of the interpreter
(`tilewright compile --validate` keeps one): is the file right on this machine? Nothing else is needed for it.

With --data, measure a quantised MODEL again with the data of its certificate, beside the float32 model, and compare.

A compiled language model whose weights are as small as a promise allows (`tilewright compile --weights auto`) is
measured on the text of its certificate, beside its checkpoint in float64.

\b
Examples:
  tilewright verify model.tw
  tilewright verify small.onnx --data samples.npz
  tilewright verify small.tw --data calls/ --model model.onnx
  tilewright verify chat.tw
  tilewright verify chat.tw --model model.gguf --text book.txt

\b
Exit codes: 0 where results are right and where the certificate holds, 1 where not.
"""

_OF_TEXTS, _OF_DATA = ("text", "tokenizer"), ("data", "metric", "batch")


@click.command("verify", help=HELP, short_help="Check a compiled model by a call that it keeps, or a certificate.")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--data", type=click.Path(path_type=Path), help="The samples that it was made with.")
@click.option(
    "--model", "wide", type=click.Path(path_type=Path),
    help="The float32 model, or the checkpoint of a language model  [default: as certified]",
)  # fmt: skip
@click.option("--metric", metavar="NAME", help="The metric, where it was a function.")
@click.option("--batch", type=click.IntRange(min=1), help="As for `tilewright quantize`.")
@click.option(
    "--text", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="The text of a language model's certificate  [default: as certified]",
)  # fmt: skip
@click.option(
    "--tokenizer", type=click.Path(path_type=Path), metavar="PATH",
    help="A GGUF file or a folder with the vocabulary, if the checkpoint has none.",
)  # fmt: skip
@json_option
@threads_option
def command(model: Path, wide: Path | None, threads: int | None, as_json: bool, **options: Any) -> None:
    if is_artefact(model) and certificate_of_decoder(Artifact.load(model), str(model)) is not None:
        _refuse(options, _OF_DATA, "is for other models than language models")
        with compiling(model.name) as progress:
            texts = {name: options[name] for name in _OF_TEXTS}
            told = verify_agreement(model, model=wide, threads=threads, progress=progress, **texts)
        lines, holds, problems = _lines_of_text(told), told.holds, (*told.problems, _said(told.holds))
        record = told.record()
    elif options["data"] is None and (is_artefact(model) or model.suffix == ".tw"):  # loading says what else it is
        _refuse({**options, "model": wide}, ("model", *_OF_TEXTS, *_OF_DATA), "is for certificates")
        lines, holds, problems, record = _of_known_call(model, threads)
    else:
        _refuse(options, _OF_TEXTS, "is for language models with a certificate")
        if options["data"] is None:
            raise click.UsageError("--data is needed: the samples that the model was made with")
        rest = {name: options[name] for name in ("metric", "batch")}
        with working(f"verifying {model.name}"):
            found = verify(model, options["data"], model=wide, threads=threads, **rest)
        lines, holds, problems = _lines(found), found.holds, (*found.problems, _said(found.holds))
        finding = found.verdict.finding
        record = {
            "holds": holds, "problems": list(found.problems), "metric": found.verdict.metric, "before": finding.before,
            "after": finding.after, "drop": finding.drop, "bound": found.verdict.bound,
        }  # fmt: skip
    if as_json:
        print_json(record)
    else:
        console = SafeConsole(soft_wrap=True)
        for line in (*lines, *problems):
            console.print(line, markup=False)
    if not holds:
        click.get_current_context().exit(1)


def _said(holds: bool) -> str:
    return "the certificate holds" if holds else "the certificate does not hold"


def _of_known_call(model: Path, threads: int | None) -> tuple[list[str], bool, tuple[str, ...], dict[str, Any]]:
    """What is said of the call that an artefact keeps."""
    opened = tilewright.load(model, threads)
    artifact = opened.artifact
    known = KnownCall.of(artifact.attached, str(model))
    if known is None:
        raise InputError(
            f"{model} keeps no call",
            hint="compile it with --validate, or give --data for the certificate of a quantised model",
        )

    def run(*arrays: Any) -> Any:
        found = opened(*arrays)
        return found if isinstance(found, tuple | list) else (found,)

    wrong = known.differences(run, [info.name for info in artifact.outputs])
    given = ", ".join(f"{name}: {array.dtype}{list(array.shape)}" for name, array in known.inputs.items())
    compared = [info.name for info, result in zip(artifact.outputs, known.results, strict=False) if result is not None]
    lines = [f"called with {given or 'no inputs'}"]
    problems = [f"'{name}' is wrong: {why}" for name, why in wrong.items()]
    if not wrong:
        lines.append(f"{', '.join(compared)}: as the interpreter has it, up to rounding")
    return lines, not wrong, tuple(problems), {"holds": not wrong, "outputs": compared, "problems": wrong}


def _refuse(options: dict[str, Any], names: tuple[str, ...], why: str) -> None:
    for name in names:
        if options[name] is not None:
            raise click.UsageError(f"--{name} {why}")


def _lines(found: Verification) -> list[str]:
    finding = found.verdict.finding
    return [
        f"{found.verdict.metric}: {finding.before:.6g} before, {finding.after:.6g} after; the drop is "
        f"{100 * finding.drop:.4g} %, at most {100 * found.verdict.bound:.4g} %"
    ]


def _lines_of_text(found: VerifiedAgreement) -> list[str]:
    promised = f"promised: at most {100 * found.certificate.max_drop:.4g} % become others"
    return [f"certified: {found.certificate.agreement}", f"now: {found.agreement}", promised]
