"""Word problems about things that come and go: a start, one to three events, a question, in many wordings.

Every function takes a random source and returns a Problem; wrong numbers raise Refused.
"""

import random
import re
from collections.abc import Callable

from . import words as W
from .grammar import Problem, Refused, Teller, Working, capital, sentences, somebody

# What {N} and {L} may be: the thing gained or lost, said in full or by reference
GAINED = "[{n} more {it}|{n} more {it}|{n} {it}|another {n} {it}|{n} more|another {n}|{n} new {it}|{n} other {it}|{n} extra {it}]"
LOST = "[{n} {it}|{n} {it}|{n} of them|{n} of them|{n} of the {it}|{n} of {his} {it}|{n}|{n} of these]"

GAINS = (
    "{S} <buy> N[| at the [market|store|shop|fair|supermarket]| in town| on [Monday|Friday|Sunday]| online| later]",
    "{S} [<find>|<discover>|<spot>] N[| in {his} room| at home| under the bed| in the garden| on the way home| in a drawer]",
    "{S} [<get>|<receive>] N[| from {O}| for {his} birthday| as a present| by mail| in the afternoon| later]",
    "{S} [<pick>|<pick> up|<collect>|<gather>|<harvest>] N[| in the garden| after lunch| in the evening| on the beach|]",
    "{S} <win> N[| at a fair| in a game| in a contest| at school]",
    "{S} [<make>|<bake>|<build>|<paint>|<produce>|<create>|<knit>|<fold>] N[| in the evening| at home| the next day|]",
    "{S} <order> N[| from a shop| online|]",
    "{S} <add> N[| to {his} [collection|pile|stock|bag|box|shelf]|]",
    "{S} <borrow> N[| from {O}| from the library|]",
    "{S} <earn> N[| at work| for helping {O}| with {his} work|]",
    "{S} [<bring>|<carry>|<fetch>|<take>] N [home|from the [cellar|kitchen|car|garage]]",
    "{S} [<put>|<place>|<stack>|<lay>] N [on top|next to them|into the same [box|bag|basket]|on the pile]",
    "{S} [<catch>|<acquire>|<obtain>|<unpack>|<purchase>|<gain>] N[| in the morning| that day| at noon|]",
    "{O} <give> {him} N[| as a gift| for free| later|]",
    "{O} [<bring>|<send>|<hand>|<lend>|<mail>|<pass>|<throw>] {him} N",
    "{O} [<bring>|<buy>|<leave>|<make>|<find>] N for {him}",
    "{S} <be> given N[| by {O}| at the party| as a prize|]",
    "N [<arrive+>|<come+>|<be+> delivered|<be+> brought in|<be+> added|<be+> found|<turn+> up][| by mail| the next day| in the afternoon|]",
    "{O} <add> N[| to the pile| to the box|]",
    "a [truck|parcel|van|delivery|friend] <bring> N",
)
LOSSES = (
    "{S} <give> [away L|L away|L away|L to {O}|{O} L|L to {O}|L to a [charity|friend|child|school]]",
    "{S} <lose> L[| on the way| in the park| at school| in a game|]",
    "{S} <sell> L[| at the market| to {O}| online| in the morning| on [Monday|Saturday]| that day|]",
    "{S} [<eat>|<eat> up|<drink>|<cook>|<use>|<use> up] L[| for breakfast| at lunch| for [dinner|a cake|a project]| the same day|]",
    "{S} [<break>|<damage>|<spoil>|<drop>|<smash>|<burn>|<crack>] L[| by accident| on the way home|]",
    "{S} <throw> [away L|L away|L out]",
    "{S} [<donate>|<lend>|<hand>|<send>|<mail>|<pass>|<return>|<present>|<offer>|<bring>] L to {O}",
    "{S} [<hand> out|<pass> on|<give> out|<trade> away|<swap> away|<use>|<spend>|<waste>|<remove>] L[| after that| at school|]",
    "{S} <take> [out L|L out|L to school|L to {O}|L to the shop|L back]",
    "{S} [<leave>|<forget>] L [at home|at school|behind|on the bus|in the park]",
    "{S} <share> L with {O}",
    "{S} [<put>|<set>] L aside for {O}",
    "{S} [<tear> up|<cut> up|<wear> out|<return>|<discard>|<ship>|<remove>] L",
    "{O} [<take>|<borrow>|<steal>|<eat>|<buy>|<break>|<get>|<want> and <get>] L",
    "L <be+> [stolen|broken|sold|eaten|lost|damaged|used|used up|thrown away|taken away|given away|rotten and <be+> thrown out|removed|borrowed by {O}|returned]",
    "L [<break+>|<fall+> off|<fall+> down|<get+> lost|<go+> bad|<disappear+>|<go+> to {O}|<vanish+>]",
    "a [dog|thief|bird|storm|monkey] [<take>|<destroy>|<carry> away|<eat>] L",
)
STARTS = (
    "{S} <have> {a} {it}[| in {his} [bag|room|garden|box|house|shop|pocket]| at home|]",
    "{S} [<own>|<keep>|<collect>|<hold>] {a} {it}",
    "{S} <start> with {a} {it}",
    "{S} [<buy>|<pick>|<get>|<find>|<make>] {a} {it}[| in the morning| on Monday| at the market|]",
    "there <be+> {a} {it} [in|on] [{his}|the] [box|table|bag|shelf|basket|room|garden|desk|drawer|jar]",
    "at first {S} <have> {a} {it}",
    "in the morning {S} <have> {a} {it}",
    "{S} [<have> a collection of|<count>|<bring>] {a} {it}",
)
GROUP_STARTS = (
    "{S} <have> {k} {box} [of|with] {m} {it}[| each| in each| in each {b1}|]",
    "{S} <have> {k} {box} of {m} {it}",
    "{S} [<buy>|<get>|<order>|<own>|<bring>|<carry>|<open>|<find>] {k} {box} [of|with] {m} {it}[| each| in each| in each {b1}|]",
    "there <be+> {k} {box} [of|with] {m} {it}[| each| in each| in every {b1}|]",
    "there <be+> {k} {box} and [each|every] [one|{b1}] [holds|has|contains] {m} {it}",
    "[each|every|one] {b1} [holds|contains|has] {m} {it}[ and|.] {S} <have> {k} [{box}|such {box}|of them]",
    "{S} <have> {k} {box}[. Each| and each| with] [one |{b1} |]of them holding {m} {it}",
    "{S} [<put>|<pack>|<place>] {m} {it} [into|in] each of {k} {box}",
    "{S} <have> {m} {it} in each of {k} {box}",
    "{k} {box} [hold|contain] {m} {it} each",
    "[{k} friends|{k} children|{k} people] [give|bring] {him} {m} {it} each",
    "{S} [<get>|<buy>|<make>|<collect>|<save>] {m} {it} [a|every|each|per] day for {k} days",
    "in {k} {box} there <be+> {m} {it} each",
)
GROUP_GAINS = (
    "{S} [<buy>|<get>|<find>|<order>|<receive>] {k} [|more |other ]{box} [of|with] {m} {it}[| each| in each]",
    "{O} [<give>|<bring>|<send>] {him} {k} {box} [of|with] {m} {it}[| each]",
    "{k} friends [<give+>|<bring+>] {him} {m} {it} each",
    "{S} [<make>|<get>|<buy>|<find>] {m} {it} [a|every|each] day for {k} days",
)
GROUP_LOSSES = (
    "{S} [<give>|<hand>|<sell>|<send>] {m} {it} to each of {k} {rec}",
    "{S} <give> [each of|each of {his}] {k} {rec} {m} [{it}|of them]",
    "{k} {rec} [<take+>|<get+>|<eat+>|<buy+>] {m} {it} each",
    "{S} [<eat>|<use>|<sell>|<lose>] {m} {it} [a|every|each] day for {k} days",
    "{S} [<sell>|<give> away|<use>] {k} {box} of {m} {it}[| each]",
)
LEFT = (
    "how many {it} are left",
    "how many are left",
    "how many are left over",
    "how many {it} does {S} have [left|now|left over|in the end|at the end|then|after that]",
    "how many does {S} [have|have left|still have|have now]",
    "how many {it} does {S} still have",
    "how many {it} remain",
    "how many of them [are left|remain]",
    "[find|calculate|work out|tell me] how many {it} are left",
    "how many {it} [are still there|are there now|does that leave|is that]",
    "what is the number of {it} [left|now]",
    "with how many {it} does {S} end up",
)
NOW = (
    "how many {it} does {S} have [now|in total|in all|altogether|at the end|in the end|then|all together]",
    "how many does {S} have [now|in total|in all|altogether]",
    "how many {it} are there [now|in total|in all|altogether|at the end|]",
    "how many [{it} is that|are there|are there now|is that in all]",
    "what is the total number of {it}",
    "[find|calculate|work out|tell me] the [total number|number] of {it}[| {S} has[| now]]",
    "how many {it} does that make",
    "how many {it} does {S} end up with",
)
IDLE = (
    "{S} is {n} years old.",
    "It is {n} degrees outside.",
    "The way home takes {n} minutes.",
    "{O} has {n} {other}.",
    "The shop opens at {n} o'clock.",
    "It is a [sunny|rainy|cold|warm|quiet] day.",
    "{S} [likes|loves] {it} very much.",
    "{O} watches.",
    "The room has {n} windows.",
    "This was {n} weeks ago.",
    "{S} also has {n} {other}.",
)
LINKS = (
    "",
    "",
    "",
    "Then ",
    "Then ",
    "Later ",
    "After that, ",
    "Next, ",
    "Now ",
    "The next day ",
    "In the evening, ",
    "Finally, ",
)


