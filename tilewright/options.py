"""What a user may choose: one frozen dataclass, passed explicitly; its fingerprint is part of cache keys."""

from __future__ import annotations

import dataclasses
import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.frontends.weights.safetensors import SUFFIX, read_safetensors
from tilewright.runtime.errors import OptionError
from tilewright.runtime.sizes_seen import MAX_FREQUENT, SizesSeen
from tilewright.runtime.threads import check_threads

NUMERICS = ("default", "strict", "fast")
ACTIVATIONS = ("float32", "int16", "int8")
MEMORY_EFFORTS = ("fast", "search")
_TARGETS = ("machine", "device", "backend")
"""What others call a target."""
PLACEMENTS = ("cost", "device")


@dataclass(frozen=True)
class Progress:
    """How far a compilation is: `done` of `total` steps of a stage.

    Stages, in order: "import", "graph" (passes), "kernels" (regions scheduled), "code" (object files made), "link".
    """

    stage: str
    done: int
    total: int


def check_progress(progress: object) -> None:
    """OptionError for what is told of the progress of a compilation and cannot be called."""
    if progress is not None and not callable(progress):
        raise OptionError(f"progress={progress!r:.80} is not allowed: give a function that takes a Progress, or None")


@dataclass(frozen=True)
class ScheduleFile:
    """Schedules of kernels as text, and the name of the file that they come from."""

    text: str
    name: str = "schedule"

    @classmethod
    def of(cls, source: object) -> ScheduleFile | None:
        """From a path, or the bytes of a file; OptionError where it cannot be read."""
        if source is None or isinstance(source, cls):
            return source
        if not isinstance(source, str | os.PathLike | bytes):
            raise OptionError(
                f"schedule={source!r:.80} is not allowed: give the path of a file, or the bytes of one"
            )
        name = "schedule" if isinstance(source, bytes) else os.fspath(source)
        try:
            data = source if isinstance(source, bytes) else Path(source).read_bytes()
            return cls(data.decode(), name)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise OptionError(
                f"cannot read the schedules of {name}: {reason}",
                hint="give a file as `tilewright show MODEL --level schedule` prints it",
            ) from error


@dataclass(frozen=True)
class KernelFile:
    """A kernel that takes the place of the compiler's own: its name or number, a text of loops or of LLVM IR, and the
    name of the file that it comes from."""

    kernel: str
    text: str
    name: str

    @property
    def is_llvm(self) -> bool:
        """Whether the text is LLVM IR, and not of loops."""
        return self.name.endswith(".ll")

    @classmethod
    def all_of(cls, given: object) -> tuple[KernelFile, ...]:
        """From paths by kernels; OptionError where one cannot be read."""
        if isinstance(given, tuple) and all(isinstance(file, cls) for file in given):
            return given
        if not isinstance(given, Mapping) or not all(
            isinstance(kernel, str) and isinstance(path, str | os.PathLike) for kernel, path in given.items()
        ):
            raise OptionError(f"override={given!r:.80} is not allowed: give paths of files by names of kernels")
        return tuple(cls._read(kernel, os.fspath(path)) for kernel, path in given.items())

    @classmethod
    def _read(cls, kernel: str, path: str) -> KernelFile:
        try:
            return cls(kernel, Path(path).read_bytes().decode(), path)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise OptionError(
                f"cannot read the kernel '{kernel}' of {path}: {reason}",
                hint="give loops, or LLVM IR (*.ll), as `tilewright compile --dump` writes them",
            ) from error


FrequentSizes = Mapping[str, int]
"""Sizes of symbolic dims, by name."""

OnProgress = Callable[[Progress], None]
"""What is called between two steps of a compilation, by the thread that compiles; an error that it raises ends the
compilation and reaches the caller."""


