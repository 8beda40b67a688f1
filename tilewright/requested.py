"""The graphs of a request: what the front end makes of a model, for all sizes, for frequent ones, and for dims that may
be 1. The stage "import"."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Self

from tilewright.frontends.built_in import FRONT_ENDS
from tilewright.frontends.inputs import keeping_states, shapes_with
from tilewright.ir.core import Module
from tilewright.ir.diag import InternalError, ModelError, TilewrightError, UnsupportedError, VerifyError
from tilewright.ir.verify import verify_func
from tilewright.ops.define.broadcasting import both_meanings
from tilewright.ops.define.operator import staying_whole
from tilewright.ops.define.spec import graph_spec
from tilewright.options import FrequentSizes, OnProgress, Progress, Request
from tilewright.runtime.artifact import sizes_text
from tilewright.session import Session


def import_request(request: Request, session: Session, progress: OnProgress | None = None) -> Module:
    """The graph as the model says it, with the values and shapes that the request gives."""
    if progress is not None:
        progress(Progress("import", 0, 1))
    front_end = session.front_end(request.model)
    try:
        with keeping_states(request.keeps_states):
            module = front_end.load(request.model, constants=request.constants, shapes=request.shapes)
        if front_end not in FRONT_ENDS:
            if not isinstance(module, Module):
                raise TypeError(f"its 'load' gave a {type(module).__name__}, and no Module")
            verify_func(module.main, graph_spec(module))
        return module
    except VerifyError as e:
        what = f"the front end '{front_end.name}' made an illegal program: {e.what}"
        raise VerifyError(what, where=e.where, hint="report it to the authors of the plugin") from e
    except TilewrightError:
        raise
    except NotImplementedError as e:
        if front_end in FRONT_ENDS:
            raise
        what = f"the front end '{front_end.name}' of a plugin does not support the model: {e or 'it does not say why'}"
        raise UnsupportedError(what, hint="ask the authors of the plugin for it") from e
    except Exception as e:
        if front_end not in FRONT_ENDS:  # no defect of ours
            what = f"the front end '{front_end.name}' of a plugin failed: {type(e).__name__}: {e}"
            raise ModelError(what, hint="report it to the authors of the plugin") from e
        what = f"the front end '{front_end.name}' failed: {type(e).__name__}: {e}"
        raise InternalError(what, hint="please report this with the model") from e


def import_graph(model: Any, session: Session | None = None, whole: Container[str] = ()) -> Module:
    """The graph of a model, for tools that change it: it means all that the model means. Composites named in `whole`
    stay whole where sizes can be followed through them. Raises as `import_request`."""
    return graph_of_request(Request.of(model, None, None), Session.of(session), whole)


def graph_of_request(request: Request, session: Session, whole: Container[str] = ()) -> Module:
    """As `import_graph`."""
    try:
        with staying_whole(whole):
            return _with_all_meanings(request, session)
    except UnsupportedError:
        if not whole:
            raise
        return _with_all_meanings(request, session)


def _with_all_meanings(request: Request, session: Session) -> Module:
    graphs = RequestedGraphs.of(import_request(request, session), request, (), session)
    if graphs.broadcasting is not None:
        with suppress(UnsupportedError):  # dims that must be equal are refused in other calls
            return graphs.broadcasting()
        del graphs.general.main.attrs["open_dims"]
    return graphs.general


@dataclass(frozen=True)
class RequestedGraphs:
    """The graphs of which an artefact has programs: the one for all sizes; for each of some frequent sizes what imports
    the graph with them; and, where dims are taken for equal of which one may be 1, what imports the graph with both
    meanings of these."""

    general: Module
    frequent: tuple[tuple[FrequentSizes, Callable[[], Module]], ...] = ()
    broadcasting: Callable[[], Module] | None = None

    @classmethod
    def of(
        cls,
        general: Module,
        request: Request,
        frequent: Iterable[FrequentSizes],
        session: Session,
        progress: OnProgress | None = None,
    ) -> Self:
        """Those of a request whose graph is imported. OptionError for sizes that calls cannot have."""

        def with_sizes(sizes: FrequentSizes) -> Callable[[], Module]:
            with at_sizes(sizes):
                shapes = {**request.shapes, **shapes_with(general, sizes)}
            return lambda: import_request(replace(request, shapes=shapes), session, progress)

        def with_both() -> Module:
            with both_meanings():
                return import_request(request, session, progress)

        loads = tuple((sizes, with_sizes(sizes)) for sizes in frequent)
        return cls(general, loads, with_both if general.main.attrs.get("open_dims") else None)

    def all(self) -> Iterator[tuple[str, Module]]:
        """Each, with what the names of its functions begin with."""
        yield "", self.general
        for sizes, load in self.frequent:
            with at_sizes(sizes):
                yield f"{sizes_text(sizes)}: ", load()
        if self.broadcasting is not None:
            yield "broadcasting: ", self.broadcasting()


@contextmanager
def at_sizes(sizes: FrequentSizes) -> Iterator[None]:
    """Errors name the sizes as their place."""
    try:
        yield
    except TilewrightError as e:
        e.where = f"{e.where + ', ' if e.where else ''}with the frequent sizes {sizes_text(sizes)}"
        raise
