"""Which operators the kernels of plugins compute, and the code of these."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from tilewright.codegen.devices.program import DeviceKernel
from tilewright.codegen.program import KernelText
from tilewright.cost.typical import TypicalSizes
from tilewright.external.kernel import ExternalKernel, WholeOperator
from tilewright.ir.core import Func, Module, Op, insert_before
from tilewright.ir.diag import Remark, UnsupportedError, failure
from tilewright.ir.types import TensorType
from tilewright.loops.kernel_info import kernel_info, operands_of, results_of
from tilewright.ops.define import OPERATORS
from tilewright.ops.external import external_kernel, why_not_whole
from tilewright.passes import PassContext
from tilewright.plugins import Plugins
from tilewright.settings.works import seconds_on, sizes_of
from tilewright.target.machine import Machine

STAGE = "external-kernels"


@dataclass(frozen=True)
class ExternalKernels:
    """The pass that gives operators to kernels of plugins, each of which stands beside the name of its plugin, before
    all other passes: what these do is done around them. One that raises is not asked again."""

    name: ClassVar[str] = STAGE
    machine: Machine
    kernels: tuple[tuple[str, ExternalKernel], ...] = field(repr=False)
    refused: tuple[Remark, ...] = ()
    """What is told of kernels that are left out."""
    failed: set[str] = field(default_factory=set, repr=False)

    @classmethod
    def of(cls, machine: Machine, plugins: Plugins) -> ExternalKernels | None:
        """Those for a machine; None where plugins bring none."""
        found: list[tuple[str, ExternalKernel]] = []
        remarks: list[Remark] = []
        for candidate, plugin in plugins.used:
            strangers = [k.name for k in plugin.kernels if not isinstance(k, ExternalKernel)]
            if strangers:
                base = f"{ExternalKernel.__module__}.ExternalKernel"
                remarks.append(candidate.refusal(f"its kernel '{strangers[0]}' is no {base}"))
            found += [(plugin.name, k) for k in plugin.kernels if isinstance(k, ExternalKernel)]
        found = [(plugin, kernel) for plugin, kernel in found if kernel.kind == machine.kind]
        return cls(machine, tuple(found), tuple(remarks)) if found or remarks else None

    def run(self, module: Module, ctx: PassContext) -> None:
        sizes = sizes_of(module.main.args)
        for op in list(module.main.body.ops):
            if op.name in OPERATORS and not op.blocks:
                kernel = self._chosen(op, sizes, ctx.remarks)
                if kernel is not None:
                    _give(op, kernel)

    def _chosen(self, op: Op, sizes: TypicalSizes, remarks: list[Remark]) -> ExternalKernel | None:
        """The kernel that takes least time of those that have code for an op, where it is quicker than our own."""
        best: tuple[float, ExternalKernel, str] | None = None
        for plugin, kernel in self.kernels:
            if kernel.name in self.failed or op.name not in kernel.operators:
                continue
            who = f"kernel '{kernel.name}' of plugin '{plugin}'"
            try:
                seconds, why = self._asked(kernel, op, sizes)
            except UnsupportedError as error:
                seconds, why = None, error.what
            except MemoryError:
                raise
            except Exception as error:
                self.failed.add(kernel.name)
                remarks.append(failure("plugins", who, error, "the kernel is not asked any more"))
                continue
            if seconds is None:
                remarks.append(Remark(STAGE, str(op.loc), f"{who} is not used: {why}"))
            elif best is None or seconds < best[0]:
                best = seconds, kernel, f"{who}{f', version {kernel.version}' if kernel.version else ''}: {why}"
        if best is None:
            return None
        remarks.append(Remark(STAGE, str(op.loc), best[2], "applied"))
        return best[1]

    def _asked(self, kernel: ExternalKernel, op: Op, sizes: TypicalSizes) -> tuple[float | None, str]:
        """The seconds of a kernel for an op, and why it is taken; None, and why not."""
        application = WholeOperator.of(op)
        refusal: object = kernel.refuses(application)
        if not isinstance(refusal, str):
            raise TypeError(f"its 'refuses' gave a {type(refusal).__name__}, and no text")
        why = refusal or why_not_whole(op.name, application.operands, application.as_attributes)
        if why:
            return None, why
        seconds, own = kernel.seconds(application), seconds_on(op, self.machine, sizes)
        if seconds is not None and own is not None and own <= seconds:
            return None, f"{seconds * 1e6:.3g} us are more than the {own * 1e6:.3g} us that are expected of our own"
        _checked(kernel, kernel.code(application, "trial", self.machine), "trial")
        if seconds is None:
            return 0.0, "it accepts the operator"
        return seconds, f"{seconds * 1e6:.3g} us, and {'unknown' if own is None else f'{own * 1e6:.3g} us'} by our own"

    def text(self, func: Func) -> KernelText:
        """The code of a kernel that was given to a plugin's. UnsupportedError where that is not here."""
        name, of, attributes = kernel_info(func).external
        kernel = next((k for _, k in self.kernels if k.name == name), None)
        if kernel is None:
            raise no_kernel(name)
        operands, results = (
            tuple(TensorType(a.buffer.dtype, a.buffer.shape) for a in args)
            for args in (operands_of(func), results_of(func))
        )
        application = WholeOperator(of, operands, results, dict(attributes), func.dims)
        text = _checked(kernel, kernel.code(application, func.name, self.machine), func.name)
        return replace(text, dims=func.dims) if isinstance(text, DeviceKernel) else text


def no_kernel(name: str) -> UnsupportedError:
    """That nothing here has the kernel of a name."""
    return UnsupportedError(
        f"the program has a kernel '{name}', which no plugin here brings",
        hint="install the plugin, or give it to the session",
    )


def _checked(kernel: ExternalKernel, text: object, symbol: str) -> KernelText:
    if not isinstance(text, KernelText):
        raise TypeError(f"its 'code' gave a {type(text).__name__}, and no KernelText")
    if text.symbol != symbol:
        raise ValueError(f"its 'code' gave the kernel '{text.symbol}' in place of '{symbol}'")
    return text


def _give(op: Op, kernel: ExternalKernel) -> None:
    """Put an op of the kernel in the place of an op."""
    attrs = {"kernel": kernel.name, "of": op.name, "attributes": WholeOperator.of(op).as_attributes}
    new = Op(external_kernel.name, op.operands, [v.type for v in op.results], attrs, loc=op.loc)
    insert_before(op, [new])
    for old, fresh in zip(op.results, new.results, strict=True):
        old.replace_by(fresh)
    op.erase()
