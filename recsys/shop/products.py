"""The products of the simulated shop, and the rules planted in its purchases."""

import re
from dataclasses import dataclass
from itertools import chain, product, zip_longest

import polars as pl

from recsys.errors import InputError

SEASONS = ("winter", "spring", "summer", "autumn")

_SHELVES = """
Outdoor: Trail, Summit, Featherlight, Stormproof, Expedition, Ridgeline, Weekend, Northern
Hiking boots, Trail map, Trekking poles, Backpack, Head torch, Compass, Water bottle, Winter gloves
(winter), Snow boots (winter), Down jacket (winter), Ski goggles (winter), Ski helmet (winter),
Hand warmers (winter), Tent (summer), Sleeping bag (summer), Camping stove (summer), Hammock
(summer)
Electronics: Compact, Pro, Slim, Wireless, Portable, Refurbished, Studio, Travel
Phone, Phone case, Fast charger, Camera, Memory card, Laptop, Monitor, Docking station, Television,
Soundbar, Games console, Second controller, Headphones, Tablet, Smart speaker, AA batteries*
Home office: Oak, Walnut, Recycled, Executive, Everyday, Folding, Graphite, Ergonomic
Printer, Standing desk, Office chair, Monitor arm, Fountain pen, Bookcase, Desk lamp, Filing
cabinet, Whiteboard, Shredder, Footrest, Pinboard, Laptop stand, Ink cartridge*, Copy paper*,
Sticky notes*
Kitchen: Copper, Cast-iron, Stainless, Bamboo, Enamel, Professional, Retro, Mini
Espresso machine, Coffee grinder, Loaf tin, Cake tin, Demijohn, Wok, Rice cooker, Chef's knife,
Whetstone, Stock pot, Blender, Kettle, Toaster, Mixing bowl, Slow cooker (autumn), Preserving jar
(autumn)
Groceries: Organic, Fairtrade, Farmhouse, Family-size, Artisan, Wholegrain, Smoked, Alpine
Hamper, Gift chocolates, Coffee beans*, Bread flour*, Baker's yeast*, Cocoa powder*, Wildflower
honey*, Loose-leaf tea*, Olive oil*, Oat milk*, Basmati rice*, Tomato passata*, Muesli*, Sea salt*,
Mulled wine spice (winter), Gingerbread (winter)
Baby: Cotton, Little Bear, Rainbow, Soft-touch, First-year, Travel, Muslin, Starlight
Cot, Baby monitor, Night light, Pushchair, Rain cover, High chair, Changing mat, Baby carrier,
Bottle warmer, Play mat, Teether, Bath seat, Nappies*, Baby wipes*, Formula milk*, Snowsuit
(winter)
Sports: Club, Race, Training, Junior, Team, Carbon, Classic, Endurance
Running shoes, Heart-rate monitor, Race belt, Triathlon suit, Road bike, Bike helmet, Bike lights,
Yoga mat, Kettlebell, Football, Energy bars*, Ice skates (winter), Swimming goggles (summer), Swim
cap (summer), Wetsuit (summer), Beach volleyball (summer)
Garden: Cottage, Heritage, Galvanised, Heavy-duty, Terracotta, Long-handled, Patio, Solar
Watering can, Wheelbarrow, Bird feeder, Secateurs, Lawn feed*, Charcoal*, Potting soil*, Lawn mower
(spring), Raised bed (spring), Compost bin (spring), Greenhouse (spring), Seed tray (spring),
Barbecue (summer), Parasol (summer), Garden hose (summer), Leaf rake (autumn)
Books: Illustrated, Pocket, Signed, Anniversary, Large-print, Collector's, Annotated, Audio
The Harbour Murders I, The Harbour Murders II, The Harbour Murders III, Italian course, Italian
dictionary, Italian short stories, Bread-making book, Bird guide, World atlas, History of maps,
Poems of the sea, Chess openings, Stargazing guide, Jazz biography, Advent stories (winter), Beach
thriller (summer)
Pets: Cosy, Natural, Chew-proof, Deluxe, Washable, Feline, Little Paws, Reed
Aquarium, Aquarium filter, Litter tray, Scratching post, Cat tree, Puppy bed, Dog lead, Training
whistle, Pet carrier, Rabbit hutch, Grooming brush, Fish food*, Cat litter*, Dog biscuits*, Hay*,
Flea comb (spring)
Do it yourself: Cordless, Trade, Precision, Magnetic, Quick-release, Reinforced, Handy, Master
Power drill, Drill bit set, Wall plugs, Paint roller, Wall paint, Dust sheet, Spirit level, Claw
hammer, Tool box, Step ladder, Jigsaw, Tape measure, Workbench, Sandpaper*, Wood glue*, Masking
tape*
Body care: Lavender, Aloe, Sensitive, Mineral, Rosemary, Unscented, Botanical, Sea-salt
Safety razor, Shaving brush, Hair dryer, Bath towel, Electric toothbrush, Razor blades*, Brush
heads*, Shampoo*, Hand soap*, Toothpaste*, Body lotion*, Cotton pads*, Deodorant*, Lip balm
(winter), Sun cream (summer), After-sun gel (summer)
Hobbies: Vintage, Starter, Deluxe, Wooden, Hand-made, Mini, Concert, Gallery
Model railway, Railway points, Acoustic guitar, Guitar tuner, Easel, Oil paints, Canvas, Sewing
machine, Fabric scissors, Chess set, Telescope, Jigsaw puzzle, Board game, Guitar strings*, Sewing
thread*, Knitting wool*
"""


