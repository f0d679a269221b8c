"""Drawings made of a few shapes, as SVG: the one backend of the report, `plot` and notebooks. vl-convert makes PDF and
PNG of the same SVG.

A shape names the role of its colour, not the colour. An SVG file has the colours for paper; a page that shows the same
drawing replaces them by its style sheet, light or dark, since the role is also part of the shape's class.

Measured for the scores of 16 systems by 4 metrics, on one core of the reference machine, against Vega-Lite with
vl-convert 1.9 and matplotlib 3.11 with text as text:

                  first figure   each further one   SVG     in the core install
    this module   2 ms           2 ms               20 kB   0 MB
    Vega-Lite     1,020 ms       160 ms             58 kB   78 MB
    matplotlib    1,100 ms       420 ms             56 kB   101 MB

A report has about ten figures. Neither library writes tips (<title>) on marks, title and description of the figure, or
classes by which a style sheet could recolour it for a dark page. PDF took 1.3 s by matplotlib, 0.03 s by vl-convert.
"""

from __future__ import annotations

import math
import unicodedata
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from markupsafe import Markup, escape

from metrist.errors import MissingExtra, RunError, escape_controls

#: Colours that most people can tell apart (after Okabe and Ito), dark enough on white.
SERIES = ("#1f5fbf", "#c2570c", "#2e7d4f", "#8e3ea8", "#8a6a00", "#00788a", "#b3261e", "#5b5b60")
#: From few to many.
HEAT = ("#f1f6fd", "#dfeafa", "#c6daf5", "#a8c6ee", "#84ade4", "#5f91d6", "#3f75c4", "#2559a8", "#143f82")
#: The first step of the scale with white text.
_WHITE_FROM = 5
COLOURS = {
    "ink": "#1c1c1e",
    "soft": "#5b5b60",
    "rule": "#d9d9de",
    "paper": "#ffffff",
    "accent": SERIES[0],
    "band": "#eef1f5",
    "critical": "#7d1712",
    "major": "#cf3f36",
    "minor": "#e3a008",
    "neutral": "#6f9bd8",
    **{f"c{number}": colour for number, colour in enumerate(SERIES)},
    **{f"h{number}": colour for number, colour in enumerate(HEAT)},
    **{f"t{number}": "#ffffff" if number >= _WHITE_FROM else "#1c1c1e" for number in range(len(HEAT))},
}
_PNG_DPI = 300
_FONTS = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"


@dataclass(frozen=True, slots=True)
class Style:
    """The width and the font size of a drawing. On a page a unit is a pixel, in a file a point."""

    width: float = 720.0
    font: float = 12.0

    @property
    def line(self) -> float:
        """The height of a line of text."""
        return 1.5 * self.font


PAGE = Style()
#: The width of a phone's screen without the margins.
PHONE = Style(350.0)
#: The width of a column, and of the text, of a paper in two columns.
COLUMN, TEXT_WIDTH = Style(240.0, 7.5), Style(495.0, 8.0)


@dataclass(frozen=True, slots=True)
class Line:
    x1: float
    y1: float
    x2: float
    y2: float
    role: str = "rule"
    width: float = 1.0
    dash: bool = False
    tip: str = ""


@dataclass(frozen=True, slots=True)
class Rect:
    x: float
    y: float
    width: float
    height: float
    role: str = "accent"
    tip: str = ""


@dataclass(frozen=True, slots=True)
class Circle:
    x: float
    y: float
    radius: float
    role: str = "accent"
    tip: str = ""
    hollow: bool = False


@dataclass(frozen=True, slots=True)
class Polyline:
    """Points in a row, joined by lines; `closed` fills the area between them."""

    points: Sequence[tuple[float, float]]
    role: str = "accent"
    width: float = 1.5
    closed: bool = False
    dash: bool = False
    tip: str = ""


