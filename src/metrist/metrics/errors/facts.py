"""Facts of a text that can be compared as values: numbers, amounts, dates, times, codes and names. English.

A fact is whole: a price with its sign, a date with its month and year, a number with its decimals and its percent sign.
Some texts can be read in two ways ("1.234", "5m", "03/04/2021"); such a fact has both values and equals either.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

CharacterSpan = tuple[int, int]
#: An amount of money, a percentage and a plain number do not contradict each other. A code is a telephone number, a
#: version or the like: equal or not, but no quantity.
Kind = Literal["number", "percentage", "money", "ordinal", "date", "time", "weekday", "code", "name"]
#: Year, month and day; None where a text does not say it.
Date = tuple[int | None, int | None, int | None]


def split_words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_UNITS = split_words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_TENS = split_words("twenty thirty forty fifty sixty seventy eighty ninety")
_SCALES = {"hundred": 1e2, "thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}
_DOZEN = {"dozen": 12.0}
_SMALL = dict(zip(_UNITS, map(float, range(20)), strict=True)) | dict(
    zip(_TENS, map(float, range(20, 100, 10)), strict=True)
)
NUMBER_WORDS = _SMALL | _SCALES | _DOZEN
_SHORT_SCALES = {"k": 1e3, "m": 1e6, "mn": 1e6, "mln": 1e6, "bn": 1e9, "b": 1e9, "tn": 1e12}
_ORDINALS = split_words(
    "zeroth first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth "
    "fifteenth sixteenth seventeenth eighteenth nineteenth twentieth"
)
_MONTHS = split_words("January February March April May June July August September October November December")
_ORDINAL_NUMBERS = {word: float(number) for number, word in enumerate(_ORDINALS) if number}
_DAYS = split_words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
_CURRENCIES = {
    "$": "dollar", "usd": "dollar", "dollar": "dollar", "dollars": "dollar", "€": "euro", "eur": "euro", "euro": "euro",
    "euros": "euro", "£": "pound", "gbp": "pound", "pound": "pound", "pounds": "pound", "¥": "yen", "jpy": "yen",
    "yen": "yen", "₹": "rupee", "inr": "rupee", "rupees": "rupee", "chf": "franc", "francs": "franc",
}  # fmt: skip
#: What is measured, and how many of its smallest unit one is.
_MEASURES = {
    name: (base, factor)
    for base, factor, names in (
        ("second", 1, "s sec secs second seconds"), ("second", 60, "min mins minute minutes"),
        ("second", 3600, "h hr hrs hour hours"), ("second", 86400, "day days"), ("second", 604800, "week weeks"),
        ("month", 1, "month months"), ("month", 12, "year years yr yrs"),
        ("month", 120, "decade decades"), ("month", 1200, "century centuries"),
        ("metre", 0.001, "mm millimetre millimetres millimeter millimeters"),
        ("metre", 0.01, "cm centimetre centimetres centimeter centimeters"),
        ("metre", 1, "m metre metres meter meters"),
        ("metre", 1000, "km kilometre kilometres kilometer kilometers"), ("mile", 1, "mile miles mi"),
        ("foot", 1, "ft foot feet"), ("gram", 1, "g gram grams gramme grammes"),
        ("gram", 1000, "kg kilo kilos kilogram kilograms"), ("gram", 1e6, "tonne tonnes"),
        ("litre", 1, "l litre litres liter liters"), ("litre", 0.001, "ml millilitre millilitres"),
        ("byte", 1e6, "mb megabytes"), ("byte", 1e9, "gb gigabytes"), ("byte", 1e12, "tb terabytes"),
        ("celsius", 1, "°c celsius"), ("fahrenheit", 1, "°f fahrenheit"), ("mile per hour", 1, "mph"),
        ("kilometre per hour", 1, "km/h kmh kph"),
    )
    for name in names.split()
}  # fmt: skip
_YEAR = re.compile(r"1[5-9][0-9]{2}|20[0-9]{2}|2100")

#: Digits with what may stand between them; what a run is, is decided afterwards. Tokenized texts have spaces.
_DIGITS = re.compile(
    r"[0-9](?:[0-9]{0,2}(?: , [0-9]{3})+(?: \. [0-9]+)?(?![0-9])|[0-9]{0,2} \. [0-9]+|[0-9]{0,2}(?:, 000)+(?![0-9])|"
    r"(?:[0-9.,:/'’\u00a0\u202f\u2009‑–—-]*[0-9])?)"
)
_NUMBER = r"(?:\d{1,3}(?:(?P<%s>[,.'’\u00a0\u202f\u2009])\d{3})(?:(?P=%s)\d{3})*(?:[.,]\d{1,2})?|\d+(?:[.,]\d+)?)"
_ONE_NUMBER = re.compile(_NUMBER % ("a", "a"))
_RANGE = re.compile(f"({_NUMBER % ('a', 'a')})[‑–—-]({_NUMBER % ('b', 'b')})")
#: The rest of a row of a table: "lamp,north,88,9".
_ROW = re.compile(r"\d+(?:,\d+)+")
_LIST = re.compile(r"\d{1,2}(?:,\d{1,2}){2,}")
_ANY_DIGITS = re.compile(r"\d+")
_GROUPS = re.compile(r"\d{1,3}([,.'’\u00a0\u202f\u2009])\d{3}(?:\1\d{3})*")
_NUMERIC_DATE = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})|(\d{1,2})([./-])(\d{1,2})\5(\d{4}|\d{2})")
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::\d{2})?")
_SHORT_PHONE = re.compile(r"\d{3}-\d{4}")
#: Telephone numbers with spaces.
_PHONE = re.compile(r"[+(0](?<!\w.)(?:(?<=\+)\d|(?<=\()\d{2,5}\) ?\d|(?<=0)\d{2,5} \d)[\d ()./-]{4,24}\d")
#: What stands before the numbers of citations and of lists.
_CITATION = re.compile(r"\[(?:\d{1,3}\s?[,;]\s?)*\Z")
_LINE_START = re.compile(r"(?:\A|\n)[ \t]*\Z")
_LABEL_END = re.compile(r"[.)]\s")
_VERSION = re.compile(r"(?:\bversion|\bv\.?|\brelease)\s?\Z", re.IGNORECASE)
_INSIDE = "-@/_."
_IN_WORD = re.compile(r"[^\W\d]-?\Z|[^\W_][@/_.]\Z")
_MINUS = re.compile(r"(?:(?<![\w.,)%])[-−]|\bminus )\Z", re.IGNORECASE)
_CURRENCY_BEFORE = re.compile(r"(?:(?<![^\W_])(?:US|AU?|CA?|NZ|HK))?([$€£¥₹])\s?\Z|\b(USD|EUR|GBP|JPY|INR|CHF)\s?\Z")
_CURRENCY_AFTER = re.compile(
    r"\s?([$€£¥₹])(?!\d)|[\s-]?\b(USD|EUR|GBP|JPY|INR|CHF|dollars?|euros?|pounds?|yen|rupees|francs)\b|"
    r"\s?\b(cents?|pence|p)\b|(p)\b",
    re.IGNORECASE,
)
_PERCENT = re.compile(r"\s?(?:%|percent\b|per cent\b|pc\b|percentage points?\b)|-percent\b", re.IGNORECASE)
_SCALE = re.compile(r"[\s-]?(hundred|thousand|million|billion|trillion|mln|mn|bn|tn)\b|(k|m|b)\b", re.IGNORECASE)
_ORDINAL_ENDING = re.compile(r"(?:st|nd|rd|th)\b", re.IGNORECASE)
_HALF_DAY = re.compile(r"(?::\d{2})?\s?([ap])(?:\.m\.?|m\b)", re.IGNORECASE)
_SHIFTS = {"five": 5, "ten": 10, "quarter": 15, "twenty": 20, "twenty-five": 25, "half": 30}
#: "noon", "half past two", "a quarter to 6", "nine o'clock".
_HOUR = rf"({'|'.join(reversed(_UNITS[1:13]))}|1[0-2]|[1-9])"
_SPOKEN_TIME = re.compile(
    rf"\b(?:(noon|midday|midnight)|(half|(?:a )?quarter|five|ten|twenty(?:-five)?) (past|to) {_HOUR}|"
    rf"{_HOUR} o['’]clock)\b",
    re.IGNORECASE,
)
_DECADE = re.compile(r"\s?['’]?s\b")
_LETTERS = re.compile(r"[^\W\d]")
_MEASURE = re.compile(r"[\s-]?(°\s?[CF]\b|km/h\b|[A-Za-z]+)")
_LARGE = (*_SCALES, *_DOZEN)
_ARTICLE = re.compile(r"\b(half )?an?[ ]\Z", re.IGNORECASE)
_A_BEFORE = re.compile(r"\ba[ -]\Z", re.IGNORECASE)
_ANY_WORD, _JOINTS = re.compile(r"\b[^\W\d_]+\b"), (" ", "-", " - ")
_FRACTION = re.compile(
    r"[\s-](?:hal(?:f|ves)|thirds?|quarters?|fourths?|fifths?|sixths?|eighths?|tenths?)\b", re.IGNORECASE
)
_MONTH_NAME = rf"(?:{'|'.join(_MONTHS)}|(?:Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)\b\.?)(?!\w)"
#: The capitals come first: that is how `re` finds them fast.
_MONTH = re.compile(rf"(?=[JFMASOND])\b{_MONTH_NAME}")
_DAY = re.compile(rf"(?=[MTWFS])\b(?:{'|'.join(_DAYS)})\b")
_DAY_BEFORE = re.compile(r"(?<!\d)(\d{1,2})(?:st|nd|rd|th)?\s(?:of\s)?\Z")
_DATE_AFTER = re.compile(r"(?:\s(\d{1,2})(?:st|nd|rd|th)?(?![\w%]|[.,:]\d))?(?:,?\s(?:of\s)?(\d{4})(?!\w))?")
#: "May" and "March" begin sentences as other words, too.
_OTHER_WORDS = ("May", "March")
_BEGINS_SENTENCE = re.compile(r"(?:\A|[.!?:…\n])[\s\"'“‘(]*\Z")
#: What says that a number is rounded.
_ABOUT = re.compile(
    r"\b(?:about|around|roughly|approximately|approx\.?|nearly|almost|some|over|under|above|below|than|least|most|"
    r"up to|circa|close to|estimated)\s\Z|[~≈]\s?\Z",
    re.IGNORECASE,
)
_BOUND = re.compile(
    r"\b(?:(more than|over|above|at least|(?:greater|higher|longer|older) than)|"
    r"(?:less than|fewer than|under|below|at most|up to|(?:lower|shorter|younger) than))\s\Z",
    re.IGNORECASE,
)
_BEFORE = 24
_CAPITAL = re.compile(r"\b[A-Z][\w’'-]*\w(?:\s+(?:(?:of|de|van|von|bin|al|la|the)\s+)?[A-Z][\w’'-]*\w)*|\b[A-Z]{2,}\b")

#: Words that say nothing about a text.
FUNCTION_WORDS = frozenset(
    split_words(
        "a about above after again against all also although always am among an and another any are around as at be "
        "became because been before began behind being below between both but by came can come could did do does "
        "doing done down during each either else enough even ever every few first for from further gave get give "
        "given go goes going gone got had has have having he held her here hers herself him himself his how however i "
        "if in instead into is it its itself just kept last later least less like made make many may me might mine "
        "more most much must my myself near need neither never new next no none nor not nothing now of off often on "
        "once one only onto or other others our ours out over own per perhaps put quite rather really said same say "
        "says several shall she should since so some soon still such take taken than that the their theirs them "
        "themselves then there these they this those though through thus to together too took toward towards under "
        "until up upon us use used very via want was way we well went were what when where whether which while who "
        "whom whose why will with within without would yes yet you your yours"
    )
)
_TITLES = frozenset(
    split_words(
        "mr mrs ms miss dr sir lord lady president mayor minister prime chancellor governor senator secretary judge "
        "captain general colonel professor doctor coach chief king queen prince princess pope director"
    )
)
#: What does not begin a name; "New York" does.
_NOT_IN_NAMES = (FUNCTION_WORDS | _TITLES) - {"new"}


class Fact(NamedTuple):
    """Characters `start` to `end` of a text with what they mean."""

    kind: Kind
    start: int
    end: int
    text: str
    #: All readings: numbers, dates, minutes of a day, or words. Facts of a kind have readings of a type.
    values: tuple[Any, ...]
    #: The currency or what is measured; empty if that is not said.
    unit: str = ""
    #: How far off the number is if it is rounded.
    precision: float = 0.0
    #: One of its unit in those of `unit`.
    factor: float = 1.0
    #: 1 if the text says "more than" it or "at least", -1 if less or at most.
    bound: int = 0

    def equals(self, other: Fact) -> bool:
        """Whether the other fact, of a source, says as much: the same value, or one that rounds to this one."""
        if self.kind == other.kind == "date":
            return any(_covers(mine, theirs) for mine in self.values for theirs in other.values)
        if {self.kind, other.kind} in _ALIKE and all(fact.kind != "number" or not fact.unit for fact in (self, other)):
            # A sign may be missing, and what looks like a year may be a plain number.
            return bool(set(self._plain_numbers()) & set(other._plain_numbers()))
        if self.kind != other.kind or (self.unit and other.unit and self.unit != other.unit):
            return False
        if isinstance(self.values[0], float):
            scale, scale_there = (self.factor, other.factor) if self.unit and other.unit else (1.0, 1.0)
            return any(
                _is_near(mine * scale, theirs * scale_there, self.precision * scale, other.precision * scale_there)
                for mine in self.values
                for theirs in other.values
            )
        return bool(set(self.values) & set(other.values))

    def is_same(self, other: Fact) -> bool:
        """Whether both mean exactly the same."""
        if self.kind != other.kind or self.unit != other.unit:
            return False
        if isinstance(self.values[0], float):
            amounts, others = ([value * fact.factor for value in fact.values] for fact in (self, other))
            return self.bound == other.bound and amounts == others
        return self.values == other.values

    def differs(self, other: Fact) -> bool:
        """Whether the other fact, of a source, is another value of the same kind, and this one is not a bound of it."""
        if self.kind != other.kind or (self.unit and other.unit and self.unit != other.unit):
            return False
        if self.kind == "date":
            return all(_conflict(mine, theirs) for mine in self.values for theirs in other.values)
        scale, scale_there = (self.factor, other.factor) if self.unit and other.unit else (1.0, 1.0)
        if self.bound:
            return bool(self.bound * (other.values[0] * scale_there - self.values[0] * scale) < 0)
        return not self.equals(other)

    def agrees(self, other: Fact) -> bool:
        """Whether the other fact, of a source, is a date that says less than this one."""
        if not self.kind == other.kind == "date":
            return False
        return any(_covers(theirs, mine) for mine in self.values for theirs in other.values)

    def narrow(self, other: Fact) -> Fact:
        """The part of a date of a source that this one is about: the year or the month alone."""
        if self.kind == other.kind == "date":
            for pattern, component in ((r"\d{4}", (0,)), (_MONTH_NAME, (1,))):
                part = re.search(pattern, other.text)
                known = [tuple(i for i, number in enumerate(date) if number is not None) for date in self.values]
                if part and all(components == component for components in known):
                    first = other.start + part.start()
                    return other._replace(start=first, end=first + len(part[0]), text=part[0])
        return other

    def _plain_numbers(self) -> Iterator[float]:
        for value in self.values:
            if isinstance(value, float):
                yield value
            elif isinstance(value, tuple) and value[0] is not None and value[1:] == (None, None):
                yield float(value[0])


_ALIKE = ({"number", "money"}, {"number", "percentage"}, {"number", "date"})


def _covers(mine: Date, theirs: Date) -> bool:
    """Whether the other date has all that this one has, in the same way."""
    return all(a is None or a == b for a, b in zip(mine, theirs, strict=True))


def _conflict(mine: Date, theirs: Date) -> bool:
    return any(None not in (a, b) and a != b for a, b in zip(mine, theirs, strict=True))


def _is_near(mine: float, theirs: float, precision: float, precision_there: float) -> bool:
    if abs(mine - theirs) <= 1e-9 * max(abs(mine), abs(theirs)):
        return True
    # Only what is given more precisely can be rounded; half a unit, and a little for the arithmetic.
    return precision_there < precision and abs(mine - theirs) <= precision * 0.5000001


# --- Finding


def find_facts(text: str, span: CharacterSpan, *, names: bool = True) -> list[Fact]:
    """The facts within these characters of a text, in order; none overlaps another."""
    finders = (
        _find_written_dates,
        _find_spoken_times,
        _find_telephones,
        _find_digits,
        _find_written_numbers,
        *([_find_names] if names else []),
    )
    found = [(fact.start, rank, fact) for rank, find in enumerate(finders) for fact in find(text, *span)]
    found.sort(key=lambda entry: entry[:2])
    facts: list[tuple[int, Fact]] = []
    for _, rank, fact in found:
        if not facts or fact.start >= facts[-1][1].end:
            facts.append((rank, fact))
        elif rank < facts[-1][0]:
            facts[-1] = rank, fact
    return [fact for _, fact in facts]


def _find_written_dates(text: str, start: int, end: int) -> Iterator[Fact]:
    for match in _MONTH.finditer(text, start, end):
        before = _DAY_BEFORE.search(text[max(start, match.start() - 10) : match.start()])
        after = _DATE_AFTER.match(text, match.end(), end)
        first = before and before[1]
        second, year = after.groups() if after else (None, None)
        alone = match[0] in _OTHER_WORDS and not (first or second or year)
        if alone and _BEGINS_SENTENCE.search(text, max(start, match.start() - 4), match.start()):
            continue
        number = next(i for i, full in enumerate(_MONTHS, 1) if full.startswith(match[0][:3]))
        begin, last = match.start(), after.end() if after else match.end()
        day = int(first or second or 0)
        # "2 May 5" and "40 May" have no day.
        if (first and second) or not 1 <= day <= 31:
            day = 0
        elif before and first:
            begin -= len(before[0])
        value = (int(year) if year else None, number, day or None)
        yield Fact("date", begin, last, text[begin:last], (value,))
    for match in _DAY.finditer(text, start, end):
        yield Fact("weekday", *match.span(), match[0], (match[0],))


def _find_spoken_times(text: str, start: int, end: int) -> Iterator[Fact]:
    for match in _SPOKEN_TIME.finditer(text, start, end):
        name, shift, side, hour, full_hour = (group and group.lower() for group in match.groups())
        hour = hour or full_hour
        if name:
            yield Fact("time", *match.span(), match[0], (0.0 if name == "midnight" else 720.0,))
            continue
        minutes = _SHIFTS[shift.removeprefix("a ")] * (1 if side == "past" else -1) if shift else 0
        full = 60 * int(_SMALL.get(hour) or hour)
        yield Fact("time", *match.span(), match[0], tuple(float((full + minutes + x) % 1440) for x in (0, 720)))


def _find_telephones(text: str, start: int, end: int) -> Iterator[Fact]:
    for match in _PHONE.finditer(text, start, end):
        yield _make_code(text, *match.span())


def _make_code(text: str, start: int, end: int) -> Fact:
    words = text[start:end]
    return Fact("code", start, end, words, ("".join(filter(str.isalnum, words)) if words[0] in "+(0" else words,))


def _find_digits(text: str, start: int, end: int) -> Iterator[Fact]:
    for match in _DIGITS.finditer(text, start, end):
        before = text[max(start, match.start() - _BEFORE) : match.start()]
        last = before[-1:]
        if ((last.isalpha() or last in _INSIDE) and _IN_WORD.search(before)) or (
            "[" in before and _CITATION.search(before)
        ):
            continue
        if len(match[0]) <= 2 and _LABEL_END.match(text, match.end()) and _LINE_START.search(before):
            continue
        in_row = last == "," and _ROW.fullmatch(match[0]) is not None
        date = _NUMERIC_DATE.fullmatch(match[0])
        if date and (values := tuple(_read_date(date))):
            yield Fact("date", *match.span(), match[0], values)
        elif (clock := _CLOCK.fullmatch(match[0])) and int(clock[1]) < 24 and int(clock[2]) < 60:
            yield _make_time(text, match.start(), match.end(), end, int(clock[1]), int(clock[2]))
        elif (_has_word(before) and _VERSION.search(before)) or _SHORT_PHONE.fullmatch(match[0]):
            yield _make_code(text, *match.span())
        elif not in_row and _ONE_NUMBER.fullmatch(match[0].replace(" ", "")):
            if number := _make_number(text, *match.span(), start, end):
                yield number
        elif both := _RANGE.fullmatch(match[0]):
            yield from _make_range(text, match.start(), both, start, end)
        elif in_row or _LIST.fullmatch(match[0]):
            for own in _ANY_DIGITS.finditer(text, *match.span()):
                yield Fact("number", own.start(), own.end(), own[0], (float(own[0]),), precision=1.0)
        elif not (match[0].count("/") == 1 and len(match[0]) <= 7):
            # Not a fraction or "24/7".
            yield _make_code(text, *match.span())


def _read_date(match: re.Match[str]) -> Iterator[Date]:
    """The readings of a date in digits: the day may come before or after the month."""
    if match[1]:
        numbers = [(int(match[1]), int(match[2]), int(match[3]))]
    else:
        year = int(match[7]) + (0 if len(match[7]) == 4 else 2000)
        numbers = [(year, int(match[6]), int(match[4])), (year, int(match[4]), int(match[6]))]
    yield from dict.fromkeys(date for date in numbers if 1 <= date[1] <= 12 and 1 <= date[2] <= 31)


def _make_time(text: str, first: int, last: int, end: int, hour: int, minute: int) -> Fact:
    if half := _HALF_DAY.match(text, last, end):
        hour = hour % 12 + 12 * (half[1] in "pP")
        last = half.end()
        return Fact("time", first, last, text[first:last], (float(60 * hour + minute),))
    readings = (hour, hour + 12) if hour < 12 else (hour,)
    return Fact("time", first, last, text[first:last], tuple(float(60 * hour + minute) for hour in readings))


def _make_range(text: str, place: int, match: re.Match[str], start: int, end: int) -> Iterator[Fact]:
    """Both ends of a range or a result. The first one has the kind and unit of the second if it says none."""
    places = [(place + match.start(group), place + match.end(group)) for group in (1, 3)]
    first, second = (_make_number(text, *own, start, end) for own in places)
    if first and second:
        if first.kind == "number" and not first.unit and second.kind in ("percentage", "money", "number"):
            scale = 1.0
            if second.kind != "number":
                plain = float(re.sub(r"[^\d.]", "", match[3]) or 1)
                scale = (second.values[0] / plain if plain else 1.0) or 1.0
            values = tuple(value * scale for value in first.values)
            first = first._replace(kind=second.kind, unit=second.unit, factor=second.factor, values=values)
        yield first
        yield second


def _make_number(text: str, first: int, last: int, start: int, end: int) -> Fact | None:
    """The number in these digits with its sign, scale and unit; None if a word goes on there."""
    digits = text[first:last].replace(" ", "")
    if text[last : last + 2].strip():
        time = _HALF_DAY.match(text, last, end)
        if time and digits.isdigit() and int(digits) <= 12:
            hour = int(digits) % 12 + 12 * (time[1] in "pP")
            return Fact("time", first, time.end(), text[first : time.end()], (float(60 * hour),))
        if _DECADE.match(text, last, end):
            return None
        if ordinal := _ORDINAL_ENDING.match(text, last, end):
            return Fact("ordinal", first, ordinal.end(), text[first : ordinal.end()], (_read_digits(digits)[0],))
    values = _read_digits(digits)
    if " . " in text[first:last]:
        # Perhaps the end of a sentence.
        values += (float(re.split(r"\D", digits)[0]),)
    return _complete_number(text, first, last, start, end, values, 10.0 ** -_count_decimals(digits))


def _has_word(before: str) -> bool:
    """Whether a word or a sign, and no digit, stands before a number: most of what is looked for there."""
    last = before.rstrip()[-1:]
    return bool(last) and not last.isdigit() and last not in ",;:"


def _read_digits(digits: str) -> tuple[float, ...]:
    """The readings of digits with separators: the last of two different ones, and one before other than three digits,
    is a decimal point or comma."""
    marks = [mark for mark in digits if not mark.isdigit()]
    if grouped := _GROUPS.match(digits):
        whole, rest = grouped[0].replace(grouped[1], ""), digits[grouped.end() :]
        value = float(whole + rest.replace(",", "."))
        # "1.234" is less than two, or more than a thousand in other countries.
        return (float(digits), value) if marks == ["."] else (value,)
    return (float(digits.replace(",", ".")),)


def _count_decimals(digits: str) -> int:
    if marks := [i for i, mark in enumerate(digits) if mark in ".,"]:
        after = len(digits) - marks[-1] - 1
        return after if after != 3 or digits[marks[-1]] == "." else 0
    return 0


def _complete_number(
    text: str, first: int, last: int, start: int, end: int, values: tuple[float, ...], precision: float
) -> Fact | None:
    """A number with what stands before and after it: sign, currency, scale, unit."""
    number_end = last
    scales: tuple[float, ...] = (1.0,)
    if scale := _SCALE.match(text, last, end):
        name = (scale[1] or scale[2]).lower()
        factor = _SCALES.get(name) or _SHORT_SCALES[name]
        # "5m" may be metres.
        scales = (factor, 1.0) if name == "m" else (factor,)
        last = scale.end()
    before = text[max(start, first - _BEFORE) : first]
    if not _has_word(before):
        before = ""
    kind: Kind = "number"
    unit, measure = "", 1.0
    is_plain = scales == (1.0,)
    if before and (currency := _CURRENCY_BEFORE.search(before)):
        kind, unit = "money", _CURRENCIES[(currency[1] or currency[2]).lower()]
        first, before = first - len(currency[0]), before[: currency.start()]
        scales = scales[:1]
    if percent := _PERCENT.match(text, last, end):
        kind, last = "percentage", percent.end()
    elif kind == "number" and (currency := _CURRENCY_AFTER.match(text, last, end)):
        name = next(filter(None, currency.groups())).lower()
        kind, unit, last = "money", _CURRENCIES.get(name, ""), currency.end()
        scales = tuple(scale / (100 if not unit else 1) for scale in scales[:1])
        values = values[-1:]
    elif kind == "number" and (named := _MEASURE.match(text, last, end)):
        # "5 G" is no weight.
        name = named[1].replace(" ", "") if len(named[1]) == 1 else named[1].lower().replace(" ", "")
        if name in _MEASURES:
            (unit, measure), last = _MEASURES[name], named.end()
        elif last == number_end and _LETTERS.match(text, last):
            return None
    if before and (minus := _MINUS.search(before)):
        values = tuple(-value for value in values)
        first -= len(minus[0])
    elif kind == "number" and is_plain and not unit and _YEAR.fullmatch(text, first, last):
        return Fact("date", first, last, text[first:last], ((int(values[0]), None, None),))
    bound = _BOUND.search(before)
    return Fact(
        kind, first, last, text[first:last],
        values=tuple(value * scale for value in values for scale in scales),
        unit=unit,
        precision=_find_precision(before, values[0], precision) * scales[0],
        factor=measure,
        bound=0 if bound is None else 1 if bound[1] else -1,
    )  # fmt: skip


def _find_precision(before: str, value: float, precision: float) -> float:
    """What the last digit stands for; with "about" and the like, the zeros at the end do not count, twice over."""
    if not _ABOUT.search(before):
        return precision
    while precision >= 1 and value and value % (precision * 10) == 0:
        precision *= 10
    return 2 * precision


def _find_written_numbers(text: str, start: int, end: int) -> Iterator[Fact]:
    run: list[tuple[CharacterSpan, str]] = []
    for match in _ANY_WORD.finditer(text, start, end):
        word = match[0].lower()
        if word not in NUMBER_WORDS and word not in _ORDINAL_NUMBERS:
            continue
        between = text[run[-1][0][1] : match.start()] if run else ""
        joins = between in _JOINTS or (between == " and " and run[-1][1] in _SCALES) if run else False
        if run and not joins:
            yield from _make_written(text, run, start, end)
            run = []
        if word in NUMBER_WORDS:
            run.append((match.span(), word))
        elif not run and not _A_BEFORE.search(text, max(start, match.start() - 3), match.start()):
            yield Fact("ordinal", *match.span(), match[0], (_ORDINAL_NUMBERS[word],))
        else:
            # "two thirds" and "twenty-first" have no value here.
            run = []
    if run:
        yield from _make_written(text, run, start, end)


def _make_written(text: str, run: Sequence[tuple[CharacterSpan, str]], start: int, end: int) -> Iterator[Fact]:
    """The numbers of number words in a row."""
    for number, ((first, last), value, precision) in enumerate(_parse_words(run)):
        if _FRACTION.match(text, last, end):
            return
        article = _ARTICLE.search(text[max(start, first - 8) : first]) if run[number][1] in _LARGE else None
        if article and number == 0:
            # "half a million"
            first -= len(article[0])
            value *= 0.5 if article[1] else 1.0
        fact = _complete_number(text, first, last, start, end, (value,), precision)
        # "one" alone is more often a pronoun or an article than a number.
        if fact and (value != 1 or fact.kind != "number" or fact.unit):
            yield fact


def _parse_words(words: Sequence[tuple[CharacterSpan, str]]) -> Iterator[tuple[CharacterSpan, float, float]]:
    """The numbers in a row of number words, by place and value, with what they count: "two million" millions."""
    first: int | None = None
    total = current = 0.0
    precision = 1.0
    previous, last = "", 0
    for (start, end), word in words:
        if word == "and":
            continue
        scale = _SCALES.get(word) or _DOZEN.get(word)
        small = _SMALL.get(word, 0.0)
        joins = previous in _SCALES or (previous in _TENS and word in _UNITS[1:10])
        if scale is None and previous and not joins:
            assert first is not None
            yield (first, last), total + current, precision
            first, total, current, precision = start, 0.0, 0.0, 1.0
        first = start if first is None else first
        if scale is None:
            current, precision = current + small, 1.0
        elif scale == 100:
            current, precision = (current or 1) * scale, scale
        else:
            total += (current or 1) * scale
            current, precision = 0.0, scale
        previous, last = word, end
    if first is not None and previous:
        yield (first, last), total + current, precision


def _find_names(text: str, start: int, end: int) -> Iterator[Fact]:
    """Words with capital letters, without titles. The first word of a sentence has one anyway: alone, it is not taken
    for a name."""
    for match in _CAPITAL.finditer(text, start, end):
        words = list(re.finditer(r"\S+", match[0]))
        skipped = next((n for n, word in enumerate(words) if word[0].lower() not in _NOT_IN_NAMES), len(words))
        before = text[start : match.start()].rstrip(" \"'“‘(\n")
        begins_sentence = not before or before[-1] in ".!?:…"
        if skipped == len(words) or (len(words) == 1 and begins_sentence):
            continue
        first = match.start() + words[skipped].start()
        name = re.sub(r"['’]s$", "", text[first : match.end()])
        yield Fact("name", first, first + len(name), name, (" ".join(name.lower().split()),))
