"""The small machinery of the corpus: choices inside sentences, conjugation, who acts, and the ledger of operations."""

import random
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from . import words as W

LIMIT = 2000
"""Largest number any step of a problem may reach."""


class Refused(Exception):
    """The numbers drawn do not make a problem (a remainder, a negative count, a held-out pair); draw again."""


def held_out(sign: str, a: int, b: int) -> bool:
    """Whether this pair of operands is one of the tenth that is never trained on. Small tables are all trained."""
    if sign in "+x" and a > b:
        a, b = b, a
    round_ten = a % 10 == 0 or b % 10 == 0  # part of the table, and of every larger multiplication
    large = {"+": a >= 10 and not round_ten, "-": b >= 10, "x": a >= 3 and b >= 13, "/": a >= 40}[sign]
    return large and zlib.crc32(f"{a}{sign}{b}".encode()) % 10 == 0


@dataclass(frozen=True)
class Problem:
    """A word problem with its worked answer; `held` counts its operations on held-out pairs."""

    question: str
    steps: tuple[str, ...]
    terse: tuple[str, ...]
    answer: int
    unit: str
    held: int

    @property
    def solution(self) -> str:
        """The answer as the model shall write it."""
        lines = [f"Step {i}: {step}" for i, step in enumerate(self.steps, 1)]
        result = W.count(self.answer, self.unit) if self.unit else str(self.answer)
        return "\n".join([*lines, f"Answer: {result}"])


