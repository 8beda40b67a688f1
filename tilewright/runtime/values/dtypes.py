"""Dtypes by their names, also those that NumPy itself does not have."""

from __future__ import annotations

import importlib
from functools import lru_cache

import numpy as np

from tilewright.runtime.errors import ArtifactError


def is_integer(dtype: np.dtype) -> bool:
    """Whether elements are integers, also those of less than 8 bits."""
    return dtype.kind in "iu" or dtype.name in ("int2", "uint2", "int4", "uint4")


@lru_cache(maxsize=64)  # asked for in every call, and NumPy takes microseconds to name a dtype
def numpy_dtype(name: str) -> np.dtype:
    """The dtype of a name that NumPy or ml_dtypes knows, or of "string"; ArtifactError otherwise."""
    if name == "string":
        return np.dtype(object)
    for known in (lambda: name, lambda: getattr(importlib.import_module("ml_dtypes"), name)):
        try:
            found = np.dtype(known())
        except (ImportError, AttributeError, TypeError, ValueError, SyntaxError):
            continue
        if found.name == name:  # others are texts for records and byte orders, and classes that are no dtypes
            return found
    raise ArtifactError(
        f"the model uses the dtype {name:.40}, which NumPy does not have",
        hint="install the package ml_dtypes in its newest version",
    )
