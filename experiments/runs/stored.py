"""Records, specs, comparisons and manifests as JSON with flat specs. Files of earlier versions are translated.

write_atomically(folder / "spec.json", encode_stored(spec))
spec = decode_stored((folder / "spec.json").read_bytes(), RunSpec)
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from fkgsec.estimate import Estimate
from fkgsec.experiments.tasks.spec import RunSpec
from fkgsec.experiments.tasks.task import task_named
from fkgsec.federation.options import RENAMED, flat, nested
from fkgsec.federation.recipes import RECIPES

Kind = TypeVar("Kind")
# Names from versions whose only task was knowledge graphs.
_EARLIER = {"valid_mrr": "valid", "best_mrr": "best_valid"}


def decode_stored(content: bytes | str, kind: type[Kind]) -> Kind:
    """Decode JSON, with its specs translated to the current version.

    Args:
        content: JSON text.
        kind: type to decode to.

    Raises:
        msgspec.MsgspecError: as `msgspec.json.decode`; also for a figure outside its interval, and too deep nesting.
    """
    try:
        raw = msgspec.json.decode(content)
        _check_figures(raw, "$")
    except RecursionError as error:
        raise msgspec.ValidationError("nested too deeply") from error
    if isinstance(raw, dict):
        if issubclass(kind, RunSpec):
            raw = _updated(raw)
        for holder in _holders(raw):
            holder["spec"] = _updated(holder["spec"])
            holder |= _with_current_names(holder)
    if kind is RunSpec:
        return _spec(kind, raw)
    return msgspec.convert(raw, kind, str_keys=True, dec_hook=_spec)


def _spec(kind: type, raw: Any) -> Any:
    """Convert to the spec type of the algorithm's task."""
    if not issubclass(kind, RunSpec) or not isinstance(raw, dict):
        raise msgspec.ValidationError(f"Expected `object`, got `{type(raw).__name__}`")
    name = raw.get("algorithm")
    # An unknown algorithm is reported by the spec's own check.
    task = RECIPES[name].task if isinstance(name, str) and name in RECIPES else "kge"
    return msgspec.convert(raw, task_named(task).spec, str_keys=True)


def _check_figures(raw: Any, where: str) -> None:
    """Raise `ValidationError` for an integer beyond 64 bits, and for a value outside its own interval."""
    # msgspec would read larger integers as floats and lose digits.
    if isinstance(raw, int) and not -(2**63) <= raw < 2**63:
        raise msgspec.ValidationError(f"{where}: an integer of {raw.bit_length()} bits; at most 63 bits fit")
    # Only lists, dicts and integers need a check; a record has hundreds of thousands of other values.
    if isinstance(raw, list):
        for number, entry in enumerate(raw):
            if isinstance(entry, dict | list | int):
                _check_figures(entry, f"{where}[{number}]")
    elif isinstance(raw, dict):
        for name, entry in raw.items():
            if isinstance(entry, dict | list | int):
                _check_figures(entry, f"{where}.{name}")
        if {"value", "low", "high", "n", "method"} <= raw.keys() <= set(Estimate.__struct_fields__):
            # `sorted` also detects a value outside one end only.
            ends = [end for end in (raw["low"], raw["value"], raw["high"]) if isinstance(end, float | int)]
            if ends != sorted(ends):
                named = f"{raw['value']:g} is not inside its own interval [{raw['low']:g}, {raw['high']:g}]"
                raise msgspec.ValidationError(f"{where}: {named}")


def encode_stored(value: Any) -> bytes:
    """Encode a struct as indented JSON with flat specs, as users write them.

    Args:
        value: a spec, a record, or a struct that contains some.
    """
    raw = msgspec.to_builtins(value, str_keys=True)
    if isinstance(value, RunSpec):
        raw = flat(raw)
    for holder in _holders(raw):
        holder["spec"] = flat(holder["spec"])
    return msgspec.json.format(msgspec.json.encode(raw), indent=2) + b"\n"


def _holders(raw: Any) -> list[dict[str, Any]]:
    """Return the parts of a document that have a spec: itself, the record of its run, or those of its cases."""
    cases = raw.get("cases") if isinstance(raw, dict) else None
    records = [case.get("record") for case in cases if isinstance(case, dict)] if isinstance(cases, list) else []
    run = raw.get("run") if isinstance(raw, dict) else None
    return [part for part in (raw, run, *records) if isinstance(part, dict) and isinstance(part.get("spec"), dict)]


def _with_current_names(document: dict[str, Any]) -> dict[str, Any]:
    """Rename the fields of a record and of its rounds to the current version."""
    renamed = {_EARLIER.get(name, name): value for name, value in document.items()}
    if isinstance(renamed.get("rounds"), list):
        renamed["rounds"] = [
            {_EARLIER.get(name, name): value for name, value in entry.items()}
            if isinstance(entry, dict) and not entry.keys().isdisjoint(_EARLIER)
            else entry
            for entry in renamed["rounds"]
        ]
    return renamed


def _updated(spec: dict[str, Any]) -> dict[str, Any]:
    """Translate the options of a spec to the current version.

    Until 0.1, a spec had every option of every algorithm, with None for open ones and tau 0.2 in all. `init_epsilon`
    was called epsilon. FedLU had a temperature that its training ignored and that is now refused. `seed` divided the
    data. `draws` selected one of two generators.
    """
    spec = {"split_seed": spec.get("seed", 0)} | spec
    if spec.get("draws") == "numpy":
        del spec["draws"]
    # Set the scope of both negatives and ranks.
    if "entity_scope" in spec:
        scope = spec.pop("entity_scope")
        spec |= {"negative_scope": scope, "rank_scope": "own" if scope == "own" else "all"}
    spec = nested({({"epsilon": "init_epsilon"} | RENAMED).get(name, name): value for name, value in spec.items()})
    name = str(spec.get("algorithm", "fede"))
    recipe = RECIPES[name] if name in RECIPES else None  # noqa: SIM401 (a registry raises for unknown names)
    settings = {name: value for name, value in spec.pop("settings", {}).items() if value is not None}
    if recipe and settings.get("tau") == 0.2 and not recipe.has("tau"):
        del settings["tau"]
    alike = settings.get("variant") != "published" or spec.get("model") != "rotate"
    # Published FedLU with RotatE did use the temperature, so only the others are translated.
    if name == "fedlu" and alike:
        spec = {name: value for name, value in spec.items() if name != "temperature" or value == 0}
    return spec | {"settings": settings}
