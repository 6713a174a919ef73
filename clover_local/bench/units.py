"""Units and number bases named in an answer, which math-verify strips before it compares."""

import re

_NAMES = {
    "cm": "cm centimeter centimetre",
    "mm": "mm millimeter millimetre",
    "m": "m meter metre",
    "km": "km kilometer kilometre",
    "inch": "in inch inche",
    "foot": "ft foot feet",
    "yard": "yd yard",
    "mile": "mi mile",
    "gram": "g gram",
    "kilogram": "kg kilogram",
    "pound": "lb pound",
    "ounce": "oz ounce",
    "liter": "l liter litre",
    "second": "s sec second",
    "minute": "min minute",
    "hour": "h hr hour",
    "day": "day",
    "week": "week",
    "month": "month",
    "year": "yr year",
    "cent": "cent",
    "dollar": "dollar",
    "euro": "euro",
    "degree": "degree deg",
    "radian": "radian rad",
}
_UNIT = {word: unit for unit, words in _NAMES.items() for word in words.split()}
_POWERS = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cubed": 3}
_TEXT = re.compile(r"\\(?:text|mbox|mathrm|textrm|rm)\s*\{([^{}]*)\}")
_DEGREE = re.compile(r"\^\s*\{?\s*\\circ\s*\}?|°")
_DOLLAR = re.compile(r"^\s*(?:\\?\$)\s*[\d.]")
_TRAILING = re.compile(r"[\d})]\s*([A-Za-z][A-Za-z. ]*?)\s*(?:\^\s*\{?\s*(\d)\s*\}?)?\s*$")
_BASE = re.compile(r"[0-9A-Z]\s*_\s*(?:\{\s*(\d+)\s*\}|(\d+))\s*$")


def unit_of(latex: str) -> str | None:
    """The unit a LaTeX answer names at its end, such as `inch^2`; None for none or one not in the table."""
    if _DEGREE.search(latex):
        return "degree"
    if _DOLLAR.search(latex):
        return "dollar"
    match = _TRAILING.search(_TEXT.sub(r" \1", latex))
    if match is None:
        return None
    power, unit = int(match[2] or 1), None
    for word in match[1].lower().replace(".", " ").split():
        if word in _POWERS:
            power = _POWERS[word]
        elif unit is None:
            unit = _UNIT.get(word) or _UNIT.get(word.removesuffix("s"))
    if unit is None:
        return None
    return unit if power == 1 else f"{unit}^{power}"


def base_of(latex: str) -> int | None:
    """The number base of an answer such as `52_8`; None where none is written."""
    match = _BASE.search(latex)
    return int(match[1] or match[2]) if match else None


def units_agree(gold: str, answer: str, *, strict: bool = False) -> bool:
    """False where both name a unit (or base) and the two differ; `strict` also wants gold's unit present."""
    for read in (unit_of, base_of):
        wanted, given = read(gold), read(answer)
        if wanted is not None and given != wanted and (strict or given is not None):
            return False
    return True
