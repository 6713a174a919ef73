"""Wrong answers that look right, made by rule from gold answers: each must be rejected."""

import re
from collections.abc import Callable, Iterable

GOLD = (
    *(
        "3",
        "42",
        "-50",
        "2220",
        "13535",
        "0.15",
        "1.25",
        "326.5",
        ".35625",
        ".0000672",
        "10,\\!080",
        "58,500",
    ),
    *("\\$32,\\!348", "\\$18.90", "11,\\! 111,\\! 111,\\! 100", "\\frac{14}{3}", "\\frac{3}{56}", "\\frac43"),
    *(
        "-\\frac{35}{9}",
        "\\dfrac{17}{50}",
        "\\frac{243}{625}",
        "\\frac 59",
        "1\\frac{4}{5}",
        "137 \\frac{1}{2}",
    ),
    *("\\frac{\\sqrt{21}}{5}", "3\\sqrt{13}", "11\\sqrt2", "\\sqrt{51}", "70 \\sqrt{2}", "11 \\sqrt{5} + 11"),
    *("288 \\pi", "-\\frac{\\pi}{6}", "18+2\\pi", "\\frac{20000}{\\pi}", "6 - 5i", "1+274i", "-2 + 7i"),
    *("90^\\circ", "145^\\circ", "5.4 \\text{ cents}", "864 \\mbox{ inches}^2", "15\\mbox{ cm}^2"),
    *("\\frac{270}7\\text{ degrees}", "52_8", "4210_{5}", "2516_8", "x=5", "y = 2x + 3", "y = -2x"),
    *("5x - 7y + 11z + 4 = 0", "2k+2", "6r^2-4r-24", "x^5 - x^4 + x^3 - x^2 + x - 1", "p - q", "-13x+3"),
    *(
        "(a+5)(b+2)",
        "5r^5",
        "3R^2",
        "\\frac{11+9a}{20}",
        "8n^2 + 4n + 1",
        "1 \\pm \\sqrt{19}",
        "1,-2",
        "3, 5, 7",
    ),
    *(
        "\\{1\\pm\\sqrt{5},-2\\}",
        "(3,4]",
        "(-\\infty, 0]",
        "(2,\\infty)",
        "(-\\sqrt{3}, \\sqrt{3})",
        "[-2,7]",
    ),
    *("x \\in [-2,7]", "\\left(\\frac{3}{5},\\frac{8}{3}\\right]", "(0,9) \\cup (9,36)", "(5,\\infty)"),
    *("\\left[ \\frac{\\pi^2}{8}, \\frac{5 \\pi^2}{4} \\right]", "(-2,1)", "(6,31,-1)", "(15,-29)", "(8,-2)"),
    *("\\left( 3, \\frac{\\pi}{2} \\right)", "\\left( \\frac{3}{2}, -13 \\right)", "(1,-16,-4,43)"),
    *(
        "\\begin{pmatrix} -2 \\\\ -14 \\\\ -7 \\end{pmatrix}",
        "\\begin{pmatrix} -1 & 0 \\\\ 0 & -1 \\end{pmatrix}",
    ),
    *("\\begin{pmatrix} 1/5 \\\\ -18/5 \\end{pmatrix}", "\\cot x", "2^{10}", "e^2", "\\log_2 5", "50x - 7"),
)


def sign(gold: str) -> Iterable[str]:
    """The first minus turned into a plus or dropped; otherwise the whole negated."""
    if gold == "0":
        return []
    if "\\pm" in gold:
        return [gold.replace("\\pm", "+", 1)]
    if "-" in gold:
        changed = re.sub(r"(?<=[\w}]) *- *", " + ", gold, count=1)
        return [changed if changed != gold else gold.replace("-", "", 1)]
    if re.match(r"[\[(]|\\(left|begin|\{)|x *=|x *\\in|y *=", gold) or ("," in gold and "\\!" not in gold):
        return []
    return ["-" + gold if re.fullmatch(r"[^+]*", gold) and not gold.startswith("\\$") else f"-({gold})"]


