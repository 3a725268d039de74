"""Layout of an interaction's parameters in rows, and the interaction for a name.

    transh = Plugged.named("pykeen:TransH")
    transh.relation_width(64)                               # 128: a translation and a normal
    transh.score(transh.make(64), heads, relations, tails, 64)

An interaction declares representations of any number and shape, such as TransR's relations: a vector of e numbers and a matrix
of d by e. A row holds the numbers of all representations, one after the other, each in memory order. A complex representation
has all real parts first, then all imaginary ones. Sizes by letter: d, e and f are the dimension, s is 1, k is 4 (slices of NTN,
ranks of CP, parts of a quaternion). The name may give others, as in `pykeen:TransR(e=16)`.

Legend: `W`, `V` widths of rows of entities and relations.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import functools
import importlib
import inspect
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from fkgsec.errors import SpecError
from fkgsec.text import shown

PREFIX = "pykeen"
SIZES = {"s": 1, "k": 4}
DIMENSIONS = "def"  # sizes that are the model's dimension
PROBED_DIMS = (64, 200, 100, 32, 128, 256)  # the first that the interaction accepts is used to inspect it
MOST_DIM = 2**16
NORMS = {"TransE": 1, "TransR": 1, "SE": 1, "UM": 1, "PairRE": 1}
"""Norm p of interactions that require it, as in PyKEEN's models of these names; 2 for others."""
PHASES = ("RotatE",)
"""Interactions whose relations rotate. Their rows are phases, as in fkgsec's RotatE; PyKEEN normalizes complex numbers."""
POSITIVE = {("KG2E", 1)}
"""Representations that must be positive, by interaction and number: variances, stored as logarithms."""

Place: TypeAlias = Literal["h", "r", "t"]


