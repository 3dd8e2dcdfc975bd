"""Small plots as SVG text: lines over categories or numbers, bars with intervals, stacked bars.

Colours are classes (``s0``, ``s1``, ...) that the page's style sheet fills for dark and light; lines differ in their marks
as well. A plot scales with its column; its text is large enough for a phone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 640, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 38, 54
NUM_COLOURS = 8
_NUM_TICKS = 5
_ROW, _BAR, _VALUE = 30, 18, 112
_LETTER, _LONGEST_LABEL = 12.5, 250  # of the largest text, which phones get


@dataclass(frozen=True, slots=True)
class Series:
    """A line: points (x, y), in the order of x."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: int = 0
    is_dashed: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar: parts from left to right with a colour each, and an interval if there is one."""

    name: str
    parts: Sequence[tuple[float, int]]
    text: str
    interval: tuple[float, float] | None = None


def lines(series: Sequence[Series], x_label: str, y_label: str, *, level: float | None = None, from_zero: bool = True) -> str:
    """A plot of lines; ``level``: a horizontal line that means something, such as a speedup of 1."""
    xs = sorted({x for one in series for x, _ in one.points})
    ys = [y for one in series for _, y in one.points] + ([level] if level is not None else [])
    low = 0.0 if from_zero else min(ys)
    ticks = _ticks(low, max(ys))
    left, right, bottom = _LEFT, WIDTH - _RIGHT, HEIGHT - _BOTTOM

    def place_x(x: float) -> float:
        return left + (right - left) * ((xs.index(x) + 0.5) / len(xs))

    def place_y(y: float) -> float:
        return bottom - (bottom - _TOP) * (y - ticks[0]) / (ticks[-1] - ticks[0])

    parts = [f'<line class="grid" x1="{left}" x2="{right}" y1="{place_y(t):.1f}" y2="{place_y(t):.1f}"/>' for t in ticks]
    parts += [_text(left - 6, place_y(t) + 5, number(t), "end") for t in ticks]
    parts += [_text(place_x(x), bottom + 20, number(x)) for x in xs]
    parts.append(_text((left + right) / 2, HEIGHT - 5, x_label, kind="label"))
    parts.append(_text(2, 20, y_label, "start", kind="label"))  # turned, it would lie on the numbers of a phone's large text
    if level is not None:
        parts.append(f'<line class="level" x1="{left}" x2="{right}" y1="{place_y(level):.1f}" y2="{place_y(level):.1f}"/>')
    for one in series:
        points = [(place_x(x), place_y(y)) for x, y in one.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dashed = " dashed" if one.is_dashed else ""
        parts.append(
            f'<polyline class="line s{one.colour % NUM_COLOURS}{dashed}" points="{path}">'
            f"<title>{escape(one.name)}</title></polyline>"
        )
        for (x, y), (_, value) in zip(points, one.points, strict=True):
            parts.append(_mark(x, y, one.colour, f"{one.name}: {number(value)}"))
    return _svg(WIDTH, HEIGHT, parts)


def bars(entries: Sequence[Bar], *, level: float | None = None) -> str:
    """Horizontal bars, one below the other."""
    most = max([sum(part for part, _ in bar.parts) for bar in entries] + [bar.interval[1] for bar in entries if bar.interval])
    most = max(most, level or 0.0) or 1.0
    label = min(_LETTER * max((len(bar.name) for bar in entries), default=0) + 12, _LONGEST_LABEL)
    scale = (WIDTH - label - _VALUE) / most
    height = _ROW * len(entries) + 8
    parts = []
    for place, bar in enumerate(entries):
        y = _ROW * place + 6
        parts.append(_text(label - 8, y + 14, bar.name, "end"))
        x = float(label)
        for value, colour in bar.parts:
            parts.append(
                f'<rect class="bar s{colour % NUM_COLOURS}" x="{x:.1f}" y="{y}" '
                f'width="{max(value * scale, 0):.1f}" height="{_BAR}"/>'
            )
            x += value * scale
        if bar.interval:
            low, high = (label + value * scale for value in bar.interval)
            parts.append(
                f'<path class="interval" d="M{low:.1f} {y + 4}V{y + 14}M{low:.1f} {y + 9}H{high:.1f}'
                f'M{high:.1f} {y + 4}V{y + 14}"/>'
            )
            x = max(x, high)
        parts.append(_text(x + 6, y + 14, bar.text, "start"))
    if level is not None:
        x = label + level * scale
        parts.append(f'<line class="level" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height}"/>')
    return _svg(WIDTH, height, parts)


def legend(names: Sequence[tuple[str, int, bool]], *, of_bars: bool = False) -> str:
    """Names with their colours, those of lines or of bars; the third says whether the line is dashed."""
    items = []
    for name, colour, dashed in names:
        if of_bars:
            key = f'<rect class="bar s{colour % NUM_COLOURS}" x="6" y="0" width="12" height="12"/>'
        else:
            kind = f"line s{colour % NUM_COLOURS}" + (" dashed" if dashed else "")
            key = f'<line class="{kind}" x1="1" x2="23" y1="6" y2="6"/>' + ("" if dashed else _mark(12, 6, colour, ""))
        items.append(f'<li><svg class="key" viewBox="0 0 24 12" aria-hidden="true">{key}</svg>{escape(name)}</li>')
    return f'<ul class="legend">{"".join(items)}</ul>'


def number(value: float) -> str:
    """Three digits at most, and none too many."""
    return f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def _mark(x: float, y: float, colour: int, title: str) -> str:
    told = f"<title>{escape(title)}</title>" if title else ""
    kind = colour % 3
    classes = f'class="mark s{colour % NUM_COLOURS}"'
    if kind == 0:
        return f'<circle {classes} cx="{x:.1f}" cy="{y:.1f}" r="4">{told}</circle>'
    if kind == 1:
        return f'<rect {classes} x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8">{told}</rect>'
    return f'<path {classes} d="M{x:.1f} {y - 5:.1f}l5 9h-10z">{told}</path>'


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers from at or below ``low`` to at or above ``high``."""
    span = (high - low) or abs(high) or 1.0
    raw = span / _NUM_TICKS
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw)
    first = math.floor(low / step)
    return [step * place for place in range(first, math.ceil(high / step) + (1 if high <= step * first else 0) + 1)]


def _text(x: float, y: float, text: str, anchor: str = "middle", kind: str = "tick") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(width: int, height: int, parts: Sequence[str]) -> str:
    return f'<svg class="plot" role="img" viewBox="0 0 {width} {height}">{"".join(parts)}</svg>'
