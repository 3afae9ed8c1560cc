"""What mkdocs runs while it builds the site: the API reference is made, and links to files outside docs/ go to the repository."""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File


def on_files(files: Any, config: Any) -> Any:
    sys.path.insert(0, str(Path(__file__).parent))
    from reference import pages

    for name, text in pages().items():
        files.append(File.generated(config, f"api/{name}.md", content=f"---\nsearch:\n  boost: 3\n---\n\n{text}"))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    folder = posixpath.dirname(page.file.src_uri)

    def outside(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", folder, found[1]))
        inside = target.startswith("docs/") and not target.endswith("/tools")
        return found[0] if inside else f"]({config.repo_url}/blob/main/{target}{found[2] or ''})"

    return re.sub(r"\]\((\.\./[^)#\s]*)(#[^)]*)?\)", outside, markdown)