@dataclass(frozen=True, slots=True)
class Label:
    """A line of text; `y` is its middle. `angle` turns it clockwise around its anchor."""

    x: float
    y: float
    text: str
    anchor: str = "start"
    role: str = "ink"
    size: float = 1.0
    bold: bool = False
    angle: float = 0.0


Shape = Line | Rect | Circle | Polyline | Label


@dataclass(slots=True)
class Drawing:
    """Shapes on a surface. `title` says what is shown, `description` what a reader who does not see it should know."""

    title: str
    style: Style
    description: str = ""
    height: float = 0.0
    shapes: list[Shape] = field(default_factory=list)

    def add(self, *shapes: Shape) -> None:
        self.shapes += shapes

    def svg(self, *, identifier: str = "", unit: str = "pt") -> str:
        """An SVG element. With an identifier it is part of a page, which sets its size; otherwise it is a file."""
        width, height = self.style.width, self.height
        size = f'width="{width:g}{unit}" height="{height:g}{unit}" ' if not identifier else ""
        ids = f"{identifier or 'figure'}-title", f"{identifier or 'figure'}-desc"
        described = f'<desc id="{ids[1]}">{_clean(self.description)}</desc>' if self.description else ""
        labels = f'aria-labelledby="{ids[0]}"' + (f' aria-describedby="{ids[1]}"' if described else "")
        opening = (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size}viewBox="0 0 {width:g} {height:g}" role="img" {labels} '
            f'font-family="{_FONTS}" font-size="{self.style.font:g}">'
        )
        background = "" if identifier else f'<rect width="{width:g}" height="{height:g}" fill="#ffffff"/>'
        shapes = "".join(_draw_svg(shape, self.style.font) for shape in self.shapes)
        return f'{opening}<title id="{ids[0]}">{_clean(self.title)}</title>{described}{background}{shapes}</svg>'

    def markup(self, identifier: str) -> Markup:
        """The SVG element as part of a template, which does not escape it again."""
        return Markup(self.svg(identifier=identifier))

    def write(self, path: Path) -> None:
        """Write an .svg, .pdf or .png file, whole or not at all."""
        from metrist.io.writer import atomic_write, atomic_write_bytes

        kind = path.suffix.lower()
        if kind not in (".svg", ".pdf", ".png"):
            raise RunError(f"cannot write {path}: the name must end in .svg, .pdf or .png", code="cannot_write")
        if kind == ".svg":
            with atomic_write(path) as file:
                file.write(self.svg() + "\n")
            return
        try:
            import vl_convert
        except ImportError:
            raise MissingExtra("a figure as PDF or PNG", "plots") from None
        # The converter takes a unit of the SVG for a point of PDF. The files have no dates; a PDF embeds its fonts, in
        # an order that may differ between two equal commands.
        source = self.svg(unit="")
        pdf = kind == ".pdf"
        data = vl_convert.svg_to_pdf(source) if pdf else vl_convert.svg_to_png(source, scale=_PNG_DPI / 72)
        with atomic_write_bytes(path) as file:
            file.write(data)

    def _repr_html_(self) -> str:
        """For notebooks, on white: their themes do not follow what the browser prefers."""
        identifier = f"figure-{zlib.crc32(f'{self.title}{self.description}'.encode('utf-8', 'replace')):08x}"
        size = f"max-width:{self.style.width:g}px;background:#fff"
        return f'<div style="{size}">{self.svg(identifier=identifier)}</div>'


def text_length(text: str, font: float) -> float:
    """About how wide a text is in a font without serifs; wide characters take a whole square."""
    width = 0.0
    for character in text:
        if character in "ilI.,:;|!'()[] jtfr":
            width += 0.34
        elif character in "mwMW@%":
            width += 0.88
        elif unicodedata.east_asian_width(character) in "WF":
            width += 1.0
        else:
            width += 0.66 if character.isupper() else 0.56
    return 1.12 * width * font


