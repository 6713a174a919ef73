"""Whether an answer is right."""

import re

from .questions import Question


def gold_of(text: str) -> str | None:
    """The number after the last `Answer:`."""
    found = re.findall(r"Answer: (-?\d+)", text)
    return found[-1] if found else None


def is_right(question: Question, text: str) -> bool:
    """An answer with a number is right when the number is; any other must match word for word."""
    if question.turn.gold is not None:
        return gold_of(text) == question.turn.gold
    return text == question.turn.answer
