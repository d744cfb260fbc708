#!/usr/bin/env python3
"""A small picture of one step of a timeline that `fp8train bench step --timeline FILE` has written.

    scripts/bench/draw_timeline.py FILE [--step 2] > timeline.svg

For each rank three rows: the parts of the step with the waiting in them, exchanges and gathers in
flight, messages under way. All of it, operations included, is to be seen by opening FILE in
ui.perfetto.dev or chrome://tracing.
"""

import argparse
import json
import sys

LEFT, WIDTH, ROW, GAP = 64, 880, 15, 16
PARTS = {"forward": "#9ecae1", "head": "#c6b8e0", "backward": "#5b9bd5", "update": "#a1d99b"}
WAITS = {"finish_exchange": "#d62728", "finish_gather": "#d62728"}
FLIGHTS = {"exchange": "#f0a04b", "gather": "#e8cf6a"}
MESSAGE = "#7f7f7f"
ROWS = ["step", "in flight", "messages"]
SHORTEST = 0.3  # of a pixel


def step_of(events, index):
    """The time in which the index-th step of any rank runs."""
    begin, end = None, None
    for rank in {event["pid"] for event in events}:
        step = [event for event in events if event["pid"] == rank and event["name"] == "step"][
            index
        ]
        begin = step["ts"] if begin is None else min(begin, step["ts"])
        end = step["ts"] + step["dur"] if end is None else max(end, step["ts"] + step["dur"])
    return begin, end


def position_of(event):
    """Its row, color, and the part of the row that it fills: several may be in flight at a time."""
    name = event["name"]
    if event["cat"] == "span":
        if name in PARTS:
            return 0, PARTS[name], 0, 1
        return (0, WAITS[name], 0.2, 0.6) if name in WAITS else None
    lane = 0 if event["lane"] == 0 else 0.5
    if event["cat"] == "in flight":
        return 1, FLIGHTS.get(name, MESSAGE), lane, 0.46
    return 2, MESSAGE, lane, 0.46


def number_lanes(events):
    """Tracks of a rank, counted for each category from 0."""
    first = {}
    for event in events:
        key = (event["pid"], event["cat"])
        first[key] = min(first.get(key, event["tid"]), event["tid"])
    for event in events:
        event["lane"] = event["tid"] - first[(event["pid"], event["cat"])]


def text(x, y, words, anchor="start"):
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{words}</text>'


def legend(y):
    marks = [
        *PARTS.items(),
        ("waiting", WAITS["finish_exchange"]),
        *FLIGHTS.items(),
        ("messages", MESSAGE),
    ]
    lines = []
    for index, (name, color) in enumerate(marks):
        x = LEFT + index * 105
        lines.append(f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{color}"/>')
        lines.append(text(x + 14, y, name))
    return lines


def draw(events, begin, end):
    ranks = sorted({event["pid"] for event in events})
    block = len(ROWS) * ROW + GAP
    height = 28 + len(ranks) * block + 22
    x_of = lambda ts: LEFT + (ts - begin) / (end - begin) * WIDTH
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 12}" height="{height}" '
        'font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        *legend(16),
        '<g stroke="white" stroke-width="0.6">',
    ]
    for event in sorted(
        events, key=lambda event: (event["pid"], event["cat"] != "span", event["ts"], -event["dur"])
    ):
        placed = position_of(event)
        left, right = max(event["ts"], begin), min(event["ts"] + event["dur"], end)
        if placed is None or (right - left) / (end - begin) * WIDTH < SHORTEST:
            continue
        row, color, above, share = placed
        y = 28 + ranks.index(event["pid"]) * block + row * ROW + above * (ROW - 1)
        lines.append(
            f'<rect x="{x_of(left):.1f}" y="{y:.1f}" width="{x_of(right) - x_of(left):.1f}" '
            f'height="{share * (ROW - 1):.1f}" fill="{color}"/>'
        )
    lines.append("</g>")
    for index, rank in enumerate(ranks):
        top = 28 + index * block
        lines.append(text(4, top + 11, f"rank {rank}"))
        lines.extend(
            text(LEFT - 4, top + row * ROW + 11, name, "end")
            for row, name in enumerate(ROWS)
            if row > 0
        )
    milliseconds = (end - begin) / 1000
    spacing = next(
        s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000) if milliseconds / s <= 12
    )
    for at in range(0, int(milliseconds) + 1, spacing):
        lines.append(
            text(x_of(begin + 1000 * at), height - 8, f"{at} ms" if at == 0 else at, "middle")
        )
    return "\n".join([*lines, "</svg>"])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file")
    parser.add_argument("--step", type=int, default=2, help="which of the steps, from 0")
    arguments = parser.parse_args()
    with open(arguments.file, encoding="utf-8") as file:
        events = [event for event in json.load(file)["traceEvents"] if event["ph"] == "X"]
    number_lanes(events)
    try:
        begin, end = step_of(events, arguments.step)
    except IndexError:
        sys.exit(f"draw_timeline.py: {arguments.file} has no step {arguments.step}")
    shown = [event for event in events if event["ts"] < end and event["ts"] + event["dur"] > begin]
    print(draw(shown, begin, end))


if __name__ == "__main__":
    main()
