"""Runs compiled models: artefact files, native code, threads, memory. Imports nothing of the compiler."""

from tilewright.runtime.artifact import Artifact as Artifact
from tilewright.runtime.artifact import TensorInfo as TensorInfo
from tilewright.runtime.storage.loading import load as load
from tilewright.runtime.storage.loading import sign as sign
from tilewright.runtime.module import Model as Model
