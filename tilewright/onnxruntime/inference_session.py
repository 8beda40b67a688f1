"""A session: a model that is compiled when it is made, under the names of ONNX Runtime's."""

from __future__ import annotations

import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright import api
from tilewright.onnxruntime.errors import (
    Fail,
    InvalidArgument,
    InvalidProtobuf,
    NoSuchFile,
    NotImplemented,
    as_onnxruntime,
)
from tilewright.onnxruntime.io_binding import IOBinding
from tilewright.onnxruntime.model_file import (
    ModelFile,
    ModelMetadata,
    Overrides,
    open_wire,
    read_model_file,
    without_initializers,
)
from tilewright.onnxruntime.ort_value import OrtValue
from tilewright.onnxruntime.profiling import Profile
from tilewright.onnxruntime.session_options import GraphOptimizationLevel, RunOptions, SessionOptions
from tilewright.onnxruntime.suggesting import Suggesting
from tilewright.runtime import Model
from tilewright.runtime.errors import TilewrightError
from tilewright.runtime.values.node_arg import NodeArg

PROVIDER = "CPUExecutionProvider"
_MOST_VARIANTS = 16
"""Models that a session keeps, each for other constants or other overridden initializers."""

_Variant = tuple[frozenset[str], tuple[tuple[str, str, tuple[int, ...], bytes], ...]]