@dataclass(frozen=True)
class Options:
    """Options of `tilewright.compile`.

    threads: threads that run the model; None takes what the process may use (affinity and cgroup quota).
    target: machine to compile for; None is this one (see `tilewright info` for names).
    numerics: "strict" gives up rewrites that round differently: constant factors are not folded into weights or
        into each other, factors of operands of matrix products stay where they are, and convolutions are the direct
        sums, not Winograd's algorithm (which costs networks of 3x3 convolutions up to 1.8 times the time, ResNet-50
        1.15 times; transformers lose nothing; otherwise a number of up to 4096 adds roundings of up to 0.001 of the
        largest weight to results near it, and tiles with larger ones are direct sums). Sums still run in vector lanes,
        in an order that depends on the target but not on the threads, and a product and a sum still round once where
        the target has such an instruction. Denormal numbers (below 2^-126 in float32) are then taken as the calling
        thread's modes say. By default they count as zero, since each operation on one costs as much as a hundred
        others: what is computed from float32, float64 or bfloat16 numbers, comparisons and their orders included,
        takes them as zeros of the same sign and gives zeros for them, so that 1 / 1e-38 is infinite. What only moves
        numbers, chooses among them or changes their signs (`Identity`, `Where`, `Abs`), and what a rewrite makes such
        a thing (x + 0), may hand them on.
        float16 keeps its denormals. What models say in float16 and bfloat16 is computed in float32: by default a chain
        of operators rounds where it leaves the model, is cast, compared or counted, with "strict" in each operator,
        and by default operands of products of bfloat16 round, too, where an instruction multiplies these.
        "fast" also lets float32 products and convolutions round their operands to bfloat16 (8 bits of mantissa, the
        range of float32) where the target has instructions for these and an estimate says that they gain; sums and all
        else stay in float32. Each operand is then off by up to 2^-8 of its size, and denormal operands and sums count
        as zero. On other targets "fast" is the default.
    activations: what rows of products by constant integers (weights of 2 to 8 bits that are dequantised in their
        product's kernel) are rounded to, where rows are many and the machine adds up groups of products of integers:
        "float32" (they are not rounded), "int16" or "int8". The elements of a row are rounded in groups of at most 32,
        by the largest of each: by 2^-16 of it at most, or with "int8" by 2^-8. Sums of a group are then exact, and all
        else stays in float32. Weights that are stored in bfloat16 and float16 are rounded together with rows of 9 and
        more, to 14 bits both: a row by 2^-14 of the largest of a group at most, a weight of bfloat16 that is at least
        1/32 of the largest not at all, and others by 2^-13 of it. None is "int16" for language models and with
        numerics="fast", and "float32" for all others; with numerics="strict" nothing is rounded.
    cache: keep and reuse compiled artefacts on disk.
    compile_threads: threads that run LLVM and pack weights; None takes what the process may use.
    profile: make code that can also time its kernels, one by one (`Model.profile`; x86-64 only), and report what each
        call computes and moves.
    verify: check every program after every pass, and every kernel (slow; for tests and bug reports). An optimisation
        that fails unexpectedly is an error then, too (see `strict`).
    strict: make it an error that an optimisation fails unexpectedly. Otherwise what failed is left out, the model is
        right but slower, and a `tilewright.PerformanceWarning` says so, which `Model.report` repeats.
    integer_only: compute with integers alone, without a floating-point instruction: of a model whose tensors are
        quantised by known scales (QDQ), with the same bits on every machine. Inputs and outputs of floats become the
        integers, whose scales and zero points `Model.report` tells ("integers"). What has no form in integers is an
        UnsupportedError that lists all of it. The machine code is searched for floating-point instructions.
    share_weights: leave large weights that kernels read as they are where the model has them (the parameters of a
        torch.nn.Module, for one), instead of copying them: the model must not be written to while the compiled one is
        used. `torch.compile` does this by itself, as it sees writes. What is packed, folded or converted is a copy all
        the same.
    schedule: schedules of kernels that take the place of the compiler's own: the path, or the bytes, of a file as
        `tilewright show MODEL --level schedule` prints it, edited. Kernels that it does not name keep theirs. A step
        that is refused is a ScheduleError with its line and the reason.
    frequent: sizes that calls often have: dicts of the names of symbolic dims (as `Model.inputs` shows them) to sizes,
        such as [{"batch": 1, "height": 224}, {"batch": 8}], at most 16 of them, or what `Model.sizes_seen` gives. For
        each there is a variant of the program, which is as fast as one compiled for these sizes alone; dims that a dict
        does not name stay symbolic. A call with such sizes runs the variant, of several the one with the most sizes,
        and all others the general program. Each variant takes about as long to compile as a model of fixed shapes.
    states: what the model keeps from one call to the next: a dict of names of inputs to the names of the outputs that
        they become, such as {"h": "hn"}, or True for what the model declares: variables of TFLite files and states of
        their recurrent operators, and buffers to which PyTorch modules write. They are no inputs and outputs of the
        compiled model, begin as zeros (what is declared as the source has it), and are of fixed sizes.
        `Model.state` and `Model.set_state` look at and change them, `Model.reset` begins anew. Calls of such a model
        from several threads run one after the other.
    capacity: how long caches among the states may become. A cache is an input with one symbolic dim, such as
        `past_key_values.0.key` [1, 8, past, 64], and the output that joins it with what is new: with states=True all of
        them are states then, and what is new is put into memory for so many elements, which is taken as it is filled.
        `past`, one more state, is how long they are.
    memory_effort: how long a smaller plan of memory is looked for, where the first one is not known to need the least:
        "fast" (a tenth of a second or two) or "search" (some seconds). The same effort gives the same plan on every
        machine.
    max_memory: the bytes that a call may take: inputs, outputs, intermediate results, states, and scratch memory of
        `threads` threads (one where they are not given), all but weights and code. Where the program takes more as it
        is, chains of layers are computed some rows at a time, as cheaply as the limit allows. All sizes must be known.
        An OptionError tells the least that was found where that is more. A convolution that is computed by rows is the
        direct sum, and not Winograd's algorithm, which rounds otherwise (numerics="strict" never takes it). The model
        runs with as many threads as the limit allows at most, also when it is loaded.
    dump: a folder, to which the program after each pass and stage is written, with the remarks of each, and each kernel
        as loops and as LLVM IR. The cache is not used then.
    override: files by names (or numbers) of kernels, which take the place of the compiler's own: loops, or LLVM IR
        (*.ll), as `dump` writes them. They are checked by the verifier, and for the same arguments; what they compute
        is up to who writes them.
    validate: replay what each pass, each rule and each kernel makes of the program beside what it is made of, on noise,
        on values at the edges of types and, with the path of a folder that `Model.record` filled (or of a .npz file, as
        for `tilewright.diff`) in place of True, on real inputs. What changes the meaning is switched off for this
        model; a `tilewright.PerformanceWarning` and `Model.report` name it, and where a program was saved that shows
        the fault. What cannot be replayed is told there, too. Takes some times as long as compiling does.
    guarded: make code whose calls look for accesses beyond buffers (Linux on x86-64 only): inputs, results, each tensor
        of the arena, each constant and each thread's scratch memory lie between pages that nobody may touch, memory
        that nothing was written to is poisoned, and both are looked at after each kernel. A load or a store beyond is
        a BeyondBufferError with the kernel, its node, the buffer, the distance and the side, and the call ends.
        Kernels are the same as without; tensors share no memory, and parts of staged models are called by the host.
    placement: where a model runs that a device does not take in one piece (target="webgpu"): by "cost" each operator
        is computed on the device or on the CPU beside it, whichever takes less time with its copies; with "device" the
        CPU computes what the device lacks, and nothing else.
    """

    threads: int | None = None
    target: str | None = None
    numerics: str = "default"
    activations: str | None = None
    cache: bool = True
    compile_threads: int | None = None
    profile: bool = False
    verify: bool = False
    schedule: ScheduleFile | None = None
    frequent: tuple[FrequentSizes, ...] = ()
    integer_only: bool = False
    share_weights: bool = False
    strict: bool = False
    states: tuple[tuple[str, str], ...] | bool = ()
    capacity: int | None = None
    memory_effort: str = "fast"
    max_memory: int | None = None
    dump: str | os.PathLike[str] | None = None
    override: tuple[KernelFile, ...] | Mapping[str, str | os.PathLike[str]] = ()
    validate: bool | str = False
    guarded: bool = False
    placement: str = "cost"

    def __post_init__(self) -> None:
        check_threads(self.threads)
        check_threads(self.compile_threads, "compile_threads")
        if not isinstance(self.numerics, str) or self.numerics not in NUMERICS:
            raise OptionError(f"numerics={self.numerics!r:.80} is not allowed: one of {', '.join(NUMERICS)}")
        is_name = self.activations is None or isinstance(self.activations, str)
        if not is_name or self.activations not in (None, *ACTIVATIONS):
            raise OptionError(
                f"activations={self.activations!r:.80} is not allowed: one of {', '.join(ACTIVATIONS)}, or None",
                hint="None chooses by the model and numerics=",
            )
        if not isinstance(self.memory_effort, str) or self.memory_effort not in MEMORY_EFFORTS:
            raise OptionError(
                f"memory_effort={self.memory_effort!r:.80} is not allowed: one of {', '.join(MEMORY_EFFORTS)}"
            )
        if not isinstance(self.placement, str) or self.placement not in PLACEMENTS:
            raise OptionError(f"placement={self.placement!r:.80} is not allowed: one of {', '.join(PLACEMENTS)}")
        if self.activations not in (None, "float32") and self.numerics == "strict":
            raise OptionError(
                f"activations='{self.activations}' rounds, and numerics='strict' does not",
                hint="leave one of the two out",
            )
        if self.target is not None and not isinstance(self.target, str):
            raise OptionError(
                f"target={self.target!r} is not allowed: give a name, such as 'zen3', or None for this machine"
            )
        if isinstance(self.validate, os.PathLike):
            object.__setattr__(self, "validate", os.fspath(self.validate))
        if not isinstance(self.validate, bool | str) or self.validate == "":
            raise OptionError(
                f"validate={self.validate!r:.80} is not allowed: give True, or the path of recorded inputs"
            )
        object.__setattr__(self, "schedule", ScheduleFile.of(self.schedule))
        object.__setattr__(self, "override", KernelFile.all_of(self.override))
        if not isinstance(self.dump, str | os.PathLike | None):
            raise OptionError(f"dump={self.dump!r:.80} is not allowed: give the path of a folder, or None")
        if self.dump is not None:  # the cache has no stages
            object.__setattr__(self, "cache", False)
        object.__setattr__(self, "frequent", _frequent(self.frequent))
        object.__setattr__(self, "states", _states(self.states))
        if self.states and self.integer_only:
            raise OptionError(
                "integer_only=True keeps no states: their integers stand for other numbers when they come and go",
                hint="compile without states=, and hand on outputs to the next call",
            )
        if self.capacity is not None:
            if isinstance(self.capacity, bool) or not isinstance(self.capacity, int) or not self.capacity > 0:
                raise OptionError(f"capacity={self.capacity!r:.80} is not allowed: give a number from 1 on, or None")
            if not self.states:
                raise OptionError("capacity= is that of states", hint="say which: states=True for all caches")
        if self.max_memory is not None and self.guarded:
            raise OptionError("guarded=True takes more memory than max_memory= allows for", hint="leave one out")
        if self.max_memory is not None and (
            isinstance(self.max_memory, bool) or not isinstance(self.max_memory, int) or not self.max_memory > 0
        ):
            raise OptionError(
                f"max_memory={self.max_memory!r:.80} is not allowed: give a number of bytes from 1 on, or None"
            )
        for name in ("cache", "profile", "verify", "integer_only", "share_weights", "strict", "guarded"):
            if not isinstance(getattr(self, name), bool):
                raise OptionError(f"{name}={getattr(self, name)!r} is not allowed: give True or False")

    @classmethod
    def of(cls, options: Options | None, **fields: object) -> Options:
        """`options` (or the defaults) with `fields` replaced; OptionError for a name that does not exist."""
        if options is not None and not isinstance(options, cls):
            raise OptionError(f"options={options!r} is not allowed: give a tilewright.Options, or its fields")
        known = {f.name for f in dataclasses.fields(cls)}
        for name in fields:
            if name in _TARGETS:
                raise OptionError(
                    f"unknown option '{name}': what a model is compiled for, be it a CPU or a device, is target=",
                    hint=f"give target={fields[name]!r:.80}",
                )
            if name not in known:
                from difflib import get_close_matches

                close = get_close_matches(name, known, 1)
                said = f"; did you mean '{close[0]}'?" if close else ""
                raise OptionError(f"unknown option '{name}'{said}; options are: {', '.join(sorted(known))}")
        return dataclasses.replace(options or cls(), **fields)  # type: ignore[arg-type]

    def fingerprint(self) -> str:
        """Text of everything that changes the artefact (threads do not: they are chosen when it is loaded)."""
        profile = ";profile" if self.profile else ""
        schedule = f";schedule={self.schedule.text}" if self.schedule else ""
        schedule += f";override={self.override!r}" if self.override else ""
        frequent = f";frequent={[sorted(sizes.items()) for sizes in self.frequent]}" if self.frequent else ""
        integers = ";integer_only" if self.integer_only else ""
        states = f";states={self.states!r}" if self.states else ""
        states += f";activations={self.activations}" if self.activations else ""
        states += f";capacity={self.capacity}" if self.capacity else ""
        states += f";memory_effort={self.memory_effort}" if self.memory_effort != "fast" else ""
        states += f";placement={self.placement}" if self.placement != "cost" else ""
        states += ";guarded" if self.guarded else ""
        states += f";validate={self.validate}" if self.validate else ""
        states += f";max_memory={self.max_memory};threads={self.threads or 1}" if self.max_memory else ""
        return f"numerics={self.numerics};target={self.target or 'host'}{profile}{integers}{schedule}{frequent}{states}"


