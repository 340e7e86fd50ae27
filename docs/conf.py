"""How Sphinx makes a site of these documents: `python -m tests.site OUT`.  Nothing is fetched while it does."""

import re
from pathlib import Path

from sphinx.application import Sphinx

HERE = Path(__file__).resolve().parent
_version = re.search(r'^__version__ = "(.+)"$', (HERE.parent / "chainstore" / "__init__.py").read_text(), re.M)

project = "chainstore"
author = "the chainstore authors"
copyright = author
release = version = _version[1] if _version else ""

extensions = ["myst_parser"]
myst_heading_anchors = 3  # links to headings work as they do on GitHub
myst_links_external_new_tab = False
exclude_patterns = ["changes"]  # fragments, which changelog.md gathers

html_theme = "furo"
html_title = f"chainstore {version}"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
highlight_language = "none"


def add_decisions(app: Sphinx, name: str, source: list[str]) -> None:
    """Put the decisions below their list in the navigation; in the document itself that would look odd elsewhere."""
    if name == "decisions/README":
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\n[0-9]*\n```\n"


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_decisions)
