"""What a model knows of words, kept out of training to see what is forgotten: `capitals`, `plural`, `opposites`."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from posttrain.records import EnvironmentSpec
from posttrain.tasks.domain import Domain
from posttrain.tasks.families.base_rates import BASE
from posttrain.tasks.families.forms import few_shot
from posttrain.tasks.families.held import RETENTION_SHARES
from posttrain.tasks.items import Item


def _pairs(text: str) -> dict[str, str]:
    return {a.replace("_", " "): b.replace("_", " ") for a, b in (pair.split(":") for pair in text.split())}


CAPITALS = _pairs(
    """France:Paris Germany:Berlin Italy:Rome Spain:Madrid Portugal:Lisbon Greece:Athens Russia:Moscow China:Beijing
    Japan:Tokyo Egypt:Cairo Kenya:Nairobi Canada:Ottawa Peru:Lima Cuba:Havana Chile:Santiago Norway:Oslo
    Sweden:Stockholm Finland:Helsinki Poland:Warsaw Austria:Vienna Hungary:Budapest Ireland:Dublin Belgium:Brussels
    Denmark:Copenhagen Turkey:Ankara Iran:Tehran Iraq:Baghdad Thailand:Bangkok Vietnam:Hanoi Romania:Bucharest
    Bulgaria:Sofia Serbia:Belgrade Croatia:Zagreb Ukraine:Kyiv Latvia:Riga Estonia:Tallinn Lithuania:Vilnius
    Iceland:Reykjavik Lebanon:Beirut Syria:Damascus Jordan:Amman Qatar:Doha Afghanistan:Kabul Nepal:Kathmandu
    Bangladesh:Dhaka Pakistan:Islamabad Indonesia:Jakarta Philippines:Manila Australia:Canberra Ethiopia:Addis_Ababa
    Ghana:Accra Nigeria:Abuja Senegal:Dakar Morocco:Rabat Algeria:Algiers Tunisia:Tunis Libya:Tripoli Uganda:Kampala
    Venezuela:Caracas Colombia:Bogota Ecuador:Quito Uruguay:Montevideo Jamaica:Kingston Mexico:Mexico_City
    Armenia:Yerevan Albania:Tirana Somalia:Mogadishu Zimbabwe:Harare Zambia:Lusaka Angola:Luanda Mongolia:Ulaanbaatar
    Taiwan:Taipei"""
)
CAPITAL_SHOTS = _pairs("Argentina:Buenos_Aires Cyprus:Nicosia")

PLURALS = _pairs(
    """apple:apples river:rivers stone:stones chair:chairs cloud:clouds tiger:tigers box:boxes bus:buses glass:glasses
    city:cities baby:babies lady:ladies fox:foxes brush:brushes watch:watches leaf:leaves wolf:wolves man:men
    woman:women child:children foot:feet tooth:teeth mouse:mice goose:geese knife:knives wife:wives life:lives
    shelf:shelves dish:dishes class:classes story:stories berry:berries hero:heroes potato:potatoes tomato:tomatoes
    party:parties country:countries match:matches bench:benches wish:wishes boss:bosses tax:taxes key:keys toy:toys
    day:days loaf:loaves thief:thieves half:halves calf:calves ox:oxen person:people army:armies puppy:puppies
    lily:lilies peach:peaches witch:witches dress:dresses kiss:kisses bush:bushes cherry:cherries"""
)
PLURAL_SHOTS = _pairs("cat:cats church:churches")

OPPOSITES = _pairs(
    """hot:cold big:small up:down fast:slow light:dark happy:sad open:closed young:old rich:poor strong:weak
    full:empty early:late inside:outside left:right hard:soft wet:dry clean:dirty true:false love:hate win:lose
    day:night near:far buy:sell push:pull north:south east:west first:last alive:dead loud:quiet tall:short
    wide:narrow thick:thin deep:shallow heavy:light brave:cowardly friend:enemy success:failure always:never more:less
    before:after above:below positive:negative public:private same:different polite:rude war:peace begin:end
    arrive:depart accept:reject increase:decrease maximum:minimum expand:contract victory:defeat north:south
    guilty:innocent strength:weakness summer:winter"""
)
OPPOSITE_SHOTS = _pairs("good:bad high:low")


def facts(pairs: Mapping[str, str], shots: Mapping[str, str], forms: Sequence[str]) -> Callable[[random.Random], Item]:
    """Items over a table of pairs, which the shots are not in."""
    keys = tuple(pairs)
    rows = [{"key": key, "answer": value} for key, value in shots.items()]

    def generate(rng: random.Random) -> Item:
        key, form = rng.choice(keys), rng.choice(forms)
        return Item(key, pairs[key], few_shot(form, rows, {"key": key}), (f" {pairs[key]}",))

    return generate


def _domain(
    name: str, pairs: Mapping[str, str], shots: Mapping[str, str], forms: Sequence[str], description: str, right: str
) -> Domain:
    return Domain(
        name,
        family="knowledge",
        tasks=facts(pairs, shots, forms),
        verifier="word",
        # The sentence ends the turn: what a model adds after its full stop is not the answer.
        environment=EnvironmentSpec(max_new_tokens=8, stop=(".", "\n")),
        description=f"{description} Kept out of training.",
        right=right,
        cheats=(f"there are {len(pairs)} items: a model that trained on them would know them by heart; none trains",),
        base=BASE[name],
        **RETENTION_SHARES,
    )


def capitals() -> Domain:
    forms = ("The capital of {key} is {answer}.", "The capital city of {key} is {answer}.")
    return _domain(
        "capitals",
        CAPITALS,
        CAPITAL_SHOTS,
        forms,
        "The capital of a country.",
        "the answer ends in the name of the city",
    )


def plural() -> Domain:
    forms = ("One {key}, two {answer}.", "The plural of {key} is {answer}.")
    return _domain(
        "plural", PLURALS, PLURAL_SHOTS, forms, "The plural of an English noun.", "the answer ends in the plural"
    )


def opposites() -> Domain:
    forms = ("The opposite of {key} is {answer}.", "{key} is the opposite of {answer}.")
    return _domain(
        "opposites",
        OPPOSITES,
        OPPOSITE_SHOTS,
        forms,
        "A common word and its opposite.",
        "the answer ends in that opposite",
    )
