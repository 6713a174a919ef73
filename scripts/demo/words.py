"""Word lists of the corpus. Rare and made-up words are mixed in, so that the model learns to copy, not to recall."""

import random

WOMEN = tuple(
    "Mia Ava Emma Zoe Lily Nora Ruth Anna Clara Ella Sara Tina Maya Iris Lucy Rosa Jane Kate Olga Vera Alice Amy "
    "Beth Carla Dana Eva Fiona Grace Hana Ida Julia Kira Laura Maria Nina Olivia Paula Rita Sofia Tara Wendy Yuki "
    "Zara Leah Hannah Chloe Mary Susan Linda Helen Marta Aisha Fatima Ingrid Elena Naomi Jasmine Rachel Megan".split()
)
MEN = tuple(
    "Tom Sam Ben Leo Max Jack Omar Paul Luis Adam Noah Eric Hugo Ivan Karl Dave Finn Gus Hal Ray Alex Bob Carl Dan "
    "Ed Felix George Henry Ian John Kevin Liam Mark Nick Oscar Peter Quinn Ron Steve Tim Victor Will Yusuf Zack "
    "James Jim Mike Daniel David Ali Ahmed Jorge Pedro Marco Ravi Kenji Wei Lars Igor Andre Simon Robert".split()
)
ROLES = (
    *((f"{article} {role}", "he") for article in ("the", "a") for role in (
        "farmer", "cook", "coach", "waiter", "driver", "carpenter", "fisherman", "king", "hunter", "shopkeeper", "hiker", "cyclist",
        "collector", "student", "boy", "gardener", "baker", "sailor", "guard", "clown", "mechanic", "postman", "builder", "man",
    )),
    *((f"{article} {role}", "she") for article in ("the", "a") for role in (
        "teacher", "nurse", "painter", "florist", "girl", "librarian", "doctor", "queen", "dancer", "woman", "tailor", "singer",
        "runner", "scientist", "manager", "seller", "potter", "witch", "gardener", "baker", "cook", "farmer", "climber", "guide",
    )),
    ("my brother", "he"), ("my uncle", "he"), ("my father", "he"), ("my friend", "he"), ("grandfather", "he"), ("dad", "he"),
    ("my sister", "she"), ("my mother", "she"), ("my aunt", "she"), ("grandma", "she"), ("mom", "she"), ("our neighbor", "she"),
)  # fmt: skip
GROUPS = (
    "a shop",
    "the school",
    "a store",
    "the club",
    "a bakery",
    "the team",
    "a farm",
    "the library",
    "a company",
)

