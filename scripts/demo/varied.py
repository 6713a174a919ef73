"""More wordings of the same operations: other actors, other clause orders, other ways to ask.

Rows as in measures.py. The words that go together (`opens` and `closed`) are drawn as a pair.
"""

import random

from . import measures as M
from . import words as W
from .grammar import Problem, Working
from .measures import Kind

# What happens to some of the things, and what the others are
STATES = (
    ("sold", "unsold"), ("opened", "unopened"), ("opened", "closed"), ("used", "unused"), ("eaten", "uneaten"), ("broken", "whole"),
    ("painted", "unpainted"), ("read", "unread"), ("taken", "free"), ("occupied", "empty"), ("booked", "free"), ("damaged", "intact"),
    ("washed", "dirty"), ("finished", "unfinished"), ("filled", "empty"), ("checked", "unchecked"), ("rotten", "good"), ("bad", "good"),
    ("red", "not red"), ("wrapped", "unwrapped"), ("closed", "open"), ("lit", "dark"), ("wet", "dry"), ("cracked", "whole"), ("packed", "unpacked"),
)  # fmt: skip
DEEDS = (
    ("opens", "closed"), ("opens", "unopened"), ("paints", "unpainted"), ("reads", "unread"), ("washes", "dirty"), ("sells", "unsold"),
    ("uses", "unused"), ("breaks", "whole"), ("packs", "unpacked"), ("fills", "empty"), ("lights", "dark"), ("closes", "open"),
    ("sorts", "unsorted"), ("peels", "unpeeled"), ("eats", "uneaten"), ("cleans", "dirty"), ("repairs", "broken"), ("wraps", "unwrapped"),
    ("spends", "unspent"), ("cuts", "uncut"), ("touches", "untouched"), ("plants", "unplanted"), ("mends", "torn"), ("bakes", "raw"),
)  # fmt: skip
FATES = (
    "die", "dry up", "break", "fall over", "wilt", "freeze", "get sick", "get lost", "rot", "burst", "melt", "sink", "fall down", "go bad",
    "are eaten by birds", "are lost in a storm", "are stolen", "are damaged", "are destroyed by frost", "are crushed", "do not grow", "fail",
    "are taken by rabbits", "are blown away", "are spoiled", "turn brown",
)  # fmt: skip
THINGS_TALL = (
    ("tower", "house"),
    ("tree", "bush"),
    ("mountain", "hill"),
    ("ladder", "wall"),
    ("building", "church"),
    ("pole", "fence"),
)
COMPARE = (
    ("tall", "taller"),
    ("high", "higher"),
    ("long", "longer"),
    ("wide", "wider"),
    ("deep", "deeper"),
    ("heavy", "heavier"),
)
SEASONS = "winter spring summer autumn year week month night holidays weekend".split()
VEHICLES = "bus train ship plane boat tram elevator coach van subway".split()
SIBLINGS = "brothers sisters friends neighbors boys girls cousins hikers farmers fishermen students".split()

OTHERS = "people workers families brothers sisters teams tables dogs pupils".split()


def extras(r: random.Random) -> dict[str, object]:
    """The words these wordings use beyond those of measures.py."""
    done, rest = r.choice(STATES)
    deed, other = r.choice(DEEDS)
    tall, taller = r.choice(COMPARE)
    first, second = r.choice(THINGS_TALL)
    people = r.choice((*W.RECEIVERS, *OTHERS))
    row = r.choice(("rows", "lines", "columns", "circles", "beds", "groups", "layers", "rings"))
    return {
        "done": done, "rest": rest, "deed": deed, "other": other, "fate": r.choice(FATES), "tall": tall, "taller": taller,
        "x": first, "y": second, "people": people, "person": W.singular(people), "rows": row, "r1": W.singular(row),
        "place": r.choice(W.PLACES), "season": r.choice(SEASONS), "vehicle": r.choice(VEHICLES), "two": r.choice(SIBLINGS),
        "c1": r.choice(W.COLORS), "c2": r.choice(W.COLORS),
    }  # fmt: skip