def bits_of_rows(options: Options, by_model: str | None = None) -> int:
    """To integers of so many bits rows of products by integers may be rounded, 0 for none, where the model asks for
    `by_model`."""
    if options.numerics == "strict" or options.integer_only:
        return 0
    by_default = "int16" if options.numerics == "fast" else by_model
    return {"int16": 16, "int8": 8}.get(options.activations or by_default or "", 0)


def _states(given: object) -> tuple[tuple[str, str], ...] | bool:
    """Pairs of names, or True."""
    if given is None or given is False:
        return ()
    if given is True:
        return True
    pairs = tuple(given.items()) if isinstance(given, Mapping) else given
    if not isinstance(pairs, tuple) or not all(
        isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(name, str) for name in pair) for pair in pairs
    ):
        raise OptionError(
            f"states={given!r:.80} is not allowed: give a dict of names of inputs to names of outputs, or True",
            hint='such as states={"h": "hn"}',
        )
    return pairs


def _frequent(given: object) -> tuple[FrequentSizes, ...]:
    """Those with the most sizes first, each once."""
    if given is None:
        return ()
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise OptionError(
            f"frequent={given!r:.80} is not allowed: give a list of dicts of dims to sizes",
            hint="such as frequent=[{'batch': 1, 'height': 224}, {'batch': 8}]",
        )
    found: list[FrequentSizes] = []
    for sizes in map(_frequent_sizes, given):
        if sizes and sizes not in found:
            found.append(sizes)
    if len(found) > MAX_FREQUENT:
        raise OptionError(
            f"frequent= names {len(found)} combinations of sizes, and at most {MAX_FREQUENT} are allowed",
            hint="each is compiled as a program of its own: name the most frequent ones, or fewer dims in each",
        )
    return tuple(sorted(found, key=len, reverse=True))


