"""Reading JSON that an earlier version wrote: run folders, records, comparisons and manifests with specs inside.

    spec = decode_stored((folder / "spec.json").read_bytes(), Spec)

Only what another version meant by the same words is translated; anything else that is wrong is an error of the decoder's.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from experiments.spec import RENAMED, Spec
from fkgsec.federation.recipes import RECIPES

Kind = TypeVar("Kind")


def decode_stored(content: bytes | str, kind: type[Kind]) -> Kind:
    """Decode JSON to `kind`, its specs brought up to date. Raises `msgspec.MsgspecError`, as `msgspec.json.decode` does."""
    raw = msgspec.json.decode(content)
    if isinstance(raw, dict):
        if kind is Spec:
            raw = _updated(raw)
        cases = raw.get("cases")
        records = [case.get("record") for case in cases if isinstance(case, dict)] if isinstance(cases, list) else []
        for holder in (raw, *records):
            if isinstance(holder, dict) and isinstance(holder.get("spec"), dict):
                holder["spec"] = _updated(holder["spec"])
    return msgspec.convert(raw, kind, str_keys=True)


def _updated(spec: dict[str, Any]) -> dict[str, Any]:
    """A spec in today's words.

    Until 0.1 `init_epsilon` was called epsilon, and FedLU stood with a temperature (1 where none was given) that its training
    did not use. Now such a temperature is refused, so one on disk is of that time and is dropped.
    """
    spec = {RENAMED.get(name, name): value for name, value in spec.items()}
    recipe = RECIPES.get(str(spec.get("algorithm")))
    if recipe and "form" in recipe.settings and (spec.get("form") != "published" or spec.get("model") != "rotate"):
        spec = {name: value for name, value in spec.items() if name != "temperature" or value == 0}
    return spec
