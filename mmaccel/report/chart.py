"""Line charts with intervals as SVG whose colours are the page's CSS variables: light and dark from one file.

Knows series and an axis. Draws nothing that needs a script: a hover text is an SVG title, the page's script only makes
it prettier.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mmaccel.report.markup import Markup, join, tag
from mmaccel.report.series import Mark, Row, Series, nice_ticks

MARKERS = ("circle", "square", "triangle", "diamond", "cross")
METHOD_COLOURS = 6  # --m0 … in the style sheet; controls share one grey and differ by marker and dash
CONTROL_COLOURS = 1


@dataclass(frozen=True)
class Frame:
    """Data ranges and the pixel box they fall into."""

    x: tuple[float, float]
    y: tuple[float, float]
    width: int = 440
    height: int = 280
    left: int = 46
    right: int = 14
    top: int = 12
    bottom: int = 44

    def px(self, x: float) -> float:
        low, high = self.x
        return self.left + (x - low) / (high - low) * (self.width - self.left - self.right)

    def py(self, y: float) -> float:
        low, high = self.y
        return self.top + (high - y) / (high - low) * (self.height - self.top - self.bottom)


def chart(
    series: Sequence[Series], baseline: Mark | None, x_label: str, *, describe: Callable[[Row], str],
    y_label: str = "accuracy", small: bool = False,
) -> Markup:  # fmt: skip
    """Accuracy (0 … 1, shown in per cent) over x. `describe`: the hover text of a point."""
    marks = [mark for one in series for mark in one.marks] + ([baseline] if baseline else [])
    if not marks:
        return tag("p", "not measured", class_="muted")
    size: dict[str, Any] = {"width": 300, "height": 190, "left": 38, "bottom": 30} if small else {}
    frame = Frame(*ranges(marks), **size)
    xs, ys = inner_ticks(frame.x, 4 if small else 6), inner_ticks(frame.y, 4 if small else 6)
    ordered = [*[one for one in series if one.control], *[one for one in series if not one.control]]  # methods on top
    return tag(
        "svg",
        axes(frame, xs, ys, None if small else x_label, y_label),
        baseline_band(frame, baseline),
        *[curve(frame, one) for one in ordered],
        *[dots(frame, one, describe) for one in ordered],
        baseline_dot(frame, baseline, describe),
        viewBox=f"0 0 {frame.width} {frame.height}",
        role="img",
        aria_label=f"{y_label} against {x_label}",
        class_="chart",
    )


def ranges(marks: Sequence[Mark]) -> tuple[tuple[float, float], tuple[float, float]]:
    """What the axes span: every mark and interval with some air, accuracy by whole steps of five points."""
    xs = [mark.x for mark in marks]
    ys = [y for mark in marks for y in (mark.y, mark.low, mark.high) if y is not None]
    pad = 0.05 * (max(xs) - min(xs)) or 0.05 * abs(max(xs)) or 0.5
    high = min(math.ceil(20 * max(ys) + 1e-9) / 20, 1.0)  # nobody is right more often than always
    low = max(min(math.floor(20 * min(ys) - 1e-9) / 20, high - 0.1), 0.0)
    return (max(min(xs) - pad, 0.0), max(xs) + pad), (low, max(high, 0.1))


def inner_ticks(span: tuple[float, float], count: int) -> list[float]:
    return [tick for tick in nice_ticks(*span, count) if span[0] - 1e-9 <= tick <= span[1] + 1e-9]


def axes(frame: Frame, xs: Sequence[float], ys: Sequence[float], x_label: str | None, y_label: str) -> Markup:
    edge, floor = frame.width - frame.right, frame.height - frame.bottom
    parts = [line(frame.left, frame.py(y), edge, frame.py(y), "grid") for y in ys]
    parts += [label(frame.left - 7, frame.py(y) + 4, f"{100 * y:.4g}", "tick end") for y in ys]
    parts += [line(frame.px(x), floor, frame.px(x), floor + 4, "axis") for x in xs]
    parts += [label(frame.px(x), floor + 17, f"{x:.4g}", "tick middle") for x in xs]
    parts.append(line(frame.left, floor, edge, floor, "axis"))
    if x_label:
        parts.append(label((frame.left + edge) / 2, frame.height - 8, x_label, "name middle"))
        middle = (frame.top + floor) / 2
        turned = f"rotate(-90 11 {middle:.1f})"
        parts.append(tag("text", f"{y_label} [%]", x=11, y=f"{middle:.1f}", transform=turned, class_="name middle"))
    return join(*parts)


def baseline_band(frame: Frame, mark: Mark | None) -> Markup:
    """The unpruned model's accuracy with its interval, across the whole chart."""
    if mark is None:
        return Markup()
    edge = frame.width - frame.right
    parts = [line(frame.left, frame.py(mark.y), edge, frame.py(mark.y), "base")]
    if mark.low is not None and mark.high is not None:
        top, bottom = frame.py(mark.high), frame.py(mark.low)
        width, height = edge - frame.left, f"{bottom - top:.1f}"
        parts.insert(0, tag("rect", x=frame.left, y=f"{top:.1f}", width=width, height=height, class_="band"))
    return join(*parts)


