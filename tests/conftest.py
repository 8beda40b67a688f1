"""What tests of several rooms share."""

from __future__ import annotations

import gc
import hashlib
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from tests.backwards import Backwards, collects_backwards
from tests.compiled import graphs_are_compiled_once, kernels_are_scheduled_once
from tests.reports import FewerReports, reports_less
from tests.resumed import Progress
from tests.sweeps import without_what_is_left_to_the_night
from tests.validated import some_are_validated
from tests.zones.turned_on import findings_are_errors, guard_zones
from tilewright.codegen.cpu import assemble
from tilewright.codegen.cpu.assemble import Effort, compile_ir
from tilewright.cost.typical import TypicalSizes
from tilewright.ir.core import Func, Module
from tilewright.ir.diag import Remark
from tilewright.ir.outside import REGISTRIES
from tilewright.ir.process_settings import with_room_for_frames
from tilewright.ir.text import parse_module, print_module
from tilewright.schedule.sharing import kernels
from tilewright.schedule.steps.pace import slow_kernel
from tilewright.target.target import Target

SEED = pytest.StashKey[int]()
PROGRESS = pytest.StashKey[Progress]()

ROOMS_OF_SIZES = ("bench", "cli", "docs", "memory")
"""Rooms whose tests look at the sizes of what the compiler lays out, which then is as in production."""

ROOMS_OF_PASSES = ("fuzz", "graph", "loops", "machines", "random_models", "schedule", "staging")
"""Rooms whose tests are about what passes and schedules make of programs, which is verified after each of them."""

ROOMS_THAT_USE_MODELS = ("cli", "comparison", "llm", "quantization", "viewer")
"""Rooms whose tests compile the same few models, probes and taps again and again as a means, and change nothing of the
compiler: half of their graphs were compiled before."""

ROOMS_THAT_SHARE_KERNELS = (*ROOMS_THAT_USE_MODELS, "frontends", "torch")
"""Rooms whose tests change nothing of what schedules kernels, and meet the same kernels in model after model."""

SEEDS_BY_NIGHT = 5
"""How many times as many fresh seeds are tried with `--sweeps`."""

COLLECTIONS = (20_000, 20, 20)
"""Thresholds of Python's collector of cyclic garbage: by its own it runs for each 700 objects, and takes a sixth of the
processor time of the suite, whose tests make programs and drop them."""

SHORT_S = 0.002
"""Seconds for which kernels are timed where nobody asks how long they take."""

ROOMS_WITHOUT_VALIDATION = ("architecture", "bench", "docs", "validation")
"""Rooms whose tests are about validation, or about how long things take."""

KEPT_OBJECTS = 1000
"""How many object files of LLVM's a process of the suite remembers."""

LONG = 20.0
"""Seconds of a test that the summary names: what takes so long by itself belongs to the nightly run. It is no error, as
a busy machine may be the reason."""

