"""Words that options allow, from registries and types. Papers' spellings are accepted; errors suggest the nearest word.

allowed("model")                    # ("transe", "rotate", "distmult", "complex")
spelled("algorithm", "FedE-SVD+")   # "fede-svd+"
spelled("model", "rotat")           # SpecError: model must be one of transe, ...; got 'rotat'; did you mean rotate?
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, get_args, get_origin

import msgspec

from fkgsec.attacks.options import GRAPH, KGE, threat_models
from fkgsec.defenses.options import KINDS
from fkgsec.errors import SpecError
from fkgsec.federation.recipes import RECIPES, algorithms_of
from fkgsec.gnn.options import MODELS as CONVOLUTIONS
from fkgsec.kge.models import ENCODERS, MODELS
from fkgsec.text import shown

# Functions, because packages may register models later than this module is imported.
_REGISTRIES: dict[str, dict[str, Callable[[], Iterable[str]]]] = {
    "kge": {"model": lambda: (*MODELS, *ENCODERS), "threat": lambda: threat_models(KGE)},
    "graph": {"model": lambda: CONVOLUTIONS, "threat": lambda: threat_models(GRAPH)},
}
_ALIASES: dict[str, Mapping[str, str]] = {
    # fedr.txt Table 2; fedlu.txt Table 1; both for training without a federation.
    "algorithm": {"local": "single", "independent": "single", "centralized": "collective", "centralised": "collective"},
}


def allowed(name: str, options: type[Any]) -> tuple[str, ...]:
    """Return the words that an option of a spec allows; empty if it is not a choice of words.

    Args:
        name: name of the option.
        options: class of a spec or of options.
    """
    if name == "algorithm":
        return tuple(algorithms_of(options.task))
    if registry := _REGISTRIES.get(getattr(options, "task", ""), {}).get(name):
        return tuple(registry())
    return _field_words(options).get(name, ())


@functools.cache
def _field_words(options: type[msgspec.Struct]) -> dict[str, tuple[str, ...]]:
    return {field.name: _words(field.type) for field in msgspec.structs.fields(options)}


def spelled(name: str, value: Any, choices: Iterable[str]) -> Any:
    """Return an option's value in fkgsec's spelling; case, hyphens and underscores do not matter.

    Args:
        name: name of the option, for the error.
        value: a word, or a list of words. Values of other types are returned unchanged.
        choices: allowed words.

    Raises:
        SpecError: an unknown word; the message names the option, the value, all words and the nearest.

    >>> spelled("algorithm", "FedE-SVD+", ["fede", "fede-svd+"]), spelled("threat", ["Server"], ["server"])
    ('fede-svd+', ['server'])
    """
    # Iterated several times below; `choices` may be a generator.
    words = tuple(choices)
    if isinstance(value, list | tuple):
        return type(value)(spelled(name, word, words) for word in value)
    if not isinstance(value, str) or value in words:
        return value
    folded = {_fold(word): word for word in words} | dict(_ALIASES.get(name, {}))
    if _fold(value) in folded:
        return folded[_fold(value)]
    # Compare folded spellings: a wrong capital is not an error to correct.
    near = difflib.get_close_matches(_fold(value), folded, n=1)
    hint = f"; did you mean {folded[near[0]]}?" if near else ""
    raise SpecError(f"{name} must be one of {', '.join(words)}; got {shown(value)}{hint}")


def spelled_defense(value: str) -> str:
    """Return a defense with its kinds in fkgsec's spelling.

    Args:
        value: text of `--defense`. Values of settings are not checked here.

    Raises:
        SpecError: an unknown kind or setting; the message names all of them and the nearest.

    >>> spelled_defense("PSU,SecAgg:dropout=0.1,clip=8")
    'psu,secagg:dropout=0.1,clip=8'
    """
    kind, pieces = "", []
    for piece in value.split(","):
        head, colon, rest = piece.partition(":")
        # A comma separates kinds as well as settings. A piece with an equals sign and no colon is a further
        # setting.
        if head.strip() and (colon or "=" not in piece):
            kind = spelled("defense", head.strip(), KINDS)
            pieces.append(f"{kind}{colon}{rest}")
        else:
            pieces.append(piece)
        setting, equals, _ = (rest if colon else piece).partition("=")
        if kind and equals and setting.strip() not in (names := KINDS[kind].__struct_fields__):
            raise SpecError(f"defense: {kind} has no setting {setting.strip()}{suggestion(setting.strip(), names)}")
    return ",".join(pieces)


def spelled_case(value: str) -> str:
    """Return a case of `fkgsec compare` in fkgsec's spelling.

    Args:
        value: none, an algorithm, a defense, or algorithm/defense.

    Raises:
        SpecError: an unknown algorithm or defense, or another separator than a slash; the message has the right form.

    >>> spelled_case("FedR/PSU,SecAgg"), spelled_case("FedAvg"), spelled_case("SecAgg"), spelled_case("none")
    ('fedr/psu,secagg', 'fedavg', 'secagg', 'none')
    """
    if value in ("", "none"):
        return value
    algorithm, slash, defense = value.partition("/")
    try:
        return f"{spelled('algorithm', algorithm, RECIPES)}/{spelled_defense(defense)}" if slash else _alone(value)
    except SpecError as error:
        if (written := _joined_otherwise(value)) and written.casefold() != value.casefold():
            raise SpecError(f"case: {value!r} is written {written}: algorithm/defense,defense") from error
        raise


def _alone(value: str) -> str:
    """Correct a case that names an algorithm or defenses, not both."""
    try:
        return spelled("algorithm", value, RECIPES)
    except SpecError as error:
        if value.partition(":")[0].partition(",")[0].strip().casefold() in KINDS:
            return spelled_defense(value)
        raise SpecError(f"case: {value!r} is not a defense either; {error}") from error


def _joined_otherwise(value: str) -> str | None:
    """Rewrite a case that uses other separators or the other order; None for anything else.

    >>> _joined_otherwise("FedAvg+secagg"), _joined_otherwise("secagg/fedr"), _joined_otherwise("psu + secagg")
    ('fedavg/secagg', 'fedr/secagg', 'psu,secagg')
    """
    algorithms = {_fold(name): name for name in RECIPES}
    # From the last separator: the name gcfl+ ends with one itself.
    for sign in reversed(list(re.finditer(r"[^A-Za-z0-9]", value))):
        left, right = value[: sign.start()].strip(), value[sign.end() :].strip()
        for algorithm, defense in ((left, right), (right, left)):
            if _fold(algorithm) in algorithms and (kinds := _kinds_and_settings(defense)):
                return f"{algorithms[_fold(algorithm)]}/{kinds}"
    return _kinds_and_settings(value)


def _kinds_and_settings(value: str) -> str | None:
    """Rewrite defenses joined by any separators, then settings, as `spelled_defense` reads them; None if one is unknown."""
    kinds, colon, settings = value.partition(":")
    named = re.split(r"[^a-z]+", kinds.strip().casefold())
    return f"{','.join(named)}{colon}{settings}" if all(kind in KINDS for kind in named) else None


def suggestion(name: str, allowed: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: the nearest name, or all of them.

    >>> suggestion("reconstruction.tr", ["reconstruction.trr", "epsilon"]), suggestion("x", ["min", "max"])
    ('; did you mean reconstruction.trr?', '; allowed: min, max')
    """
    names = list(allowed)
    near = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {near[0]}?" if near else f"; allowed: {', '.join(names)}"


def _fold(word: str) -> str:
    # Papers write FedE-SVD+ and Hits@10: plus and at signs distinguish names, other signs do not.
    return "".join(letter for letter in word.casefold() if letter.isalnum() or letter in "+@")


def _words(kind: Any) -> tuple[str, ...]:
    """Return the words of the `Literal` in a type, also inside optional types and tuples."""
    if get_origin(kind) is Literal:
        return tuple(word for word in get_args(kind) if isinstance(word, str))
    return next((words for part in get_args(kind) if (words := _words(part))), ())