def baseline_dot(frame: Frame, mark: Mark | None, describe: Callable[[Row], str]) -> Markup:
    if mark is None:
        return Markup()
    star = shape("star", frame.px(mark.x), frame.py(mark.y), 7)
    return tag("g", tag("title", describe(mark.row)), hit(frame, mark), star, class_="dot baseline")


def curve(frame: Frame, series: Series) -> Markup:
    points = " ".join(f"{frame.px(mark.x):.1f},{frame.py(mark.y):.1f}" for mark in series.marks)
    bars = [
        line(frame.px(mark.x), frame.py(mark.high), frame.px(mark.x), frame.py(mark.low), "bar")
        for mark in series.marks
        if mark.low is not None and mark.high is not None
    ]
    return tag("g", *bars, tag("polyline", points=points), class_=f"curve {colour(series)}")


def dots(frame: Frame, series: Series, describe: Callable[[Row], str]) -> Markup:
    made = []
    for mark in series.marks:
        drawn = shape(marker(series), frame.px(mark.x), frame.py(mark.y), 4.2 if series.control else 4.8)
        made.append(tag("g", tag("title", describe(mark.row)), hit(frame, mark), drawn, class_="dot"))
    return tag("g", *made, class_=colour(series))


def hit(frame: Frame, mark: Mark) -> Markup:
    """A target larger than the mark, for fingers and hurried mice."""
    return tag("circle", cx=f"{frame.px(mark.x):.1f}", cy=f"{frame.py(mark.y):.1f}", r=12, class_="hit")


def colour(series: Series) -> str:
    return f"c{series.slot % len(MARKERS)}" if series.control else f"m{series.slot % METHOD_COLOURS}"


def marker(series: Series) -> str:
    """Controls differ by marker alone; methods change it when the colours have gone round once."""
    if series.control:
        return MARKERS[(series.slot + 1) % len(MARKERS)]
    return MARKERS[series.slot // METHOD_COLOURS % len(MARKERS)]


def swatch(series: Series) -> Markup:
    """The legend's sample of a curve."""
    drawn = join(tag("line", x1=1, y1=7, x2=25, y2=7, class_="sample"), shape(marker(series), 13, 7, 4.6))
    return tag("svg", tag("g", drawn, class_=colour(series)), viewBox="0 0 26 14", class_="swatch", aria_hidden="true")


def baseline_swatch() -> Markup:
    drawn = join(tag("line", x1=1, y1=7, x2=25, y2=7, class_="base"), shape("star", 13, 7, 6))
    return tag("svg", tag("g", drawn, class_="baseline"), viewBox="0 0 26 14", class_="swatch", aria_hidden="true")


def shape(name: str, x: float, y: float, r: float) -> Markup:
    """A marker of about equal area whatever its form."""
    if name == "circle":
        return tag("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=r, class_="mark")
    corners = {
        "square": [(-0.88, -0.88), (0.88, -0.88), (0.88, 0.88), (-0.88, 0.88)],
        "triangle": [(0, -1.2), (1.12, 0.85), (-1.12, 0.85)],
        "diamond": [(0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0)],
        "cross": [(-0.35, -1.1), (0.35, -1.1), (0.35, -0.35), (1.1, -0.35), (1.1, 0.35), (0.35, 0.35), (0.35, 1.1),
                  (-0.35, 1.1), (-0.35, 0.35), (-1.1, 0.35), (-1.1, -0.35), (-0.35, -0.35)],
        "star": [(0, -1), (0.28, -0.28), (1, 0), (0.28, 0.28), (0, 1), (-0.28, 0.28), (-1, 0), (-0.28, -0.28)],
    }  # fmt: skip
    points = " ".join(f"{x + r * dx:.1f},{y + r * dy:.1f}" for dx, dy in corners[name])
    return tag("polygon", points=points, class_="mark")


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    return tag("line", x1=f"{x1:.1f}", y1=f"{y1:.1f}", x2=f"{x2:.1f}", y2=f"{y2:.1f}", class_=class_)


def label(x: float, y: float, text: str, class_: str) -> Markup:
    return tag("text", text, x=f"{x:.1f}", y=f"{y:.1f}", class_=class_)