def pykeen_modules() -> ModuleType:
    """Import `pykeen.nn.modules`.

    Raises:
        SpecError: PyKEEN is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of PyKEEN's own dependencies
            return importlib.import_module("pykeen.nn.modules")
    except ImportError as error:
        raise SpecError(
            f"model: {PREFIX}: needs PyKEEN, which is not installed: pip install 'fkgsec[pykeen]' ({error})"
        ) from error


@dataclass(frozen=True)
class Part:
    """Representation in a row: its shape, and whether it is complex."""

    shape: tuple[int, ...]
    complex: bool
    positive: bool = False

    @property
    def width(self) -> int:
        """Number of values in a row."""
        return math.prod(self.shape) * (2 if self.complex else 1)

    def read(self, numbers: Tensor) -> Tensor:
        """Reshape values into a representation.

        Args:
            numbers: float `[..., width]`.

        Returns:
            `[..., *shape]`, complex if the representation is.
        """
        if self.complex:
            numbers = torch.complex(*numbers.chunk(2, dim=-1))
        if self.positive:
            numbers = numbers.exp()
        return numbers.reshape(*numbers.shape[:-1], *self.shape)


@dataclass(frozen=True, eq=False)
class Plugged:
    """An interaction class with the arguments that its name gives.

    Attributes:
        name: as the user wrote it.
        kind: class of the interaction.
        arguments: of its constructor.
        sizes: by letter of a shape.
    """

    name: str
    kind: type[Any]
    arguments: tuple[tuple[str, Any], ...]
    sizes: tuple[tuple[str, int], ...]

    @classmethod
    def named(cls, name: str) -> Plugged:
        """Parse `pykeen:NAME` or `pykeen:NAME(argument=value, ...)`.

        Args:
            name: of the model.

        Raises:
            SpecError: PyKEEN is not installed, has no such interaction, or the interaction no such argument.
        """
        return _named(name)

    @property
    def short(self) -> str:
        """Name without the suffix: TransH for TransHInteraction."""
        return self.kind.__name__.removesuffix("Interaction")

    def make(self, dim: int) -> Any:
        """Construct the interaction; its parameters are drawn from torch's generator.

        Args:
            dim: embedding dimension.

        Raises:
            SpecError: the interaction rejects this dimension or its arguments.
        """
        arguments = dict(self.arguments)
        signature = inspect.signature(self.kind.__init__).parameters
        # Interactions name their dimension differently.
        for parameter in ("embedding_dim", "input_dim", "head_dim"):
            if parameter in signature:
                arguments.setdefault(parameter, dim)
        # PyKEEN's own models set the norm; a bare interaction requires it.
        if "p" in signature and signature["p"].default is inspect.Parameter.empty:
            arguments.setdefault("p", NORMS.get(self.short, 2))
        try:
            module = self.kind(**arguments)
            module.reset_parameters()  # some interactions leave parameters uninitialized until a model calls this
            return module
        except Exception as error:  # whatever the interaction thinks of its arguments
            message = " ".join(str(error).split()).replace(f"{self.kind.__name__}.__init__() ", "")
            raise SpecError(f"model: {self.name} cannot be made for dim {dim}: {message}") from error

    @functools.cached_property
    def sample(self) -> Any:
        """An instance for some dimension. Without parameters, an interaction is the same for every dimension."""
        with torch.random.fork_rng(devices=[]):
            for dim in PROBED_DIMS:
                with contextlib.suppress(SpecError):
                    return self.make(dim).eval()
            return self.make(PROBED_DIMS[0])  # raises the error that explains why none fits

    @property
    def has_network(self) -> bool:
        """Return whether the interaction has parameters outside the rows."""
        return any(True for _ in self.sample.parameters())

    @property
    def has_margin(self) -> bool:
        """Return whether gamma is added to its scores: they are negated distances, never positive."""
        module = pykeen_modules()
        return issubclass(self.kind, module.NormBasedInteraction) or self.short == "KG2E"

    @property
    def phases(self) -> bool:
        """Return whether relation rows are phases."""
        return self.short in PHASES

    def parts(self, place: Place, dim: int) -> tuple[Part, ...]:
        """List the representations in a row.

        Args:
            place: "r" for relations; "h" or "t" for entities, which have the same rows.
            dim: embedding dimension.

        Raises:
            SpecError: a size of the shapes is unknown.
        """
        # Later entries win: sizes in the name override defaults.
        sizes = SIZES | dict.fromkeys(DIMENSIONS, dim) | dict(self.sizes)
        shapes = self.sample.relation_shape if place == "r" else self.sample.entity_shape
        unknown = sorted({letter for shape in shapes for letter in shape} - set(sizes))
        if unknown:
            raise SpecError(
                f"model: {self.name}: the size {unknown[0]} of its shapes is unknown; give it in parentheses"
            )
        return tuple(
            Part(tuple(sizes[letter] for letter in shape), self.kind.is_complex, (self.short, number) in POSITIVE)
            for number, shape in enumerate(shapes)
        )

    def entity_width(self, dim: int) -> int:
        """Return W.

        Args:
            dim: embedding dimension.
        """
        return sum(part.width for part in self.parts("h", dim))

    def relation_width(self, dim: int) -> int:
        """Return V, the width of shared rows; phases take half of the complex numbers they stand for.

        Args:
            dim: embedding dimension.
        """
        width = sum(part.width for part in self.parts("r", dim))
        return width // 2 if self.phases else width

    def dim_of(self, entity_width: int) -> int:
        """Find the dimension that has a width of entity rows.

        Args:
            entity_width: W.

        Raises:
            SpecError: no dimension has it.
        """
        return _dim_of(self, entity_width)

    def read(self, place: Place, rows: Tensor, dim: int) -> tuple[Tensor, ...]:
        """Split rows into the representations that the interaction takes in a place.

        Args:
            place: head, relation or tail.
            rows: float `[..., width]`; relation vectors if the model has phases.
            dim: embedding dimension.

        Returns:
            Representations, each `[..., *shape]`.
        """
        parts = self.parts(place, dim)
        if not parts:
            return ()
        split = rows.split([part.width for part in parts], dim=-1)
        representations = [part.read(numbers) for part, numbers in zip(parts, split, strict=True)]
        return (
            tuple(representations) if place == "r" else tuple(representations[number] for number in self._taken(place))
        )

    def _taken(self, place: Place) -> Sequence[int]:
        """Return the numbers of the entity representations that the interaction takes at head or tail."""
        indices = self.sample._head_indices if place == "h" else self.sample._tail_indices
        return range(len(self.sample.entity_shape)) if indices is None else indices

    def score(self, interaction: nn.Module, h: Tensor, r: Tensor, t: Tensor, dim: int) -> Tensor:
        """Compute PyKEEN's scores `[...]`, broadcast.

        Args:
            interaction: from `make`.
            h, r, t: rows of heads, relation vectors and tails, float `[..., width]`.
            dim: embedding dimension.
        """
        read = (self.read(place, rows, dim) for place, rows in zip(("h", "r", "t"), (h, r, t), strict=True))
        return interaction(
            *(representation[0] if len(representation) == 1 else representation for representation in read)
        )


def _shapes_of(kind: type[Any]) -> set[str]:
    return {letter for shape in (*kind.entity_shape, *kind.relation_shape) for letter in shape}


@functools.cache
def _dim_of(plugged: Plugged, entity_width: int) -> int:
    # Widths grow with the dimension, but not linearly (matrices), so the dimension is searched for.
    for dim in range(1, MOST_DIM):
        width = plugged.entity_width(dim)
        if width == entity_width:
            return dim
        if width > entity_width:
            break
    raise SpecError(f"model: {plugged.name}: entity rows of {entity_width} numbers are of no dimension")


@functools.cache
def _named(name: str) -> Plugged:
    prefix, _, rest = name.partition(":")
    if prefix != PREFIX or not rest:
        raise SpecError(f"model: {shown(name)} names no interaction; give {PREFIX}:NAME, such as {PREFIX}:TransH")
    word, written = _parsed(name, rest)
    resolver: Any = pykeen_modules().interaction_resolver
    try:
        kind = resolver.lookup(word)
    except (KeyError, ValueError, TypeError) as error:
        names = {interaction.__name__.removesuffix("Interaction") for interaction in resolver}
        # Suggestions ignore case, as PyKEEN's resolver does.
        folded = {interaction.casefold(): interaction for interaction in names}
        near = [folded[interaction] for interaction in difflib.get_close_matches(word.casefold(), folded, n=3)]
        meant = f"; did you mean {' or '.join(near)}?" if near else f"; allowed: {', '.join(sorted(names))}"
        raise SpecError(f"model: PyKEEN has no interaction {shown(word)}{meant}") from error
    # One-letter keys that occur in shapes are sizes; all others are arguments of the constructor.
    letters = {key: value for key, value in written.items() if key in _shapes_of(kind) and len(key) == 1}
    for key, value in letters.items():
        if key == "d" or type(value) is not int or value < 1:
            raise SpecError(f"model: {name}: {key} must be a whole number of at least 1; d is the option dim")
    arguments = {key: value for key, value in written.items() if key not in letters}
    # Check arguments here: PyKEEN's own error would not list the allowed ones.
    accepted = [key for key in inspect.signature(kind.__init__).parameters if key not in ("self", "args", "kwargs")]
    for key in arguments:
        if key not in accepted:
            accepted_names = ", ".join([*accepted, *sorted(_shapes_of(kind) - {"d"})]) or "none"
            raise SpecError(f"model: {kind.__name__} has no argument {key}; allowed: {accepted_names}")
    return Plugged(name, kind, tuple(sorted(arguments.items())), tuple(sorted(letters.items())))


def _parsed(name: str, rest: str) -> tuple[str, dict[str, Any]]:
    """Split `TransH` or `TransE(p=2)` into name and arguments."""
    if "(" not in rest:
        return rest, {}
    try:
        # Parse without evaluating: only literals are accepted as arguments.
        call = ast.parse(rest.strip(), mode="eval").body
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and not call.args:
            return call.func.id, {
                str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg
            }
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pass
    raise SpecError(f"model: {shown(name)}: arguments are given as in {PREFIX}:TransE(p=2)")