def off_by_one(gold: str) -> Iterable[str]:
    """The last written digit of the first number one larger, and of the last number one larger."""
    places = [m.start() for m in re.finditer(r"\d(?!\d)", re.sub(r"_\{?\d+\}?$", "", gold))]
    bump = {place: gold[:place] + str((int(gold[place]) + 1) % 10) + gold[place + 1 :] for place in places}
    return list(dict.fromkeys(bump[place] for place in (places[:1] + places[-1:])))


def swapped_fraction(gold: str) -> Iterable[str]:
    """Numerator and denominator exchanged."""
    match = re.search(r"\\d?frac\{(.+?)\}\{(\d+|\\pi)\}", gold) or re.search(r"\\d?frac *(\d)(\d)", gold)
    if match is None or gold.count("frac") > 1:
        return []
    return [gold[: match.start()] + f"\\frac{{{match[2]}}}{{{match[1]}}}" + gold[match.end() :]]


def missing_factor(gold: str) -> Iterable[str]:
    """The factor that is the unit of the value left out: pi, the imaginary unit, a root, a power."""
    for factor, plain in (("\\pi", ""), ("i", ""), ("\\sqrt", ""), ("^2", "")):
        pattern = r"(?<=\d)i$" if factor == "i" else re.escape(factor) + r"(?![a-zA-Z])"
        if re.search(pattern, gold) and "mbox" not in gold and "frac{\\pi}" not in gold:
            less = re.sub(pattern, plain, gold, count=1).strip()
            if less and "{}" not in less and "{^" not in less:
                return [less]
    return []


def wrong_unit(gold: str) -> Iterable[str]:
    """Another unit or another number base than the gold answer's."""
    table = (
        ("^\\circ", "\\text{ radians}"),
        ("cents", "dollars"),
        ("inches", "feet"),
        ("cm", "m"),
        ("degrees", "radians"),
    )
    for unit, other in table:
        if unit in gold:
            return [gold.replace(unit, other)]
    match = re.search(r"_\{?(\d+)\}?$", gold)
    return [f"{gold[: match.start()]}_{{{int(match[1]) + 1}}}"] if match else []


def missing_unit(gold: str) -> Iterable[str]:
    """The unit of measure or the number base left out: a miss only where units are graded strictly."""
    bare = re.sub(r"\^\\circ|\\(?:text|mbox)\{[^}]*\}(\^\d)?|^\\\$|_\{?\d+\}?$", "", gold).strip()
    return [bare] if bare != gold and "log" not in gold else []


def bracket(gold: str) -> Iterable[str]:
    """One end of an interval opened or closed."""
    if not re.search(r"[\[\]]|\\infty|\\cup|\\sqrt\{3\}, ", gold) or "begin" in gold:
        return []
    swap = {"(": "[", "[": "(", ")": "]", "]": ")"}
    first = re.search(r"[\[(]", gold)
    last = max(gold.rfind(")"), gold.rfind("]"))
    ends = [first.start() if first else -1, last]
    return [gold[:at] + swap[gold[at]] + gold[at + 1 :] for at in ends if "infty" not in _side(gold, at)]


def _side(gold: str, at: int) -> str:
    """The endpoint beside the bracket at `at`."""
    middle = gold.find(",") if at < len(gold) // 2 else gold.rfind(",")
    return gold[min(at, middle) : max(at, middle)]


RULES: tuple[Callable[[str], Iterable[str]], ...] = (
    sign,
    off_by_one,
    swapped_fraction,
    missing_factor,
    wrong_unit,
    bracket,
)


def near_misses(golds: Iterable[str] = GOLD) -> list[tuple[str, str, str]]:
    """(rule, gold, near miss) for every rule that applies to a gold answer."""
    return [(rule.__name__, gold, miss) for gold in golds for rule in RULES for miss in rule(gold)]
