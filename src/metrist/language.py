"""Whether texts are in another language than English, for models that know only English. A cheap check by script and
by function words; it says nothing where it is not sure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from metrist.records import Record

#: Records that are looked at; fewest words by which a text is judged; letters beyond which a script is not Latin.
MAX_RECORDS, _MIN_WORDS, _LAST_LATIN = 200, 8, "\u024f"
#: Fewest outputs, and words of them, by which short outputs are judged together.
_MIN_SHORT, _MIN_SHORT_WORDS = 4, 16
_WORD = re.compile(r"[^\W\d_]+")
_PART = re.compile(r"[A-Za-z]+")
_ENGLISH_NAMES = frozenset(["en", "eng", "english"])
_REGIONS = frozenset(["us", "gb", "uk", "au", "ca", "in", "nz", "ie", "za", "xx", "latn"])


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ENGLISH = _words(
    "the of and to in is that for it with was on as are by this be at not have from has he his an or they were which "
    "you we her she their but had been will would its who i there about more when can than"
)
#: Function words of common languages in Latin script.
_OTHERS = {
    "German": _words(
        "der die das und den von zu mit sich des auf für ist im dem nicht ein eine als auch es an werden aus er "
        "hat dass sie nach wird bei einer um am sind noch wie einem über einen so zum war haben nur oder ich wir"
    ),
    "French": _words(
        "de la le et les des en un du une que est pour qui dans par plus pas au sur ne se ce il sont avec son aux "
        "ont ses mais comme elle été cette ou leur nous vous je"
    ),
    "Spanish": _words(
        "de la que el en y a los se del las un por con una su para es al lo como más o pero sus le ha sí este ya "
        "entre cuando todo esta ser son dos también fue había muy"
    ),
    "Italian": _words(
        "di e il la che per un una in del è non con si da le dei nel alla più della sono ha come ma gli al lo "
        "anche delle questo nella ed ai dal su"
    ),
    "Portuguese": _words(
        "de a o que e do da em um para com não uma os no se na por mais as dos como mas ao ele das seu sua ou "
        "quando muito nos já está também pelo pela"
    ),
    "Dutch": _words(
        "de het een van en in dat op te zijn met voor niet aan er om ook als dan maar bij nog uit naar door over "
        "wordt deze hij ze worden heeft werd"
    ),
    "Turkish": _words("bir ve bu da de için ile olarak çok daha olan gibi sonra kadar ne o en ancak her ise değil"),
    "Indonesian": _words(
        "yang dan di dengan untuk dari dalam ini itu pada tidak akan oleh adalah telah ke sebagai juga karena "
        "mereka dia bahwa tersebut"
    ),
}

#: Further words that tell languages in a few words, such as those of prices and dates.
_TELLING = {
    "English": _words(
        "price prices cost costs takes month monthly months year years yearly day days week weeks hour hours free does "
        "do did your our my us if any all only after before within every each yes please thanks thank them then this "
        "a these those here what how why where some could should must may up out into over other no so per"
    ),
    "German": _words(
        "preis preise kostet kosten beträgt monat monatlich jahr jahre jahren jährlich tag tage uhr euro prozent "
        "millionen stunden ab bis pro kein keine keinen gibt kann können wurde wurden ihr ihre unser unsere mein meine "
        "dieser diese dieses vom zur beim kunden seit gut ja nein bitte danke"
    ),
    "French": _words(
        "prix coûte coûtent mois année jours heures euros millions bonjour merci oui notre votre chaque depuis être "
        "très bien c'est n'est"
    ),
    "Spanish": _words(
        "precio cuesta cuestan mes año años días horas euros millones gracias cada desde nuestro nuestra tiene hay está"
    ),
    "Italian": _words("prezzo costa costo mese anno giorni ore euro milioni grazie ogni nostro nostra è ha sì"),
    "Portuguese": _words("preço custa mês ano dias horas euros milhões obrigado obrigada cada nosso nossa é há são"),
    "Dutch": _words("prijs kost maand jaar dagen uur euro miljoen bedankt elke onze ons geen dit"),
}
#: Words of these that are English words, too, or parts of names.
_SHARED = _words(
    "a ab ai al als am an as at au aux bei bin cada com da das de dei del della dem den der des di die do dos du e el "
    "em en euro euros fin ha hat he hay i il in is kosten la las le les los mais me men met millions mes na ne no o of "
    "on ons or ore os par per plus pour pro se si so son su sur são tag te to un una une van von war was y"
)
_DISTINCT = {name: (words | _TELLING.get(name, frozenset())) - _SHARED for name, words in _OTHERS.items()}
#: Apart, as it is a word of other languages, too.
_ENGLISH_WITH_A = _ENGLISH | {"a"}
_SHORT_ENGLISH = _ENGLISH | _TELLING["English"]
#: English words that none of these languages has.
_ONLY_ENGLISH = _SHORT_ENGLISH.difference(_SHARED, *_OTHERS.values())

_FOREIGN_LETTER = re.compile(r"[ßäöüéèêàçñãõığşúóíáìòù]")


def find_other_language(records: Sequence[Record]) -> str | None:
    """The language of the outputs if many of them are surely not in English, such as `German` or `another language than
    English`; None if not."""
    records = records[:MAX_RECORDS]
    judged = [name for record in records if (name := _judge(record)) is not None]
    others = [name for name in judged if name]
    if not judged:
        # Outputs too short to be judged one by one: the language of all together, if most have its function words.
        texts = [record.output for record in records]
        words = [frozenset(_WORD.findall(text.lower())) for text in texts]
        if len(texts) < _MIN_SHORT or sum(map(len, words)) < _MIN_SHORT_WORDS:
            return None
        name = _judge_text(" ".join(texts))
        known = _OTHERS.get(name or "")
        return name if known and sum(not own.isdisjoint(known) for own in words) > 0.5 * len(words) else None
    if not others or len(others) < min(len(judged), max(3, 0.2 * len(judged))):
        return None
    most = max(set(others), key=others.count)
    return most if others.count(most) > len(others) / 2 else "another language than English"


def is_english(record: Record) -> bool | None:
    """Whether an output is surely in English, or surely not; None where that cannot be told."""
    name = _judge(record)
    return None if name is None else not name


def name_other_language(record: Record) -> str | None:
    """The language of an output if it is surely not in English, in the words of `find_other_language`."""
    return _judge(record) or None


def _judge(record: Record) -> str | None:
    """The language of an output; empty for English, None where that cannot be told. Where an output does not tell it,
    it is that of its question and source."""
    declared = _read_name(record.language) if record.language else None
    if declared is True:
        return ""
    text = record.output[:2000]
    letters = [] if text.isascii() else [letter for letter in text if letter.isalpha()]
    if len(letters) >= 2 and sum(letter > _LAST_LATIN for letter in letters) > 0.5 * len(letters):
        return "another script than Latin"
    name = _judge_text(text)
    is_translation = "translation" in (record.task or "").lower()
    if name is None and not is_translation and _ONLY_ENGLISH.isdisjoint(_WORD.findall(text.lower())):
        names = {_judge_text(context) for context in (record.instruction, record.source) if context} - {None}
        name = names.pop() or None if len(names) == 1 else None
    return "another language than English" if name is None and declared is False else name


def _judge_text(text: str) -> str | None:
    """The language of a text by its function words; empty for English, None where that cannot be told."""
    words = _WORD.findall(text[:2000].lower())
    if len(words) < _MIN_WORDS:
        return _judge_short(words)
    counts = Counter(words)

    def measure(known: frozenset[str]) -> float:
        return sum(counts[word] for word in known & counts.keys()) / len(words)

    english = measure(_ENGLISH)
    shares = {name: measure(known | _TELLING.get(name, frozenset())) for name, known in _OTHERS.items()}
    name = max(shares, key=shares.__getitem__)
    # More words of the language than a few that English and names have, too.
    is_telling = not _DISTINCT[name].isdisjoint(counts) or len(_OTHERS[name] & counts.keys()) > 2
    if shares[name] >= 0.15 and shares[name] > 2 * english and is_telling:
        return name
    return "" if measure(_ENGLISH_WITH_A) >= 0.1 else None


def _judge_short(words: Sequence[str]) -> str | None:
    """The language of a few words, if it has two of them that English and names do not have; or one, and a letter that
    English does not have either. English if two of them are English, one of them only that, and none is foreign."""
    is_foreign = _ONLY_ENGLISH.isdisjoint(words)
    foreign = _FOREIGN_LETTER.search(" ".join(words)) is not None
    counts = {
        name: len(own.intersection(words)) + foreign for name, own in _DISTINCT.items() if own.intersection(words)
    }
    if not is_foreign:
        return "" if not counts and len(_SHORT_ENGLISH.intersection(words)) >= 2 else None
    name = max(counts, key=counts.__getitem__, default="")
    return name if counts.get(name, 0) >= 2 else None


def _read_name(language: str) -> bool | None:
    """Whether a record's language, such as `en`, `en-US` or the pair `de-en`, is English; None if it is no name."""
    parts = _PART.findall(language.lower())
    if not parts:
        return None
    return parts[-1] in _ENGLISH_NAMES or (parts[0] in _ENGLISH_NAMES and parts[-1] in _REGIONS)
