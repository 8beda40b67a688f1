"""`tilewright inspect`: what the file of a compiled model is, and the certificate of a quantised one."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from tilewright.cli.amounts import bytes_text
from tilewright.cli.certificates import show_agreement, show_certificate
from tilewright.cli.output import SafeConsole, print_json, say
from tilewright.cli.writing.fleets import inspect_folder
from tilewright.quantization.certificate import KEY, certificate_of
from tilewright.quantization.decoders.certificate import attached_certificate
from tilewright.quantization.verify import open_certificate
from tilewright.runtime.artifact import Artifact, TargetInfo
from tilewright.runtime.errors import short_name
from tilewright.runtime.storage.container import is_container_file
from tilewright.runtime.storage.described import ArtifactFile
from tilewright.runtime.storage.fleet import models_of
from tilewright.runtime.storage.levels import best_of
from tilewright.runtime.storage.loader import this_machine

HELP = """Print what a MODEL is. Nothing of it is run.

\b
Of a compiled one (.tw): its inputs and outputs, and what is assumed of their dims; format, size, digest, who says to
have signed it (load it with trust= to check that), the machine and the CPU features it needs, the functions that its
code takes from the system, its sections.
Of a quantised one (.onnx or .tw): its certificate, which says what was measured, chosen, and why. A language model that
was compiled with --weights auto has one, too.
Of a fleet (a folder): its models.

\b
Examples:
  tilewright inspect small.onnx
  tilewright inspect small.tw --json
"""


@click.command("inspect", help=HELP, short_help="Print what a compiled or a quantised model is.")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON data (docs/quantize.md describes certificates).")
def command(model: Path, as_json: bool) -> None:
    if model.is_dir() and models_of(model):
        inspect_folder(model, as_json)
        return
    if model.suffix == ".tw" or is_container_file(model):
        _inspect_compiled(model, as_json)
        return
    certificate = open_certificate(model)
    if as_json:
        print_json(certificate.record())
    else:
        show_certificate(certificate, SafeConsole(soft_wrap=True))


def _inspect_compiled(model: Path, as_json: bool) -> None:
    file = ArtifactFile.of(model)
    artifact = Artifact.load(model, check_weights=False, mmap=True)
    agreement = attached_certificate(artifact.attached, str(model))
    certificate = certificate_of(artifact, str(model)) if KEY in artifact.attached else None
    if as_json:
        found = agreement or certificate
        about = {**asdict(file), "inputs": list(map(str, artifact.inputs)), "outputs": list(map(str, artifact.outputs))}
        print_json({**({} if found is None else found.record()), "artifact": about})
        return
    say(f"{short_name(model.name)}: {artifact.signature}")
    for line in lines(file):
        say(line)
    if agreement is not None:
        show_agreement(agreement, SafeConsole(soft_wrap=True))
    if certificate is not None:
        show_certificate(certificate, SafeConsole(soft_wrap=True))


def lines(file: ArtifactFile) -> list[str]:
    """What a file is, as texts of a line each, whatever it says."""
    sums = [s.digest or s.checksum or f"{len(s.parts)} parts with checksums of their own" for s in file.sections]
    sections = [f"{s.kind} {bytes_text(s.size)} ({text})" for s, text in zip(file.sections, sums, strict=True)]
    found = [
        f"made by: {file.producer}, format {file.format}",
        f"size: {bytes_text(file.size)}, of which {bytes_text(file.metadata_bytes)} describe it",
        f"digest: {file.digest}",
        f"signed by: {file.signed_by or 'nobody'}{' (not checked)' if file.signed_by else ''}",
        f"made for: {file.cpu} ({file.triple or file.kind})",
        f"CPU features: {', '.join(file.features) or 'none beyond the baseline'}",
    ]
    if file.levels:
        names = [name for name, _ in file.levels]
        best = best_of((TargetInfo(file.triple, name, needs) for name, needs in file.levels), this_machine())
        found.append(f"levels: {', '.join(names)}; here {'none' if best is None else names[best]} is taken")
    if file.functions:
        found.append(f"code: {file.functions} functions, which need {', '.join(file.imports) or 'nothing'}")
    return [short_name(text, _LONGEST_LINE) for text in (*found, *(f"section: {text}" for text in sections))]


_LONGEST_LINE = 2000
