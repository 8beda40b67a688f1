"""torch.compile with its default backend, weights frozen into the program."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.peers import Peer, openmp_variables, torch

PEER = Peer("torch.compile", "torch", torch.PACKAGES, openmp_variables)


class Adapter(torch.Adapter):
    def __init__(self, cache: Path) -> None:
        # read when the compiler is imported, which is later
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache / "inductor")

    def prepare(self, module: Any) -> Callable[..., Any]:
        import torch
        import torch._inductor.config

        torch._inductor.config.freezing = True
        compiled: Callable[..., Any] = torch.compile(module, dynamic=False)
        return compiled
