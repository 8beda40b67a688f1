"""Architectures of timm and transformers at random sizes, with random weights, as PyTorch exports them.

Where these packages (the extras of nobody: install them beside) are missing, networks are drawn in their place.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from bench.cliffs.sizes import between

MOST_PARAMETERS = 40e6
TEXTS = (
    "albert", "bert", "bloom", "camembert", "codegen", "deberta-v2", "distilbert", "electra", "ernie", "falcon",
    "gemma", "gpt2", "gpt_neo", "gpt_neox", "gptj", "llama", "megatron-bert", "mistral", "modernbert", "mpnet",
    "mpt", "nezha", "olmo", "opt", "phi", "qwen2", "rembert", "roberta", "roformer", "squeezebert", "stablelm",
    "xlm-roberta",
)  # fmt: skip
"""Types of configurations of which `AutoModel` makes a model that takes token ids."""


def installed() -> tuple[str, ...]:
    """Those of the two packages that can be exported here."""
    if not all(map(importlib.util.find_spec, ("torch", "onnxscript"))):
        return ()
    return tuple(name for name in ("timm", "transformers") if importlib.util.find_spec(name))


def export(package: str, rng: random.Random, path: Path) -> tuple[str, dict[str, np.ndarray]]:
    """Write an architecture to a file: its name, and inputs. ValueError says why one cannot be made or exported."""
    torch = importlib.import_module("torch")
    torch.manual_seed(rng.getrandbits(32))
    make = _of_timm if package == "timm" else _of_transformers
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
            warnings.simplefilter("ignore")
            name, model, inputs = make(rng, torch)
            if sum(p.numel() for p in model.parameters()) > MOST_PARAMETERS:
                raise ValueError(f"{name} is too large")
            torch.onnx.export(
                model.eval(), tuple(inputs.values()), str(path), input_names=list(inputs), dynamo=True, verbose=False,
                external_data=False,
            )  # fmt: skip
    except ValueError:
        raise
    except Exception as error:  # whatever an architecture or the exporter raises
        raise ValueError(f"{package}: {type(error).__name__}: {str(error)[:200]}") from error
    return name, {key: value.numpy() for key, value in inputs.items()}


def _of_timm(rng: random.Random, torch: Any) -> tuple[str, Any, dict[str, Any]]:
    timm = importlib.import_module("timm")
    name = rng.choice(timm.list_models())
    size = 32 * rng.randint(2, 8)
    try:
        model = timm.create_model(name, img_size=size)
    except TypeError:  # of no fixed size
        model = timm.create_model(name)
    batch = rng.choice((1, 1, 1, 8))
    return name, model, {"x": torch.randn(batch, 3, size, size)}


def _of_transformers(rng: random.Random, torch: Any) -> tuple[str, Any, dict[str, Any]]:
    transformers = importlib.import_module("transformers")
    kind, heads = rng.choice(TEXTS), rng.choice((2, 4, 6, 8))
    features = heads * rng.choice((16, 32, 64))
    config = transformers.AutoConfig.for_model(kind)
    wanted = {
        "hidden_size": features, "num_attention_heads": heads, "num_key_value_heads": heads, "num_hidden_layers": 2,
        "embedding_size": features, "intermediate_size": 4 * features, "vocab_size": 1000, "use_cache": False,
    }  # fmt: skip
    for field, value in wanted.items():
        if hasattr(config, field):
            setattr(config, field, value)
    model = transformers.AutoModel.from_config(config)
    ids = torch.randint(3, 999, (rng.choice((1, 1, 4)), between(rng, 8, 300)))
    return kind, _first_result(torch, model), {"ids": ids}


def _first_result(torch: Any, model: Any) -> Any:
    """The model with its first result alone: exporters do not take the classes of results."""

    class First(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Any) -> Any:
            return self.model(input_ids=ids)[0]

    return First()