# Fresh seeds: a test marked `fresh_seeds(count)` runs for `count` seeds that are new in every run; one that is marked
# `fresh_seeds(count, by_night)` for so many with `--sweeps`.


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seed",
        type=int,
        default=None,
        help="the first seed of the tests with fresh seeds (default: random)",
    )
    parser.addoption(
        "--sweeps",
        action="store_true",
        help=f"all cases of tests that are marked `sweep`, and {SEEDS_BY_NIGHT} times as many fresh seeds",
    )
    parser.addoption(
        "--day",
        default=date.today().isoformat(),
        metavar="YYYY-MM-DD",
        help="validate those compilations of tests that a run of this day does (default: today)",
    )
    parser.addoption(
        "--resume",
        type=Path,
        default=None,
        metavar="FILE",
        help="note in FILE what has passed, and go on with the others, and the seed, of a run that noted there; "
        "with workers written as --resume=FILE, since they take a FILE that stands apart for what is to be tested",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Choose the first fresh seed once for the whole run: every worker has to collect the same tests."""
    gc.set_threshold(*COLLECTIONS)
    config.addinivalue_line(
        "markers",
        "fresh_seeds(count, by_night): run the test for `count` values of its argument `fresh_seed`, new in every run; "
        f"with `--sweeps` for `by_night`, or {SEEDS_BY_NIGHT} times as many",
    )
    config.addinivalue_line(
        "markers",
        "sweep(count): draw `count` of the cases, or some in which each value of each parameter occurs, half of many; "
        "`--sweeps` runs all",
    )
    for name, meaning in (
        ("without_zones", "native code of the test gets its memory as in production, without guard zones"),
        ("with_scalar_kernels", "kernels of the test may compute one element at a time though operands allow vectors"),
        ("without_room_for_zones", "tensors, constants and threads lie as in production, without guard zones between"),
        ("unvalidated", "models of the test are not validated: something in them computes what it should not"),
    ):
        config.addinivalue_line("markers", f"{name}: {meaning}")
    if collects_backwards(config):
        config.pluginmanager.register(Backwards())
    if reports_less(config):
        config.pluginmanager.register(FewerReports(config))
    file = config.getoption("--resume")
    progress = None if file is None else Progress(file)
    chosen = getattr(config, "workerinput", {}).get("seed", config.getoption("--seed"))
    if chosen is None and progress is not None:
        chosen = progress.seed
    config.stash[SEED] = random.SystemRandom().randrange(10**6, 10**9) if chosen is None else chosen
    if progress is not None:
        config.stash[PROGRESS] = progress
        if not hasattr(config, "workerinput"):
            progress.begin(config.stash[SEED])
            config.pluginmanager.register(_Noting(progress))


class _Noting:
    """Tells of a whole run, not of a worker's, which tests have passed."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._progress.note(report)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._progress.end(exitstatus)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Hand the seed to a worker of pytest-xdist."""
    node.workerinput["seed"] = node.config.stash[SEED]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """The process ends: pytest would collect all that it holds five times, and Python some times more."""
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Print the seed, also under `-q`, which drops pytest's own header."""
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and not hasattr(session.config, "workerinput"):
        seed = session.config.stash[SEED]
        terminal.write_line(f"fresh seeds start at {seed} (pytest --seed {seed} runs the same tests)")
        progress = session.config.stash.get(PROGRESS, None)
        if progress is not None and progress.passed:
            terminal.write_line(f"goes on with a run of which {len(progress.passed)} tests have passed")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    by_night = metafunc.config.getoption("--sweeps")
    for marker in metafunc.definition.iter_markers("fresh_seeds"):
        by_day, *others = marker.args
        count = by_day if not by_night else others[0] if others else SEEDS_BY_NIGHT * by_day
        first = metafunc.config.stash[SEED]
        metafunc.parametrize("fresh_seed", range(first, first + count))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    _pytorch_draws(0)


def _pytorch_draws(seed: int) -> None:
    """PyTorch's own generator goes on from here, whichever tests were before in the process, or set fixtures up."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.manual_seed(seed)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Tests that call what `compile` consists of pay as little for frames as `compile` does."""
    _pytorch_draws(1)
    if isinstance(item, pytest.Function):
        item.obj = with_room_for_frames(item.obj)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave most cases of sweeps to the nightly run, unless somebody names cases, and out what has passed before."""
    progress = config.stash.get(PROGRESS, None)
    if progress is not None:
        left = progress.left(items)
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in progress.passed])
        items[:] = left
    if not config.getoption("--sweeps") and not any("[" in argument for argument in config.args):
        kept = without_what_is_left_to_the_night(items, config.stash[SEED])
        names = {item.nodeid for item in kept}
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in names])
        items[:] = kept


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Name the tests that took long, and say how to tell a defect that a seed found from one of a change."""
    drawn = [r.nodeid for r in terminalreporter.stats.get("failed", ()) if "fresh_seeds" in r.keywords]
    if drawn:
        seed, files = terminalreporter.config.stash[SEED], " ".join(sorted({name.partition("::")[0] for name in drawn}))
        terminalreporter.section("failed with fresh seeds")
        terminalreporter.write_line(f"{len(drawn)} of the failed tests draw anew in every run, and may have found what")
        terminalreporter.write_line(f"was there before: pytest --seed {seed} {files} tells, without the last changes")
    reports = [r for found in terminalreporter.stats.values() for r in found if isinstance(r, pytest.TestReport)]
    slow = sorted((r for r in reports if r.when == "call" and r.duration > LONG), key=lambda r: -r.duration)
    if slow:
        terminalreporter.section(f"tests of more than {LONG:.0f} seconds, too long for the ordinary suite")
    for report in slow:
        terminalreporter.write_line(f"{report.duration:6.1f} s  {report.nodeid}")


@pytest.fixture(scope="session", autouse=True)
def machine_code_is_made_once() -> Iterator[None]:
    """A text that LLVM has compiled for a machine is not compiled again for the next test: a fifth of those of a run
    are texts that were there before (the same model with another number of threads, once more without the cache)."""
    made: dict[tuple[bytes, Target, Effort], bytes] = {}

    def once(text: str, target: Target, effort: Effort = Effort.KERNEL) -> bytes:
        key = hashlib.sha256(text.encode()).digest(), target, effort
        found = made.get(key)
        if found is None:
            found = made[key] = compile_ir(text, target, effort)
            if len(made) > KEPT_OBJECTS:
                made.pop(next(iter(made)), None)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assemble, "compile_ir", once)
        yield


@pytest.fixture(scope="session")
def by_night(pytestconfig: pytest.Config) -> bool:
    """Whether all cases of all tests run."""
    return bool(pytestconfig.getoption("--sweeps"))


@pytest.fixture
def own_garbage() -> Iterator[None]:
    """`gc.collect()` looks at what the test makes alone: at all that a process of the suite holds, PyTorch and jaxlib
    included, it takes one to two seconds."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compiled models of the tests stay out of the user's cache (commands that tests start inherit this)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWRIGHT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def failures_are_errors() -> Iterator[None]:
    """An optimisation that fails as none should costs a user's model speed; here it fails the test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tilewright.compiler.failures_are_errors", lambda options: True)
        yield