THINGS = tuple(
    "apples pears books coins marbles stickers pencils cards shells stamps cookies eggs plums buttons beads oranges "
    "candles flowers pens cups balloons bananas lemons peaches grapes cherries strawberries melons tomatoes potatoes "
    "carrots onions peppers mushrooms nuts muffins cakes pies donuts sandwiches pizzas rolls loaves candies sweets "
    "chocolates lollipops biscuits crackers bagels plates bowls spoons forks knives glasses bottles jars cans mugs "
    "notebooks erasers crayons markers rulers folders envelopes letters postcards posters photos magazines comics "
    "puzzles toys dolls cars trains robots kites balls bats rackets skates helmets socks shirts hats gloves scarves "
    "shoes jackets ties belts rings necklaces bracelets earrings keys locks screws nails bolts tools ropes bricks "
    "tiles boards planks stones pebbles rocks sticks leaves seeds roses tulips daisies plants trees bushes feathers "
    "tickets tokens badges medals trophies flags lamps bulbs batteries cables phones tablets chairs tables pillows "
    "blankets towels brushes combs soaps sponges bags baskets ribbons strings magnets dice figures paintings "
    "drawings songs videos games points stars diamonds crystals fossils dominoes pins patches cupcakes pancakes "
    "waffles dumplings tacos burgers olives figs dates mangoes kiwis coconuts pumpkins radishes cucumbers novels sheets "
    "bundles tulips seats chairs beans parcels carpets curtains mirrors windows doors wheels shovels rakes hammers boats "
    "ships wagons kits models maps globes lists notes poems stories lessons exercises bells drums flutes guitars pianos "
    "statues vases pots pans kettles cakes loaves pastries snacks drinks juices sodas teas coffees meals soups salads "
    "logs poles fences bricks panels hooks clips pearls rubies emeralds crowns swords shields tents blankets lanterns "
    "packets letters cherries trout salmon crabs clams snails worms spiders beetles turtles geckos lizards parrots".split()
)
COLORS = tuple("red blue green black white yellow brown gray purple pink orange golden silver".split())
ADJECTIVES = tuple(
    "small big old new shiny wooden plastic fresh large tiny paper glass used clean broken rare".split()
)
BOXES = tuple(
    "boxes bags packs crates baskets trays jars packages cartons bundles sacks cases tins packets drawers shelves "
    "bowls buckets piles stacks rows bunches sets rolls cups barrels folders albums envelopes".split()
)
PEOPLE = tuple(
    "people children students guests visitors passengers players workers kids boys girls customers dancers tourists "
    "fans soldiers singers swimmers runners pupils members teachers".split()
)
ANIMALS = tuple(
    "birds ducks sheep cows fish frogs rabbits chickens horses pigeons dogs cats bees butterflies pigs goats geese "
    "turtles ants swans owls penguins monkeys deer".split()
)
PLACES = tuple(
    "farm shop school library park market museum garden factory office hall room bus train boat gym theater pool "
    "cinema restaurant stadium zoo castle hotel club cafe tent yard playground kitchen".split()
)
KIN = tuple(
    "friend brother sister mother father uncle aunt cousin neighbor teacher grandmother grandfather".split()
)
RECEIVERS = tuple(
    "friends children classmates neighbors cousins students players guests kids boys girls".split()
)
DAYS = tuple("Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split())
CITIES = tuple(
    "Paris London Berlin Madrid Rome Vienna Oslo Cairo Lima Tokyo Delhi Dublin Prague Athens Lisbon Warsaw Boston "
    "Denver Sydney Toronto".split()
)
JOBS = tuple(
    "teacher nurse baker pilot farmer driver doctor writer singer painter lawyer cook dentist plumber judge actor".split()
)
PETS = tuple("dog cat bird horse rabbit fish turtle pony hamster snake".split())
WARES = tuple(
    "bike lamp chair table phone watch camera jacket bag kettle clock tent radio sofa desk mirror".split()
)

SINGULAR = {
    "boxes": "box", "shelves": "shelf", "knives": "knife", "loaves": "loaf", "leaves": "leaf", "scarves": "scarf",
    "people": "person", "children": "child", "geese": "goose", "dice": "die", "fish": "fish", "sheep": "sheep",
    "deer": "deer", "potatoes": "potato", "tomatoes": "tomato", "mangoes": "mango", "buses": "bus", "dominoes": "domino",
    "glasses": "glass", "bushes": "bush", "brushes": "brush", "peaches": "peach", "radishes": "radish", "sandwiches":
    "sandwich", "torches": "torch", "bunches": "bunch", "branches": "branch", "patches": "patch", "benches": "bench",
    "feet": "foot", "inches": "inch", "pies": "pie", "movies": "movie", "cookies": "cookie", "ties": "tie",
    "watches": "watch", "classes": "class", "dresses": "dress", "crosses": "cross", "matches": "match",
}  # fmt: skip
UNITS = (
    "",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
)
TEENS = ("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty")
NUMBER_WORDS = (*UNITS, *TEENS)


def singular(noun: str) -> str:
    """The singular of a plural noun."""
    if noun in SINGULAR:
        return SINGULAR[noun]
    if noun.endswith("ies") and len(noun) > 4:
        return noun[:-3] + "y"
    return noun.removesuffix("s")


def count(n: int, noun: str) -> str:
    """`3 boxes`, `1 box`."""
    return f"{n} {singular(noun) if n == 1 else noun}"


def made_up(r: random.Random) -> str:
    """A pronounceable word that nobody has seen."""
    parts = r.randint(2, 3)
    return "".join(r.choice("bdfgklmnprstvz") + r.choice("aeiou") for _ in range(parts)) + r.choice("lnrtk")


def thing(r: random.Random) -> str:
    """A plural noun for something that can be counted: mostly real, sometimes with an adjective, sometimes made up."""
    u = r.random()
    if u < 0.06:
        return made_up(r) + "s"
    noun = r.choice(THINGS)
    if u < 0.14:
        return f"{r.choice(COLORS + ADJECTIVES)} {noun}"
    return noun


def written(r: random.Random, n: int) -> str:
    """A number as a person may write it: digits, now and then a word or a comma."""
    u = r.random()
    if 2 <= n < len(NUMBER_WORDS) and u < 0.12:
        return NUMBER_WORDS[n]
    if n == 12 and u < 0.15:
        return "a dozen"
    return f"{n:,}" if n >= 1000 and u < 0.3 else str(n)
