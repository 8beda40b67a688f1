"""What all programs of one compilation share: options, machine, back end, and the output that they go to."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Self

from tilewright import link
from tilewright.back_end import BackEnd, Code, OnObjects, back_end_for
from tilewright.codegen.program import KernelText
from tilewright.graph.fusion.strategy import Strategies
from tilewright.interventions import Dump, KernelOverrides
from tilewright.ir.core import Func, Module
from tilewright.ir.diag import Remark
from tilewright.ir.notes import ProgramWatch
from tilewright.ir.optional_steps import CHECKED, OptionalSteps
from tilewright.loops.kernel_info import kernel_info
from tilewright.options import OnProgress, Options, Progress
from tilewright.passes import Pass, PassContext
from tilewright.plugins import NO_PLUGINS, Plugins
from tilewright.program.split import ON_CPU
from tilewright.schedule.edited import EditedSchedules
from tilewright.schedule.maps.external import EXTERNAL
from tilewright.schedule.sharing.kernels import KnownKernels
from tilewright.schedule.strategy import Strategy
from tilewright.session import Session
from tilewright.settings.compilers import ExternalCompilers
from tilewright.settings.external import ExternalKernels, no_kernel
from tilewright.settings.placing import Placing
from tilewright.target.machine import Machine
from tilewright.target.target import Target

if TYPE_CHECKING:
    from tilewright.compilation import Compilation

MakeWatch = Callable[["Compilation"], ProgramWatch | None]
"""Of each program that has kernels of its own, before its passes run: who looks at what these do."""

Observe = Callable[[str, Module], None]
"""Is told the name of a pass or a stage that is done, and the module as it is then."""


@dataclass(frozen=True)
class Setting:
    """What all programs of one compilation are compiled with. `observe` is called after each pass and each stage."""

    options: Options
    machine: Machine
    back_end: BackEnd
    plugins: Plugins = NO_PLUGINS
    optional: OptionalSteps = CHECKED
    progress: OnProgress | None = None
    edited: EditedSchedules | None = None
    observe: Observe | None = None
    dump: Dump | None = None
    overrides: KernelOverrides | None = None
    watch: MakeWatch | None = None
    numbers: Iterator[int] = field(default_factory=count)
    """Of the kernels, which have no name twice."""
    fitted_to: int | None = None  # bytes that a call of a program may take which is tried for `fitting`
    external: ExternalKernels | None = None
    """Kernels of plugins for this kind of machine."""
    compilers: ExternalCompilers | None = None
    """Compilers of plugins, for parts that the CPU would compute."""
    known: KnownKernels | None = None
    """Kernels that are scheduled, where one compilation makes several programs of them: to find one that takes little
    memory, or to look at what each kernel gives."""
    placing: Placing | None = None
    """Of a device beside a CPU: which ops it takes."""
    beside: Setting | None = None
    """That of the CPU beside a device."""

    @classmethod
    def of(
        cls,
        options: Options,
        machine: Machine,
        plugins: Plugins = NO_PLUGINS,
        *,
        optional: OptionalSteps = CHECKED,
        progress: OnProgress | None = None,
        edited: EditedSchedules | None = None,
        observe: Observe | None = None,
    ) -> Self:
        """For a machine, whose back end is asked whether it can be compiled for: TargetError, OptionError."""
        back_end = back_end_for(machine, plugins, options)
        known = None if options.max_memory is None else KnownKernels()
        external = None if options.integer_only else ExternalKernels.of(machine, plugins)
        compilers = None
        if isinstance(machine, Target) and machine.kind == Target.kind:
            compilers = ExternalCompilers.of(machine, plugins, options)
        return cls(
            options, machine, back_end, plugins, optional, progress, edited, observe, external=external,
            compilers=compilers, known=known,
        )  # fmt: skip

    @classmethod
    def chosen(cls, options: Options, session: Session) -> Self:
        """For the machine and with the plugins that the options and the session choose."""
        return cls.of(options, session.machine(options), session.loaded_plugins)

    def without_compilers(self, why: str) -> Setting:
        """The same where compilers of plugins are not asked, and why."""
        compilers = None if self.compilers is None else self.compilers.unasked(why)
        beside = None if self.beside is None else self.beside.without_compilers(why)
        return replace(self, compilers=compilers, beside=beside)

    @property
    def of_cpu(self) -> Setting:
        """That of the CPU that is compiled for, or stands beside the device."""
        return self if self.beside is None else self.beside

    def of_part(self, part: Func) -> Setting:
        """That of the machine on which a part of a program runs."""
        return self if self.beside is None or ON_CPU not in part.attrs else self.beside

    @property
    def target(self) -> Target | None:
        """The machine where it is a CPU, whose facts passes of the graph level ask for."""
        return self.machine if isinstance(self.machine, Target) else None

    @property
    def has_room_for_zones(self) -> bool:
        """Whether tensors, constants and threads are kept apart by guard zones."""
        return self.options.guarded

    def context(self) -> PassContext:
        """What passes of the graph level share."""
        remarks, align = [*self.optional.remarks], self.machine.part_align
        device = self.machine.link
        return PassContext(self.target, self.options, align, link=device, remarks=remarks, optional=self.optional)

    def strategies(self, remarks: list[Remark]) -> Strategies[Strategy]:
        """The strategies of the back end, and those of plugins for its kind of machine; `remarks` are told what is left
        out, and later which of them fail."""
        ours: tuple[Strategy, ...] = (EXTERNAL, *self.back_end.strategies(self.machine))
        plugins = self.plugins.without_name_clashes("strategies", [s.name for s in ours])
        remarks.extend(plugins.refused)
        remarks.extend(() if self.external is None else self.external.refused)
        remarks.extend(() if self.compilers is None else self.compilers.refused)
        outside: list[tuple[str, Strategy]] = []
        for candidate, plugin in plugins.used:
            strangers = [s.name for s in plugin.strategies if not isinstance(s, Strategy)]
            if strangers:
                remarks.append(candidate.refusal(f"its strategy '{strangers[0]}' is no {Strategy.__module__}.Strategy"))
            else:
                found = [s for s in plugin.strategies if isinstance(s, Strategy)]
                outside += [(plugin.name, s) for s in found if s.kind == self.machine.kind]
        return Strategies(ours, tuple(outside), remarks, self.optional.raises)

    def passes(self) -> list[Pass]:
        """Those of the graph level before fusion."""
        external = [] if self.external is None else [self.external]
        return [*external, *self.back_end.passes(self.machine, self.options)]

    def text(self, kernel: Func, code: Code) -> KernelText:
        """The text of a scheduled kernel, of ours or of a plugin. UnsupportedError where there is none."""
        name, *_ = kernel_info(kernel).external or ("",)
        if not name:
            return code.kernel(kernel)
        if self.external is None:
            raise no_kernel(name)
        return self.external.text(kernel)

    def step(self, stage: str) -> Callable[[int, int], None] | None:
        """What tells `progress` of the steps of a stage."""
        return None if self.progress is None else partial(self.tell, stage)

    def tell(self, stage: str, done: int, total: int) -> None:
        """Tell `progress` how many of how many steps of a stage are done."""
        if self.progress is not None:
            self.progress(Progress(stage, done, total))


@dataclass(frozen=True)
class Output:
    """The code and the weights of an artefact, which its programs share. `on_objects` is told the relocatable objects
    before they are linked."""

    code: Code
    weights: link.Weights
    on_objects: OnObjects | None = None
    programs: Iterator[int] = field(default_factory=count)
    symbols: dict[bytes, str] = field(default_factory=dict)
    beside: Output | None = None
    """That of the CPU beside a device, with the same weights."""
    external: list[bytes] = field(default_factory=list)
    """What compilers of plugins made of their parts."""

    def of_part(self, part: Func) -> Output:
        """That of the machine on which a part of a program runs."""
        return self if self.beside is None or ON_CPU not in part.attrs else self.beside

    def submitted(self, text: KernelText) -> KernelText:
        """Begin to make code of a kernel; gives it under the name of an earlier one that has the same code."""
        same = text.text.replace(text.symbol, "") + ("quickly" if text.little else "")
        digest = hashlib.blake2b(same.encode()).digest()
        if digest not in self.symbols:
            self.code.begin(text)
            self.symbols[digest] = text.symbol
        return replace(text, symbol=self.symbols[digest])
