"""Whether two LaTeX answers mean the same: math-verify, closed where it is too lenient.

Runs inside the grading worker only: sympy may hang or eat all memory on a hostile expression.
"""

import math
from typing import Any

from math_verify import parse, verify

from clover_local.bench.units import units_agree

_TAIL = 2000  # characters of an answer without a box that are searched; the result stands at the end


def equivalent(gold: str, answer: str, *, strict_units: bool = False) -> bool:
    """Whether the boxed `answer` equals `gold`; both LaTeX without dollar signs."""
    if not units_agree(gold, answer, strict=strict_units):
        return False
    return _verify(_parse(f"${gold}$"), _parse(f"$\\boxed{{{answer}}}$"))


def equivalent_in_text(gold: str, text: str, *, strict_units: bool = False) -> tuple[bool, str | None]:
    """Whether the last result stated in `text` equals `gold`, and that result as math-verify read it."""
    found = _parse(text[-_TAIL:])
    if not found:
        return False, None
    shown = str(found[-1])
    return units_agree(gold, shown, strict=strict_units) and _verify(_parse(f"${gold}$"), found), shown


def _parse(text: str) -> list[Any]:
    # The worker's own time limit replaces math-verify's, which works in a main thread only.
    return list(parse(text, parsing_timeout=None))


def _verify(gold: list[Any], answer: list[Any]) -> bool:
    return bool(
        verify(
            gold,
            answer,
            float_rounding=_digits(gold),
            allow_set_relation_comp=True,  # `x > 2` for `(2, \infty)`
            timeout_seconds=None,
        )
    )


def _digits(gold: list[Any]) -> int:
    """Decimals to compare: six, or six significant ones below 1, so that .0000672 is not .0000673."""
    try:
        size = abs(float(gold[0]))
    except (TypeError, ValueError, IndexError, OverflowError):
        return 6
    return 6 if not 0 < size < 1 else 5 - math.floor(math.log10(size))
