"""Registries of parts by name: built-in ones and those that other packages add.

    AGGREGATIONS.register("trimmed-mean", TrimmedMean)     # from a script
    [project.entry-points."fkgsec.aggregations"]           # or from a package, in its pyproject.toml
    trimmed-mean = "mypackage:TrimmedMean"

Names are available at once; a part is imported at its first use.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar

from fkgsec.errors import SpecError

Part = TypeVar("Part")


class _Later(Generic[Part]):
    """Part that is imported at its first use."""

    def __init__(self, load: Callable[[], Part]) -> None:
        self.load = load


class Registry(Mapping[str, Part]):
    """Parts of one kind by name.

    Args:
        kind: name of a part in messages, such as "aggregation".
        group: of the entry points.
        shipped: "module:attribute" of built-in parts, by name.
        families: "module:name" of functions that construct parts, by prefix. A function gets a name of the form PREFIX:... and
            returns the same part at each call, None for a name of another registry, or raises `SpecError` for an invalid name.
            Such parts are not listed.
    """

    def __init__(
        self,
        kind: str,
        group: str,
        shipped: Mapping[str, str] | None = None,
        *,
        families: Mapping[str, str] | None = None,
    ) -> None:
        self.kind, self.group = kind, group
        self._parts: dict[str, Part | _Later[Part]] = {
            name: _Later(EntryPoint(name, where, group).load) for name, where in (shipped or {}).items()
        }
        self._families = families or {}
        self._loaded, self._changes = False, 0

    def register(self, name: str, part: Part) -> Part:
        """Add a part and return it.

        Args:
            name: of the part.

        Raises:
            SpecError: another part has the name.
        """
        self._add(name, part)
        return part

    def _add(self, name: str, part: Part | _Later[Part]) -> None:
        # Registering the same part again is harmless: notebooks run cells twice.
        if self._parts.get(name, part) is not part:
            raise SpecError(f"{self.kind} {name!r} is registered already")
        self._parts[name] = part
        self._changes += 1

    @property
    def version(self) -> int:
        """Number that changes with the listed parts, for caches."""
        self._all()
        return self._changes

    @property
    def families(self) -> tuple[str, ...]:
        """Prefixes of names that are not listed."""
        return tuple(self._families)

    def _of_family(self, name: object) -> Part | None:
        prefix, colon, _ = str(name).partition(":")
        is_known = colon and prefix in self._families
        return pkgutil.resolve_name(self._families[prefix])(str(name)) if is_known else None

    def remove(self, name: str) -> None:
        """Remove a part, so that a notebook can register it again.

        Args:
            name: of the part.
        """
        self._all().pop(name, None)
        self._changes += 1

    def __getitem__(self, name: str) -> Part:
        """Return a part. Raises `SpecError` for an unknown name, and for a part of another package that cannot be
        imported.
        """
        # Families first: their names are not listed.
        if (family_part := self._of_family(name)) is not None:
            return family_part
        if name not in self._all():
            raise SpecError(f"{self.kind} {name!r} is unknown; allowed: {', '.join(self._parts)}")
        part = self._parts[name]
        if not isinstance(part, _Later):
            return part
        # Replace the placeholder, so that a part is imported once.
        loaded: Part = part.load()
        self._parts[name] = loaded
        return loaded

    def __contains__(self, name: object) -> bool:
        return self._of_family(name) is not None or name in self._all()

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def _all(self) -> dict[str, Part | _Later[Part]]:
        if not self._loaded:
            self._loaded = True
            # Only names are read here; a broken package fails when its part is used.
            for point in entry_points(group=self.group):
                self._add(point.name, _Later(lambda point=point: self._load(point)))
        return self._parts

    def _load(self, point: EntryPoint) -> Part:
        try:
            return point.load()
        except Exception as error:  # whatever a foreign module does when it is imported
            package = f"package {point.dist.name!r}" if point.dist is not None else "its package"
            raise SpecError(
                f"{self.kind} {point.name!r}: {package} cannot be loaded ({error}). Fix or uninstall it."
            ) from error
