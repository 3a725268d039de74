"""Parts by name, the shipped ones and those that other packages add.

    AGGREGATIONS.register("trimmed-mean", TrimmedMean)     # from a script
    [project.entry-points."fkgsec.aggregations"]           # or from a package, in its pyproject.toml
    trimmed-mean = "mypackage:TrimmedMean"

Entry points are loaded when the registry is first read.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from typing import TypeVar

from fkgsec.errors import SpecError

Part = TypeVar("Part")


class Registry(Mapping[str, Part]):
    """Parts of one kind by name.

    Args:
        kind: what errors call a part, such as "aggregation". group: of the entry points.
        shipped: the modules that register the shipped parts, imported when the registry is first read; none where importing the
            registry has done so.
    """

    def __init__(self, kind: str, group: str, *, shipped: Sequence[str] = ()) -> None:
        self.kind, self.group, self._shipped = kind, group, shipped
        self._parts: dict[str, Part] = {}
        self._loaded = False

    def register(self, name: str, part: Part) -> Part:
        """Add a part. Raises `SpecError` for a name that another one has."""
        if self._parts.get(name, part) is not part:
            raise SpecError(f"{self.kind} {name!r} is registered already")
        self._parts[name] = part
        return part

    def remove(self, name: str) -> None:
        """Take a part out again, so that a notebook can register it anew."""
        self._all().pop(name, None)

    def __getitem__(self, name: str) -> Part:
        """Raises `SpecError` for a name that no part has."""
        if name not in self._all():
            raise SpecError(f"{self.kind} {name!r} is unknown; allowed: {', '.join(self._parts)}")
        return self._parts[name]

    def __contains__(self, name: object) -> bool:
        return name in self._all()

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def _all(self) -> dict[str, Part]:
        if not self._loaded:
            self._loaded = True
            for module in self._shipped:
                importlib.import_module(module)
            for point in entry_points(group=self.group):
                try:
                    part = point.load()
                except Exception as error:  # whatever a foreign module does when it is imported
                    raise SpecError(f"{self.kind} {point.name!r}: its package cannot be loaded ({error})") from error
                self.register(point.name, part)
        return self._parts
