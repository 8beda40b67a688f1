"""What users call: a compiled model comes out of the cache, or from the compiler, which is imported only then."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.frontends.front_end import ModelWithExamples
from tilewright.options import OnProgress, Options, Request
from tilewright.runtime import Artifact, Model
from tilewright.runtime.errors import InternalError, OptionError, PerformanceWarning, Remark, short_name
from tilewright.session import Session


def compile(
    model: str | Path | bytes | Any,
    example_inputs: Any = None,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    options: Options | None = None,
    constants: Mapping[str, Any] | str | Path | None = None,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    session: Session | None = None,
    progress: OnProgress | None = None,
    **fields: Any,
) -> Model:
    """Compile a model (a path, the bytes of a file, or an object such as an onnx.ModelProto or a torch.nn.Module) for
    this machine and return it ready to run.

    A torch.nn.Module is traced with `example_inputs` (a tuple of what it is called with, a mapping of what it is called
    with by name, or one tensor) and `example_kwargs`; `dynamic_shapes` says which of their sizes may be others in a
    call, as torch.export.export has it. Inputs of the compiled model are all tensors among them, in order.

    `options` (or its fields as keywords: threads=2, numerics="strict", ...) say how; `constants` binds inputs to
    values (arrays of their dtype, or Python numbers and lists; or all tensors of a `.safetensors` file, given by its
    path and mapped meanwhile), `shapes` fixes or names the dims of inputs; `session` is the cache on disk and the
    plugins. `progress` is called with a `Progress` between the steps of the compiler; a model that the
    cache has takes none. Raises ModelError, UnsupportedError, OptionError.
    """
    chosen = Options.of(options, **fields)
    session = Session.of(session)
    source = with_examples(model, example_inputs, example_kwargs, dynamic_shapes)
    artifact = compile_artifact(
        source, options=chosen, constants=constants, shapes=shapes, session=session, progress=progress
    )
    if artifact.compilers:
        from tilewright.runtime.devices.external import register

        register(*session.loaded_plugins.compilers)
    return Model(artifact, chosen.threads, session.executor(artifact.target.kind))


def with_examples(model: Any, inputs: Any, kwargs: Mapping[str, Any] | None, dynamic_shapes: Any) -> Any:
    """The model, and the examples where any are given."""
    if inputs is None and kwargs is None:
        if dynamic_shapes is not None:
            raise OptionError("dynamic_shapes= was given without example_inputs=", hint="give examples of the inputs")
        return model
    if not isinstance(kwargs, Mapping | None) or not all(isinstance(name, str) for name in kwargs or ()):
        raise OptionError(f"example_kwargs={kwargs!r:.80} is not allowed: give a dict of names to examples")
    if isinstance(inputs, Mapping):
        inputs, kwargs = (), {**inputs, **(kwargs or {})}
    args = () if inputs is None else tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    return ModelWithExamples(model, args, dict(kwargs or {}), dynamic_shapes)


def compile_artifact(
    model: str | Path | bytes | Any,
    *,
    options: Options,
    constants: Mapping[str, Any] | str | Path | None = None,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    session: Session | None = None,
    progress: OnProgress | None = None,
) -> Artifact:
    """As `compile`, but only what a file holds: it may be for another machine than this one."""
    request = Request.of(model, constants, shapes)
    session = Session.of(session)
    is_recorded = isinstance(options.validate, str)  # other inputs may lie there the next time
    key = session.key(request, options) if options.cache and not is_recorded else None
    artifact = session.find(key) if key else None
    if artifact is not None and (needed := artifact.compilers):
        here = {(compiler.name, compiler.version) for compiler in session.loaded_plugins.compilers}
        artifact = artifact if needed <= here else None
    if artifact is not None:
        LOG.info("%s: found in the cache %s", _name(model), session.folder)
    else:
        start = time.perf_counter()
        artifact = _compiled(request, options, progress, session)
        LOG.info("%s: compiled in %.2f s", _name(model), time.perf_counter() - start)
        refusal = session.refusal() if options.cache else None
        if key and not refusal:
            session.keep(key, artifact)
        elif refusal:
            remark = Remark("cache", "the model", refusal)
            artifact = artifact.reporting(remarks=(*artifact.report.remarks, remark))
    tell_of_failures(artifact, options)
    return artifact


def _compiled(request: Request, options: Options, progress: OnProgress | None, session: Session) -> Artifact:
    """Without the cache; with what looks at each step where that is asked for."""
    if options.validate:
        from tilewright.validation.validate import compile_validated

        return compile_validated(request, options, progress, session)
    from tilewright.compiler import compile_request

    return compile_request(request, options, progress, session=session)


def tell_of_failures(artifact: Artifact, options: Options) -> None:
    """One PerformanceWarning with what failed when an artefact was made, and what else its users should know; with
    `options.strict` what failed is an InternalError."""
    remarks = artifact.kept_report.urgent
    failed = [r for r in remarks if r.kind == "failed"]
    if failed and options.strict:
        told = "; ".join(f"{r.stage}: {r.subject}: {r.message}" for r in failed[:MOST_TOLD])
        raise InternalError(f"strict=True: {told}", hint="compile without strict: the model is right, but slower")
    if remarks:
        lines = [f"{r.subject}: {r.message}" for r in remarks[:MOST_TOLD]]
        more = [f"and {len(remarks) - MOST_TOLD} more, which Model.report() lists"] if remarks[MOST_TOLD:] else []
        warnings.warn("\n".join([*lines, *more]), PerformanceWarning, stacklevel=4)


def _name(model: Any) -> str:
    return short_name(str(model), 1000) if isinstance(model, str | Path) else f"a model ({type(model).__name__})"


LOG = logging.getLogger("tilewright")
"""Tells what is compiled and what is found, at the level INFO."""

MOST_TOLD = 5
"""Failures that a warning lists: of one defect there may be many."""
