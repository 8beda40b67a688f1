"""Greedy texts of language models beside their weights in float64, and llama.cpp's.

    python -m bench.agreement MODEL.gguf [...] [--threads 1,2] [--tokens 64] [--prompts 20] [--plain] [--peer]

Each engine continues the same prompts by its most likely tokens. A text is that of float64 if at each of its places the
stored weights, decoded and computed in float64 behind the text's own tokens, expect the token that is there: then both
have taken the same way from the prompt on. Printed are the texts that are equal, how many tokens the others have before
the first that is another one, the share of all places that agree, the least margin of logits in float64 at a place that
differs, and whether texts are the same with each number of threads. `--peer` needs llama_cpp (see `bench.decoders`).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.decoders import Engine, LlamaCpp, Tilewright
from tilewright.llm.prompts import tokens_of
from tilewright.llm.texts.promised import reference_of
from tilewright.llm.vocabulary import Vocabulary, read_vocabulary

PROMPTS = (
    "What is the capital of France?", "Write a short poem about the sea.", "Explain how a bicycle stays upright.",
    "List three fruits that are yellow.", "Who wrote the play Hamlet?", "What is 17 plus 25?",
    "Translate 'good morning' into Spanish.", "Write a Python function that reverses a string.",
    "Why is the sky blue?", "Give me a recipe for pancakes.", "What is the largest planet of the solar system?",
    "Tell me a story about a dragon who was afraid of fire.", "How many days does a leap year have?",
    "Describe the water cycle in two sentences.", "What is the opposite of 'generous'?",
    "Name the four seasons in order.", "How do I say thank you in Japanese?", "What does a compiler do?",
    "Suggest a name for a small grey cat.", "What happened in the year 1969?",
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """A token of a text: whether float64 takes it too, and by how much its most likely one is ahead of it."""

    same: bool
    margin: float


def prompts_of(words: Vocabulary, count: int, plain: bool) -> list[list[int]]:
    """Tokens of prompts: messages of a chat where the model has a template."""
    template = None if plain else words.template
    asked = [text if template is None else [{"role": "user", "content": text}] for text in PROMPTS[:count]]
    return [tokens_of(one, words.tokenizer, template, {}) for one in asked]


def continued(engine: Engine, prompt: Sequence[int], count: int, size: int) -> list[int]:
    """The most likely tokens behind a prompt, one behind the other."""
    engine.reset()
    logits, found = engine.feed(np.array(prompt, np.int32)), []
    for _ in range(count):
        found.append(int(logits[:size].argmax()))
        logits = engine.feed(np.array(found[-1:], np.int32))
    return found


def places(
    reference: Callable[[np.ndarray], np.ndarray], prompt: Sequence[int], text: Sequence[int], size: int
) -> list[Place]:
    """Those of a text, by the logits of the reference behind its own tokens."""
    logits = reference(np.array([*prompt, *text[:-1]]))[len(prompt) - 1 :, :size]
    rows = zip(logits, text, strict=True)
    return [Place(int(row.argmax()) == token, float(row.max() - row[token])) for row, token in rows]


def told(found: Sequence[Sequence[Place]]) -> str:
    """A line about the texts of an engine."""
    before = [next((k for k, place in enumerate(text) if not place.same), None) for text in found]
    others = [k for k in before if k is not None]
    all_places = [place for text in found for place in text]
    differing = [place.margin for place in all_places if not place.same]
    parts = [
        f"{before.count(None):3} of {len(found)} texts",
        f"{100 * sum(place.same for place in all_places) / len(all_places):7.2f} % of places",
    ]
    if others:
        margins = f"{min(differing):.2g} to {max(differing):.2g}"
        parts.append(f"others first differ after {np.median(others):.0f} tokens, margins {margins}")
    return ", ".join(parts)


def main() -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="python -m bench.agreement", description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--threads", type=lambda text: [int(n) for n in text.split(",")], default=[1, 2])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompts", type=int, default=len(PROMPTS))
    parser.add_argument("--tokenizer", type=Path, help="where the vocabulary is, if a model has none")
    parser.add_argument("--plain", action="store_true", help="prompts are texts, without the chat template")
    parser.add_argument("--peer", action="store_true", help="beside llama.cpp")
    wanted = parser.parse_args()
    for path in wanted.models:
        words = read_vocabulary(wanted.tokenizer or path)
        prompts, size = prompts_of(words, wanted.prompts, wanted.plain), words.tokenizer.size
        reference = reference_of(path, max(map(len, prompts)) + wanted.tokens)
        texts: dict[str, list[list[int]]] = {}
        for threads in wanted.threads:
            for name, make in (("tilewright", Tilewright), ("llama.cpp", LlamaCpp))[: 1 + wanted.peer]:
                engine: Engine = make(path, threads)
                texts[f"{name}, {threads} threads"] = [continued(engine, p, wanted.tokens, size) for p in prompts]
        print(path.name)
        seen: dict[tuple[int, ...], list[Place]] = {}
        for name, found in texts.items():
            for prompt, text in zip(prompts, found, strict=True):
                if (key := (*prompt, *text)) not in seen:
                    seen[key] = places(reference, prompt, text, size)
            print(f"  {name:24} {told([seen[*p, *t] for p, t in zip(prompts, found, strict=True)])}")
        for name in ("tilewright", "llama.cpp")[: 1 + wanted.peer]:
            own = [found for key, found in texts.items() if key.startswith(name)]
            same = "the same" if all(found == own[0] for found in own) else "different"
            print(f"  {name:24} {same} texts with {' and '.join(map(str, wanted.threads))} threads", flush=True)


if __name__ == "__main__":
    main()
