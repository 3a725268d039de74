"""What mkdocs calls while it builds the site (`hooks` in mkdocs.yml): adds the generated pages, checks links out of docs/.

    make docs                                  # mkdocs build --strict

Nothing generated is committed: a page cannot be older than the registry or the type that it is made from.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.docs.reference import generated_files, navigation

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
GUIDES = "Guides"
MATRIX = ROOT / "experiments/results/attacks/matrix/hospitals.png"
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+[^)#\s]+)(#[^)\s]*)?\)")
_NAV_TITLE = re.compile(r'<label class="md-nav__title" for="(__nav_[\d_]+)">')
_NAV_LABEL = re.compile(r'aria-labelledby="(__nav_[\d_]+)_label"')
_FENCE = re.compile(r"^(```.*?^```[^\n]*$)", re.MULTILINE | re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the generated pages into the navigation, in place of their section's name, and guides that it does not name."""
    made = navigation()
    listed = str(config.nav)
    others = [path.name for path in sorted((ROOT / "docs").glob("*.md")) if path.name not in listed]
    made[GUIDES] = [*next(entry[GUIDES] for entry in config.nav or [] if GUIDES in entry), *others]
    config.nav = [{name: made.get(name, pages)} for entry in config.nav or [] for name, pages in entry.items()]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages and pictures."""
    from mkdocs.structure.files import File

    for path, content in generated_files().items():
        files.append(File.generated(config, path, content=content))
    files.append(File.generated(config, "assets/matrix.png", abs_src_path=str(MATRIX)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Links to files of the repository that are no pages become their paths: the site stands alone.

    Raises:
        mkdocs' `PluginError`: there is no such file.
    """
    if page.file.generated_by:
        return markdown
    parts = _FENCE.split(markdown)
    return "".join(part if part.startswith("```") else in_repository(part, page.file.src_uri) for part in parts)


def on_post_page(output: str, **_: Any) -> str:
    """Sections of the navigation that have a page of their own are named by their title, where the theme has an empty label."""
    named = _NAV_TITLE.sub(r'<label class="md-nav__title" for="\1" id="\1_title">', output)
    return _NAV_LABEL.sub(r'aria-labelledby="\1_title"', named)


def on_post_template(output_content: str, **_: Any) -> str:
    """The same of the page that a server shows where there is none."""
    return on_post_page(output_content)


def in_repository(text: str, page: str) -> str:
    """Markdown of a page in docs/ with its links out of docs/ spelled as paths."""
    from mkdocs.exceptions import PluginError

    docs = ROOT / "docs"

    def spelled(found: re.Match[str]) -> str:
        target = ((docs / page).parent / found[2]).resolve()
        if target.is_relative_to(docs):
            return found[0]
        if not target.exists() or not target.is_relative_to(ROOT):
            raise PluginError(f"docs/{page}: links to {found[2]}, which is not there")
        path, words = target.relative_to(ROOT).as_posix(), found[1].strip("`")
        return f"`{path}`" if path.endswith(words) else f"{found[1]} (`{path}`)"

    return _LINK.sub(spelled, text)
