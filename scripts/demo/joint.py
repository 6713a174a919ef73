"""Up to eight short questions about one paragraph, answered together: one slot of one token per question.

A paragraph tells of one person, order or event. The answer's layout is known before its words are (`1: yes`, a line
per question), so that one preview of a block with masks in the slots answers all of them. Open questions
(`1: Paris`) train the looking-up that the others need.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from . import words as W
from .grammar import expand

LETTERS = "ABC"


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
    number: tuple[str, str, str]  # told, asked openly, asked against a limit
    span: tuple[int, int]


def _person(r: random.Random) -> str:
    return r.choice(W.WOMEN + W.MEN)


def _order(r: random.Random) -> str:
    return r.choice(("The order", "The parcel", "The package"))


def _event(r: random.Random) -> str:
    return "The " + r.choice(("meeting", "party", "concert", "lesson", "race", "market", "wedding", "trip"))


PERSON = Subject(
    _person,
    (
        Attribute(
            W.CITIES, "{s} [lives in|comes from] {v}.", "Where does {s} live?", "Does {s} live in {v}?"
        ),
        Attribute(W.JOBS, "{s} [works as a|is a] {v}.", "What is {s}'s job?", "Is {s} a {v}?"),
        Attribute(W.PETS, "{s} [has|owns] a {v}.", "Which pet does {s} have?", "Does {s} have a {v}?"),
        Attribute(W.COLORS, "{s} [likes|wears] {v}.", "Which color does {s} like?", "Does {s} like {v}?"),
        Attribute(W.DAYS, "{s} [rests|is free] on {v}.", "When is {s} free?", "Is {s} free on {v}?"),
    ),
    (
        Flag("{s} is married.", "{s} is not married.", "Is {s} married?"),
        Flag("{s} can swim.", "{s} cannot swim.", "Can {s} swim?"),
        Flag("{s} has a car.", "{s} has no car.", "Does {s} have a car?"),
    ),
    ("{s} is {v} years old.", "How old is {s}?", "Is {s} older than {v}?"),
    (18, 80),
)
ORDER = Subject(
    _order,
    (
        Attribute(
            W.WARES, "{s} [is for a|holds a|contains a] {v}.", "What is in it?", "Is there a {v} in it?"
        ),
        Attribute(W.COLORS, "The color is {v}.", "Which color is it?", "Is it {v}?"),
        Attribute(W.CITIES, "{s} [goes to|is sent to] {v}.", "Where does it go?", "Does it go to {v}?"),
        Attribute(W.DAYS, "It [comes|arrives] on {v}.", "When does it come?", "Does it come on {v}?"),
    ),
    (
        Flag("It is paid.", "It is not paid.", "Is it paid?"),
        Flag("It is urgent.", "It is not urgent.", "Is it urgent?"),
        Flag("The customer is happy.", "The customer is not happy.", "Is the customer happy?"),
    ),
    ("It costs {v} dollars.", "What does it cost?", "Does it cost more than {v} dollars?"),
    (5, 99),
)
EVENT = Subject(
    _event,
    (
        Attribute(W.PLACES, "{s} is in the {v}.", "Where is it?", "Is it in the {v}?"),
        Attribute(W.DAYS, "It is on {v}.", "When is it?", "Is it on {v}?"),
        Attribute(W.CITIES, "The guests come from {v}.", "Where are the guests from?", "Are they from {v}?"),
        Attribute(W.COLORS, "Everybody wears {v}.", "Which color do they wear?", "Do they wear {v}?"),
    ),
    (
        Flag("Children may come.", "Children may not come.", "May children come?"),
        Flag("It is free.", "It is not free.", "Is it free?"),
        Flag("There is food.", "There is no food.", "Is there food?"),
    ),
    ("There are {v} guests.", "How many guests are there?", "Are there more than {v} guests?"),
    (10, 99),
)
SUBJECTS = (PERSON, ORDER, EVENT)


@dataclass(frozen=True)
class Joint:
    """A paragraph with its questions and one-word answers."""

    paragraph: str
    questions: tuple[str, ...]
    answers: tuple[str, ...]

    @property
    def prompt(self) -> str:
        """What the user writes."""
        listed = "\n".join(f"{i}. {q}" for i, q in enumerate(self.questions, 1))
        return f"{self.paragraph}\n\n{listed}"

    @property
    def response(self) -> str:
        """What the model answers."""
        return "\n".join(f"{i}: {a}" for i, a in enumerate(self.answers, 1))


@dataclass(frozen=True)
class _Note:
    """A drawn paragraph: what is true of the subject."""

    subject: Subject
    name: str
    values: dict[Attribute, str]
    flags: dict[Flag, bool]
    number: int | None

    def text(self, r: random.Random) -> str:
        """The sentences in any order, the first with the name."""
        parts = [expand(r, a.told).format(s=self.name, v=v) for a, v in self.values.items()]
        parts += [(f.so if so else f.not_so).format(s=self.name) for f, so in self.flags.items()]
        if self.number is not None:
            parts.append(self.subject.number[0].format(s=self.name, v=self.number))
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
        r.randint(*subject.span) if r.random() < 0.6 else None,
    )


def _true_or_not(r: random.Random, note: _Note) -> tuple[str, str]:
    attribute, true = r.choice(list(note.values.items()))
    said = true if r.random() < 0.5 else r.choice([v for v in attribute.values if v != true])
    return attribute.yes_no.format(s=note.name, v=said), "yes" if said == true else "no"


def _one_of_three(r: random.Random, note: _Note) -> tuple[str, str]:
    attribute, true = r.choice(list(note.values.items()))
    options = [true, *r.sample([v for v in attribute.values if v != true], 2)]
    r.shuffle(options)
    listed = " ".join(f"{letter}) {o}" for letter, o in zip(LETTERS, options, strict=True))
    return f"{attribute.asked.format(s=note.name)} {listed}", LETTERS[options.index(true)]


def _question(r: random.Random, note: _Note) -> tuple[str, str]:
    u = r.random()
    if note.flags and u < 0.2:
        flag, so = r.choice(list(note.flags.items()))
        return flag.asked.format(s=note.name), "yes" if so else "no"
    if note.number is not None and u < 0.3:
        low, high = note.subject.span
        limit = r.choice([n for n in range(low // 10 * 10, high + 11, 10) if n != note.number])
        return note.subject.number[2].format(s=note.name, v=limit), "yes" if note.number > limit else "no"
    return _true_or_not(r, note) if u < 0.65 else _one_of_three(r, note)


def joint(r: random.Random) -> Joint:
    """A paragraph and one to eight questions with one-token answers."""
    note = _note(r)
    asked = [_question(r, note) for _ in range(r.choice((1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 8, 8)))]
    return Joint(note.text(r), tuple(q for q, _ in asked), tuple(a for _, a in asked))


def open_questions(r: random.Random) -> Joint:
    """The same with answers copied from the paragraph; not of one token, so never slots."""
    note = _note(r)
    can = [(a.asked.format(s=note.name), v) for a, v in note.values.items()]
    if note.number is not None:
        can.append((note.subject.number[1].format(s=note.name), str(note.number)))
    asked = [r.choice(can) for _ in range(r.randint(1, 6))]
    return Joint(note.text(r), tuple(q for q, _ in asked), tuple(a for _, a in asked))
