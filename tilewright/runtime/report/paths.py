"""The modules of a model, as the names of its nodes have them."""

from __future__ import annotations


def module_path(node: str) -> str:
    """The module that a node is in: all of its name but the last part, "" for names without parts. Exporters write the
    children of a list beside its name ("layer1/layer1.0"): these are one part."""
    found: list[str] = []
    for part in [part for part in node.split("/") if part][:-1]:
        if found and part.startswith(f"{found[-1]}."):
            found[-1] = part
        else:
            found.append(part)
    return "/".join(found)
