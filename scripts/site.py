"""Build the documentation as a site from the Markdown of the repository: `python scripts/site.py` (make site).

README.md becomes the first page. Links between README.md, CONTRIBUTING.md and docs/ are adapted, because on the site
all pages are in one folder. A link to a page that does not exist, or a page that the menu lacks, is an error.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "build" / "pages"
OUTSIDE = ("README.md", "CONTRIBUTING.md", "NOTICE", "LICENSE")
LINK = re.compile(r"(\]\()([^)\s]+)(\))")


def on_site(target: str, depth: int) -> str:
    """Return a link of a page as the site needs it; `depth` folders of docs/ are above the page (-1: it is outside).

    >>> on_site("docs/guide.md", -1), on_site("../CONTRIBUTING.md", 0), on_site("../results.md#a", 1)
    ('guide.md', 'CONTRIBUTING.md', '../results.md#a')
    >>> on_site("README.md", -1), on_site("https://example.org", 0)
    ('index.md', 'https://example.org')
    """
    if depth < 0:
        target = target.removeprefix("docs/")
    elif target.startswith("../" * (depth + 1)):
        target = target.removeprefix("../")
    return re.sub(r"README\.md$", "index.md", target)


def write_pages() -> None:
    """Copy the pages to `PAGES` with their links adapted."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(ROOT / "docs", PAGES)
    for name in OUTSIDE:
        shutil.copy(ROOT / name, PAGES / name.replace("README", "index"))
    for page in PAGES.rglob("*.md"):
        folder = page.relative_to(PAGES).parent
        depth = -1 if folder == Path() and page.name in ("index.md", *OUTSIDE) else len(folder.parts)
        text = LINK.sub(lambda m, d=depth: m[1] + on_site(m[2], d) + m[3], page.read_text("utf-8"))
        page.write_text(text, "utf-8")


def main() -> None:
    """Run the script."""
    write_pages()
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--config-file",
        str(ROOT / "mkdocs.yml"),
    ]
    raise SystemExit(subprocess.run(command, check=False).returncode)


if __name__ == "__main__":
    main()