def _groups_less(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    v |= (n := {"k": r.randint(2, 12), "m": r.randint(3, 40)})
    made = w.groups(n["k"], str(v["box"]), n["m"], str(v["it"]))
    v["n"] = less = r.randint(2, min(made - 1, 60))
    return w.loss(made, less, str(v["it"])), str(v["it"])


def _rows_less(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    v["box"] = v["rows"]
    return _groups_less(r, w, v)


def _people_less(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    v["box"] = v["people"]
    return _groups_less(r, w, v)


def _groups_more(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    v |= (n := {"k": r.randint(2, 12), "m": r.randint(2, 40), "n": r.randint(2, 90)})
    made = w.groups(n["k"], str(v["box"]), n["m"], str(v["it"]))
    return w.gain(made, n["n"], str(v["it"])), str(v["it"])


def _less(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    n = r.randint(2, 120)
    v |= {"n": n, "a": (a := n + r.randint(2, 250))}
    return w.loss(a, n, str(v["it"])), str(v["it"])


def _swap(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    v |= (n := {"a": r.randint(20, 400), "b": r.randint(2, 90), "c": r.randint(2, 90)})
    return w.gain(w.loss(n["a"], n["b"], str(v["it"])), n["c"], str(v["it"])), str(v["it"])


def _swap_gain_first(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    v |= (n := {"a": r.randint(20, 400), "b": r.randint(2, 90), "c": r.randint(2, 90)})
    return w.loss(w.gain(n["a"], n["b"], str(v["it"])), n["c"], str(v["it"])), str(v["it"])


def _passengers(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    v["it"] = r.choice(("passengers", "people", "passengers", "guests", "tourists"))
    return _swap(r, w, v)


def _siblings_more(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    return M._fewer_total(r, w, v)


def _visit(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    v["it"] = "tickets"
    return M._change(r, w, v)


def _visit_cost(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    v["it"] = "tickets"
    return M._one_price(r, w, v)


def _voters(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    v["it"] = r.choice(("votes", "points", "people", "goals", "members"))
    return M._compare(r, w, v)


def _heights(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    v["it"] = r.choice(("m", "cm", "feet", "km", "kg", "meters"))
    return M._compare(r, w, v)


def _minutes(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    v["it"] = r.choice(("minutes", "minutes", "hours", "days", "pages", "km"))
    return _less(r, w, v)


def _distance(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    v["it"] = v["unit"] = r.choice(("km", "steps", "miles", "m", "stairs", "meters", "stops"))
    return M._used_twice(r, w, v)


def _drive(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    v |= {"unit": r.choice(("km", "miles")), "time": "hours", "t1": "hour"}
    return M._rate_parts(r, w, v)


def _tank(r: random.Random, w: Working, v: dict[str, object]) -> tuple[int, str]:
    v |= {"unit": "liters", "time": (time := r.choice(("minutes", "hours", "days"))), "t1": W.singular(time)}
    return M._rate_rest(r, w, v)


SHARE_OUT = (
    "[divided|split|shared|distributed|handed out|dealt out|given out] [equally|fairly|evenly|in equal parts]"
)
EACH = "[How many {it} does each {person} get?|What does each {person} get?|How many {it} are there for each?|How many go to each {person}?|What is the share of each {person}?|How big is each {person}'s share?|How many {it} is that per {person}?|How many does every {person} receive?|What is each one's part?]"
BUNDLES = "[How many {box} are there?|How many {box} [does that make|is that|can be made|does {S} get|are possible]?|How many {box} does {S} end up with?|What number of {box} is that?|How many {box} come of it?]"
STILL = "[How many {it} are {other}?|How many {it} [are still|remain|stay] {other}?|How many are [still|left] {other}?|How many {other} {it} are there?]"

VARIED = (
    Kind(_groups_less, (
        "{k} {box} [hold|contain|carry] {m} {it} each. {n} of [them|the {it}] are {done}. How many[| {it}] are {rest}?",
        "There are {k} {box} with {m} {it} [each|in each]. {n}[| of them| {it}] are {done}. How many {it} [are|are still|stay] {rest}?",
        "[Each|Every] {b1} [holds|carries|has|contains|fits] {m} {it}, and [there are {k} {box}|the {place} has {k} {box}|{S} has {k} {box}]. {S} {deed} {n}[| of them| of the {it}| {it}]. " + STILL,
        "{S} [has|owns|keeps] {k} {box}, and [each|every] {b1} [holds|has] {m} {it}. {S} {deed} {n}[| of them| {it}][| for a party| for the guests| in the evening]. " + STILL,
        "The {place} has {k} {box}. [Every|Each] [one|{b1}] has room for {m} {it}. All are full, then {n} {it} are taken out. How many [stay|remain|are left]?",
        "In the {place} there are {k} {box}. Each holds {m} {it}. {n} of the {it} {fate}. How many [are left|{it} remain|are still good]?",
    ), 2.0),
    Kind(_rows_less, (
        "{S} [plants|sets|puts|lays out|arranges|places|stands] {it} in {k} {rows}, {m} [in each|in every {r1}|to a {r1}|per {r1}|in each {r1}]. {n} [of them |of the {it} |]{fate}. How many {it} [are left|survive|are still there|remain|are fine]?",
        "{S} [plants|sets up|lays out] {k} {rows} of {m} {it}. Later {n} [of them |]{fate}. How many {it} [are left|survive|stay|grow on]?",
        "A [hall|theater|cinema|garden|field|parking lot] has {k} {rows} [of|with] {m} {it}. {n} are {done}. How many {it} are {rest}?",
        "{it} [stand|lie|grow] in {k} {rows} of {m}. {S} [takes|removes|picks] {n}. How many [stand|lie|grow|are] there now?",
        "In {k} {rows} with {m} {it} each, {n} {it} {fate}. How many are [left|not lost|fine]?",
    ), 2.0),
    Kind(_people_less, (
        "{k} {people} [bring|have|make|carry|collect] {m} {it} each. {n} [of them|of the {it}] {fate}. How many {it} [are left|remain|are good]?",
        "Each of {k} {people} [makes|brings|gives|builds] {m} {it}. {n} of these are {done}. How many are {rest}?",
    ), 1.0),
    Kind(_groups_more, (
        "{it} [come|are sold|are packed] in {box} of {m}. {S} [buys|gets|takes] {k} {box} and [has|still has|had] {n} {it} [at home|before|left from last week]. How many {it} [does {S} have|are there] [now|in all|in total]?",
        "A {b1} [holds|contains] {m} {it}. {S} [buys|gets|brings|receives] {k} [{box}|of them] and [has|already has|owns] {n} {it} [more|at home|in a drawer]. How many {it} [is that|are there|does {S} have][| in all| altogether]?",
        "{S} had {n} {it}. Then {k} {box} [arrive|are delivered|come] with {m} {it} in each. How many {it} can {S} [use|sell|count] now?",
        "The {place} has {n} {it} and [orders|buys|gets] {k} {box} of {m}. How many {it} [does it have|are there|is that] [then|now|altogether]?",
        "Besides {n} [single|loose] {it}, {S} has {k} full {box} of {m}. How many {it} is that[| in all]?",
        "{S} [already has|has] {n} {it}. Each {b1} that arrives holds {m}, and {k} {box} arrive. How many {it} are there [now|in the end]?",
    ), 1.5),
    Kind(_less, (
        "Of {a} {it}, {n} are {done}. How many are {rest}?",
        "There are {a} {it} in the {place}. {n} are {done}. How many {it} are [still |]{rest}?",
        "{S} has {a} {it} and {deed} {n}[| of them]. " + STILL,
        "{n} of {a} {it} {fate}. How many {it} [remain|are left|survive]?",
        "Out of {a} {it}, {n} {fate}. How many does that leave?",
        "{a} {it} are in the {place}. [During|In] the {season} {n} {fate}. How many are [left|there after that]?",
    ), 1.5),
    Kind(_swap, (
        "[A|The] {place} [owns|keeps|counts|has] {a} {it}. [In|During] the {season} {b} [of them |]{fate}, and {c} [new ones|others|more] [are bought|arrive|come in|are brought|are donated]. How many {it} [does it have|are there] [now|then|in the end|afterwards]?",
        "[A|The] {place} has a [stock|collection|supply] of {a} {it}. {b} [are lost|are sold|disappear|{fate}], but {c} [are added|are bought|come back|are found]. How [big|large] is [it|the stock|the collection|the supply] [now|then|afterwards|at the end]?",
        "{S} loses {b} of {a} {it}. [Then|Later|The next day] {O} [brings|gives|hands] {S} {c} [new ones|more|others]. How many {it} does {S} [own|have|hold] [now|then]?",
        "{a} {it} [are|lie|stand] in the {place}. {S} [takes|carries|drives] {b} [away|out] and [brings|puts] {c} [in|there]. How many are there [now|after that]?",
        "From {a} {it}, {b} are [taken|removed|given away]. {c} are put back. [How many is that?|How many {it} are there now?|What is the new number?]",
    ), 2.0),
    Kind(_swap_gain_first, (
        "{S} [owns|has] {a} {it}, [gets|receives|is given] {b} [more|from {O}] and [loses|sells|gives away] {c}. [How many is that?|How many {it} does {S} have now?|What is left?]",
        "To {a} {it} {S} adds {b}. Then {c} {fate}. How many {it} [are there|remain|are left]?",
        "{a} {it} and {b} more are in the {place}. {c} of them {fate}. How many [are left|remain]?",
    ), 1.0),
    Kind(_passengers, (
        "A {vehicle} [leaves|starts|sets out|drives off] with {a} {it}. At the [first|next] [stop|station] {b} [get off|leave|get out|step out] and {c} [get on|get in|come in|board it]. How many {it} [are on board|does it carry|are in it|ride on|are there] [now|then|after that]?",
        "There are {a} {it} [on|in] [a|the] {vehicle}. {b} [of them |][leave|get off|get out] [in {d1}ville|at the first stop|in the city|at the harbor] and {c} [new ones |others |][get on|join|enter|come on board]. How many {it} [are on it|are there|travel on|stay] [now|then]?",
        "[When|As] the {vehicle} [left|started|set out], it had {a} {it}. {b} [got off|left|walked off] on the way and {c} [got on|came on|stepped in]. With how many {it} did it [arrive|end|come home]?",
        "A {vehicle} has {a} {it}. {b} go and {c} come. How many [{it} ]does it have [now|then]?",
    ), 2.0),
    Kind(_siblings_more, (
        "Two {two} [collect|catch|pick|find|count|sell] {it}. The [older|taller|first|bigger] one [has|gets|finds] {a}, which is {d} more than the [younger|smaller|second|other] one[| has]. How many {it} [do they have|are there|is that] [together|in all|altogether]?",
        "Two {two} share a [room|house|tent]. One has {a} {it}, {d} more than the other. How many {it} do [both|the two|they] have[| together| in total]?",
        "{S} [catches|finds|sells|reads] {a} {it}, {d} more than {O}. What do they have together?",
    ), 1.5),
    Kind(M._more_total, (
        "Two {two} [collect|catch|pick|find|sell] {it}. The [younger|smaller|first] one [has|gets|finds] {a}, the [older|bigger|other] one {d} more[| than that]. How many {it} [do they have|are there] [together|in all]?",
        "One {b1} has {a} {it}, [the other|another] has {d} more. How many {it} are in both?",
    ), 1.0),
    Kind(_visit, (
        "[The entry to|A ticket for|A ticket to|The entrance to] the {place} [is|costs] {p} dollars. {a} [friends|people|children|adults] [go there|want to go] and have [a coupon of|a voucher for|a card with|] {pay} dollars. How much [of it is left|is not used|remains|of the money remains]?",
        "A [family|group|class|team] of {a} goes to the [cinema|museum|zoo|theater|{place}]. Each ticket [is|costs] {p} dollars, and they have {pay} dollars. How much [is left|money remains|do they have left]?",
        "{S} [buys|gets] {a} tickets at {p} dollars each with a gift card of {pay} dollars. How much [is left on the card|of the card is left]?",
    ), 1.5),
    Kind(_visit_cost, (
        "A [family|group|class|team] of {a} [goes to|visits] the {place}. [A|Each|One] ticket [is|costs] {p} dollars. [How much do they pay?|What do they pay[| together]?|How much is it for all?]",
    ), 0.5),
    Kind(M._share, (
        "{a} {it} [are|have to be|will be|shall be|must be] " + SHARE_OUT + " [among|between] {d} {people}. " + EACH,
        "{d} {people} [divide|split|share] {a} {it} [fairly|equally|evenly|so that all get the same]. " + EACH,
        "{S} [wants to|has to|will] [divide|share|split] {a} {it} [fairly|equally|evenly|] [among|between] {d} {people}. " + EACH,
        "{S} gives {a} {it} to {d} {people}, the same number to each. " + EACH,
        "{S} [deals|hands out|gives out] {a} {it} to {d} {people}[|, all get the same]. " + EACH,
        "[There are|{S} has] {a} {it} and {d} {people}. Everybody gets the same. " + EACH,
    ), 2.5),
    Kind(M._packs, (
        "{S} [packs|binds|sorts|arranges|groups|puts|lays|stacks] {it} into {box} of {d}. [With|Out of|From|For] {a} {it}, how many {box} [does that make|are possible|does {S} get|are there|can {S} make]?",
        "{S} [packs|binds|sorts|groups|puts|ties] {d} {it} into [a|each|every|one] {b1}. {S} has {a} {it}. " + BUNDLES,
        "{S} makes {box} of {d} from {a} {it}. " + BUNDLES,
        "[A|Each|Every] {b1} needs {d} {it}. There are {a} {it}. " + BUNDLES,
        "{a} {it} are [tied|put|packed|sorted|bound] into {box}, [always {d} together|{d} to a {b1}|{d} per {b1}|each of {d}]. " + BUNDLES,
        "If {d} {it} [go into|fit into|make] [a|one|each] {b1}, how many {box} [do {a} {it} make|are needed for {a} {it}|come from {a}]?",
    ), 2.5),
    Kind(M._times_total, (
        "The {c1} [team|group|class|side] [has|gets|makes|wins|counts] {a} {it}, the {c2} [one|team|group] {times} [as many|that|that number|that many]. [What is the total?|How many do both have together?|How many {it} are there in all?|What do they have together?|Find the sum of both.|How many {it} is that altogether?]",
        "{S} [gets|has|makes] {a} {it}. {O} [gets|has|makes] {times} [that|that many|that number|as much]. [How many {it} is that together?|What is the sum?|What do both have?|Add both numbers.]",
        "[On|In] [the first day|Monday|May] {S} [sells|makes|counts] {a} {it}, [on the second day|on Tuesday|in June] {times} [that number|as many|that]. How many {it} [in all|is that in all|on both]?",
        "There are {a} {it} and {times} as many {jt}. How many things are there together?",
    ), 2.0),
    Kind(_drive, (
        "{S} [drives|rides|sails|goes|travels|flies|walks] {m} {unit} [in an hour|in one hour|per hour|every hour|an hour][| and never changes the speed|, always at the same speed| all the time]. {S} is on the way {k} hours [before|until] [noon|the break|the rest] and {l} hours [after that|later|after the break]. How [far is that|many {unit} is that|many {unit} does {S} go|far does {S} get][| in all| together]?",
        "A [car|truck|boat|runner|rider|ship|train|bus] [makes|does|goes|covers] {m} {unit} [an hour|per hour|each hour]. It [goes|runs|moves] for {k} hours, stops, and [goes|runs|moves] for {l} hours [more|again]. [How far does it get?|How many {unit} is that?|How long is the way?|What distance is that?]",
        "{S} keeps a speed of {m} {unit} per hour, first for {k} hours and then for {l} hours. What [distance|way|number of {unit}] is that[| in all]?",
        "{k} hours in the morning and {l} in the evening {S} [rides|walks|drives] at {m} {unit} an hour. How many {unit} [is that|does {S} cover]?",
    ), 1.5),
    Kind(_voters, (
        "In [a game|a match|an election|a contest|a survey|a poll], {S} [gets|has|wins] {a} {it} and {O} {b}. By how many [{it} |]does {S} [win|lead]?",
        "{a} {it} are for [it|the idea|the new law|the trip] and {b} are against it. [By how many {it} does it win?|How many more are for it?|What is the lead?|How large is the lead?]",
        "{S} [wins|leads] with {a} {it} to {b}. [How big is the lead?|What is the difference?|By how many {it}?]",
        "{a} {it} say yes, {b} say no. How many more say yes[| than no]?",
    ), 1.2),
    Kind(_heights, (
        "The {x} is {a} {it} {tall} and the {y} {b} {it}. How much {taller} is the {x}?",
        "A {x} is {a} {it} {tall}, a {y} only {b} {it}. [By how much is the {x} {taller}?|What is the difference?|How many {it} {taller} is the {x}?]",
    ), 0.7),
    Kind(_minutes, (
        "The [film|lesson|trip|game|show|meeting|book|race] [takes|lasts|has] {a} {it}. {n} [{it} |][are over|are done|have passed]. How many {it} [are left|remain|are still to come|does it still take]?",
        "{S} has to [wait|work|drive|study|practice] {a} {it}. {n} [{it} |][are over|are done|have passed]. How many [are left|more|{it} remain]?",
    ), 0.8),
    Kind(_distance, (
        "[On the way to|To get to|To reach|For the way to] the [village|lake|station|city|tower|school|beach] {S} [has to|needs to] [walk|go|drive|ride] {a} {unit}. {S} [does|goes|makes] {b} [first|on day one|before noon] and {c} [then|on day two|in the afternoon|later]. How many {unit} [are left|lie ahead|does {S} still have to go|are missing|remain]?",
        "A [trail|road|trip|climb|race] is {a} {unit} long. So far {S} has done {b} [{unit} |][on {d1}|yesterday|in the first part] and {c} [on {d2}|today|in the second]. How many {unit} [are left|remain|are still ahead|does {S} have to go]?",
        "{S} wants to go {a} {unit}. After {b} and then another {c} {unit}, how many [{unit} ]are left?",
    ), 1.5),
    Kind(_tank, (
        "A [tank|pool|barrel|lake|well] [is full with|is filled with|starts with] {a} liters. [A pump|A pipe|A leak|{S}] [takes|removes|lets out|draws] {m} liters [every|each|a|per] {t1}. [What is left after {k} {time}?|How many liters are left after {k} {time}?|How much [is in it|remains] after {k} {time}?]",
        "{a} liters are in the [tank|pool|barrel]. [Every|Each] {t1} it loses {m}. How much is [in it|left] after {k} {time}?",
    ), 1.0),
)  # fmt: skip

WEIGHTS = [kind.weight for kind in VARIED]


def vary(r: random.Random) -> Problem:
    """One problem in one of these wordings."""
    return M.problem(r, r.choices(VARIED, WEIGHTS)[0], extras(r))
