"""Up to eight short questions about one paragraph, answered together: one slot of one token per question.

A paragraph tells of one person, order or event. The answer's layout is known before its words are (`1: yes`, a line
per question), so that one preview of a block with masks in the slots answers all of them. Every answer is one token
of the tokenizer, which is trained on WORDS for that. A tenth of the paragraphs, by what they tell, is never trained on.
"""

import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from . import words as W
from .grammar import expand

CITIES = tuple("Paris London Rome Oslo Cairo Lima Tokyo Boston".split())
JOBS = tuple("teacher nurse baker pilot farmer doctor driver painter".split())
PETS = tuple("dog cat bird horse rabbit turtle".split())
COLORS = tuple("red blue green black white yellow brown pink".split())
WARES = tuple("lamp chair table phone watch camera bag clock".split())
PLACES = tuple("park school library museum garden theater".split())
WORDS = ("yes", "no", *CITIES, *JOBS, *PETS, *COLORS, *W.DAYS, *WARES, *PLACES)
"""Every answer that a slot can hold."""


@dataclass(frozen=True)
class Attribute:
    """Something a paragraph may say: how it says it, and how one asks. {s} the subject, {v} the value."""

    values: tuple[str, ...]
    told: str
    asked: str
    yes_no: str


@dataclass(frozen=True)
class Flag:
    """Something that is so or not."""

    so: str
    not_so: str
    asked: str


@dataclass(frozen=True)
class Subject:
    """A kind of paragraph; `name` makes the subject's name."""

    name: Callable[[random.Random], str]
    attributes: tuple[Attribute, ...]
    flags: tuple[Flag, ...]


def _person(r: random.Random) -> str:
    return r.choice(W.WOMEN + W.MEN)


def _order(r: random.Random) -> str:
    return r.choice(("The order", "The parcel", "The package"))


def _event(r: random.Random) -> str:
    return "The " + r.choice(("meeting", "party", "concert", "lesson", "race", "market", "wedding", "trip"))


PERSON = Subject(
    _person,
    (
        Attribute(CITIES, "{s} [lives in|comes from] {v}.", "Where does {s} live?", "Does {s} live in {v}?"),
        Attribute(JOBS, "{s} [works as a|is a] {v}.", "What is {s}'s job?", "Is {s} a {v}?"),
        Attribute(PETS, "{s} [has|owns] a {v}.", "Which pet does {s} have?", "Does {s} have a {v}?"),
        Attribute(COLORS, "{s} [likes|wears] {v}.", "Which color does {s} like?", "Does {s} like {v}?"),
        Attribute(W.DAYS, "{s} [rests|is free] on {v}.", "When is {s} free?", "Is {s} free on {v}?"),
    ),
    (
        Flag("{s} is married.", "{s} is not married.", "Is {s} married?"),
        Flag("{s} can swim.", "{s} cannot swim.", "Can {s} swim?"),
    ),
)
ORDER = Subject(
    _order,
    (
        Attribute(WARES, "{s} [holds a|contains a] {v}.", "What is in it?", "Is there a {v} in it?"),
        Attribute(COLORS, "The color is {v}.", "Which color is it?", "Is it {v}?"),
        Attribute(CITIES, "{s} [goes to|is sent to] {v}.", "Where does it go?", "Does it go to {v}?"),
        Attribute(W.DAYS, "It [comes|arrives] on {v}.", "When does it come?", "Does it come on {v}?"),
    ),
    (
        Flag("It is paid.", "It is not paid.", "Is it paid?"),
        Flag("It is urgent.", "It is not urgent.", "Is it urgent?"),
    ),
)
EVENT = Subject(
    _event,
    (
        Attribute(PLACES, "{s} is in the {v}.", "Where is it?", "Is it in the {v}?"),
        Attribute(W.DAYS, "It is on {v}.", "When is it?", "Is it on {v}?"),
        Attribute(CITIES, "The guests come from {v}.", "Where are the guests from?", "Are they from {v}?"),
        Attribute(COLORS, "Everybody wears {v}.", "Which color do they wear?", "Do they wear {v}?"),
    ),
    (
        Flag("Children may come.", "Children may not come.", "May children come?"),
        Flag("There is food.", "There is no food.", "Is there food?"),
    ),
)
SUBJECTS = (PERSON, ORDER, EVENT)


