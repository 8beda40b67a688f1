"""One program on its way from the graph to the calls of its kernels: the stages, by name and in order.

`compile`, `show` and `check` run these stages, each as far as it needs; `opt`, `quantize` and `diff` let a compilation
apply passes of theirs (decisions 78 and 94). Nobody else spells an order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import count
from typing import Self

import numpy as np

from tilewright import link
from tilewright.accounts.account import Account, ProgramDecisions
from tilewright.accounts.layers import layers_of_compiler
from tilewright.accounts.reports import program_report
from tilewright.back_end import keeps_states
from tilewright.codegen.devices.program import DeviceKernel
from tilewright.codegen.program import KernelText, Program
from tilewright.external.compiler import ExternalGraph
from tilewright.fitting import Fit, fit, refuse_parts, threads_within
from tilewright.graph.assumptions import Assumption, assumptions, same_dims
from tilewright.graph.fusion.fuse import Fuse
from tilewright.ir.core import Func, Module, Op
from tilewright.ir.diag import Loc, ModelError, Remark, RemarkKind, UnsupportedError
from tilewright.ir.text import parse_module, print_module
from tilewright.ir.verify import verify_func
from tilewright.loops.kernel_info import KernelInfo, kernel_info
from tilewright.loops.storage.packing import Packing
from tilewright.options import Options, bits_of_rows
from tilewright.passes import Pass, run_passes
from tilewright.program.caches import check_frequent
from tilewright.program.legal import verify_all, verify_graph, verify_program
from tilewright.program.memory.budget import over_budget
from tilewright.program.memory.effort import EFFORTS
from tilewright.program.memory.order import reorder
from tilewright.program.memory.place_views import PlaceViews
from tilewright.program.memory.places import arena_of, is_planned
from tilewright.program.memory.planned import plan_memory
from tilewright.program.memory.scratch import scratch_of_calls
from tilewright.program.memory.storage import Place
from tilewright.program.native import GroupNative
from tilewright.program.spec import LEVEL
from tilewright.program.split import (
    COMPILER,
    ON_CPU,
    SplitGraph,
    is_compilers,
    is_of_parts,
    joined,
    part_functions,
    parts_of,
)
from tilewright.program.states import introduce_states, pair_states
from tilewright.program.steps import staged_program
from tilewright.runtime import Artifact
from tilewright.runtime.errors import OptionError
from tilewright.runtime.report.records import PlacedPart
from tilewright.schedule.sharing.kernels import schedule_regions
from tilewright.session import Session
from tilewright.settings.flow import native_ops
from tilewright.settings.placing import KernelDoubted, KernelsRefused, remark_of
from tilewright.settings.setting import MakeWatch as MakeWatch
from tilewright.settings.setting import Observe as Observe
from tilewright.settings.setting import Output as Output
from tilewright.settings.setting import Setting as Setting


class Compilation:
    """A program while it is compiled: `run` takes it from stage to stage, `module` is what it has become.

    Stages, by what the module is then:

    - "import": the graph as the model says it;
    - "parts": the same where one piece of native code can compute it; else a program that calls parts, of which each
      is a compilation of its own, and goes through the stages that follow;
    - "graph": the same function in the operators and layouts that kernels are made of;
    - "fused": its regions, each of which becomes one kernel (or several), in the order of execution;
    - "scheduled": a program: calls of kernels, whose loops are functions of the module;
    - "planned": each value of the program has its place in memory, which its text shows;
    - "program": `artifact`, which still has no code and no weights: these are made in the `output` meanwhile.

    The module is that of the caller, and is changed. What it takes for granted, and calls are checked for, is
    `assumed`. `output` is needed for the last stage alone.
    """

    def __init__(
        self, module: Module, setting: Setting, output: Output | None = None, *, is_part: bool = False
    ) -> None:
        """`is_part` says that one piece of native code can compute the module."""
        self.module = module
        self.setting = setting
        self.output = output
        self.stage = _stage_of(module, is_part)
        self.parts: tuple[Compilation, ...] | None = None
        """Of a program that calls parts, from the stage "parts" on."""
        self.context = setting.context()
        self.strategies = setting.strategies(self.remarks)
        self.calls_of_regions: tuple[int, ...] = ()
        """How many calls of kernels each region became, in the order of the fused graph."""
        self.artifact: Artifact | None = None
        self.program: Program | None = None
        """What the code of the last stage is made of; None of parts without code between them."""
        self.compiled: bytes | None = None
        """What the compiler of a plugin made of this part, which it computes."""
        self._texts: dict[str, KernelText] = {}
        self._placed: tuple[PlacedPart, ...] = ()
        self._refused: list[tuple[tuple[str, ...], UnsupportedError]] = []
        self._dumped = 0
        self._fit: Fit | None = None
        self._nodes = module.main.attrs.get("nodes", len(module.main.body.ops))
        self.context.remarks += remarks_of_import(module)
        if is_of_parts(module.main):
            self._take_parts()
            parts: tuple[Compilation, ...] = self.parts or ()
            self.stage = min((part.stage for part in parts), key=STAGES.index, default="parts")
        elif self.stage != "import":
            self._begin()

    def _begin(self) -> None:
        """What must be known of a graph before passes change it."""
        self._clock = Clock()
        setting = self.setting
        self._account = Account(self.module, setting.machine, setting.optional, counted=setting.options.profile)
        if self.stage == "fused":
            self._account.note_regions(self.module)

    @cached_property
    def assumed(self) -> tuple[Assumption, ...]:
        """What is taken for granted, as the graph says it before it is lowered, and the main function afterwards."""
        return assumptions(self.module)

    @property
    def pieces(self) -> tuple[Compilation, ...]:
        """What has kernels of its own: the parts, or this program where it is in one piece."""
        return (self,) if self.parts is None else tuple(part for part in self.parts if not part.is_external)

    @property
    def is_external(self) -> bool:
        """Whether the compiler of a plugin computes this part, which stays a graph."""
        return COMPILER in self.module.main.attrs

    @classmethod
    def by_default(cls, module: Module) -> Self:
        """With the options that are so by default, for this machine."""
        return cls(module, Setting.chosen(Options(), Session()))

    @classmethod
    def resumed(
        cls,
        text: str,
        setting: Setting,
        constants: Mapping[str, np.ndarray] | None = None,
        file: str = "<text>",
        output: Output | None = None,
        *,
        complete: bool = False,
    ) -> Self:
        """From the `text` of a stage, edited or not. `constants` are those whose elements are left out in the text,
        which are zeros otherwise, or with `complete` an error. Of kernels the text does not say which layers they
        compute, so that reports of such a program have none.

        TextError for what cannot be read, VerifyError for an illegal program, ModelError for constants that are not
        what the text declares.
        """
        module = parse_module(
            text, file=file, records={"Packing": Packing, "Place": Place}, infos={"loops": KernelInfo}
        )
        _fill(module, constants or {}, complete)
        verify_all(module, setting.back_end.spec(setting.machine))
        return cls(module, setting, output)

    @property
    def decisions(self) -> ProgramDecisions:
        """What was decided of edges and, with `profile=True`, of loops; of a scheduled program in one piece."""
        return self._account.decisions(self.module)

    @property
    def remarks(self) -> list[Remark]:
        """What was done and what not, and why, so far."""
        return self.context.remarks

    def text(self, *, locs: bool = False) -> str:
        """The module as text, its parts with all that they have become; with `locs` ops carry the source node they came
        from. Elements of big constants are left out."""
        return print_module(self.whole(), locs=locs)

    def whole(self) -> Module:
        """The module; of a program that calls parts a new one, with what these have become."""
        return self.module if self.parts is None else joined(self.module, [part.module for part in self.parts])

    def run(self, until: str = "fused") -> Self:
        """Run the stages that are left up to one. Raises UnsupportedError and what the stages raise."""
        if until not in STAGES:
            raise OptionError(f"there is no stage '{until}'", hint=f"stages are {', '.join(STAGES)}")
        while STAGES.index(self.stage) < STAGES.index(until):
            if self.parts is not None:
                self._run_parts(until)
            elif self.is_external:
                self._run_external(until)
            else:
                self.stage = STAGES[STAGES.index(self.stage) + 1]
                _STEPS[self.stage](self)
            self._observed(self.stage)
        return self

    def apply(self, passes: Iterable[Pass]) -> Self:
        """Run passes of a tool on the graph before the stages that are left."""
        self._pass(passes, lambda: None)
        return self

    def with_views(self, passes: Iterable[Pass]) -> Self:
        """Run passes of a tool on the fused program, and those that follow fusion."""
        return self.apply((*passes, *self._passes_of_fusion[1:]))

    def _observed(self, name: str) -> None:
        if self.context.watch is not None:
            self.context.watch.passed(name, self.module)
        if self.setting.observe is not None:
            self.setting.observe(name, self.module)
        if self.setting.dump is not None:
            self._dumped = self.setting.dump.stage(name, self.whole(), self.remarks, self._dumped)

    # Stages

    def _split(self) -> None:
        """Find the parts where there are any, each of which is compiled by itself."""
        setting, module = self.setting, self.module
        caches = pair_states(module, setting.options.states, setting.options.capacity)
        check_frequent(caches, setting.options.frequent)
        for cache in caches:
            room = cache.value.tensor.shape[cache.axis]
            grows = f"a cache that '{cache.output}' continues is a state with room for {room}"
            self.remarks.append(Remark("states", cache.name, grows, "applied"))
        sides = self._sides(has_states=bool(setting.options.states))
        setting = self.setting
        setting.optional.run(SplitGraph.name, lambda: SplitGraph(sides).run(module))
        if module.main.level != LEVEL:
            return self._begin()
        if setting.options.integer_only and self.output is not None:
            raise UnsupportedError(
                "the model cannot be computed by integers only: sizes of its tensors depend on data",
                hint="give the inputs that they depend on as constants",
            )
        if setting.placing is not None:
            self._placed = setting.placing.placed(module)
        made: dict[str, bytes] = {}
        if (compilers := setting.of_cpu.compilers) is not None and any(map(is_compilers, (sides or {}).values())):
            made = compilers.compiled(module, self.remarks) if self.output is not None else {}
            self._placed = compilers.placed(module, self._placed)
        refuse_parts(module.main, setting.options.max_memory)
        introduce_states(module.main)
        if setting.optional.verified:
            verify_all(module)
        if setting.watch is not None:
            setting.watch(self)
        self._take_parts()
        for func, part in zip(part_functions(module), self.parts or (), strict=True):
            part.compiled = made.get(func.name)

    def _sides(self, *, has_states: bool) -> Mapping[Op, str] | None:
        """What computes operators that the machine does not; None where it computes all."""
        on_cpu = self._place()
        compilers = self.setting.of_cpu.compilers
        is_on_device = self.setting.placing is not None and on_cpu is None
        if compilers is None or is_on_device:
            return None if on_cpu is None else dict.fromkeys(on_cpu, ON_CPU)
        if has_states:
            compilers = compilers.unasked("a model in parts keeps states only as a whole")
        given = compilers.sides(self.module, on_cpu, self.remarks)
        if not given and on_cpu is None:
            return None
        return {**dict.fromkeys(on_cpu or (), ON_CPU), **given}

    def _run_external(self, until: str) -> None:
        """A part that the compiler of a plugin computes has nothing to do but its artefact."""
        self.stage = until
        if until != STAGES[-1]:
            return
        assert self.output is not None
        name = self.module.main.attrs[COMPILER]
        compilers = self.setting.of_cpu.compilers
        compiler = None if compilers is None else compilers.find(name)
        if compiler is None:
            raise UnsupportedError(
                f"a part of the program is for the compiler '{name}', which no plugin here brings",
                hint="install the plugin, or give it to the session",
            )
        data = compiler.compile(ExternalGraph(self.module)) if self.compiled is None else self.compiled
        suffix = f".{number}" if (number := next(self.output.programs)) else ""
        made = link.make_external(self.module, self.assumed, suffix, compiler, data, self.output.external)
        who = f"'{compiler.name}' {compiler.version}"
        layers = self.setting.optional.attempt("account", lambda: layers_of_compiler(self.module, who), tuple)
        self.artifact = made.reporting(layers=layers)

    def _place(self) -> frozenset[Op] | None:
        """Which operators the CPU beside a device computes; None where the device takes all, or there is none. Where it
        computes all operators, this compilation is one for the CPU from now on."""
        setting, placing = self.setting, self.setting.placing
        if placing is None or (on_cpu := placing.places(self.module)) is None:
            return None
        is_on_device = any(op not in on_cpu for op in native_ops(self.module.main.body))
        if placing.general is None:
            placing.general = is_on_device
        if is_on_device or placing.general or setting.beside is None:
            return on_cpu
        nothing = f"the CPU computes all of it: no part of it would take less time on {setting.machine.name}"
        why = placing.why_none(self.module)
        self.setting, self.output = setting.beside, None if self.output is None else self.output.beside
        before = [*self.remarks, Remark("placement", "the model", f"{nothing}{why}", "warning")]
        self.context = self.setting.context()
        self.context.remarks[:] = before
        self.strategies = self.setting.strategies(self.remarks)
        return None

    def _take_parts(self) -> None:
        """Each part is a compilation from now on."""
        self.parts = tuple(
            Compilation(
                part, self.setting.of_part(part.main), None if self.output is None else self.output.of_part(part.main),
                is_part=True,
            )
            for part in parts_of(self.module)
        )  # fmt: skip

    def _run_parts(self, until: str) -> None:
        """Take each part to a stage, one after the other."""
        assert self.parts is not None
        for part in self.parts:
            part.run(until)
        self.stage = until
        if until == STAGES[-1]:
            self._link_parts(self.parts)

    def _lower(self) -> None:
        """All passes of the graph level before fusion. Kernels are told which dims are the same in all calls."""
        self._tell_passes()
        self._run_passes(self._passes_before_fusion, 0)
        link.copy_aliased_outputs(self.module)
        if self.assumed:  # said by ops that are gone now
            self.module.main.attrs["assumed"] = tuple((a.holds, a.message, a.loc.node, a.loc.op) for a in self.assumed)

    def _tell_passes(self) -> None:
        if self.setting.options.max_memory is not None:
            self._fit = fit(self.setting, partial(_fused, self.module.copy()), Compilation)
            self.context.direct = self._fit.direct
        if same := same_dims(self.module.main, self.assumed):
            self.module.main.attrs["same_dims"] = same
        if self.setting.watch is not None:
            self.context.watch = self.setting.watch(self)

    def _fuse(self) -> None:
        done = len(self._passes_before_fusion)
        fuse, *others = self._passes_of_fusion
        self._run_passes([fuse], done)
        if self._fit is None:
            self._fit = fit(self.setting, partial(_fused, self.module), Compilation)
        self.apply(self._fit.passes)
        self._run_passes(others, done + 1)
        self._account.note_regions(self.module, self.context.edges)
        self._clock.lap("graph")

    def _schedule(self) -> None:
        """Kernels of the regions; where there is an output, their code is begun as soon as each is ready."""
        setting = self.setting
        calls = schedule_regions(
            self.module, setting.machine, self.strategies, self.remarks,
            self._emit if self.output is not None else None, setting.step("kernels"),
            optional=setting.optional, edited=setting.edited, numbers=setting.numbers,
            strict=setting.options.numerics == "strict",
            rounded_rows=bits_of_rows(setting.options, self.module.main.attrs.get("activations")),
            known=setting.known,
        )  # fmt: skip
        self.module.main.level = LEVEL
        introduce_states(self.module.main)
        if self._refused:
            raise KernelsRefused(self._refused)
        self.calls_of_regions = tuple(calls)
        self._account.note_kernels(self.module, calls)

    def _plan(self) -> None:
        setting, module = self.setting, self.module
        inplace = {f.name: kernel_info(f).inplace for f in module.funcs.values() if f.level == "loops"}
        effort = EFFORTS[setting.options.memory_effort]
        scratch = scratch_of_calls(module) if setting.target is not None else {}
        order = partial(reorder, module.main, inplace, effort, scratch)
        self.context.remarks += setting.optional.attempt("order", order, list)
        arrange = partial(setting.back_end.arrange, module, setting.machine, self.remarks)
        setting.optional.run("concurrent-kernels", arrange)
        self._clock.lap("schedule")
        plan_memory(
            module, inplace, scratch, effort, setting.optional, apart=setting.has_room_for_zones,
            most=setting.options.max_memory or setting.fitted_to, threads=setting.options.threads or 1,
        )  # fmt: skip
        if setting.optional.verified:
            verify_program(module)

    def _link(self) -> None:
        """The program, whose code is begun, and the artefact."""
        options, module, output = self.setting.options, self.module, self.output
        assert output is not None
        for kernel in module.funcs.values():  # of a program that was read
            if kernel.level == "loops" and kernel.name not in self._texts:
                self._emit(kernel)
        constants = link.lay_out_constants(module, output.weights)
        states = link.make_states(module, output.weights)
        if states and self.setting.target is None and not keeps_states(self.setting.machine):
            raise UnsupportedError(
                f"the machine '{self.setting.machine.name}' keeps no states from call to call",
                hint="compile without states=, and hand on outputs to the next call",
            )
        link.check_memory(module, output.weights.total, self.setting.machine)
        self.context.remarks += self.setting.optional.attempt(
            "memory-budget", lambda: over_budget(module.main, arena_of(module.main), output.weights.total), list
        )
        self.context.remarks += output.weights.remarks
        output.weights.remarks.clear()
        number = next(output.programs)
        self.program = program = link.make_program(
            module, constants, self._texts, self.assumed,
            flush_denormals=options.numerics != "strict" and not options.integer_only,
            suffix=f".{number}" if number else "",
            guarded=self.setting.has_room_for_zones,
        )  # fmt: skip
        text = output.code.program(program)
        self._clock.lap("emit")
        output.code.begin(text)
        self._clock.lap("llvm")
        types = self._account.types(module, self._texts, self.context.outcomes)
        report = program_report(
            module, self._nodes, self._clock.laps, self.remarks, options.numerics, types,
            counted=options.profile, flops=self._account.flops, decisions=self.decisions,
        )  # fmt: skip
        target = self.setting.back_end.target(self.setting.machine)
        made = link.make_artifact(module, constants, program, text, target, report)
        if (plan := made.static_plan) is not None:
            plan = replace(plan, most_threads=threads_within(module, options.max_memory, options.threads or 1))
        self.artifact = replace(made, states=states, static_plan=plan)

    def _link_parts(self, parts: Sequence[Compilation]) -> None:
        """The artefact of a program of parts, whose code for what needs no host is begun."""
        setting, module, output = self.setting, self.module, self.output
        assert output is not None
        made = [part.artifact for part in parts if part.artifact is not None]
        is_ours = not any(part.is_external for part in parts)
        if setting.target is not None and parts and is_ours and not setting.options.guarded:  # else the host sees each
            setting.optional.run(GroupNative.name, lambda: GroupNative().run(module))
            if setting.optional.verified:
                verify_program(module)
        staged = staged_program(module)
        if staged.slots:
            programs = [part.program for part in parts if part.program is not None]
            names = [part.run_symbol for part in made]
            self.program = link.make_program_of_parts(module, staged, programs, names)
            output.code.begin(output.code.program(self.program))
        target = setting.back_end.target(setting.machine)
        states = link.make_states(module, output.weights)
        self.artifact = link.make_staged(module, staged, made, target, setting.options.numerics, states)
        of_parts = self.artifact.report.remarks
        told = (*of_parts, *(remark for remark in self.remarks if remark not in of_parts))
        placed = tuple(
            replace(place, kernels=tuple(call.kernel for call in part.report.calls))
            for place, part in zip(self._placed, made, strict=False)
        )
        self.artifact = self.artifact.reporting(remarks=(*told, *map(remark_of, placed)), placed=placed)

    # Parts of them

    @property
    def _passes_before_fusion(self) -> list[Pass]:
        return self.setting.passes()

    @property
    def _passes_of_fusion(self) -> list[Pass]:
        return [Fuse(self.strategies), PlaceViews()]

    def _run_passes(self, passes: list[Pass], before: int) -> None:
        """Passes of which there are some `before` these."""
        total = len(self._passes_before_fusion) + len(self._passes_of_fusion)
        done = count(before + 1)
        self._pass(passes, lambda: self.setting.tell("graph", next(done), total))

    def _pass(self, passes: Iterable[Pass], after_each: Callable[[], None]) -> None:
        def passed(step: Pass, module: Module) -> None:
            after_each()
            self._observed(step.name)

        check = verify_graph if self.setting.optional.verified else None
        run_passes(self.module, passes, self.context, verify=check, after=passed)

    def _emit(self, kernel: Func) -> None:
        """Begin to make the code of a kernel."""
        assert self.output is not None
        self._clock.lap("schedule")
        if self.setting.overrides is not None:
            self.setting.overrides.loops(kernel, self.setting.back_end.spec(self.setting.machine))
        if self.setting.target is None:  # nobody else knows what its strategies may do
            verify_func(kernel, self.setting.back_end.spec(self.setting.machine))
        try:
            text = self.setting.text(kernel, self.output.code)
            doubt = text.doubt if isinstance(text, DeviceKernel) else ""
            if doubt and self.setting.placing is not None and not self.setting.placing.trusts:
                raise KernelDoubted(doubt)
        except UnsupportedError as error:
            if self.setting.placing is None:
                raise
            self._refused.append((kernel_info(kernel).origin, error))
            return
        if self.setting.overrides is not None:
            text = self.setting.overrides.llvm(kernel, text, self.setting.machine)
        if self.setting.dump is not None:
            self.setting.dump.kernel(kernel, text, self.setting.machine)
        self._clock.lap("emit")
        self._texts[kernel.name] = self.output.submitted(text)
        self._clock.lap("llvm")


_STEPS: dict[str, Callable[[Compilation], None]] = {
    "parts": Compilation._split,
    "graph": Compilation._lower,
    "fused": Compilation._fuse,
    "scheduled": Compilation._schedule,
    "planned": Compilation._plan,
    "program": Compilation._link,
}
STAGES = ("import", *_STEPS)


def _fused(module: Module, setting: Setting, direct: frozenset[Loc]) -> Compilation:
    """A fused program of a module as it is before its passes, or fused; some convolutions are summed directly."""
    made = Compilation(module.copy(), setting, is_part=True)
    made.context.direct = direct
    return made.run("fused")


def _stage_of(module: Module, is_part: bool) -> str:
    """The first stage of which this could be the text."""
    if module.main.level == LEVEL:
        return "planned" if is_planned(module.main) else "scheduled"
    is_fused = any(op.name == "fused" for op in module.main.body.ops)
    return "fused" if is_fused else "parts" if is_part else "import"


def _fill(module: Module, constants: Mapping[str, np.ndarray], complete: bool) -> None:
    """Give the constants of a text their elements."""
    for name, array in constants.items():
        if (declared := module.constants.get(name)) is None:
            continue
        if (declared.dtype, declared.shape) != (array.dtype, array.shape):
            raise ModelError(
                f"the constant '{name}' is {declared.dtype}{[*declared.shape]} in the text, and {array.dtype}"
                f"{[*array.shape]} where its elements are from",
                hint="a text goes on with the constants of the stage, the options and the machine that it was made for",
            )
        module.constants[name] = array
    missing = [name for name in left_out(module) if name not in constants]
    if complete and missing:
        raise ModelError(
            f"the text has no elements of {', '.join(f'@{name}' for name in missing[:5])}"
            + (f" and {len(missing) - 5} more constants" if len(missing) > 5 else ""),
            hint="name the model that the text was made of, or give them as constants",
        )


def left_out(module: Module) -> list[str]:
    """The constants whose elements a text leaves out: zeros that take no memory."""
    return [
        name
        for name, array in module.constants.items()
        if array.size > 0 and not array.flags.writeable and not any(array.strides)
    ]


def remarks_of_import(module: Module) -> list[Remark]:
    """What the front end has to say of a model."""
    kinds: dict[str, RemarkKind] = {"contradictions": "analysis", "warnings": "warning"}
    return [
        Remark("import", subject, message, kind)
        for name, kind in kinds.items()
        for subject, message in module.main.attrs.get(name, ())
    ]


class Clock:
    """Seconds that each stage took; LLVM's are those for which the others waited."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        """The time since the last lap was that of a stage."""
        now = time.perf_counter()
        self.laps[stage] = self.laps.get(stage, 0.0) + now - self._last
        self._last = now
