"""Hooks of mkdocs (`hooks` in mkdocs.yml) and an extension of mkdocstrings, which add the generated reference."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from griffe import Extension
from mkdocs.exceptions import PluginError

ROOT = Path(__file__).parents[2]
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+[^)#\s]+)(#[^)\s]*)?\)")
_NAV_TITLE = re.compile(r'<label class="md-nav__title" for="(__nav_[\d_]+)">')
_NAV_LABEL = re.compile(r'aria-labelledby="(__nav_[\d_]+)_label"')
_FENCE = re.compile(r"^(```.*?^```[^\n]*$)", re.MULTILINE | re.DOTALL)
_DOCTEST = re.compile(r"^>>> .*(?:\n(?!\s*$).+)*", re.MULTILINE)


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages and pictures.

    Args:
        files: of the site; extended in place.
        config: of mkdocs.
    """
    # Imported here: tests import this module where mkdocs is not installed.
    from mkdocs.structure.files import File

    from scripts.docs.published import draw
    from scripts.docs.reference import reference_files

    for path, content in reference_files().items():
        files.append(File.generated(config, path, content=content))
    # Committed pictures outside docs/ are added under assets/.
    picture = ROOT / "results/defenses.png"
    files.append(File.generated(config, "assets/defenses.png", abs_src_path=str(picture)))
    files.append(File.generated(config, "assets/leak.svg", content=draw()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace links to files outside the documentation by their paths, so that the site is self-contained.

    Args:
        markdown: source of the page.
        page: as mkdocs passes it.

    Raises:
        PluginError: a linked file does not exist.
    """

    def as_path(link: re.Match[str]) -> str:
        """Replace one link."""
        target = ((ROOT / "docs" / page.file.src_uri).parent / link[2]).resolve()
        # Links within the documentation stay links.
        if target.is_relative_to(ROOT / "docs"):
            return link[0]
        if not target.exists() or not target.is_relative_to(ROOT):
            raise PluginError(f"docs/{page.file.src_uri}: links to {link[2]}, which does not exist")
        path, words = target.relative_to(ROOT).as_posix(), link[1].strip("`")
        return f"`{path}`" if path.endswith(words) else f"{link[1]} (`{path}`)"

    # Generated pages have no relative links to the repository.
    if page.file.generated_by:
        return markdown
    # Text in code blocks is not a link.
    return "".join(part if part.startswith("```") else _LINK.sub(as_path, part) for part in _FENCE.split(markdown))


def on_post_page(output: str, **_: Any) -> str:
    """Label sections of the navigation by their titles, since the theme leaves their labels empty.

    Args:
        output: HTML of the page.
    """
    return _NAV_LABEL.sub(
        r'aria-labelledby="\1_title"', _NAV_TITLE.sub(r'<label class="md-nav__title" for="\1" id="\1_title">', output)
    )


def on_post_template(output_content: str, **_: Any) -> str:
    """Label sections like `on_post_page`, on the page of missing addresses.

    Args:
        output_content: HTML of the page.
    """
    return on_post_page(output_content)


class Fences(Extension):
    """Put doctests between fences, which mkdocstrings would read as prose."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Fence the doctests of an object.

        Args:
            obj: as griffe passes it.
        """
        if obj.docstring is not None:
            obj.docstring.value = _DOCTEST.sub(lambda doctest: f"```pycon\n{doctest[0]}\n```", obj.docstring.value)
