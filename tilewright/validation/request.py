"""`compile(..., validate=True)`: a request that is compiled while each step of it is looked at."""

from __future__ import annotations

from tilewright.compiler import compile_request
from tilewright.options import OnProgress, Options, Request
from tilewright.runtime import Artifact
from tilewright.session import Session
from tilewright.validation.recorded import feeds_of
from tilewright.validation.validate import Validation

REPRODUCERS = "reproducers"
"""The folder in that of the session's cache where programs are kept that show a fault."""


def compile_validated(
    request: Request, options: Options, progress: OnProgress | None, session: Session
) -> Artifact:
    """The artefact of a request, without what changes its meaning. InputError for recorded inputs that cannot be
    read; else as `compile_request`, and InternalError where the meaning changes whatever is left out."""
    feeds = feeds_of(options.validate) if isinstance(options.validate, str) else ()
    validation = Validation(feeds, session.folder / REPRODUCERS)
    return compile_request(request, options, progress, session=session, checks=validation)
