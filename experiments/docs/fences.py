"""Doctests in docstrings as code, where mkdocstrings would read them as prose (`extensions` in mkdocs.yml)."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension

_DOCTEST = re.compile(r"^>>> .*(?:\n(?!\s*$).+)*", re.MULTILINE)


class Fences(Extension):
    """Puts each doctest between fences."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = _DOCTEST.sub(lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value)