def _frequent_sizes(given: object) -> FrequentSizes:
    if isinstance(given, SizesSeen):
        return dict(given.sizes)
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise OptionError(
            f"frequent=[{given!r:.80}] is not allowed: each entry is a dict of names of dims to sizes",
            hint="such as frequent=[{'batch': 1, 'height': 224}, {'batch': 8}]",
        )
    return {name: _frequent_size(name, size) for name, size in given.items()}


def _frequent_size(name: str, size: object) -> int:
    if isinstance(size, bool) or not hasattr(size, "__index__") or operator.index(size) < 1:
        raise OptionError(
            f"frequent=[{{{name!r}: {size!r:.80}}}] is not allowed: a size is a whole number from 1 on",
            hint="give a dict for each combination of sizes, such as [{'batch': 1}, {'batch': 8}]",
        )
    return operator.index(size)


@dataclass(frozen=True)
class Request:
    """What is to be compiled: the model (a path, or an object that a front end takes), values for some of its inputs,
    shapes for others, and whether states of its operators are inputs and outputs, for the model to keep."""

    model: Path | bytes | Any
    constants: dict[str, np.ndarray]
    shapes: dict[str, tuple[int | str, ...]]
    keeps_states: bool = False

    def with_states_of(self, options: Options) -> Request:
        """As the options have it: `states=True` keeps whatever the model declares."""
        return replace(self, keeps_states=options.states is True)

    @classmethod
    def of(cls, model: object, constants: object, shapes: object) -> Request:
        """From what a caller gave; OptionError for arguments of other types than `tilewright.compile` takes."""
        source = Path(model) if isinstance(model, str | os.PathLike) else model
        return cls(source, _constants(constants), _shapes(shapes))