def _object(r: random.Random, template: str) -> str:
    """Put the object phrase into an event: N the gained, L the lost."""
    template = re.sub(r"\bN\b", lambda _: GAINED, template)
    return re.sub(r"\bL\b", lambda _: LOST, template)


class _Story(Teller):
    """A teller that also keeps the running amount."""

    def __init__(self, r: random.Random) -> None:
        super().__init__(r, somebody(r), W.thing(r), "past" if r.random() < 0.35 else "present")
        self.box = r.choice(W.BOXES)
        self.work, self.amount = Working(), 0
        self.parts: list[str] = []

    def tell(self, templates: tuple[str, ...], **values: object) -> None:
        template = _object(self.r, self.r.choice(templates))
        self.parts.append(self.say(template, box=self.box, b1=W.singular(self.box), **values))

    def draw(self, low: int, high: int) -> int:
        """A number, small ones more often."""
        if high <= low:
            raise Refused
        top = high if self.r.random() < 0.5 else min(high, low + 40)
        return self.r.randint(low, top)


def _start(s: _Story) -> None:
    if s.r.random() < 0.5:
        k, m = s.r.randint(2, 12), s.r.randint(2, 40)
        s.tell(GROUP_STARTS, k=k, m=m)
        unit = s.box
        if "day" in s.parts[-1]:
            unit = "days"
        for people in ("friends", "children", "people"):
            if f"{people} " in s.parts[-1] and s.box not in s.parts[-1]:
                unit = people
        s.amount = s.work.groups(k, unit, m, s.noun)
    else:
        s.amount = s.draw(4, 400)
        s.tell(STARTS, a=s.amount)


