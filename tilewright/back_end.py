"""Back ends: for each kind of machine the strategies of its kernels, its code, and what runs that code.

`compiler.py` asks the back end of the machine and knows no kind. The one for CPUs stands here, plugins bring others: an
object with these methods, and a `name` that is the kind of its machines (`Machine.kind`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from traceback import walk_tb
from typing import Any, Protocol, Self, cast

from tilewright.asm.floats import check_known, floating_point_instructions
from tilewright.codegen.c.emit import CProgram, program_c
from tilewright.codegen.c.functions import definitions
from tilewright.codegen.c.kernel import CKernel, kernel_c
from tilewright.codegen.cpu.assemble import Effort, ObjectFile, ObjectMaker, Unit
from tilewright.codegen.cpu.families import Families
from tilewright.codegen.cpu.kernel.emit import kernel_ir
from tilewright.codegen.cpu.linking.link import link
from tilewright.codegen.cpu.program.emit import program_ir
from tilewright.codegen.cpu.program.pool import pool_ir
from tilewright.codegen.cpu.program.pool_platform import check_platform
from tilewright.codegen.program import KernelText, Program, ProgramText
from tilewright.codegen.ptx.program import CudaCode
from tilewright.codegen.wgsl.program import GpuCode
from tilewright.cost.machine.ways import MatrixUnit
from tilewright.external.kernel import ExternalText
from tilewright.graph.pipeline import accelerator_passes, default_passes
from tilewright.graph.units.unit_padding import UnitGrain
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func, Module
from tilewright.ir.diag import InternalError, Remark, TilewrightError, UnsupportedError
from tilewright.ir.verify import Spec
from tilewright.loops.machine.check_facts import check_machine
from tilewright.loops.machine.rules import machine_spec
from tilewright.loops.spec import LOOPS_SPEC
from tilewright.options import Options
from tilewright.passes import Pass
from tilewright.plugins import Plugins
from tilewright.runtime.artifact import Artifact, TargetInfo
from tilewright.runtime.errors import OptionError, PluginError
from tilewright.runtime.executor import Executor
from tilewright.runtime.guarded import has_zones
from tilewright.runtime.storage.image import Image
from tilewright.runtime.storage.loader import NativeCode
from tilewright.schedule.cuda.attention import CudaAttention
from tilewright.schedule.cuda.strategies import STRATEGIES as CUDA_STRATEGIES
from tilewright.schedule.gpu.attention import GpuAttention
from tilewright.schedule.gpu.strategies import STRATEGIES as GPU_STRATEGIES
from tilewright.schedule.machine.facts import matrix_units
from tilewright.schedule.machine.strategies import strategies_for
from tilewright.schedule.sharing.concurrent_kernels import group_concurrent_kernels
from tilewright.schedule.strategies import STRATEGIES
from tilewright.schedule.strategy import Strategy
from tilewright.target.cores import check_core
from tilewright.target.gpu.cuda import Cuda
from tilewright.target.gpu.webgpu import Gpu
from tilewright.target.hardware import usable_cores
from tilewright.target.host import host_target
from tilewright.target.machine import Accelerator, Machine, TargetError
from tilewright.target.named import CTarget
from tilewright.target.target import Target

OnStep = Callable[[int, int], None]
OnObjects = Callable[[Sequence[ObjectFile]], None]


class Code(Protocol):
    """The code of one artefact while it is made: kernels, and programs that call them. A context manager."""

    def kernel(self, func: Func) -> KernelText:
        """The text of a scheduled kernel."""

    def program(self, program: Program) -> ProgramText:
        """The text of what a program does: its calls of kernels."""

    def begin(self, text: KernelText | ProgramText) -> None:
        """Begin to make code of a text."""

    @property
    def submitted(self) -> int:
        """How many objects there will be of what was submitted so far."""

    def objects(self, step: OnStep | None = None) -> Sequence[bytes]:
        """All code that was submitted, in this order, waiting for what is not ready. `step` is told how many of how
        many parts are."""

    def files(self, objects: Sequence[bytes]) -> Sequence[ObjectFile]:
        """What `objects` gave, with what each is."""

    def image(self, objects: Sequence[bytes]) -> Image | None:
        """What `objects` gave, linked; None where it runs as it is."""

    @property
    def failed(self) -> str:
        """The kernel of which `objects` could make none, after an error; "" where it is not known."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None: ...