def _constants(constants: object) -> dict[str, np.ndarray]:
    if constants is None:
        return {}
    if isinstance(constants, str | os.PathLike):
        return _constants_of_file(Path(constants))
    if not isinstance(constants, Mapping) or not all(isinstance(name, str) for name in constants):
        raise OptionError(
            f"constants={constants!r:.80} is not allowed: give a dict of input names to arrays",
            hint=f"or the path of a {SUFFIX} file",
        )
    return {name: _constant(name, value) for name, value in constants.items()}


def _constants_of_file(path: Path) -> dict[str, np.ndarray]:
    if path.suffix != SUFFIX:
        raise OptionError(
            f"constants={str(path)!r:.80} is not allowed: a file of constants is a {SUFFIX} file",
            hint="give such a file, or a dict of input names to arrays",
        )
    return read_safetensors(path)


def _constant(name: str, value: object) -> np.ndarray:
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError, TypeError) as error:
        raise OptionError(f"constants={{{name!r}: {value!r:.80}}} is not allowed: {error}") from error
    if array.dtype.kind in "OU" and all(isinstance(x, str) for x in array.flat):
        return array.astype(object)
    if array.dtype.kind in "OSUMm":
        raise OptionError(
            f"constants={{{name!r}: {value!r:.80}}} is not allowed: it is no array of numbers or strings",
            hint="give a number, a list of numbers, or an array",
        )
    return array


def _shapes(shapes: object) -> dict[str, tuple[int | str, ...]]:
    if shapes is None:
        return {}
    if not isinstance(shapes, Mapping) or not all(isinstance(name, str) for name in shapes):
        raise OptionError(
            f"shapes={shapes!r:.80} is not allowed: give a dict of input names to lists of dims",
            hint="such as shapes={'x': [1, 3, 'height', 'width']}",
        )
    return {name: _shape(name, shape) for name, shape in shapes.items()}


def _shape(name: str, shape: object) -> tuple[int | str, ...]:
    wrong = OptionError(
        f"shapes={{{name!r}: {shape!r:.80}}} is not allowed: a shape is a list of dims",
        hint="a dim is a whole number, or a name for one that stays symbolic",
    )
    if isinstance(shape, str) or not isinstance(shape, Sequence | np.ndarray):
        raise wrong
    dims: list[int | str] = []
    for dim in shape:
        if isinstance(dim, str):
            dims.append(str(dim))
        elif isinstance(dim, bool | np.ndarray) or not hasattr(dim, "__index__"):
            raise wrong
        else:
            dims.append(operator.index(dim))
    return tuple(dims)