def _event(s: _Story) -> bool:
    """One change; returns whether it was a loss."""
    u = s.r.random()
    if u < 0.36:
        n = s.draw(2, 300)
        s.tell(GAINS, n=n)
        s.amount = s.work.gain(s.amount, n, s.noun)
        return False
    if u < 0.78:
        n = s.draw(2, s.amount - 1)
        s.tell(LOSSES, n=n)
        s.amount = s.work.loss(s.amount, n, s.noun)
        return True
    k, m = s.r.randint(2, 9), s.r.randint(2, 20)
    if u < 0.88:
        s.tell(GROUP_GAINS, k=k, m=m)
        made = s.work.groups(k, _unit(s, "friends"), m, s.noun)
        s.amount = s.work.gain(s.amount, made, s.noun)
        return False
    receivers = s.r.choice(W.RECEIVERS)
    s.tell(GROUP_LOSSES, k=k, m=m, rec=receivers)
    made = s.work.groups(k, _unit(s, receivers), m, s.noun)
    s.amount = s.work.loss(s.amount, made, s.noun)
    return True


def _unit(s: _Story, people: str) -> str:
    text = s.parts[-1]
    return "days" if text.endswith("days") else s.box if s.box in text else people


def _assemble(s: _Story, question: str) -> str:
    """Order the clauses: sentences, one long sentence, or a condition with the question before or after it."""
    r, parts = s.r, s.parts
    joined = " and ".join(parts) if len(parts) == 2 else ", ".join(parts[:-1]) + f" and {parts[-1]}"
    flat = not any(". " in p or "." in p for p in parts)
    u = r.random()
    if u < 0.1 and flat and len(parts) > 1:
        return sentences(f"{question} if {joined}?")
    if u < 0.2 and flat and len(parts) > 1:
        return sentences(f"If {joined}, {question}?")
    if u < 0.45 and flat and len(parts) > 1:
        text = capital(parts[0]) + "".join(
            r.choice((" and ", ", then ", " and then ", ", but ", "; ")) + p for p in parts[1:]
        )
        return sentences(f"{text}. {question}?")
    out = [parts[0] + ".", *(r.choice(LINKS) + part + "." for part in parts[1:])]
    if r.random() < 0.2:
        idle = s.say(r.choice(IDLE), n=r.randint(2, 90), other=r.choice(W.THINGS))
        out.insert(r.randint(1, len(out)), idle)
    ask = r.choice(("So ", "Now ")) if r.random() < 0.1 else ""
    return sentences(" ".join([*out, f"{ask}{question}?"]))


