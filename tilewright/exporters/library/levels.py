"""A library with code for several levels of a CPU: which of them a process takes, as C."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

LACKS = """
/* What this CPU lacks of what the code of this level needs; null where it can run it. */
const char *model_lacks(void);
const char *model_lacks(void) {
#ifdef TW_CPU_FEATURES
  return missing_feature();
#else
  return NULL;
#endif
}
"""
"""Of a level, behind its own functions."""

_FUNCTION = re.compile(r"TW_PUBLIC (?P<kind>[^;(]*?\*?)model_(?P<name>\w+)\((?P<parameters>[^)]*)\);")
_HEADER = Path(__file__).parent / "runtime" / "model.h"

_CHOICE = """
static const level *chosen(void) {
  static _Atomic(const level *) known;
  const level *found = atomic_load_explicit(&known, memory_order_relaxed);
  if (found) return found;
  found = levels;
  while (found != levels + sizeof levels / sizeof *levels - 1 && found->lacks()) found++;
  atomic_store_explicit(&known, found, memory_order_relaxed);
  return found;
}
"""


def chooser_c(name: str, levels: Sequence[str], shown: str) -> str:
    """The C source of the public functions of a library, each of which calls that of a level: the last of `levels`
    (what their functions begin with) that the CPU can run. Where it can run none, it is the first one, which says so
    when a model is created. `shown` defines TW_PUBLIC."""
    functions = [
        (found["kind"], found["name"], " ".join(found["parameters"].split()))
        for found in _FUNCTION.finditer(_HEADER.read_text(encoding="utf-8"))
    ]
    declared, members, entries, calls = [], ["  const char *(*lacks)(void);"], [], []
    for kind, function, parameters in functions:
        own = parameters.replace("model_model", f"{name}_model")
        members.append(f"  {kind}(*{function})({own});")
        given = ", ".join(found.split()[-1].strip("*") for found in own.split(",") if own != "void")
        result = "" if kind.strip() == "void" else "return "
        calls.append(f"{kind}{name}_{function}({own}) {{ {result}chosen()->{function}({given}); }}")
        declared += [f"{kind}{level}_{function}({own});" for level in levels]
    declared += [f"const char *{level}_lacks(void);" for level in levels]
    for level in reversed(levels):
        names = ["lacks", *(function for _, function, _ in functions)]
        entries.append(f"  {{{', '.join(f'{level}_{function}' for function in names)}}},")
    return "\n".join([
        f'{shown}#include <stdatomic.h>\n#include <stddef.h>\n#include "{name}.h"\n',
        "#pragma GCC visibility push(hidden)",
        *declared,
        "#pragma GCC visibility pop\n",
        "typedef struct level {",
        *members,
        "} level;\n",
        "/* The one that asks most of the CPU first. */",
        "static const level levels[] = {",
        *entries,
        "};",
        _CHOICE,
        *calls,
        "",
    ])  # fmt: skip