class BackEnd(Protocol):
    """Code for one kind of machine."""

    @property
    def name(self) -> str:
        """The kind of machine, which artefacts record."""

    def check(self, machine: Any, options: Options) -> None:
        """Refuse by a TargetError or an OptionError, before any work, what cannot be done for a machine."""

    def passes(self, machine: Any, options: Options) -> list[Pass]:
        """The passes of the graph level before fusion."""

    def strategies(self, machine: Any) -> Sequence[Strategy]:
        """What makes kernels of regions, the preferred first."""

    def spec(self, machine: Any) -> Spec:
        """What its kernels must obey."""

    def arrange(self, module: Module, machine: Any, remarks: list[Remark]) -> None:
        """Change the calls of kernels when all are scheduled."""

    def code(self, machine: Any, options: Options) -> Code:
        """What makes the code of a model."""

    def target(self, machine: Any) -> TargetInfo:
        """What an artefact says of the machine that it needs."""

    def executor(self, artifact: Artifact) -> Executor:
        """What runs the code of an artefact of this kind, in this process."""


class CpuBackEnd:
    """The back end for CPUs: LLVM IR, one module for each kernel, the program and the thread pool."""

    name = Target.kind

    def check(self, machine: Target, options: Options) -> None:
        check_platform(machine.triple)
        if machine.name != "host":
            check_core(machine.name, machine.cpu, machine.triple)
        if options.profile and machine.arch != "x86_64":
            raise OptionError(
                f"profile=True is not possible for {machine.name} ({machine.arch}): programs may not read its cycle "
                "counter",
                hint="profile on an x86-64 machine",
            )

        if options.integer_only:
            check_known(machine)

    def passes(self, machine: Target, options: Options) -> list[Pass]:
        return default_passes(options)

    def strategies(self, machine: Target) -> Sequence[Strategy]:
        return STRATEGIES.ours

    def spec(self, machine: Target) -> Spec:
        return LOOPS_SPEC

    def arrange(self, module: Module, machine: Target, remarks: list[Remark]) -> None:
        group_concurrent_kernels(module, machine, remarks)

    def code(self, machine: Target, options: Options) -> Code:
        return CpuCode(machine, options)

    def target(self, machine: Target) -> TargetInfo:
        return TargetInfo(machine.triple, machine.cpu, machine.features)

    def executor(self, artifact: Artifact) -> Executor:
        return NativeCode(artifact)


class CpuCode(ObjectMaker):
    """Object files, made on threads as soon as their texts are there."""

    def __init__(self, machine: Target, options: Options) -> None:
        super().__init__(machine, options.compile_threads or usable_cores())
        self.has_pool = False
        self.machine = machine
        self.profile = options.profile
        self.is_strict = options.numerics == "strict"
        self.integer_only = options.integer_only
        self.families = Families()

    def kernel(self, func: Func) -> KernelText:
        return kernel_ir(
            func, self.machine, keeps_denormals=self.is_strict, has_floats=not self.integer_only,
            families=self.families,
        )  # fmt: skip

    def program(self, program: Program) -> ProgramText:
        return program_ir(program, self.machine, profile=self.profile)

    def begin(self, text: KernelText | ProgramText) -> None:
        if isinstance(text, KernelText):
            inspect = self._inspector(f"kernel '{text.symbol}'")
            self.start(Unit(text.text, self._effort(text), inspect, text.symbol))
            if isinstance(text, ExternalText):
                self.add(text.function, text.object)
        else:
            inspect = self._inspector("the program that calls the kernels")
            self.start(Unit(text.text, Effort.CALLS, inspect, kind="program"))
            if not self.has_pool:
                inspect = self._inspector("the thread pool")
                self.start(Unit(pool_ir(self.machine.triple), Effort.SUPPORT, inspect, kind="pool"))
                self.has_pool = True

    def image(self, objects: Sequence[bytes]) -> Image | None:
        if not self.machine.links_images:
            return None
        return link(objects, [f"the code of {file.kind} '{file.name}'" for file in self.files(objects)])

    def _effort(self, text: KernelText) -> Effort:
        """How hard LLVM should try. Where code is looked through, it is that of all passes, which are known to add no
        instructions of other kinds; on other machines than x86-64 another code generator makes what is not optimised,
        of which nothing here knows whether it is right."""
        has_all = self.integer_only or self.machine.arch != "x86_64"
        return Effort.LITTLE if text.little and not has_all else Effort.KERNEL

    def _inspector(self, what: str) -> Callable[[str], None] | None:
        """What looks for floating-point instructions, of which programs of integers have none."""
        return partial(check_no_floats, what, self.machine) if self.integer_only else None