def ledger(r: random.Random) -> Problem:
    """Somebody has things; some come, some go."""
    s = _Story(r)
    _start(s)
    lost = False
    for _ in range(r.choice((1, 1, 1, 2, 2, 3))):
        lost = _event(s)
    ask = r.choice(LEFT if lost and r.random() < 0.8 else NOW)
    question = _asked(s, ask)
    return s.work.problem(_assemble(s, question), s.amount, s.noun)


def _asked(s: _Story, ask: str) -> str:
    """The question clause; for I and for past stories its auxiliary changes."""
    if s.who.plural:
        ask = ask.replace("does {S}", "do {S}").replace("{S} has", "{S} have")
    elif s.tense == "past" and s.r.random() < 0.3:
        ask = ask.replace("does {S}", "did {S}").replace("are left", "were left")
    return s.say(ask)


README = (
    "{S} has {k} {box} of {m} {it} and gives away {n}. How many[| {it}] are left?",
    "{S} has {k} {box} of {m} {it} and [gives away|loses|sells|eats|uses|breaks] {n}[| of them]. How many[| {it}] [are left|remain|does {S} have left]?",
    "{S} has {k} {box} [of|with] {m} {it} and [gets|buys|finds] {n} more. How many[| {it}] [are there|does {S} have] [now|in all]?",
    "{S} has {a} {it} and [gives away|loses|sells|eats|uses] {n}. How many[| {it}] are left?",
    "{S} has {a} {it} and [buys|finds|gets] {n} more. How many[| {it}] does {S} have[| now]?",
    "{S} buys {k} {box} of {m} {it}[ and then|, then| and] [loses|gives away|sells] {n}. How many are left?",
)


def short(r: random.Random) -> Problem:
    """The shape of the README's own example and its neighbours."""
    s = _Story(r)
    if s.who.plural:
        raise Refused
    template = r.choice(README)
    k, m, a = r.randint(2, 12), r.randint(2, 40), s.draw(4, 400)
    amount = s.work.groups(k, s.box, m, s.noun) if "{k}" in template else a
    gains = "more" in template
    n = s.draw(2, 100 if gains else amount - 1)
    text = s.say(template, k=k, m=m, a=a, n=n, box=s.box)
    amount = s.work.gain(amount, n, s.noun) if gains else s.work.loss(amount, n, s.noun)
    return s.work.problem(sentences(text), amount, s.noun)