class InferenceSession(Suggesting):
    """A model from a path or bytes. Errors are ONNX Runtime's classes, with our messages."""

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        sess_options: SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        **ignored: Any,
    ) -> None:
        """Providers other than the CPU's are ignored with a warning, and keywords that ONNX Runtime ignores, too."""
        if isinstance(path_or_bytes, bytes | bytearray | memoryview):
            self._source: Path | bytes = bytes(path_or_bytes)
        elif isinstance(path_or_bytes, str | os.PathLike):
            self._source = Path(path_or_bytes)
        else:
            raise TypeError(f"Unable to load from type '{type(path_or_bytes)}'")
        self._options = SessionOptions() if sess_options is None else sess_options
        _check_options(self._options)
        self.set_providers(providers, provider_options)
        self._file = _read(self._source, Overrides(*self._options.free_dimension_overrides))
        self._needed = [arg.name for arg in self._file.inputs]
        self._overridable = {arg.name for arg in self._file.overridable}
        self._lock = threading.Lock()
        self._constants: tuple[str, ...] = ()
        self._variants: dict[_Variant, Model] = {}
        self._start_ns, start = time.time_ns(), time.perf_counter()
        self._profile = Profile(self._options.profile_file_prefix, start) if self._options.enable_profiling else None
        self._model = self._first()
        if self._profile is not None:
            self._profile.add("session_initialization", start, time.perf_counter() - start)
            weakref.finalize(self, self._profile.end)
        if self._model is not None and not self._overridable:
            self._source = b""  # not compiled again

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[np.ndarray]:
        """The outputs that are named, or all, of inputs by name.

        ValueError for inputs that are missing, InvalidArgument for what else does not fit, Fail where the model fails.
        """
        if run_options is not None:
            _check_run(run_options)
        model = self._model
        try:
            if isinstance(input_feed, Mapping):
                missing = [name for name in self._needed if name not in input_feed]
                if missing:
                    raise ValueError(f"Required inputs ({missing}) are missing from input feed ({list(input_feed)}).")
                if model is None or not self._overridable.isdisjoint(input_feed):
                    model, input_feed = self._model_for(input_feed)
            elif model is None:
                raise InvalidArgument.of(f"a feed is a dict of names to arrays, not {input_feed!r:.80}")
            if self._profile is not None and self._profile.is_open:
                return self._profiled(self._profile, model, output_names, input_feed)
            return model.run(output_names, input_feed)
        except TilewrightError as error:
            raise as_onnxruntime(error) from error

    def _profiled(
        self, profile: Profile, model: Model, output_names: Sequence[str] | None, feed: Mapping[str, Any]
    ) -> list[np.ndarray]:
        start = time.perf_counter()
        results = model.run(output_names, feed)
        profile.add_run(model, feed, start, time.perf_counter() - start)
        return results

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[np.ndarray], Any, str], None],
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Run in another thread, which calls `callback(outputs, user_data, error)`; the error is "" for none."""

        def run() -> None:
            try:
                results, failed = self.run(output_names, input_feed, run_options), ""
            except Exception as error:  # the client is told, whatever it is
                results, failed = [], str(error)
            callback(results, user_data, failed)

        threading.Thread(target=run, name="tilewright run_async").start()

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """As `run`, with values for arrays."""
        feed = {name: value.numpy() for name, value in input_dict_ort_values.items()}
        return [OrtValue(result) for result in self.run(output_names, feed, run_options)]

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        """Read and write what is bound; RuntimeError where that does not fit, as ONNX Runtime has it."""
        if not iobinding.wanted:
            raise RuntimeError("Error in execution: At least one output should be requested.")
        feed = {name: value.numpy() for name, value in iobinding.feed.items()}
        try:
            results = self.run(list(iobinding.wanted), feed, run_options)
        except (Fail, InvalidArgument, ValueError) as error:
            raise RuntimeError(f"Error in execution: {error}") from error
        iobinding.store(results)

    def io_binding(self) -> IOBinding:
        return IOBinding(self)

    def get_inputs(self) -> list[NodeArg]:
        """The inputs without an initializer, as the file declares them."""
        return list(self._file.inputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        """The inputs that have an initializer: a feed may have them. The first with them compiles the model again."""
        return list(self._file.overridable)

    def get_outputs(self) -> list[NodeArg]:
        """The outputs as the file declares them; where it has no shape, as they were inferred."""
        file = self._file
        inferred = {arg.name: arg for arg in self._model.get_outputs()} if self._model else {}
        found = []
        for arg in file.outputs:
            other = inferred.get(arg.name)
            if arg.name in file.shapeless and other is not None:
                known = file.names_of_dims
                shape = [dim if isinstance(dim, int) or dim in known else None for dim in other.shape]
                arg = NodeArg(arg.name, shape, arg.type or other.type)
            found.append(arg)
        return found

    def get_modelmeta(self) -> ModelMetadata:
        return self._file.metadata

    def get_session_options(self) -> SessionOptions:
        return self._options

    def get_providers(self) -> list[str]:
        return [PROVIDER]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return {PROVIDER: {}}

    def set_providers(
        self, providers: Sequence[Any] | None = None, provider_options: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        """A warning for each that is not the CPU's; ValueError for what is no provider. The name of one is one."""
        if isinstance(providers, str):
            providers = [providers]
        if not isinstance(providers, Sequence | None):
            raise ValueError(f"'providers' should be a sequence, not {providers!r:.80}")
        for provider in providers or ():
            name = provider[0] if isinstance(provider, tuple | list) and len(provider) == 2 else provider
            if not isinstance(name, str):
                raise ValueError(f"a provider is a name, or a name and its options, not {provider!r:.80}")
            if name != PROVIDER:
                warnings.warn(
                    f"Specified provider '{name}' is not in available provider names. Available providers: "
                    f"'{PROVIDER}', by tilewright",
                    stacklevel=3,
                )

    def enable_fallback(self) -> None:
        """Nothing: there is one provider."""

    def disable_fallback(self) -> None:
        """Nothing: there is one provider."""

    def end_profiling(self) -> str:
        """Write what was profiled to a file, and give its name; "" where nothing is. Without this it is written when
        the session is gone."""
        return "" if self._profile is None else self._profile.end()

    def get_profiling_start_time_ns(self) -> int:
        return self._start_ns

    def _first(self) -> Model | None:
        """The model as the file has it; None where it needs values of inputs, which the feeds bring."""
        try:
            return self._compiled(frozenset(), {})
        except TilewrightError as error:
            self._constants = _asked_for(error)
            if self._constants:
                return None
            raise as_onnxruntime(error) from error

    def _model_for(self, feed: Mapping[str, Any]) -> tuple[Model, dict[str, Any]]:
        """The model in which the inputs of a feed are read from there and not from their initializers, and those whose
        values the compiler needs have the feed's; and what remains of the feed."""
        fed = frozenset(self._overridable.intersection(feed))
        while True:
            constants = {name: np.asarray(feed[name]) for name in self._constants}
            values = tuple((name, str(a.dtype), a.shape, a.tobytes()) for name, a in constants.items())
            try:
                with self._lock:
                    model = self._variants.get((fed, values)) or self._compiled(fed, constants)
                    self._variants[fed, values] = model
                    if len(self._variants) > _MOST_VARIANTS:
                        del self._variants[next(iter(self._variants))]
                return model, {name: value for name, value in feed.items() if name not in constants}
            except TilewrightError as error:
                more = [name for name in _asked_for(error) if name in feed and name not in constants]
                if not more:
                    raise
                self._constants += tuple(more)

    def _compiled(self, fed: frozenset[str], constants: dict[str, np.ndarray]) -> Model:
        source = self._source
        if fed:
            if self._file.has_outside_data:
                raise NotImplemented.of(
                    f"initializers cannot be overridden in a model with data in other files: {', '.join(sorted(fed))}"
                )
            source = without_initializers(open_wire(source), set(fed))
        options = self._options
        strict = options.graph_optimization_level is GraphOptimizationLevel.ORT_DISABLE_ALL
        return api.compile(
            source,
            threads=options.intra_op_num_threads if options.intra_op_num_threads > 0 else None,
            numerics="strict" if strict else "default",
            profile=self._profile is not None,
            constants=constants,
            shapes=self._shapes(fed),
        )

    def _shapes(self, fed: Iterable[str]) -> dict[str, list[int | str]]:
        """The shapes of inputs, where the options fix dims of them."""
        if not any(self._options.free_dimension_overrides):
            return {}
        inputs = [*self._file.inputs, *(arg for arg in self._file.overridable if arg.name in fed)]
        return {
            arg.name: [f"{arg.name}_{axis}" if dim is None else dim for axis, dim in enumerate(arg.shape)]
            for arg in inputs
            if any(isinstance(dim, int) for dim in arg.shape)
        }


