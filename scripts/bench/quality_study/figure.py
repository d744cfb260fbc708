"""The figure of the study: gaps of plans with their errors, and gaps under outlier channels."""

import math
import statistics

from quality_study import gaps, models, outliers, report

WIDTH = 760
LEFT, RIGHT = 150, 24
ROW = 22
STYLE = """text{font:12px system-ui,sans-serif;fill:#24292f}
.head{font-weight:600}.soft{fill:#656d76}
.axis{stroke:#8c959f}.grid{stroke:#d8dee4}.band{fill:#8c959f;fill-opacity:.22}
.a{fill:none;stroke:#0969da;stroke-width:1.6}.b{fill:#bc4c00;stroke:#bc4c00;stroke-width:1.6}
.tensor{stroke:#cf222e}.row{stroke:#9a6700}.mx{stroke:#8250df}.block{stroke:#1a7f37}
.line{fill:none;stroke-width:1.8}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.soft{fill:#9198a1}.axis{stroke:#6e7681}
.grid{stroke:#30363d}.a{stroke:#58a6ff}.b{fill:#f0883e;stroke:#f0883e}.tensor{stroke:#ff7b72}
.row{stroke:#d29922}.mx{stroke:#bc8cff}.block{stroke:#3fb950}}"""
CLASSES = {"tensor": "tensor", "row": "row", "block of 32": "mx", "block of 128": "block"}


def element(name, text=None, **attributes):
    words = "".join(f' {key.rstrip("_").replace("_", "-")}="{value}"'
                    for key, value in attributes.items())
    return f"<{name}{words}/>" if text is None else f"<{name}{words}>{text}</{name}>"


def line(x1, y1, x2, y2, class_):
    return element("line", x1=round(x1, 1), y1=round(y1, 1), x2=round(x2, 1), y2=round(y2, 1),
                   class_=class_)


def label(x, y, text, class_="", anchor="start"):
    return element("text", text, x=round(x, 1), y=round(y, 1), class_=class_, text_anchor=anchor)


def step_of(span):
    """A round distance of grid lines, about six of them."""
    power = 10.0 ** math.floor(math.log10(span / 6))
    return next(power * factor for factor in (1, 2, 5, 10) if span / (power * factor) <= 6)


class Scale:
    """Values of low .. high at pixels."""

    def __init__(self, low, high, start, end):
        self.low, self.high, self.start, self.end = low, high, start, end

    def __call__(self, value):
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self):
        step = step_of(self.high - self.low)
        first = math.ceil(self.low / step)
        return [index * step for index in range(first, math.floor(self.high / step) + 1)]


def marks(gap, scale, y, class_):
    """A point with its interval."""
    half = 0 if math.isnan(gap.half_width()) else gap.half_width()
    return [line(scale(gap.mean - half), y, scale(gap.mean + half), y, class_),
            element("circle", cx=round(scale(gap.mean), 1), cy=y, r=4, class_=class_)]


def gap_panel(name, lines, top):
    """Elements, and the height that they take."""
    studies = [gaps.Study(lines, measure) for measure in gaps.MEASURES]
    rows = [(plan, [study.gap(plan) for study in studies]) for plan in studies[0].names]
    family = [study.family() for study in studies]
    if all(family):
        rows.append(("FP8, all plans", family))
    ends = [gap.mean + sign * (0 if math.isnan(gap.half_width()) else gap.half_width())
            for _, pair in rows for gap in pair for sign in (-1, 1)]
    band = gaps.MARGINS[-1]
    scale = Scale(min([-band, *ends]) - 0.02, max([band, *ends]) + 0.02, LEFT, WIDTH - RIGHT)
    bottom = top + 34 + ROW * len(rows)
    title = f"{name}: gap to bf16 in percent of its loss"
    parts = [label(8, top + 14, title, "head"),
             element("rect", x=round(scale(-band), 1), y=top + 26, height=bottom - top - 26,
                     width=round(scale(band) - scale(-band), 1), class_="band")]
    for tick in scale.ticks():
        at, style = scale(tick), "axis" if tick == 0 else "grid"
        parts += [line(at, top + 26, at, bottom, style),
                  label(at, bottom + 15, f"{tick:+.2f}" if tick else "0", "soft", "middle")]
    for index, (plan, pair) in enumerate(rows):
        y = top + 40 + ROW * index
        parts.append(label(LEFT - 10, y + 4, f"{plan} ({pair[1].bases})", anchor="end"))
        parts += marks(pair[0], scale, y - 3, "a")
        parts += marks(pair[1], scale, y + 3, "b")
    return parts, bottom + 34 - top


def outlier_panel(results, name, kind, top):
    by_exponent = report.outlier_gaps(results, name, kind)
    height, low, high = 150, -1, 3  # powers of ten
    bottom = top + 30 + height
    across = Scale(0, max(1, len(by_exponent) - 1), LEFT + 20, WIDTH - RIGHT - 150)
    up = Scale(low, high, bottom, top + 30)
    parts = [label(8, top + 14, f"{name}, outlier channels ({kind}): gap to bf16 in percent, "
                   "evaluated as trained", "head")]
    for power in range(low, high + 1):
        text = ("≤ " if power == low else "") + f"{10.0 ** power:g}"
        parts += [line(LEFT, up(power), across.end + 20, up(power), "grid"),
                  label(LEFT - 10, up(power) + 4, text, "soft", "end")]
    for index, exponent in enumerate(by_exponent):
        parts.append(label(across(index), bottom + 16, f"S = 2^{exponent}", "soft", "middle"))
    for plan, scales in report.outlier_plans(by_exponent).items():
        gap_of = {index: statistics.mean(row[plan].values())
                  for index, row in enumerate(by_exponent.values()) if row.get(plan)}
        class_ = f"line {CLASSES.get(scales, 'axis')}"
        points = [(across(index), up(math.log10(max(10.0 ** low, gap))))
                  for index, gap in gap_of.items()]
        if points:
            parts.append(element("polyline", class_=class_,
                                 points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points)))
        parts += [element("circle", cx=round(x, 1), cy=round(y, 1), r=2.5,
                          class_=class_) for x, y in points]
    for index, scales in enumerate(CLASSES):
        y = top + 46 + ROW * index
        parts += [line(WIDTH - 148, y, WIDTH - 128, y, f"line {CLASSES[scales]}"),
                  label(WIDTH - 122, y + 4, f"scale: {scales}")]
    return parts, height + 66


def svg(results):
    parts, top = [], 8
    panels = [(gap_panel, (name, results.of(name, condition)))
              for name, condition in results.studies() if condition == outliers.PLAIN]
    if panels:
        parts += [element("circle", cx=LEFT, cy=14, r=4, class_="a"),
                  label(LEFT + 10, 18, "evaluated as trained"),
                  element("circle", cx=LEFT + 170, cy=14, r=4, class_="b"),
                  label(LEFT + 180, 18, "evaluated in bf16; bars: 95 % intervals"),
                  label(LEFT + 430, 18, f"band: ±{gaps.MARGINS[-1]} %", "soft")]
        top += 24
    panels += [(outlier_panel, (results, name, kind))
               for name in models.MODELS for kind in outliers.KINDS
               if report.outlier_gaps(results, name, kind)]
    for draw, arguments in panels:
        drawn, height = draw(*arguments, top)
        parts += drawn
        top += height
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" '
            f'height="{top}">\n<style>{STYLE}</style>\n' + "\n".join(parts) + "\n</svg>\n")