@dataclass
class Working:
    """Every operation of one problem goes through here; each method adds a step and returns the result.

    The wording of a step depends on the operation alone, never on the story: that is what lets the model solve
    stories it has not seen, and a draft guess whole steps.
    """

    steps: list[str] = field(default_factory=list)
    terse: list[str] = field(default_factory=list)
    held: int = 0

    def _op(self, sign: str, a: int, b: int) -> tuple[int, str]:
        result = {"+": a + b, "-": a - b, "x": a * b, "/": a // b if b else 0}[sign]
        if not 0 <= result <= LIMIT or (sign == "/" and a % b):
            raise Refused
        self.held += held_out(sign, a, b)
        middle = self._parts(a, b) if sign == "x" else ""
        expression = f"{a} {sign} {b} = {middle}{result}"
        self.terse.append(expression)
        return result, expression

    def _parts(self, a: int, b: int) -> str:
        """The partial products of a larger multiplication: `7 x 83 = 560 + 21 = 581`."""
        small, large = min(a, b), max(a, b)
        if small < 3 or large < 13 or small == 10 or large % 10 == 0:
            return ""
        first, second = (
            (10 * large, (small - 10) * large)
            if small > 10
            else (large // 10 * 10 * small, large % 10 * small)
        )
        self.held += held_out("+", first, second)
        return f"{first} + {second} = "

    def _step(self, sign: str, a: int, b: int, text: str, noun: str) -> int:
        result, expression = self._op(sign, a, b)
        self.steps.append(text.format(f"{expression} {W.singular(noun) if result == 1 else noun}".rstrip()))
        return result

    def gain(self, a: int, n: int, noun: str) -> int:
        return self._step("+", a, n, f"Adding {W.count(n, noun)} gives {{}}.", noun)

    def loss(self, a: int, n: int, noun: str) -> int:
        return self._step("-", a, n, f"Taking away {W.count(n, noun)} leaves {{}}.", noun)

    def groups(self, k: int, groups: str, m: int, noun: str) -> int:
        return self._step("x", k, m, f"{W.count(k, groups)} of {W.count(m, noun)} make {{}}.", noun)

    def price(self, k: int, goods: str, m: int) -> int:
        return self._step("x", k, m, f"{W.count(k, goods)} at {W.count(m, 'dollars')} cost {{}}.", "dollars")

    def times(self, m: int, a: int, noun: str) -> int:
        return self._step("x", m, a, f"{m} times {W.count(a, noun)} is {{}}.", noun)

    def total(self, a: int, b: int, noun: str) -> int:
        return self._step("+", a, b, "Together that is {}.", noun)

    def difference(self, a: int, b: int, noun: str) -> int:
        return self._step("-", a, b, "The difference is {}.", noun)

    def more(self, a: int, n: int, noun: str) -> int:
        return self._step("+", a, n, f"{n} more than {W.count(a, noun)} is {{}}.", noun)

    def fewer(self, a: int, n: int, noun: str) -> int:
        return self._step("-", a, n, f"{n} less than {W.count(a, noun)} is {{}}.", noun)

    def share(self, a: int, d: int, noun: str) -> int:
        return self._step("/", a, d, f"Sharing {W.count(a, noun)} among {d} gives {{}} each.", noun)

    def packs(self, a: int, d: int, noun: str, groups: str) -> int:
        return self._step("/", a, d, f"Putting {W.count(a, noun)} into groups of {d} makes {{}}.", groups)

    def part(self, name: str, a: int, d: int, noun: str) -> int:
        return self._step("/", a, d, f"{name} of {W.count(a, noun)} is {{}}.", noun)

    def plain(self, sign: str, a: int, b: int, text: str = "{}.") -> int:
        return self._step(sign, a, b, text, "")

    def problem(self, question: str, answer: int, unit: str) -> Problem:
        """Close the ledger."""
        return Problem(question, tuple(self.steps), tuple(self.terse), answer, unit, self.held)


# --- sentences ----------------------------------------------------------------------------------------------

_INNERMOST = re.compile(r"\[([^\[\]]*)\]")
_VERB = re.compile(r"<([a-z]+)(\+?)>")


def expand(r: random.Random, text: str) -> str:
    """Resolve `[a|b|c]` choices, nested ones from the inside out."""
    while "[" in text:
        text = _INNERMOST.sub(lambda m: r.choice(m[1].split("|")), text)
    return text


PAST = {
    "be": "was", "have": "had", "do": "did", "buy": "bought", "find": "found", "get": "got", "give": "gave", "take":
    "took", "win": "won", "make": "made", "bring": "brought", "send": "sent", "sell": "sold", "lose": "lost", "eat":
    "ate", "break": "broke", "throw": "threw", "spend": "spent", "lend": "lent", "leave": "left", "come": "came", "go":
    "went", "put": "put", "cut": "cut", "build": "built", "catch": "caught", "keep": "kept", "hold": "held", "drive":
    "drove", "ride": "rode", "run": "ran", "fly": "flew", "swim": "swam", "grow": "grew", "pay": "paid", "cost": "cost",
    "read": "read", "write": "wrote", "draw": "drew", "drink": "drank", "fall": "fell", "hand": "handed", "lay": "laid",
    "dig": "dug", "steal": "stole", "set": "set", "sit": "sat", "meet": "met", "see": "saw", "begin": "began", "hide":
    "hid", "know": "knew", "need": "needed", "want": "wanted", "quit": "quit", "wear": "wore", "bake": "baked", "sing":
    "sang", "feed": "fed", "teach": "taught", "think": "thought", "shut": "shut", "split": "split", "stand": "stood",
    "drop": "dropped", "pick": "picked", "plan": "planned", "stop": "stopped", "trade": "traded", "swap": "swapped",
    "ship": "shipped", "slip": "slipped", "trip": "tripped", "rent": "rented", "carry": "carried", "empty": "emptied",
    "fetch": "fetched", "tear": "tore", "shed": "shed", "score": "scored", "plant": "planted", "hop": "hopped",
}  # fmt: skip


@lru_cache(maxsize=4096)
def conjugate(verb: str, tense: str, plural: bool) -> str:
    """Present or past of a verb for a third person (or, when plural, for I, we, they)."""
    if tense == "past":
        if verb == "be":
            return "were" if plural else "was"
        if verb in PAST:
            return PAST[verb]
        return (
            verb + "d"
            if verb.endswith("e")
            else re.sub("y$", "i", verb) + "ed"
            if verb.endswith("ry")
            else verb + "ed"
        )
    if plural:
        return "are" if verb == "be" else verb
    special = {"be": "is", "have": "has", "do": "does", "go": "goes", "fly": "flies", "carry": "carries"}
    if verb in special:
        return special[verb]
    return verb + "es" if verb.endswith(("ch", "sh", "ss", "x")) else verb + "s"


@dataclass(frozen=True)
class Who:
    """Somebody who acts: name and pronouns; plural for I, we and groups."""

    name: str
    he: str
    him: str
    his: str
    plural: bool = False


def somebody(r: random.Random) -> Who:
    """A person of a story: a name mostly, a role, a group, or the person who asks."""
    u = r.random()
    if u < 0.05:
        return Who("I", "I", "me", "my", plural=True)
    if u < 0.12:
        return Who(r.choice(W.GROUPS), "it", "it", "its")
    if u < 0.22:
        name, he = r.choice(W.ROLES)
    elif u < 0.27:
        name, he = W.made_up(r).capitalize(), r.choice(("he", "she"))
    else:
        he = r.choice(("he", "she"))
        name = r.choice(W.MEN if he == "he" else W.WOMEN)
    return Who(name, he, "him" if he == "he" else "her", "his" if he == "he" else "her")


def somebody_else(r: random.Random, who: Who) -> str:
    """Another person, by name or by relation."""
    if r.random() < 0.5 and who.his != "its":
        return f"{who.his} {r.choice(W.KIN)}"
    name = r.choice(W.WOMEN + W.MEN)
    return name if name != who.name else "a friend"


@dataclass
class Teller:
    """Turns sentence templates of one story into text: same person, noun and tense throughout."""

    r: random.Random
    who: Who
    noun: str
    tense: str
    named: bool = False

    def say(self, template: str, **values: object) -> str:
        """Fill a template: `[a|b]` choices, {S} the subject, {O} another person, {it} the noun, numbers.

        `<verb>` agrees with the subject {S} (or one other person), `<verb+>` with something plural.
        """
        text = expand(self.r, template)
        subject = ""
        if "{S}" in text:
            pronoun = self.named and self.r.random() < 0.65
            subject = self.who.he if pronoun else self.who.name
            self.named = True
        many = self.who.plural and bool(subject)
        text = _VERB.sub(lambda m: conjugate(m[1], self.tense, many or bool(m[2])), text)
        other = somebody_else(self.r, self.who) if "{O}" in text else ""
        shown = {k: W.written(self.r, v) if isinstance(v, int) else v for k, v in values.items()}
        return text.format(S=subject, O=other, it=self.noun, him=self.who.him, his=self.who.his, **shown)


def capital(text: str) -> str:
    """First letter in upper case."""
    return text[:1].upper() + text[1:]


_BEGIN = re.compile(r"(?:^|(?<=[.?!] ))[a-z]")


def sentences(text: str) -> str:
    """Every sentence begins in upper case; orders end with a full stop."""
    text = _BEGIN.sub(lambda m: m[0].upper(), " ".join(text.split()).replace(" ?", "?"))
    if text.endswith("?") and re.search(
        r"(?:^|[.?] )(?:So |Now )?(?:Find|Calculate|Work out|Tell|find|work)[^.?]*\?$", text
    ):
        text = text[:-1] + "."
    return text


def until_good(draw: Callable[[], Problem], wanted: Callable[[Problem], bool]) -> Problem:
    """Draw until the numbers make a problem of the wanted kind."""
    while True:
        try:
            problem = draw()
        except Refused:
            continue
        if wanted(problem):
            return problem
