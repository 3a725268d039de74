"""HTML pages from the templates next to this file. Every text is escaped; a missing value raises an error.

page = render_page("report.html.j2", report=report, says_not=SAYS_NOT, rule=RULE)
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

import jinja2

from fkgsec.experiments.reporting.sheets import cell_order, cell_text

_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
# The page's content security policy allows its one inline script by this hash.
_ENVIRONMENT.globals |= {"text": cell_text, "order": cell_order}
_ENVIRONMENT.filters["sha256"] = lambda text: base64.b64encode(hashlib.sha256(str(text).encode()).digest()).decode()


def render_page(template: str, **values: Any) -> str:
    """Render a template.

    Args:
        template: file name in `templates`.
        values: variables of the template. A variable that the template needs and does not get is an error.
    """
    return _ENVIRONMENT.get_template(template).render(**values)
