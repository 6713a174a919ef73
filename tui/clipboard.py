"""Copying through the terminal: OSC 52 reaches the clipboard of the screen a person sits at, over ssh too."""

import base64
from collections.abc import Mapping

LIMIT = 74_994  # bytes of text that fit into the 100,000 of a sequence that common terminals take


def osc52(text: str, environment: Mapping[str, str]) -> str:
    """The sequences that copy a text. Inside tmux or screen one more, wrapped, goes to the outer terminal."""
    data = base64.b64encode(text.encode("utf-8", "replace")).decode()
    plain = f"\x1b]52;c;{data}\a"
    if environment.get("TMUX"):
        # tmux takes the plain one itself when set-clipboard is on, the wrapped one with allow-passthrough
        inner = plain.replace("\x1b", "\x1b\x1b")
        return f"{plain}\x1bPtmux;{inner}\x1b\\"
    if environment.get("TERM", "").startswith("screen"):
        pieces = [plain[i : i + 250] for i in range(0, len(plain), 250)]  # screen cuts longer strings off
        return "".join(f"\x1bP{piece}\x1b\\" for piece in pieces)
    return plain
