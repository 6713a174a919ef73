"""HTML answers: the document goes to a private file, in a frame that keeps its code away from everything."""

import html
import os
import re
import tempfile
import webbrowser
from pathlib import Path

import platformdirs

_FENCE = re.compile(
    r"^(`{3,}|~{3,})[ ]*html?[^\n]*\n(.*?)(?:^\1[ ]*$|\Z)", re.DOTALL | re.MULTILINE | re.IGNORECASE
)
_BARE = re.compile(r"(<!doctype html\b.*|<html\b.*)", re.DOTALL | re.IGNORECASE)
_END = re.compile(r"</html\s*>", re.IGNORECASE)

# scripts run in a frame of no origin, so they reach neither files nor other pages; nothing may be fetched
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>clover answer</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data: blob:;
 media-src data: blob:; font-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline' 'unsafe-eval'">
<style>html,body{{margin:0;height:100%;font:14px system-ui,sans-serif}}
body{{display:flex;flex-direction:column}}p{{margin:0;padding:6px 12px;background:#eee;color:#333}}
iframe{{flex:1;border:0;background:#fff}}</style></head>
<body><p>Written by a model; its code runs here, shut in: no network, no files, no other pages.</p>
<iframe sandbox="allow-scripts" srcdoc="{document}"></iframe></body></html>
"""
_TEXT_BROWSERS = ("lynx", "links", "elinks", "w3m", "www-browser")


def document_in(answer: str) -> str | None:
    """The HTML document in an answer: the last html block, or a bare document; None where there is none."""
    blocks = [match[2] for match in _FENCE.finditer(answer)]
    if blocks:
        return blocks[-1]
    bare = _BARE.search(answer)
    if bare is None:
        return None
    end = _END.search(bare[0])
    return bare[0][: end.end()] if end else bare[0]


def write_page(document: str) -> Path:
    """Put a document into a new file that only this user can read."""
    folder = platformdirs.user_cache_path("clover-local") / "pages"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, name = tempfile.mkstemp(prefix="answer-", suffix=".html", dir=folder)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(PAGE.format(document=html.escape(document)))
    return Path(name)


def show(path: Path) -> bool:
    """Open a page in the browser; False when there is none that has a window of its own."""
    if os.name == "posix" and not os.environ.get("DISPLAY") and not os.environ.get("WAYLAND_DISPLAY"):
        import sys

        if sys.platform != "darwin":
            return False
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return False
    if any(name in str(getattr(browser, "name", "")) for name in _TEXT_BROWSERS):
        return False  # it would draw over this program's screen
    return bool(browser.open(path.as_uri()))
