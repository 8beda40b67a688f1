"""The guard: which program of an artefact runs for the shapes of a call."""

from __future__ import annotations

from tilewright.runtime.artifact import Artifact
from tilewright.runtime.values.inputs import Shape, check_shapes

_Places = tuple[tuple[int, int, int], ...]
"""Input, axis and size of each dim that a variant has fixed."""


class ShapeGuard:
    """Chooses by number: 0 is the general program, k + 1 the variant k. A variant that has fixed more dims is preferred
    to one that has fixed fewer, which is their order in an artefact."""

    def __init__(self, artifact: Artifact) -> None:
        self._inputs = artifact.inputs
        self._whole: dict[tuple[object, ...], int] = {}
        self._partial: list[tuple[_Places, int]] = []
        self._last: tuple[tuple[Shape, ...] | None, int] = (None, 0)  # one object, as several threads may call
        for number, variant in enumerate(artifact.variants, 1):
            infos = variant.artifact.inputs
            if all(isinstance(dim, int) for info in infos for dim in info.shape):
                self._whole[tuple([info.shape for info in infos])] = number
            else:
                self._partial.append((fixed_places(artifact, variant.artifact), number))

    def __call__(self, shapes: tuple[Shape, ...]) -> int:
        """The number of the program for these shapes; InputError where no program takes them."""
        last, number = self._last
        if shapes != last:
            number = self._number(shapes)
            self._last = (shapes, number)
        return number

    def _number(self, shapes: tuple[Shape, ...]) -> int:
        number = self._whole.get(shapes)
        if number is not None:
            return number
        check_shapes(self._inputs, shapes)
        for places, number in self._partial:
            for index, axis, size in places:
                if shapes[index][axis] != size:
                    break
            else:
                return number
        return 0


def fixed_places(general: Artifact, variant: Artifact) -> _Places:
    """The dims that a variant has fixed, and the general program has not."""
    return tuple(
        (index, axis, size)
        for index, (known, fixed) in enumerate(zip(general.inputs, variant.inputs, strict=True))
        for axis, (dim, size) in enumerate(zip(known.shape, fixed.shape, strict=True))
        if isinstance(dim, str) and isinstance(size, int)
    )