def check_no_floats(what: str, machine: Target, text: str) -> None:
    """InternalError where an assembler text computes with floats."""
    found = dict.fromkeys(map(str, floating_point_instructions(text, machine)))
    if found:
        raise InternalError(
            f"integer_only=True: {what} has floating-point instructions: {'; '.join(list(found)[:5])}",
            hint="this is a defect; please report it with the model",
        )


class CBackEnd(CpuBackEnd):
    """The back end for C compilers, which make code of texts that `tilewright export` writes."""

    name = CTarget.kind

    def check(self, machine: Target, options: Options) -> None:
        if options.profile:
            raise OptionError("profile=True is not possible for C, which has no counter of cycles")

    def arrange(self, module: Module, machine: Target, remarks: list[Remark]) -> None:
        """One thread runs one kernel at a time."""

    def code(self, machine: Target, options: Options) -> Code:
        return CCode()

    def target(self, machine: Target) -> TargetInfo:
        return TargetInfo(machine.triple, machine.cpu, machine.features, self.name)

    def executor(self, artifact: Artifact) -> Executor:
        raise UnsupportedError(
            "the model was compiled to C, which does not run by itself",
            hint="write it with `tilewright export MODEL -o model.c`, or compile for another target",
        )


class CCode:
    """The texts of an artefact in C."""

    failed = ""

    def __init__(self) -> None:
        self._texts: list[CKernel | CProgram] = []

    def kernel(self, func: Func) -> KernelText:
        return kernel_c(func)

    def program(self, program: Program) -> ProgramText:
        return program_c(program)

    def begin(self, text: KernelText | ProgramText) -> None:
        assert isinstance(text, CKernel | CProgram)
        self._texts.append(text)

    @property
    def submitted(self) -> int:
        return len(self._texts)

    def objects(self, step: OnStep | None = None) -> Sequence[bytes]:
        return [text.text.encode() for text in self._texts]

    def files(self, objects: Sequence[bytes]) -> Sequence[ObjectFile]:
        """The texts, after the scalar functions that they need."""
        needed = definitions(name for text in self._texts for name in text.needs)
        first = ObjectFile("functions", "scalar functions", "\n\n".join([*needed, ""]).encode())
        found = [
            ObjectFile("kernel", text.symbol, data) if isinstance(text, CKernel) else ObjectFile("program", "", data)
            for text, data in zip(self._texts, objects, strict=True)
        ]
        return [first, *found]

    def image(self, objects: Sequence[bytes]) -> Image | None:
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        pass


def _grain(unit: MatrixUnit) -> UnitGrain:
    a, b, c = unit.dtypes
    return UnitGrain((a.name, b.name, c.name), *(unit.granule(role) for role in "mnk"))


class AcceleratorBackEnd:
    """The back end for accelerators. Without its marks a kernel computes the same, so that values come from this CPU's
    native code of it; how long it takes on the machine is told beside."""

    name = Accelerator.kind

    def check(self, machine: Accelerator, options: Options) -> None:
        if options.profile:
            raise OptionError(
                f"profile=True is not possible for {machine.name}, whose kernels are simulated",
                hint="report().simulated says how many cycles each kernel takes, and so does `tilewright profile`",
            )
        check_machine(machine)

    def passes(self, machine: Accelerator, options: Options) -> list[Pass]:
        return accelerator_passes(options, tuple(map(_grain, matrix_units(machine))))

    def strategies(self, machine: Accelerator) -> Sequence[Strategy]:
        return strategies_for(machine)

    def spec(self, machine: Accelerator) -> Spec:
        return machine_spec(machine)

    def arrange(self, module: Module, machine: Accelerator, remarks: list[Remark]) -> None:
        """Kernels run one after the other."""

    def code(self, machine: Accelerator, options: Options) -> Code:
        return CpuCode(host_target(), options)

    def target(self, machine: Accelerator) -> TargetInfo:
        host = host_target()
        return TargetInfo(host.triple, machine.name, host.features, self.name)

    def executor(self, artifact: Artifact) -> Executor:
        return NativeCode(artifact)


