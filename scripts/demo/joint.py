"""Up to eight short questions about one paragraph, answered together: one slot of one token per question.

The answer's layout is known before its words are (`1: yes`, a line per question), so that one preview of a block
with masks in the slots answers all of them. Open questions (`1: Paris`) train the looking-up that the others need.
"""

import random
from dataclasses import dataclass

from . import words as W

MOST = 8
LETTERS = "ABC"


@dataclass(frozen=True)
class Person:
    """What the paragraph says about somebody."""

    name: str
    age: int
    city: str
    job: str
    pet: str
    color: str


FORMS = {
    "age": ("{n} is {v} years old.", "{n} is {v}."),
    "city": ("{n} lives in {v}.", "{n}'s home is {v}.", "{n} comes from {v}."),
    "job": ("{n} works as a {v}.", "{n} is a {v}.", "{n}'s job is {v}."),
    "pet": ("{n} has a {v}.", "{n} owns a {v}.", "{n}'s pet is a {v}."),
    "color": ("{n} likes {v}.", "{n}'s color is {v}.", "{n} wears {v}."),
}
CHOICES = {"city": W.CITIES, "job": W.JOBS, "pet": W.PETS, "color": W.COLORS}
YES_NO = {
    "city": ("Does {n} live in {v}?", "Is {v} the home of {n}?", "Is {n} from {v}?"),
    "job": ("Is {n} a {v}?", "Does {n} work as a {v}?"),
    "pet": ("Does {n} have a {v}?", "Does {n} own a {v}?"),
    "color": ("Is {n}'s color {v}?", "Does {n} like {v}?"),
}
PICK = {
    "city": ("Where does {n} live?", "Which city is {n}'s home?"),
    "job": ("What is {n}'s job?", "What does {n} do?"),
    "pet": ("Which pet does {n} have?", "What animal lives with {n}?"),
    "color": ("Which color does {n} like?", "What is {n}'s color?"),
}
OPEN = PICK | {"age": ("How old is {n}?", "What is {n}'s age?")}


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


def _people(r: random.Random) -> list[Person]:
    names = r.sample(W.WOMEN + W.MEN, r.choice((2, 2, 3, 3, 4)))
    return [
        Person(
            n, r.randint(18, 80), r.choice(W.CITIES), r.choice(W.JOBS), r.choice(W.PETS), r.choice(W.COLORS)
        )
        for n in names
    ]


def _older(r: random.Random, people: list[Person]) -> tuple[str, str]:
    a, b = r.sample(people, 2)
    return f"Is {a.name} older than {b.name}?", "yes" if a.age > b.age else "no"


def _true_or_not(r: random.Random, people: list[Person], attributes: list[str]) -> tuple[str, str]:
    person, attribute = r.choice(people), r.choice(attributes)
    true = str(getattr(person, attribute))
    others = [v for v in CHOICES[attribute] if v != true]
    said = true if r.random() < 0.5 else _near(r, people, attribute, true, others)
    return r.choice(YES_NO[attribute]).format(n=person.name, v=said), "yes" if said == true else "no"


def _one_of_three(r: random.Random, people: list[Person], attributes: list[str]) -> tuple[str, str]:
    person, attribute = r.choice(people), r.choice(attributes)
    true = str(getattr(person, attribute))
    options = [true, *r.sample([v for v in CHOICES[attribute] if v != true], 2)]
    r.shuffle(options)
    listed = " ".join(f"{letter}) {o}" for letter, o in zip(LETTERS, options, strict=True))
    return f"{r.choice(PICK[attribute]).format(n=person.name)} {listed}", LETTERS[options.index(true)]


def _open(r: random.Random, people: list[Person], attributes: list[str]) -> tuple[str, str]:
    person, attribute = r.choice(people), r.choice(attributes)
    return r.choice(OPEN[attribute]).format(n=person.name), str(getattr(person, attribute))


def _question(r: random.Random, people: list[Person], attributes: list[str]) -> tuple[str, str]:
    u, named = r.random(), [a for a in attributes if a != "age"]
    if "age" in attributes and u < 0.2:
        return _older(r, people)
    if u < 0.65:
        return _true_or_not(r, people, named)
    return _one_of_three(r, people, named)


def _near(r: random.Random, people: list[Person], attribute: str, true: str, others: list[str]) -> str:
    """A wrong value, preferably one that the paragraph says about somebody else."""
    there = [v for p in people if (v := str(getattr(p, attribute))) != true]
    return r.choice(there) if there and r.random() < 0.7 else r.choice(others)


def _paragraph(r: random.Random) -> tuple[str, list[Person], list[str]]:
    """Text, the people in it and the attributes it tells of each."""
    people = _people(r)
    attributes = r.sample(list(FORMS), r.randint(2, 4))
    facts = [(p, a) for p in people for a in attributes]
    if r.random() < 0.4:
        r.shuffle(facts)
    return (
        " ".join(r.choice(FORMS[a]).format(n=p.name, v=getattr(p, a)) for p, a in facts),
        people,
        attributes,
    )


def joint(r: random.Random) -> Joint:
    """One paragraph of two to four people and one to eight questions with one-token answers."""
    text, people, attributes = _paragraph(r)
    asked = [_question(r, people, attributes) for _ in range(r.choice((1, 2, 3, 4, 5, 6, 7, 8, 8, 8)))]
    return Joint(text, tuple(q for q, _ in asked), tuple(a for _, a in asked))


def open_questions(r: random.Random) -> Joint:
    """The same with answers copied from the paragraph; not of one token, so never slots."""
    text, people, attributes = _paragraph(r)
    asked = [_open(r, people, attributes) for _ in range(r.randint(1, 6))]
    return Joint(text, tuple(q for q, _ in asked), tuple(a for _, a in asked))