FOLLOW_UPS = {
    "k": (
        "And if {S} had {k} {box}?",
        "What if there were {k} {box}?",
        "And with {k} {box}?",
        "What about {k} {box}?",
    ),
    "m": ("And if each {b1} held {m}?", "What if there were {m} {it} in each {b1}?", "And with {m} in each?"),
    "n": ("And if {S} gives away {n}?", "What if it were {n} instead?", "And if {S} gives away {n} instead?"),
}


def conversation(r: random.Random) -> list[Problem]:
    """The README's question, then what changes with another number: the follow-up needs the turn before."""
    s = _Story(r)
    if s.who.plural:
        raise Refused
    numbers = {"k": r.randint(2, 12), "m": r.randint(2, 40)}
    numbers["n"] = s.draw(2, numbers["k"] * numbers["m"] - 1)
    question = s.say(README[0], box=s.box, **numbers)
    turns = [_left_over(s, sentences(question), numbers)]
    for _ in range(r.choice((1, 1, 2))):
        changed = r.choice("kmn")
        s.named, s.tense = r.random() < 0.9, "present"
        numbers[changed] = r.randint(2, {"k": 12, "m": 40, "n": 40}[changed])
        ask = s.say(r.choice(FOLLOW_UPS[changed]), box=s.box, b1=W.singular(s.box), **numbers)
        turns.append(_left_over(s, sentences(ask), numbers))
    return turns


def _left_over(s: _Story, question: str, numbers: dict[str, int]) -> Problem:
    work = Working()
    amount = work.groups(numbers["k"], s.box, numbers["m"], s.noun)
    return work.problem(question, work.loss(amount, numbers["n"], s.noun), s.noun)


# --- scenes with people, animals, containers ----------------------------------------------------------------

ARRIVE = (
    "{n} [more|more {it}|other {it}|new {it}|{it}] [<arrive+>|<come+>|<come+> in|<join+> them|<enter+>|<show+> up|<return+>|<come+> back|<walk+> in|<run+> in|<move+> in]",
    "{n} more {it} [<get+> on|<sit+> down|<come+> along|<come+> to the {place}]",
    "another {n} [|{it} ][<arrive+>|<join+>|<come+>|<get+> in|<follow+>]",
    "{n} more {it} <be+> [let in|invited|brought in|added]",
)
DEPART = (
    "{n} [|of them |{it} |of the {it} ][<leave+>|<go+> home|<go+> away|<walk+> away|<run+> away|<move+> out|<drop+> out|<leave+> early]",
    "{n} {it} [<get+> off|<go+> outside|<leave+> the {place}|<disappear+>|<swim+> away|<fly+> away|<climb+> out]",
    "{n} of them [<get+> tired and <leave+>|<get+> sick and <go+> home|<be+> sent home|<be+> taken away|<be+> sold]",
)
SCENES = (
    "there <be+> {a} {it} [in|at|on] the {place}",
    "{a} {it} [<be+>|<sit+>|<stand+>|<wait+>|<play+>|<rest+>] [in|at|on] the {place}",
    "[a|the] {place} <have> {a} {it}[| inside| in it|]",
    "{a} {it} <come+> to the {place}",
)
HOW_MANY = (
    "how many {it} are [in|at|on] the {place} now",
    "how many {it} are there [now|in the end|at the end]",
    "how many {it} [are left|stay|remain] [in|at|on] the {place}",
    "how many [are there now|are in the {place} now|{it} are still there]",
    "what is the number of {it} [now|in the {place} now]",
)