@dataclass(frozen=True)
class Joint:
    """Questions with one-word answers about a paragraph, which is empty where an earlier turn has told it."""

    paragraph: str
    questions: tuple[str, ...]
    answers: tuple[str, ...]
    first: int = 1  # the number of the first question

    @property
    def prompt(self) -> str:
        """What the user writes."""
        listed = "\n".join(f"{i}. {q}" for i, q in enumerate(self.questions, self.first))
        return f"{self.paragraph}\n\n{listed}" if self.paragraph else listed

    @property
    def response(self) -> str:
        """What the model answers."""
        return "\n".join(f"{i}: {a}" for i, a in enumerate(self.answers, self.first))


@dataclass(frozen=True)
class _Note:
    """A drawn paragraph: what is true of the subject."""

    subject: Subject
    name: str
    values: dict[Attribute, str]
    flags: dict[Flag, bool]

    @property
    def held(self) -> bool:
        """Whether it is one of the tenth that is never trained on, whatever its wording and order."""
        told = sorted((*self.values.values(), *(f.so if so else f.not_so for f, so in self.flags.items())))
        return zlib.crc32("|".join((self.name, *told)).encode()) % 10 == 0

    @property
    def named(self) -> bool:
        """Whether its text says the name; without, another subject's paragraph may read the same."""
        return any("{s}" in a.told for a in self.values) or any("{s}" in f.so for f in self.flags)

    def text(self, r: random.Random) -> str:
        """The sentences in any order."""
        parts = [expand(r, a.told).format(s=self.name, v=v) for a, v in self.values.items()]
        parts += [(f.so if so else f.not_so).format(s=self.name) for f, so in self.flags.items()]
        r.shuffle(parts)
        return " ".join(parts)


def _note(r: random.Random) -> _Note:
    subject = r.choice(SUBJECTS)
    attributes = r.sample(subject.attributes, r.randint(2, len(subject.attributes)))
    flags = r.sample(subject.flags, r.randint(0, 2))
    return _Note(
        subject,
        subject.name(r),
        {a: r.choice(a.values) for a in attributes},
        {f: r.random() < 0.5 for f in flags},
    )


def _question(r: random.Random, note: _Note) -> tuple[str, str]:
    u = r.random()
    if note.flags and u < 0.2:
        flag, so = r.choice(list(note.flags.items()))
        return flag.asked.format(s=note.name), "yes" if so else "no"
    attribute, true = r.choice(list(note.values.items()))
    if u < 0.6:
        return attribute.asked.format(s=note.name), true
    said = true if r.random() < 0.5 else r.choice([v for v in attribute.values if v != true])
    return attribute.yes_no.format(s=note.name, v=said), "yes" if said == true else "no"


def _asked(r: random.Random, note: _Note, count: int, first: int, told: bool = True) -> Joint:
    asked = [_question(r, note) for _ in range(count)]
    paragraph = note.text(r) if told else ""
    return Joint(paragraph, tuple(q for q, _ in asked), tuple(a for _, a in asked), first)


def _drawn(r: random.Random, held: bool) -> _Note:
    """A paragraph that is trained on, or one that is not and reads like none that is."""
    while True:
        note = _note(r)
        if note.held == held and (note.named or not held):
            return note


def joint(r: random.Random, *, held: bool = False) -> Joint:
    """A paragraph and one to eight questions with one-token answers."""
    return _asked(r, _drawn(r, held), r.choice((1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 8, 8)), 1)


def interview(r: random.Random) -> list[Joint]:
    """A paragraph and turns of one or two questions about it, numbered on: the short way from question to answer."""
    note, out, first = _drawn(r, False), [], 1
    for _ in range(r.randint(2, 5)):
        out.append(_asked(r, note, r.choice((1, 1, 2)), first, told=first == 1))
        first += len(out[-1].answers)
    return out