def _read(source: Path | bytes, overrides: Overrides) -> ModelFile:
    """What a model declares; the errors that ONNX Runtime raises for what is none."""
    name = "the model" if isinstance(source, bytes) else str(source)
    try:
        file = read_model_file(open_wire(source), overrides)
    except FileNotFoundError as error:
        raise NoSuchFile.of(f"Load model from {name} failed: the file does not exist") from error
    except OSError as error:
        raise InvalidProtobuf.of(f"Load model from {name} failed: {error.strerror or error}") from error
    except ValueError as error:
        raise InvalidProtobuf.of(f"Load model from {name} failed: it is no ONNX model ({error})") from error
    if file is None:
        raise InvalidArgument.of(f"No graph was found in {name}: it is no ONNX model")
    return file


def _asked_for(error: TilewrightError) -> tuple[str, ...]:
    """The inputs whose values the compiler needs to go on, if that is what an error says."""
    names: tuple[str, ...] = getattr(error, "inputs", ())  # of a front end's ConstantNeededError
    return names


def _check_options(options: SessionOptions) -> None:
    if not isinstance(options, SessionOptions):
        raise TypeError(f"sess_options must be SessionOptions of this module, not {options!r:.80}")
    if options.optimized_model_filepath:
        raise NotImplemented.of(
            "SessionOptions.optimized_model_filepath writes files of ONNX Runtime\n"
            "  hint: save compiled models with Model.save"
        )


def _check_run(options: RunOptions) -> None:
    if not isinstance(options, RunOptions):
        raise TypeError(f"run_options must be RunOptions of this module, not {options!r:.80}")
    if options.terminate:
        raise Fail.of("Exiting due to terminate flag being set to true.")
