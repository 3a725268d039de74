"""The reference: pages made from the command line, the registries, and the types of specs, records and policies.

    python -m experiments.docs.reference --out reference       # as Markdown, without building the site

The site is made from the same pages (`experiments.docs.hook`).
"""

from __future__ import annotations

from typing import Any


def generated_files() -> dict[str, str]:
    """Every generated file of the site by its path in docs/."""
    return {"reference/index.md": "# Reference\n"}


def navigation() -> dict[str, Any]:
    """The sections of the navigation that consist of generated pages, by name."""
    return {"Reference": [{"Reference": "reference/index.md"}]}
