"""What PyTorch keeps of a graph where it is told to keep Dynamo's work too (TORCH_CACHING_PRECOMPILE=1, and
`torch.compiler.save_cache_artifacts()` at the end): another process then traces nothing."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch._dynamo.config
from torch._dynamo.precompile_context import BackendCacheArtifact, PrecompileContext

from tilewright.torch.compiled import Compiled
from tilewright.torch.recalled import Recall, Recalled

Runner = Callable[..., Any]
Backend = Callable[..., Runner]


@dataclass(frozen=True, eq=False)
class GraphSource:
    """Where the code of a graph comes from: the cache, or a backend that compiles the graph."""

    recall: Recall
    graph: torch.fx.GraphModule
    backend: Backend

    def runner(self, known: Compiled) -> Recalled:
        """What runs the graph; `known` is the code for the parameters of the first call."""
        return Recalled(self.recall, partial(_compiled, self.graph, self.backend), known)

    def let_pytorch_keep_it(self) -> None:
        """Beside Dynamo's work, where PyTorch keeps that."""
        key = getattr(self.graph, "_backend_id", None)
        if torch._dynamo.config.caching_precompile and key is not None:
            bare = torch.fx.GraphModule(self.graph, self.graph.graph)  # Dynamo's notes on it cannot be pickled
            content = PickledSource(self.recall, pickle.dumps(bare), self.backend)
            PrecompileContext.record_artifact(CompiledGraph(key, content))


@dataclass(frozen=True, eq=False)
class PickledSource:
    """The same in a file. The graph is seldom needed, and takes longer to be read than all else."""

    recall: Recall
    graph: bytes
    backend: Backend

    def compiled(self) -> Runner:
        return _compiled(pickle.loads(self.graph), self.backend)


def _compiled(graph: torch.fx.GraphModule, backend: Backend) -> Runner:
    """The graph as a module of its own, which Dynamo traces again at the next call."""
    with torch._dynamo.config.patch(caching_precompile=False):  # it is no function of the user's
        return torch.compile(graph, backend=backend)


class CompiledGraph(BackendCacheArtifact[Runner]):
    """The code of one graph, as PyTorch keeps it."""

    def after_deserialization(self) -> Runner:
        content: PickledSource = self.content
        return Recalled(content.recall, content.compiled)