class GpuBackEnd:
    """The back end for GPUs: compute shaders, which the library `wgpu` runs. Those for other GPUs inherit from it."""

    name = Gpu.kind

    def check(self, machine: Gpu, options: Options) -> None:
        if options.profile:
            raise OptionError("profile=True is not possible for a GPU, whose kernels count no cycles")

    def passes(self, machine: Gpu, options: Options) -> list[Pass]:
        return default_passes(options, by_groups=True)

    def strategies(self, machine: Gpu) -> Sequence[Strategy]:
        return (GpuAttention(machine), *GPU_STRATEGIES)

    def spec(self, machine: Gpu) -> Spec:
        return machine_spec(machine)

    def arrange(self, module: Module, machine: Gpu, remarks: list[Remark]) -> None:
        """Kernels run one after the other."""

    def code(self, machine: Gpu, options: Options) -> Code:
        return GpuCode(machine)

    def target(self, machine: Gpu) -> TargetInfo:
        return TargetInfo("", machine.name, kind=self.name)

    def executor(self, artifact: Artifact) -> Executor:
        from tilewright.runtime.devices.webgpu import GpuExecutor

        return GpuExecutor(artifact)


class CudaBackEnd(GpuBackEnd):
    """The back end for NVIDIA's GPUs: PTX, which their driver compiles and runs."""

    name = Cuda.kind

    def passes(self, machine: Gpu, options: Options) -> list[Pass]:
        assert isinstance(machine, Cuda)
        units = frozenset(dt.BY_NAME[core.operands] for core in machine.tensor_cores)
        return default_passes(options, by_groups=True, units=units)

    def strategies(self, machine: Gpu) -> Sequence[Strategy]:
        return (CudaAttention(machine), *CUDA_STRATEGIES)

    def code(self, machine: Gpu, options: Options) -> Code:
        assert isinstance(machine, Cuda)
        return CudaCode(machine, options.compile_threads or usable_cores())

    def executor(self, artifact: Artifact) -> Executor:
        from tilewright.runtime.devices.cuda import CudaExecutor

        return CudaExecutor(artifact)


CPU = CpuBackEnd()
C = CBackEnd()
ACCELERATOR = AcceleratorBackEnd()
GPU = GpuBackEnd()
CUDA = CudaBackEnd()
_OURS = (CPU, C, ACCELERATOR, GPU, CUDA)


def keeps_states(machine: Machine) -> bool:
    """Whether a machine that is no CPU keeps states from call to call."""
    return isinstance(machine, Gpu)


def back_end_for(machine: Machine, plugins: Plugins, options: Options) -> BackEnd:
    """The back end for a machine's kind, which can compile for it with these options: OptionError, TargetError;
    TargetError where nobody brings one, or where facts of the machine contradict each other."""
    back_end = _brought(machine, plugins)
    back_end.check(machine, options)
    if options.guarded and (isinstance(machine, CTarget | Gpu) or not has_zones(getattr(machine, "triple", ""))):
        raise OptionError(
            f"guarded=True is not possible for {machine.name}: guard zones are pages of Linux on x86-64",
            hint="compile without it; validate=True compares what kernels compute on any CPU",
        )
    return back_end


def _brought(machine: Machine, plugins: Plugins) -> BackEnd:
    for back_end in (*_OURS, *plugins.back_ends):
        if back_end.name == machine.kind:
            if back_end in _OURS:
                return back_end
            check_machine(machine)
            return _OfPlugin(back_end)
    raise TargetError(
        f"there is no back end for machine '{machine.name}', which is of the kind '{machine.kind}'",
        hint="install the plugin that brings it",
    )


