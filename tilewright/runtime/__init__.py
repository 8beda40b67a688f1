"""Runs compiled models: artefact files, native code, threads, memory. Imports nothing of the compiler."""

from tilewright.runtime.artifact import Artifact as Artifact
from tilewright.runtime.artifact import TensorInfo as TensorInfo
from tilewright.runtime.errors import ArtifactError as ArtifactError
from tilewright.runtime.errors import ExecutionError as ExecutionError
from tilewright.runtime.errors import InputError as InputError
from tilewright.runtime.errors import OptionError as OptionError
from tilewright.runtime.errors import TilewrightError as TilewrightError
from tilewright.runtime.module import Model as Model
from tilewright.runtime.storage.fleet import Fleet as Fleet
from tilewright.runtime.storage.loading import load as load
from tilewright.runtime.storage.loading import load_fleet as load_fleet
from tilewright.runtime.storage.loading import sign as sign
