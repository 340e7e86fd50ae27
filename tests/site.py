"""Build the documents as a site, every warning an error: `python -m tests.site [OUT]`.

Without OUT it goes to a temporary directory that is removed: the build itself is the check.  No network is used, nor
is any by the pages themselves.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"
FOREIGN = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=["'](?:https?:)?//[^>]*>""")


def build(out: Path) -> int:
    """Build the site into `out` and return 0 if all is well; Sphinx keeps no cache, so that nothing stale is right."""
    with tempfile.TemporaryDirectory() as doctrees:
        command = [sys.executable, "-m", "sphinx", "-q", "-E", "-W", "--keep-going", "-b", "html", "-d", doctrees]
        code = subprocess.run([*command, str(DOCS), str(out)], check=False).returncode
    foreign = [f"{page.name}: {tag}" for page in out.rglob("*.html") for tag in FOREIGN.findall(page.read_text())]
    if foreign:
        print("these pages load something from elsewhere:", *foreign, sep="\n")
    return code or int(bool(foreign))


def main() -> int:
    if len(sys.argv) > 1:
        return build(Path(sys.argv[1]))
    with tempfile.TemporaryDirectory() as out:
        return build(Path(out))


if __name__ == "__main__":
    raise SystemExit(main())
