"""Layout of an interaction's parameters in rows, and the interaction for a name.

    one = Plugged.named("pykeen:TransH")
    one.relation_width(64)                                  # 128: a translation and a normal
    one.score(one.read("h", heads), one.read("r", relations), one.read("t", tails))

An interaction declares representations of any number and shape, such as TransR's relations: a vector of e numbers and a matrix
of d by e. A row has all numbers of all of them, one representation after the other, each as it lies in memory; of a complex one
first all real parts, then all imaginary ones. Sizes by letter: d, e and f are the dimension, s is 1, k is 4 (slices of NTN, ranks
of CP, parts of a quaternion); the name may say others, as in `pykeen:TransR(e=16)`.

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
PLACES = ("h", "r", "t")
SIZES = {"s": 1, "k": 4}
DIMENSIONS = "def"  # sizes that are the model's dimension
PROBED_DIMS = (
    64,
    200,
    100,
    32,
    128,
    256,
)  # for the first that fits, one is made to see whether it has parameters of its own
MOST_DIM = 2**16
NORMS = {"TransE": 1, "TransR": 1, "SE": 1, "UM": 1, "PairRE": 1}
"""The norm p where an interaction must be told it, of PyKEEN's models of these names; 2 for others."""
PHASES = ("RotatE",)
"""Whose relations turn: their rows are phases, as in fkgsec's own RotatE, where PyKEEN scales complex numbers to length 1."""
POSITIVE = {("KG2E", 1)}
"""Representations that must be positive, by interaction and number: variances, e to the power of what stands in the row."""

Place: TypeAlias = Literal["h", "r", "t"]


def pykeen_modules() -> ModuleType:
    """`pykeen.nn.modules`. Raises `SpecError` where PyKEEN is not installed."""
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
        """Numbers of it in a row."""
        return math.prod(self.shape) * (2 if self.complex else 1)

    def read(self, numbers: Tensor) -> Tensor:
        """A representation `[..., *shape]` from its numbers `[..., width]`."""
        if self.complex:
            numbers = torch.complex(*numbers.chunk(2, dim=-1))
        if self.positive:
            numbers = numbers.exp()
        return numbers.reshape(*numbers.shape[:-1], *self.shape)


