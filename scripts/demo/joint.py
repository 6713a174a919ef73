"""Up to eight short questions about one paragraph, answered together: one slot of one token per question.

The answer's layout is known before its words are (`1: yes`, a line per question), so that one preview of a block
with masks in the slots answers all of them.
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
    "age": ("{n} is {v} years old.", "{n} is {v}.", "At {v}, {n} feels young.", "{n}'s age is {v}."),
    "city": ("{n} lives in {v}.", "{n}'s home is {v}.", "{n} comes from {v}.", "{v} is where {n} lives."),
    "job": ("{n} works as a {v}.", "{n} is a {v}.", "{n}'s job is {v}.", "{n} earns a living as a {v}."),
    "pet": ("{n} has a {v}.", "{n} owns a {v}.", "A {v} lives with {n}.", "{n}'s pet is a {v}."),
    "color": (
        "{n} likes {v} best.",
        "{n}'s favorite color is {v}.",
        "{n} always wears {v}.",
        "{n} painted the house {v}.",
    ),
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
    names = r.sample(W.WOMEN + W.MEN, r.randint(2, 4))
    return [
        Person(
            n, r.randint(18, 80), r.choice(W.CITIES), r.choice(W.JOBS), r.choice(W.PETS), r.choice(W.COLORS)
        )
        for n in names
    ]


def _question(r: random.Random, people: list[Person]) -> tuple[str, str]:
    person, attribute = r.choice(people), r.choice(tuple(CHOICES))
    true = str(getattr(person, attribute))
    u = r.random()
    if u < 0.25:
        a, b = r.sample(people, 2)
        return f"Is {a.name} older than {b.name}?", "yes" if a.age > b.age else "no"
    others = [v for v in CHOICES[attribute] if v != true]
    if u < 0.65:
        said = true if r.random() < 0.5 else _near(r, people, attribute, true, others)
        return r.choice(YES_NO[attribute]).format(n=person.name, v=said), "yes" if said == true else "no"
    options = [true, *r.sample(others, 2)]
    r.shuffle(options)
    listed = " ".join(f"{letter}) {o}" for letter, o in zip(LETTERS, options, strict=True))
    return f"{r.choice(PICK[attribute]).format(n=person.name)} {listed}", LETTERS[options.index(true)]


def _near(r: random.Random, people: list[Person], attribute: str, true: str, others: list[str]) -> str:
    """A wrong value, preferably one that the paragraph says about somebody else."""
    there = [v for p in people if (v := str(getattr(p, attribute))) != true]
    return r.choice(there) if there and r.random() < 0.7 else r.choice(others)


def joint(r: random.Random) -> Joint:
    """One paragraph of two to four people and one to eight questions."""
    people = _people(r)
    facts = [(p, a) for p in people for a in FORMS]
    r.shuffle(facts)
    if r.random() < 0.5:
        facts.sort(key=lambda f: f[0].name)
    text = " ".join(r.choice(FORMS[a]).format(n=p.name, v=getattr(p, a)) for p, a in facts)
    asked = [_question(r, people) for _ in range(r.choice((1, 2, 3, 4, 5, 6, 7, 8, 8, 8)))]
    return Joint(text, tuple(q for q, _ in asked), tuple(a for _, a in asked))