def _shelf(entry: str) -> tuple[str, list[str], list[tuple[str, str, bool]]]:
    head, _, names = entry.partition("\n")
    category, _, styles = head.partition(": ")
    parts = (name.rstrip(")").partition(" (") for name in names.replace("\n", " ").split(", "))
    goods = [(name.rstrip("*"), season, name.endswith("*")) for name, _, season in parts]
    return category, styles.split(", "), goods


SHELVES = [_shelf(entry) for entry in re.split(r"\n(?=.*: )", _SHELVES.strip())]
"""Each category, the styles of its goods, and (name, season or "", consumable) of each good.

Every good is a product, and another one in each style: "Tent"; "Tent, Trail"; … Consumables, with a
star in the list, are used up and bought again."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Customers who bought all causes, in any order, buy the effect soon after, or never."""

    name: str
    causes: tuple[str, ...]
    effect: str  # of this rule alone
    probability: float
    """The share of customers with all causes who follow the rule."""


PLANTED = (
    # Three causes, an effect for each pair: no single cause determines the effect.
    Rule("cold hands and feet", ("Winter gloves", "Snow boots"), "Down jacket", 0.9),
    Rule("off to the slopes", ("Snow boots", "Ski goggles"), "Ski helmet", 0.9),
    Rule("wind chill", ("Winter gloves", "Ski goggles"), "Hand warmers", 0.9),
    Rule("bread baking", ("Bread flour", "Baker's yeast"), "Loaf tin", 0.9),
    Rule("honey cake", ("Bread flour", "Wildflower honey"), "Cake tin", 0.9),
    Rule("mead brewing", ("Baker's yeast", "Wildflower honey"), "Demijohn", 0.9),
    Rule("desk set-up", ("Laptop", "Monitor"), "Docking station", 0.9),
    Rule("screen at eye level", ("Monitor", "Standing desk"), "Monitor arm", 0.9),
    Rule("keyboard at elbow level", ("Laptop", "Standing desk"), "Laptop stand", 0.9),
    Rule("swim and run", ("Swimming goggles", "Running shoes"), "Wetsuit", 0.9),
    Rule("bike and run", ("Road bike", "Running shoes"), "Race belt", 0.9),
    Rule("swim and bike", ("Swimming goggles", "Road bike"), "Triathlon suit", 0.9),
    # Other conjunctions.
    Rule("long-distance path", ("Hiking boots", "Trail map"), "Trekking poles", 0.9),
    Rule("cat moves in", ("Litter tray", "Scratching post"), "Cat tree", 0.9),
    Rule("nursery", ("Cot", "Baby monitor"), "Night light", 0.9),
    # Chains: each effect is the next cause.
    Rule("phone, case", ("Phone",), "Phone case", 0.8),
    Rule("case, charger", ("Phone case",), "Fast charger", 0.7),
    Rule("tent, sleeping bag", ("Tent",), "Sleeping bag", 0.8),
    Rule("sleeping bag, stove", ("Sleeping bag",), "Camping stove", 0.7),
    Rule("espresso, grinder", ("Espresso machine",), "Coffee grinder", 0.8),
    Rule("grinder, beans", ("Coffee grinder",), "Coffee beans", 0.8),
    Rule("road bike, helmet", ("Road bike",), "Bike helmet", 0.8),
    Rule("helmet, lights", ("Bike helmet",), "Bike lights", 0.7),
    Rule("second volume", ("The Harbour Murders I",), "The Harbour Murders II", 0.8),
    Rule("third volume", ("The Harbour Murders II",), "The Harbour Murders III", 0.8),
    Rule("Italian words", ("Italian course",), "Italian dictionary", 0.7),
    Rule("reading Italian", ("Italian dictionary",), "Italian short stories", 0.7),
    Rule("drill, bits", ("Power drill",), "Drill bit set", 0.8),
    Rule("bits, plugs", ("Drill bit set",), "Wall plugs", 0.7),
    Rule("aquarium, filter", ("Aquarium",), "Aquarium filter", 0.8),
    Rule("filter, fish", ("Aquarium filter",), "Fish food", 0.8),
    # Single causes; the effect is often bought repeatedly.
    Rule("camera card", ("Camera",), "Memory card", 0.8),
    Rule("for two players", ("Games console",), "Second controller", 0.7),
    Rule("printer ink", ("Printer",), "Ink cartridge", 0.8),
    Rule("cot, nappies", ("Cot",), "Nappies", 0.8),
    Rule("grill fuel", ("Barbecue",), "Charcoal", 0.8),
    Rule("lawn care", ("Lawn mower",), "Lawn feed", 0.7),
    Rule("wet shave", ("Safety razor",), "Razor blades", 0.8),
    Rule("broken string", ("Acoustic guitar",), "Guitar strings", 0.8),
)
"""The planted rules, with product names as ids; a rule follows those that lead to its causes."""


def list_products(num_products: int) -> pl.DataFrame:
    """List products: category, name, season ("" if none), consumable.

    The plain goods come first, then style by style, evenly from all shelves.

    Raises:
        InputError: there are fewer products than plain goods, or more than can be named.
    """
    plain = [(category, *good) for category, _, goods in SHELVES for good in goods]
    styled = [
        [
            (category, f"{name}, {style}", season, used_up)
            for style, (name, season, used_up) in product(styles, goods)
        ]
        for category, styles, goods in SHELVES
    ]
    listed = plain + [entry for entry in chain(*zip_longest(*styled)) if entry is not None]
    if not len(plain) <= num_products <= len(listed):
        raise InputError(f"num_products: must be {len(plain)} to {len(listed)}, not {num_products}")
    columns = ["category", "name", "season", "consumable"]
    return pl.DataFrame(listed[:num_products], schema=columns, orient="row")