@dataclass(frozen=True, eq=False)
class Plugged:
    """An interaction by its class, with what the name says of it.

    Attributes:
        name: as given. kind: the class. arguments: given for its constructor. sizes: given for letters of shapes.
    """

    name: str
    kind: type[Any]
    arguments: tuple[tuple[str, Any], ...]
    sizes: tuple[tuple[str, int], ...]

    @classmethod
    def named(cls, name: str) -> Plugged:
        """Read `pykeen:NAME` or `pykeen:NAME(argument=value, ...)`.

        Raises:
            SpecError: PyKEEN is not installed, has no such interaction, or the interaction no such argument.
        """
        return _named(name)

    @property
    def short(self) -> str:
        """TransH of TransHInteraction."""
        return self.kind.__name__.removesuffix("Interaction")

    def make(self, dim: int) -> Any:
        """The interaction for a dimension; parameters of its own are drawn from torch's generator.

        Raises:
            SpecError: it cannot be made for this dimension.
        """
        arguments = dict(self.arguments)
        signature = inspect.signature(self.kind.__init__).parameters
        for parameter in ("embedding_dim", "input_dim", "head_dim"):
            if parameter in signature:
                arguments.setdefault(parameter, dim)
        if "p" in signature and signature["p"].default is inspect.Parameter.empty:
            arguments.setdefault("p", NORMS.get(self.short, 2))
        try:
            module = self.kind(**arguments)
            module.reset_parameters()  # some lie in memory as it was found, until a model of PyKEEN says this
            return module
        except Exception as error:  # whatever the interaction thinks of its arguments
            message = " ".join(str(error).split()).replace(f"{self.kind.__name__}.__init__() ", "")
            raise SpecError(f"model: {self.name} cannot be made for dim {dim}: {message}") from error

    @functools.cached_property
    def sample(self) -> Any:
        """The interaction for some dimension; one without parameters of its own is the same for every other."""
        with torch.random.fork_rng(devices=[]):
            for dim in PROBED_DIMS:
                with contextlib.suppress(SpecError):
                    return self.make(dim).eval()
            return self.make(PROBED_DIMS[0])  # to say why there is none

    @property
    def has_network(self) -> bool:
        """Return whether it has parameters of its own, which lie in no row."""
        return any(True for _ in self.sample.parameters())

    @property
    def has_margin(self) -> bool:
        """Return whether gamma is added to its scores: they are distances, which have no positive values."""
        module = pykeen_modules()
        return issubclass(self.kind, module.NormBasedInteraction) or self.short == "KG2E"

    @property
    def phases(self) -> bool:
        """Return whether rows of relations are phases."""
        return self.short in PHASES

    def parts(self, place: Place, dim: int) -> tuple[Part, ...]:
        """Return what a row holds: of relations ("r"), or of entities ("h", "t", which are the same rows)."""
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
        """W."""
        return sum(part.width for part in self.parts("h", dim))

    def relation_width(self, dim: int) -> int:
        """V, of rows as they are shared; phases are half of what they turn by."""
        width = sum(part.width for part in self.parts("r", dim))
        return width // 2 if self.phases else width

    def dim_of(self, entity_width: int) -> int:
        """The dimension whose entity rows are so wide. Raises `SpecError` where there is none."""
        return _dim_of(self, entity_width)

    def read(self, place: Place, rows: Tensor, dim: int) -> tuple[Tensor, ...]:
        """The representations in rows `[..., width]` as the interaction takes them in this place, each `[..., *shape]`.

        Relation rows are vectors already, where the model has phases.
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
        """Return which of an entity's representations the interaction takes where it is head or tail."""
        indices = self.sample._head_indices if place == "h" else self.sample._tail_indices
        return range(len(self.sample.entity_shape)) if indices is None else indices

    def score(self, interaction: nn.Module, h: Tensor, r: Tensor, t: Tensor, dim: int) -> Tensor:
        """PyKEEN's scores `[...]` of rows of heads, relation vectors and tails `[..., width]`, broadcast."""
        read = (self.read(place, rows, dim) for place, rows in zip(("h", "r", "t"), (h, r, t), strict=True))
        return interaction(
            *(representation[0] if len(representation) == 1 else representation for representation in read)
        )


def _shapes_of(kind: type[Any]) -> set[str]:
    return {letter for shape in (*kind.entity_shape, *kind.relation_shape) for letter in shape}


@functools.cache
def _dim_of(plugged: Plugged, entity_width: int) -> int:
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
        folded = {interaction.casefold(): interaction for interaction in names}
        near = [folded[interaction] for interaction in difflib.get_close_matches(word.casefold(), folded, n=3)]
        meant = f"; did you mean {' or '.join(near)}?" if near else f"; allowed: {', '.join(sorted(names))}"
        raise SpecError(f"model: PyKEEN has no interaction {shown(word)}{meant}") from error
    letters = {key: value for key, value in written.items() if key in _shapes_of(kind) and len(key) == 1}
    for key, value in letters.items():
        if key == "d" or type(value) is not int or value < 1:
            raise SpecError(f"model: {name}: {key} must be a whole number of at least 1; d is the option dim")
    arguments = {key: value for key, value in written.items() if key not in letters}
    accepted = [key for key in inspect.signature(kind.__init__).parameters if key not in ("self", "args", "kwargs")]
    for key in arguments:
        if key not in accepted:
            accepted_names = ", ".join([*accepted, *sorted(_shapes_of(kind) - {"d"})]) or "none"
            raise SpecError(f"model: {kind.__name__} has no argument {key}; allowed: {accepted_names}")
    return Plugged(name, kind, tuple(sorted(arguments.items())), tuple(sorted(letters.items())))


def _parsed(name: str, rest: str) -> tuple[str, dict[str, Any]]:
    """The word and the arguments in `TransH` or `TransE(p=2)`."""
    if "(" not in rest:
        return rest, {}
    try:
        call = ast.parse(rest.strip(), mode="eval").body
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and not call.args:
            return call.func.id, {
                str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg
            }
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pass
    raise SpecError(f"model: {shown(name)}: arguments are given as in {PREFIX}:TransE(p=2)")
