"""tilewright compiles trained models to native code and runs them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tilewright.api import compile as compile
    from tilewright.checks.model import check as check
    from tilewright.checks.result import ModelCheck as ModelCheck
    from tilewright.comparison.diff import diff as diff
    from tilewright.comparison.errors import Difference as Difference
    from tilewright.comparison.errors import LayerDifference as LayerDifference
    from tilewright.exporters.convert import convert as convert
    from tilewright.exporters.library.export import export as export
    from tilewright.fleet.build import FleetResult as FleetResult
    from tilewright.fleet.build import compile_fleet as compile_fleet
    from tilewright.frontends.decoders.source import DecoderSource as DecoderSource
    from tilewright.ir.diag import InternalError as InternalError
    from tilewright.ir.diag import ModelError as ModelError
    from tilewright.ir.diag import ScheduleError as ScheduleError
    from tilewright.ir.diag import TypeRuleError as TypeRuleError
    from tilewright.ir.diag import UnsupportedError as UnsupportedError
    from tilewright.options import Options as Options
    from tilewright.options import Progress as Progress
    from tilewright.profiling.records import ModelProfile as ModelProfile
    from tilewright.profiling.run import profile as profile
    from tilewright.quantization.certificate import Certificate as Certificate
    from tilewright.quantization.quantize import quantize as quantize
    from tilewright.quantization.result import BudgetError as BudgetError
    from tilewright.quantization.result import Quantized as Quantized
    from tilewright.quantization.verify import verify as verify
    from tilewright.runtime import Fleet as Fleet
    from tilewright.runtime import Model as Model
    from tilewright.runtime import TensorInfo as TensorInfo
    from tilewright.runtime import load as load
    from tilewright.runtime import load_fleet as load_fleet
    from tilewright.runtime import sign as sign
    from tilewright.runtime.errors import ArtifactError as ArtifactError
    from tilewright.runtime.errors import BeyondBufferError as BeyondBufferError
    from tilewright.runtime.errors import CancelledError as CancelledError
    from tilewright.runtime.errors import DeviceError as DeviceError
    from tilewright.runtime.errors import ExecutionError as ExecutionError
    from tilewright.runtime.errors import InputError as InputError
    from tilewright.runtime.errors import NoMemoryError as NoMemoryError
    from tilewright.runtime.errors import OptionError as OptionError
    from tilewright.runtime.errors import PerformanceWarning as PerformanceWarning
    from tilewright.runtime.errors import PluginError as PluginError
    from tilewright.runtime.errors import TilewrightError as TilewrightError
    from tilewright.runtime.errors import TilewrightWarning as TilewrightWarning
    from tilewright.runtime.profile import KernelTime as KernelTime
    from tilewright.runtime.report.shown import Report as Report
    from tilewright.runtime.sizes_seen import SizesSeen as SizesSeen
    from tilewright.runtime.tensors import TensorModel as TensorModel
    from tilewright.runtime.values.node_arg import NodeArg as NodeArg
    from tilewright.session import Session as Session
    from tilewright.target.machine import TargetError as TargetError
    from tilewright.viewer.write import write_report as write_report

_HOMES = {
    "ArtifactError": "tilewright.runtime.errors",
    "BeyondBufferError": "tilewright.runtime.errors",
    "BudgetError": "tilewright.quantization.result",
    "CancelledError": "tilewright.runtime.errors",
    "Certificate": "tilewright.quantization.certificate",
    "DeviceError": "tilewright.runtime.errors",
    "Difference": "tilewright.comparison.errors",
    "ExecutionError": "tilewright.runtime.errors",
    "Fleet": "tilewright.runtime",
    "FleetResult": "tilewright.fleet.build",
    "InputError": "tilewright.runtime.errors",
    "InternalError": "tilewright.ir.diag",
    "KernelTime": "tilewright.runtime.profile",
    "LayerDifference": "tilewright.comparison.errors",
    "DecoderSource": "tilewright.frontends.decoders.source",
    "Model": "tilewright.runtime",
    "ModelCheck": "tilewright.checks.result",
    "ModelError": "tilewright.ir.diag",
    "ModelProfile": "tilewright.profiling.records",
    "NoMemoryError": "tilewright.runtime.errors",
    "NodeArg": "tilewright.runtime.values.node_arg",
    "OptionError": "tilewright.runtime.errors",
    "Options": "tilewright.options",
    "PerformanceWarning": "tilewright.runtime.errors",
    "PluginError": "tilewright.runtime.errors",
    "Progress": "tilewright.options",
    "Quantized": "tilewright.quantization.result",
    "Report": "tilewright.runtime.report.shown",
    "ScheduleError": "tilewright.ir.diag",
    "Session": "tilewright.session",
    "SizesSeen": "tilewright.runtime.sizes_seen",
    "TargetError": "tilewright.target.machine",
    "TensorInfo": "tilewright.runtime",
    "TensorModel": "tilewright.runtime.tensors",
    "TilewrightError": "tilewright.runtime.errors",
    "TilewrightWarning": "tilewright.runtime.errors",
    "TypeRuleError": "tilewright.ir.diag",
    "UnsupportedError": "tilewright.ir.diag",
    "check": "tilewright.checks.model",
    "compile": "tilewright.api",
    "compile_fleet": "tilewright.fleet.build",
    "convert": "tilewright.exporters.convert",
    "diff": "tilewright.comparison.diff",
    "export": "tilewright.exporters.library.export",
    "load": "tilewright.runtime",
    "load_fleet": "tilewright.runtime",
    "profile": "tilewright.profiling.run",
    "quantize": "tilewright.quantization.quantize",
    "sign": "tilewright.runtime",
    "verify": "tilewright.quantization.verify",
    "write_report": "tilewright.viewer.write",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import tilewright` stays quick."""
    from importlib import import_module

    if name in ("torch", "llm"):  # rooms that import packages which only their users have
        return import_module(f"tilewright.{name}")
    home = _HOMES.get(name)
    if home is None:
        from difflib import get_close_matches

        close = [] if name.startswith("_") else get_close_matches(name, _HOMES, 1)  # tools ask for many such names
        said = f"; did you mean '{close[0]}'?" if close else ""
        raise AttributeError(f"module 'tilewright' has no attribute '{name}'{said}", name=name)
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, also those that were not used yet."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