def scene(r: random.Random) -> Problem:
    """People or animals come and go."""
    s = _Story(r)
    s.noun = r.choice(W.PEOPLE if r.random() < 0.6 else W.ANIMALS)
    place = r.choice(W.PLACES)
    s.amount = s.draw(10, 300)
    s.tell(SCENES, a=s.amount, place=place)
    for _ in range(r.choice((1, 2, 2, 3))):
        if r.random() < 0.5:
            n = s.draw(2, 100)
            s.tell(ARRIVE, n=n, place=place)
            s.amount = s.work.gain(s.amount, n, s.noun)
        else:
            n = s.draw(2, s.amount - 1)
            s.tell(DEPART, n=n, place=place)
            s.amount = s.work.loss(s.amount, n, s.noun)
    question = s.say(r.choice(HOW_MANY), place=place)
    return s.work.problem(_assemble(s, question), s.amount, s.noun)


UNKNOWN_START = (
    "{S} [gives away|sells|loses|eats|uses] {n} {it} and has {b} left. How many {it} did {S} have [at first|before|at the start]?",
    "After {S} [gave away|sold|lost|ate|used] {n} {it}, {b} [were left|remained|are left]. How many {it} were there [at first|before|to begin with]?",
    "{S} had some {it}. {S} [gave away|lost|sold] {n} and now has {b}. How many {it} did {S} start with?",
)
UNKNOWN_CHANGE = (
    "{S} [has|had] {a} {it}. [After giving some away|After selling some|After losing some|Now] {b} are left. How many {it} [are gone|were given away|did {S} lose|did {S} sell]?",
    "{S} needs {a} {it} and has {b}. How many more {it} does {S} [need|still need|have to buy|have to get]?",
    "{S} wants to [collect|make|buy|sell] {a} {it}. So far {S} has {b}. How many [are missing|more {it} are needed|more does {S} need]?",
    "There [are|were] {a} {it} in the [box|bag|jar|basket]. [{O}|Somebody] took some, and {b} are left. How many {it} were taken?",
    "A [box|bag|shelf|tray] has room for {a} {it}. {b} {it} are in it. How many more [{it} fit in|fit|{it} can be added]?",
)


def unknown(r: random.Random) -> Problem:
    """The start or the change is asked for."""
    s = _Story(r)
    if s.who.plural:
        raise Refused
    b, n = s.draw(3, 200), s.draw(2, 200)
    if r.random() < 0.4:
        text, answer = r.choice(UNKNOWN_START), s.work.gain(b, n, s.noun)
    else:
        text, answer = r.choice(UNKNOWN_CHANGE), s.work.loss(b + n, b, s.noun)
    return s.work.problem(sentences(s.say(text, a=b + n, b=b, n=n)), answer, s.noun)


TWO_PILES = (
    "{S} has {a} {c1} {it} and {b} {c2} {it}. How many {it} [does {S} have|are there] [in all|in total|altogether]?",
    "{S} [has|finds|buys] {a} {it} [on Monday|in the morning|today] and {b} [on Tuesday|in the afternoon|tomorrow]. How many {it} [is that|are there|does {S} have] [in all|in total|altogether|together]?",
    "There are {a} {it} in one {b1} and {b} in [another|the other|a second one]. How many {it} are [there|in both]?",
    "{S} has {a} {it}. {O} has {b} {it}. How many {it} do they have [together|in all|in total]?",
    "{S} and {O} [have|found|bought|made] {a} and {b} {it}. How many [is that|{it} is that|{it} do they have] together?",
    "What do {a} {it} and {b} {it} make together?",
)


def piles(r: random.Random) -> Problem:
    """Two or three piles are added."""
    s = _Story(r)
    if s.who.plural:
        raise Refused
    a, b = s.draw(3, 400), s.draw(3, 400)
    c1, c2 = r.sample(W.COLORS, 2)
    text = s.say(r.choice(TWO_PILES), a=a, b=b, c1=c1, c2=c2, b1=W.singular(s.box))
    return s.work.problem(sentences(text), s.work.total(a, b, s.noun), s.noun)


STORIES: tuple[tuple[Callable[[random.Random], Problem], float], ...] = (
    (ledger, 10.0),
    (short, 2.5),
    (scene, 3.0),
    (unknown, 1.5),
    (piles, 1.0),
)
