"""Draw the held-out problems that the package carries: python scripts/make_problems.py

Writes clover_local/data/problems.json: rows of question, answer, category. A test holds that it is what this draws.
"""

import json
import random
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from demo.questions import held_pairs, wordings  # noqa: E402

OUTPUT = ROOT / "clover_local" / "data" / "problems.json"
SEED, PAIRS, EACH_WORDING = 20_000_333, 200, 5


def rows() -> list[list[str | int]]:
    """Question, answer and category of every problem."""
    r = random.Random(SEED)
    asked = held_pairs(r, PAIRS) + wordings(r, EACH_WORDING)
    return [[q.turn.question, int(q.turn.gold or 0), q.group] for q in asked]


def text() -> str:
    """The file: one row a line."""
    return "[\n" + ",\n".join(json.dumps(row) for row in rows()) + "\n]\n"


if __name__ == "__main__":
    OUTPUT.write_text(text())
    print(f"{OUTPUT}: {len(rows())} problems")
