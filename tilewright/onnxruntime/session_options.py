"""Options of sessions and of runs: those that mean something here take effect, all others are kept."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, ClassVar

from tilewright.onnxruntime.errors import NotImplemented
from tilewright.onnxruntime.suggesting import Suggesting, nearest


class GraphOptimizationLevel(enum.IntEnum):
    """ORT_DISABLE_ALL compiles with `numerics="strict"`; all others are the same here."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(enum.IntEnum):
    """Without a meaning here."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(enum.IntEnum):
    """Without a meaning here."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class _Fields(Suggesting):
    """An object with the attributes of a table and no others, each of the type of its default."""

    _DEFAULTS: ClassVar[Mapping[str, Any]]

    def __init__(self) -> None:
        for name, value in self._DEFAULTS.items():
            object.__setattr__(self, name, value)
        self._entries: dict[str, str]
        object.__setattr__(self, "_entries", {})

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._DEFAULTS:
            known = ", ".join(sorted(self._DEFAULTS))
            said = nearest(name, self._DEFAULTS)
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r:.80}{said}; it has: {known}")
        wanted = type(self._DEFAULTS[name])
        given = wanted if wanted in (int, bool) and isinstance(value, int | float) else type(value)
        if given is not wanted or (wanted is int and value != int(value)):
            raise TypeError(f"{type(self).__name__}.{name} must be of type {wanted.__name__}, not {value!r:.80}")
        if name == "log_severity_level":
            check_severity(value, -1)
        object.__setattr__(self, name, wanted(value))

    def _entry(self, key: str, what: str) -> str:
        if key not in self._entries:
            raise RuntimeError(f"{type(self).__name__} does not have {what} with key: {key}")
        return self._entries[key]

    def _add_entry(self, key: str, value: str) -> None:
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"key and value of an entry must be of type str, not {key!r:.80} and {value!r:.80}")
        self._entries[key] = value


class SessionOptions(_Fields):
    """See docs/onnxruntime.md for which of them mean something here."""

    enable_cpu_mem_arena: bool
    enable_mem_pattern: bool
    enable_mem_reuse: bool
    enable_profiling: bool
    execution_mode: ExecutionMode
    execution_order: ExecutionOrder
    graph_optimization_level: GraphOptimizationLevel
    inter_op_num_threads: int
    intra_op_num_threads: int
    log_severity_level: int
    log_verbosity_level: int
    logid: str
    optimized_model_filepath: str
    profile_file_prefix: str
    use_deterministic_compute: bool
    use_per_session_threads: bool

    _DEFAULTS = {  # noqa: RUF012  (the base class declares it)
        "enable_cpu_mem_arena": True,
        "enable_mem_pattern": True,
        "enable_mem_reuse": True,
        "enable_profiling": False,
        "execution_mode": ExecutionMode.ORT_SEQUENTIAL,
        "execution_order": ExecutionOrder.DEFAULT,
        "graph_optimization_level": GraphOptimizationLevel.ORT_ENABLE_ALL,
        "inter_op_num_threads": 0,
        "intra_op_num_threads": 0,
        "log_severity_level": -1,
        "log_verbosity_level": 0,
        "logid": "",
        "optimized_model_filepath": "",
        "profile_file_prefix": "onnxruntime_profile_",
        "use_deterministic_compute": False,
        "use_per_session_threads": True,
    }

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "_sizes", ({}, {}))

    @property
    def free_dimension_overrides(self) -> tuple[dict[str, int], dict[str, int]]:
        """Sizes by the names of dims, and by their denotations."""
        sizes: tuple[dict[str, int], dict[str, int]] = self.__dict__["_sizes"]
        return sizes

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Fix the dims of inputs that have this name."""
        self.free_dimension_overrides[0][name] = int(size)

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        """Fix the dims of inputs that have this denotation."""
        self.free_dimension_overrides[1][denotation] = int(size)

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Kept, and without a meaning here."""
        self._add_entry(key, value)

    def get_session_config_entry(self, key: str) -> str:
        """RuntimeError for one that was not added."""
        return self._entry(key, "configuration")

    def add_provider(self, name: str, options: Mapping[str, str]) -> None:
        """Without a meaning here: models run on the CPU."""

    def has_providers(self) -> bool:
        return False

    def register_custom_ops_library(self, path: str) -> None:
        """NotImplemented: such a library is made for ONNX Runtime."""
        raise NotImplemented.of(
            f"a library of operators for ONNX Runtime cannot be used here: {path}\n"
            "  hint: operators are added in Python, see CONTRIBUTING.md"
        )

    def add_initializer(self, name: str, value: Any) -> None:
        """NotImplemented: weights come from the file."""
        raise NotImplemented.of(f"the weights of a model come from its file, also that of '{name}'")

    def add_external_initializers(self, names: Any, values: Any) -> None:
        """NotImplemented, as `add_initializer`."""
        raise NotImplemented.of(f"the weights of a model come from its file, also those of {names!r:.80}")


class RunOptions(_Fields):
    """Options of a run, of which `terminate` means something here."""

    log_severity_level: int
    log_verbosity_level: int
    logid: str
    only_execute_path_to_fetches: bool
    terminate: bool

    _DEFAULTS = {  # noqa: RUF012
        "log_severity_level": -1,
        "log_verbosity_level": 0,
        "logid": "",
        "only_execute_path_to_fetches": False,
        "terminate": False,
    }

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Kept, and without a meaning here."""
        self._add_entry(key, value)

    def get_run_config_entry(self, key: str) -> str:
        """RuntimeError for one that was not added."""
        return self._entry(key, "configuration")


def check_severity(level: int, least: int = 0) -> None:
    """RuntimeError for what is no level of ONNX Runtime's logger; -1 stands for its default."""
    if not least <= level <= 4:
        raise RuntimeError(f"Invalid logging severity {level}. 0:Verbose, 1:Info, 2:Warning, 3:Error, 4:Fatal")