@pytest.fixture(scope="module", autouse=True)
def programs_are_verified(request: pytest.FixtureRequest) -> Iterator[None]:
    """Programs are verified after each pass, and kernels when they are scheduled, where these are what is tested: it
    is a tenth of the time that compiling takes. What a test hands to `compile_module` itself is verified anywhere."""
    with pytest.MonkeyPatch.context() as patch:
        if _room(request) in ROOMS_OF_PASSES:
            patch.setattr("tilewright.compiler.is_verified", lambda options: True)
        yield


@pytest.fixture(scope="module", autouse=True)
def each_graph_once(request: pytest.FixtureRequest) -> Iterator[None]:
    """Graphs are compiled once where tests only use what comes of them."""
    with graphs_are_compiled_once() if _room(request) in ROOMS_THAT_USE_MODELS else nullcontext():
        yield


@pytest.fixture(scope="module", autouse=True)
def measurements_are_short(request: pytest.FixtureRequest) -> Iterator[None]:
    """Where models are a means, their kernels are timed for 2 ms, not for 50, and a turn of two models takes 2 ms, not
    80: no test asks for times, and a quantisation measures for 2 to 8 seconds."""
    with pytest.MonkeyPatch.context() as patch:
        if _room(request) in ROOMS_THAT_USE_MODELS:
            patch.setattr("tilewright.runtime.profile.LEAST_S", SHORT_S)
            patch.setattr("tilewright.quantization.decision.timing.TURN_S", SHORT_S)
        yield


@pytest.fixture(scope="module", autouse=True)
def each_kernel_once(request: pytest.FixtureRequest) -> Iterator[None]:
    """Kernels are scheduled once where tests are about what is made of them."""
    with kernels_are_scheduled_once() if _room(request) in ROOMS_THAT_SHARE_KERNELS else nullcontext():
        yield


@pytest.fixture(autouse=True)
def around_each_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """What holds for each test, in one fixture, as each costs a tenth of a millisecond for each of 16,000 tests:

    - Programs that are drawn afresh are verified anywhere; tests of front ends draw the numbers that models are given.
    - A test fails where a kernel is compiled that takes long and computes one element at a time, though its operands
      allow vectors: users are warned of it. What is drawn afresh is tried for answers alone (`bench cliffs` draws for
      speed).
    - Some of what tests compile is validated (tests/validated.py), but for programs that are drawn afresh.
    - A test fails where native code went beyond its buffers, also when somebody handled the error.
    - Operators and adapters that a test defines are forgotten."""
    room, is_marked = _room(request), {marker.name for marker in request.node.iter_markers()}.__contains__
    has_room = not is_marked("without_room_for_zones") and room not in ROOMS_OF_SIZES
    by_night = request.config.getoption("--sweeps")
    is_validated = room not in ROOMS_WITHOUT_VALIDATION and (by_night or not is_marked("fresh_seeds"))
    day = None if by_night else request.config.getoption("--day")
    validated = some_are_validated(request.node, day) if is_validated else nullcontext()
    with pytest.MonkeyPatch.context() as patch, _definitions_end(), validated:
        if is_marked("fresh_seeds") and room != "frontends":
            patch.setattr("tilewright.compiler.is_verified", lambda options: True)
        if not (is_marked("with_scalar_kernels") or is_marked("fresh_seeds")):
            patch.setattr(kernels, "slow_kernel", _refused)
        with findings_are_errors(is_on=not is_marked("without_zones"), has_room=has_room):
            yield


@contextmanager
def _definitions_end() -> Iterator[None]:
    """Later tests would compile with what a test has defined and cache nothing, as the digest of what a test closes
    over cannot be told."""
    counts = [len(registry.outside) for registry in REGISTRIES]
    try:
        yield
    finally:
        for registry, count in zip(REGISTRIES, counts, strict=False):  # a front end that a test loads brings its own
            del registry.outside[count:]
        for registry in REGISTRIES[len(counts) :]:
            registry.outside.clear()


def _refused(func: Func, target: Target, sizes: TypicalSizes, *, is_ours: bool) -> Remark | None:
    found = slow_kernel(func, target, sizes, is_ours=is_ours)
    assert found is None or found.kind != "warning", str(found)
    return found


def _room(request: pytest.FixtureRequest) -> str:
    """The folder of tests that a test is in; "" of one that a test has written."""
    tests = Path(__file__).parent
    return request.path.relative_to(tests).parts[0] if request.path.is_relative_to(tests) else ""


@pytest.fixture(scope="session", autouse=True)
def models_between_zones() -> Iterator[None]:
    """Native code runs between guard zones (tests/zones)."""
    with guard_zones():
        yield


@pytest.fixture
def check_round_trip() -> Callable[[Module], str]:
    """Assert that a module's text reads back as a module with the same text; gives the text."""

    def check(module: Module) -> str:
        text = print_module(module, locs=True)
        assert print_module(parse_module(text), locs=True) == text
        return text

    return check