class _OfPlugin:
    """A back end of a plugin, of which each answer has the type that `BackEnd` promises; PluginError for others, which
    would fail in the midst of our stages."""

    def __init__(self, inner: BackEnd) -> None:
        self.inner = inner
        self.name = inner.name

    def check(self, machine: Any, options: Options) -> None:
        self.inner.check(machine, options)

    def passes(self, machine: Any, options: Options) -> list[Pass]:
        return list(self._all("passes", self.inner.passes(machine, options), Pass))

    def strategies(self, machine: Any) -> Sequence[Strategy]:
        return self._all("strategies", self.inner.strategies(machine), Strategy)

    def spec(self, machine: Any) -> Spec:
        return cast(Spec, self._one("spec", self.inner.spec(machine), Spec))

    def arrange(self, module: Module, machine: Any, remarks: list[Remark]) -> None:
        self.inner.arrange(module, machine, remarks)

    def code(self, machine: Any, options: Options) -> Code:
        code = self.inner.code(machine, options)
        if missing := [name for name in _OF_CODE if not hasattr(code, name)]:
            raise self._wrong("code", f"{type(code).__name__} without {missing[0]}", Code)
        return code if isinstance(code, CpuCode) else _CodeOfPlugin(code, self._one)

    def target(self, machine: Any) -> TargetInfo:
        return cast(TargetInfo, self._one("target", self.inner.target(machine), TargetInfo))

    def executor(self, artifact: Artifact) -> Executor:
        return self.inner.executor(artifact)

    def _one(self, method: str, found: Any, wanted: type[Any]) -> Any:
        if not isinstance(found, wanted):
            raise self._wrong(method, type(found).__name__, wanted)
        return found

    def _all(self, method: str, found: Any, wanted: type[Any]) -> Sequence[Any]:
        return [self._one(method, each, wanted) for each in self._one(method, found, Sequence)]

    def _wrong(self, method: str, found: str, wanted: type[Any]) -> PluginError:
        what = f"the back end '{self.name}' of a plugin failed: its '{method}' gave a {found}, and no {wanted.__name__}"
        return PluginError(what, hint="report it to the authors of the plugin")


_OF_CODE = ("kernel", "program", "begin", "submitted", "objects", "__enter__", "__exit__")
"""What `Code` needs to have; what has no `failed` does not say what failed."""


class _CodeOfPlugin:
    """What such a back end makes code with; `_one` checks the types of its answers."""

    def __init__(self, inner: Any, check: Callable[[str, Any, type[Any]], Any]) -> None:
        self._inner = inner
        self._one = check

    def kernel(self, func: Func) -> KernelText:
        return cast(KernelText, self._one("kernel", self._inner.kernel(func), KernelText))

    def program(self, program: Program) -> ProgramText:
        return cast(ProgramText, self._one("program", self._inner.program(program), ProgramText))

    def begin(self, text: KernelText | ProgramText) -> None:
        self._inner.begin(text)

    @property
    def submitted(self) -> int:
        return cast(int, self._one("submitted", self._inner.submitted, int))

    def objects(self, step: OnStep | None = None) -> Sequence[bytes]:
        found = self._one("objects", self._inner.objects(step), Sequence)
        return [self._one("objects", each, bytes) for each in found]

    def files(self, objects: Sequence[bytes]) -> Sequence[ObjectFile]:
        return [ObjectFile("program", f"object {k}", data) for k, data in enumerate(objects)]

    def image(self, objects: Sequence[bytes]) -> Image | None:
        made = self._inner.image(objects) if hasattr(self._inner, "image") else None
        return None if made is None else cast(Image, self._one("image", made, Image))

    @property
    def failed(self) -> str:
        return cast(str, self._one("failed", getattr(self._inner, "failed", ""), str))

    def __enter__(self) -> Self:
        self._inner = self._inner.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: Any) -> None:
        self._inner.__exit__(kind, *exc)


@contextmanager
def faults_of_plugins(
    back_ends: Sequence[BackEnd], may_be_theirs: Callable[[Exception], bool] = lambda _: True
) -> Iterator[None]:
    """What the code of these back ends raises becomes an error that names the back end: an UnsupportedError for a
    NotImplementedError, a PluginError for all else but errors of ours, and those that cannot be theirs.

    Their passes, strategies and texts of kernels run in the midst of our stages: whose fault it is says the way that
    the exception took.
    """
    try:
        yield
    except (TilewrightError, MemoryError):
        raise
    except Exception as error:
        culprit = next((b for b in back_ends if may_be_theirs(error) and _came_from(b, error)), None)
        if culprit is None:
            raise
        who = f"the back end '{culprit.name}' of a plugin"
        if isinstance(error, NotImplementedError):
            what = f"{who} does not support the model: {error or 'it does not say why'}"
            raise UnsupportedError(what, hint="ask the authors of the plugin for it") from error
        what = f"{who} failed: {type(error).__name__}: {error}"
        raise PluginError(what, hint="report it to the authors of the plugin") from error


def _came_from(back_end: BackEnd, error: Exception) -> bool:
    """Whether an exception passed through code of the back end's package, or missed a method that it lacks."""
    if isinstance(error, AttributeError) and error.obj is back_end:
        return True
    own = _package(type(back_end).__module__)
    names = (frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__))
    return own != _package(__name__) and any(_package(name) == own for name in names)


def _package(module: str) -> str:
    return module.partition(".")[0]
