"""TeX formulas as text for a terminal: what has a character becomes it, the rest stays readable."""

import re

_WORDS = {
    "times": "×", "cdot": "·", "div": "÷", "pm": "±", "mp": "∓", "le": "≤", "leq": "≤", "ge": "≥",
    "geq": "≥", "ne": "≠", "neq": "≠", "approx": "≈", "equiv": "≡", "sim": "∼", "propto": "∝", "infty": "∞",
    "to": "→", "rightarrow": "→", "leftarrow": "←", "Rightarrow": "⇒", "Leftrightarrow": "⇔",
    "implies": "⇒", "iff": "⇔", "mapsto": "↦", "sum": "∑", "prod": "∏", "int": "∫", "partial": "∂",
    "nabla": "∇", "in": "∈", "notin": "∉", "subset": "⊂", "subseteq": "⊆", "cup": "∪", "cap": "∩",
    "emptyset": "∅", "forall": "∀", "exists": "∃", "neg": "¬", "land": "∧", "lor": "∨", "angle": "∠",
    "circ": "°", "perp": "⊥", "parallel": "∥", "ldots": "…", "cdots": "⋯", "dots": "…", "quad": "  ",
    "qquad": "    ", "mid": "|", "prime": "′", "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ",
    "epsilon": "ε", "varepsilon": "ε", "zeta": "ζ", "eta": "η", "theta": "θ", "iota": "ι", "kappa": "κ",
    "lambda": "λ", "mu": "μ", "nu": "ν", "xi": "ξ", "pi": "π", "rho": "ρ", "sigma": "σ", "tau": "τ",
    "phi": "φ", "varphi": "φ", "chi": "χ", "psi": "ψ", "omega": "ω", "Gamma": "Γ", "Delta": "Δ",
    "Theta": "Θ", "Lambda": "Λ", "Pi": "Π", "Sigma": "Σ", "Phi": "Φ", "Psi": "Ψ", "Omega": "Ω", "left": "",
    "right": "", "displaystyle": "", "limits": "", "big": "", "Big": "", "lfloor": "⌊", "rfloor": "⌋",
    "lceil": "⌈", "rceil": "⌉", "degree": "°", "percent": "%", "sqrt": "√",
}  # fmt: skip
_SETS = {"R": "ℝ", "N": "ℕ", "Z": "ℤ", "Q": "ℚ", "C": "ℂ"}
_UP = dict(zip("0123456789+-=()n", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿ", strict=True))
_DOWN = dict(zip("0123456789+-=()", "₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎", strict=True))
_GROUP = r"\{((?:[^{}]|\{[^{}]*\})*)\}"
_STEPS = (
    (re.compile(rf"\\[dt]?frac\s*{_GROUP}\s*{_GROUP}"), lambda m: f"{_part(m[1])}/{_part(m[2])}"),
    (re.compile(rf"\\sqrt\s*\[([^\]]*)\]\s*{_GROUP}"), lambda m: f"{_script(m[1], _UP, '^')}√{_part(m[2])}"),
    (re.compile(rf"\\sqrt\s*{_GROUP}"), lambda m: f"√{_part(m[1])}"),
    (re.compile(rf"\\mathbb\s*{_GROUP}"), lambda m: _SETS.get(m[1], m[1])),
    (re.compile(rf"\\boxed\s*{_GROUP}"), lambda m: f"[ {m[1]} ]"),
    (re.compile(rf"\\(?:text|textbf|mathrm|mathbf|mathit|operatorname|overline)\s*{_GROUP}"), lambda m: m[1]),
    (re.compile(r"\\(?:begin|end)\{[^}]*\}"), lambda m: ""),
)


def mathtext(tex: str) -> str:
    """A formula without its delimiters, as text."""
    text = tex.strip().replace("&", " ").replace("\\\\", "\n")
    for pattern, replace in _STEPS:
        before = None
        while before != text:  # innermost groups first, so nested ones need another turn
            before, text = text, pattern.sub(replace, text)
    text = re.sub(r"\\([A-Za-z]+)", lambda m: _WORDS.get(m[1], m[1]), text)
    text = re.sub(r"\\[,;:!> ]", " ", text)
    text = re.sub(r"\\([{}%$#_|&])", r"\1", text)
    text = re.sub(rf"\^(?:{_GROUP}|(\S))", lambda m: _script(m[1] or m[2], _UP, "^"), text)
    text = re.sub(rf"_(?:{_GROUP}|(\S))", lambda m: _script(m[1] or m[2], _DOWN, "_"), text)
    text = text.replace("^°", "°").replace("{", "").replace("}", "")
    return "\n".join(" ".join(line.split()) for line in text.split("\n") if line.strip())


def _part(text: str) -> str:
    """A numerator, denominator or root: in brackets unless it is one thing."""
    text = text.strip()
    return text if re.fullmatch(r"\\?\w+", text) else f"({text})"


def _script(text: str, table: dict[str, str], sign: str) -> str:
    """A superscript or subscript, in small characters where all of them exist."""
    if text and all(c in table for c in text):
        return "".join(table[c] for c in text)
    return f"{sign}{text}" if len(text) == 1 or text == "°" else f"{sign}({text})"
