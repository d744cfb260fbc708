"""The figure of README: what each plan of the study costs and saves. Bytes per parameter are the
program's own (`explain`), the speed is its prediction for an H100 (`estimate`), the gap of the loss
is measured (the study's last model)."""

import json
import re
import subprocess

from quality_study import gaps, models, outliers
from quality_study.figure import STYLE, WIDTH, Scale, element, label, line, marks

RUN = ["model.preset=llama-8b", "data.seq_length=4096", "training.micro_batch_size=2",
       "parallelism.zero_stage=3"]
ESTIMATE = ["estimate", "--world-size", "8", "--gpu", "h100", *RUN]
LEFT, PANEL, GAP, ROW, TOP = 120, 186, 20, 22, 58


def output_of(program, *arguments):
    return subprocess.run([str(program), *arguments], check=True, capture_output=True,
                          text=True).stdout


def bytes_of(program, plan):
    shown = output_of(program, "explain", "--json", *RUN, f"precision.plan={plan}")
    return json.loads(shown)["bytes_per_parameter"]


def seconds_of(program, plan):
    shown = output_of(program, *ESTIMATE, f"precision.plan={plan}")
    return float(re.search(r"^time +(\S+) s per step", shown, re.M).group(1))


def rows_of(program, study):
    """(plan, bytes, speed over bf16, gap or None for bf16 itself)."""
    plans = [models.BASELINE, *(plan for plan in study.names if plan in models.FP8)]
    own = seconds_of(program, models.BASELINE)
    return [(plan, bytes_of(program, plan), own / seconds_of(program, plan),
             None if plan == models.BASELINE else study.gap(plan)) for plan in plans]


def panel(index, title, low, high, bottom, form):
    """Its scale, and its title and grid."""
    start = LEFT + index * (PANEL + GAP)
    scale = Scale(low, high, start, start + PANEL)
    parts = [label(start, TOP - 24, title, "head")]
    ticks = scale.ticks()
    for tick in ticks[::2] if low == 0 else [ticks[0], 0, ticks[-1]]:
        parts += [line(scale(tick), TOP - 10, scale(tick), bottom, "axis" if tick == 0 else "grid"),
                  label(scale(tick), bottom + 15, format(tick, form), "soft", "middle")]
    return scale, parts


def svg(program, results):
    name = [name for name, condition in results.studies() if condition == outliers.PLAIN][-1]
    study = gaps.Study(results.of(name, outliers.PLAIN), gaps.MEASURES[0])
    rows = rows_of(program, study)
    bottom = TOP + ROW * len(rows)
    ends = [gap.mean + sign * gap.half_width() for *_, gap in rows if gap for sign in (-1, 1)]
    memory, parts = panel(0, "bytes per parameter", 0, max(row[1] for row in rows), bottom, "g")
    speed, drawn = panel(1, "speed over bf16 (1)", 0, max(row[2] for row in rows),
                         bottom, ".2g")
    parts += drawn
    loss, drawn = panel(2, "loss over bf16, % (2)", min([0, *ends]), max([0, *ends]),
                        bottom, "+.2f")
    parts += drawn
    for index, (plan, size, ratio, gap) in enumerate(rows):
        y = TOP + ROW * index
        parts.append(label(LEFT - 10, y + 13, plan, anchor="end"))
        for scale, value, text in ((memory, size, f"{size:.3g}"), (speed, ratio, f"{ratio:.2f}")):
            width = round(scale(value) - scale.start, 1)
            parts += [element("rect", x=scale.start, y=y + 3, width=width, height=ROW - 8,
                              class_="bar"),
                      label(scale.start + 4, y + 14, text)]
        if gap is not None:
            parts += marks(gap, loss, y + ROW / 2 - 1, "a")
    notes = ["(1) predicted by `estimate`: Llama of 8 B on 8 H100, ZeRO 3; "
             "not yet measured on a GPU",
             f"(2) trained on the CPU with the codes of a GPU ({name}); bars: 95 % intervals"]
    parts += [label(8, bottom + 40 + 16 * at, text, "soft") for at, text in enumerate(notes)]
    height = bottom + 66
    style = STYLE + "\n.bar{fill:#0969da;fill-opacity:.25}"
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}">\n<style>{style}</style>\n' + "\n".join(parts)
            + "\n</svg>\n")