def cut_text(text: str, font: float, room: float) -> str:
    """The text without control characters, and without its middle where it would be wider than the room."""
    text = escape_controls(text)
    if len(text) > 200:
        text = f"{text[:100]}…{text[-99:]}"
    while text_length(text, font) > room and len(text) > 3:
        middle = len(text) // 2
        text = f"{text[: middle - 1].rstrip('…')}…{text[middle + 1 :].lstrip('…')}"
    return text


def choose_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers from low to high."""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return [low] if math.isfinite(low) else []
    step = 10.0 ** math.floor(math.log10((high - low) / count))
    step *= next((factor for factor in (1, 2, 5) if (high - low) / (factor * step) <= count), 10)
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 12) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def format_tick(value: float) -> str:
    """A number on an axis: `.5`, `20`, `1,000`."""
    if value == 0:
        return "0"
    text = f"{value:,.10g}" if abs(value) >= 0.0001 else f"{value:.1g}"
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text


def place(value: float, domain: tuple[float, float], span: tuple[float, float]) -> float:
    """Where a value of the domain lies on a span of the drawing; the middle where the domain is a point."""
    low, high = domain
    share = 0.5 if high == low else (value - low) / (high - low)
    return span[0] + share * (span[1] - span[0])


def _clean(text: str) -> str:
    return str(escape(escape_controls(text)))


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _draw_svg(shape: Shape, font: float) -> str:
    tip = f"<title>{_clean(shape.tip)}</title>" if not isinstance(shape, Label) and shape.tip else ""
    colour, n = COLOURS[shape.role], _number
    match shape:
        case Line():
            dash = ' stroke-dasharray="4 3"' if shape.dash else ""
            ends = f'x1="{n(shape.x1)}" y1="{n(shape.y1)}" x2="{n(shape.x2)}" y2="{n(shape.y2)}"'
            look = f'class="l f-{shape.role}" stroke="{colour}" stroke-width="{n(shape.width)}"{dash}'
            return f"<line {ends} {look}>{tip}</line>" if tip else f"<line {ends} {look}/>"
        case Rect():
            box = f'x="{n(shape.x)}" y="{n(shape.y)}" width="{n(shape.width)}" height="{n(shape.height)}"'
            return f'<rect {box} class="f-{shape.role}" fill="{colour}">{tip}</rect>'
        case Circle():
            at = f'cx="{n(shape.x)}" cy="{n(shape.y)}" r="{n(shape.radius)}"'
            if shape.hollow:
                look = f'class="l f-{shape.role}" fill="none" stroke="{colour}" stroke-width="1.5"'
                return f"<circle {at} {look}>{tip}</circle>"
            return f'<circle {at} class="f-{shape.role}" fill="{colour}">{tip}</circle>'
        case Polyline():
            points = " ".join(f"{n(x)},{n(y)}" for x, y in shape.points)
            if shape.closed:
                return f'<polygon points="{points}" class="f-{shape.role}" fill="{colour}">{tip}</polygon>'
            dash = ' stroke-dasharray="4 3"' if shape.dash else ""
            look = f'class="l f-{shape.role}" fill="none" stroke="{colour}" stroke-width="{n(shape.width)}"{dash}'
            return f'<polyline points="{points}" {look}>{tip}</polyline>'
        case Label():
            size = f' font-size="{n(font * shape.size)}"' if shape.size != 1 else ""
            weight = ' font-weight="600"' if shape.bold else ""
            turn = f' transform="rotate({n(shape.angle)} {n(shape.x)} {n(shape.y)})"' if shape.angle else ""
            anchor = "" if shape.anchor == "start" else f' text-anchor="{shape.anchor}"'
            at = f'x="{n(shape.x)}" y="{n(shape.y)}" dy=".35em"{anchor}{size}{weight}{turn}'
            return f'<text {at} class="f-{shape.role}" fill="{colour}">{_clean(shape.text)}</text>'
