"""results.jsonl as text for people."""

from __future__ import annotations

import statistics
from typing import Any, Iterable, Mapping

Result = Mapping[str, Any]
RIGHT = "products.right"
STATES = {True: "passed", False: "FAILED", None: "unknown"}


def same_machine(facts: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether figures may be compared: of the same GPU, and of models of as many layers."""
    return all(facts.get(name) == other.get(name) for name in ("gpu", "layers"))


def latest(results: Iterable[Result]) -> dict[str, Result]:
    """The last result of each item, in the order of the first."""
    found: dict[str, Result] = {}
    for result in results:
        found[result["item"]] = result
    return found


def columns(rows: Iterable[Iterable[str]]) -> list[str]:
    """Columns under each other."""
    cells = [list(row) for row in rows]
    widths = [
        max(len(row[i]) for row in cells if i < len(row))
        for i in range(max(map(len, cells), default=0))
    ]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in cells
    ]


def figures(results: Mapping[str, Result], item: str) -> dict[str, Any]:
    found = results.get(item, {}).get("detail", {}).get("figures")
    return found if isinstance(found, dict) else {}


def note(result: Result) -> str:
    """What is worth a line of the overview."""
    detail = result.get("detail", {})
    for key in ("reason", "ended", "summary"):
        if detail.get(key) and not (key == "ended" and result["passed"]):
            return str(detail[key])[:90]
    if "worst_relative_difference" in detail:
        return (
            f"worst relative difference {detail['worst_relative_difference']:.1e}, at most "
            f"{detail['tolerance']:.0e}"
        )
    if "refused" in detail:
        return f"{len(detail['native'])} native, {len(detail['refused'])} not"
    return ""


def machine(results: Mapping[str, Result]) -> list[str]:
    facts: Mapping[str, Any] = next(
        (
            result.get("facts", {})
            for result in reversed(list(results.values()))
            if result.get("facts")
        ),
        {},
    )
    detail = results.get("machine", {}).get("detail", {})
    lines = [f"{name}: {value}" for name, value in facts.items() if name != "fp8_modes"]
    lines += [f"FP8 {mode}: {state}" for mode, state in (facts.get("fp8_modes") or {}).items()]
    lines += [f"{name} {version}" for name, version in detail.get("packages", {}).items()]
    return lines + [str(line) for line in detail.get("libraries", [])]


def clock_text(result: Result) -> str:
    clocks = result.get("clocks", {})
    text = f"{clocks['sm_mhz']['median']:.0f} MHz" if "sm_mhz" in clocks else ""
    return ", ".join(part for part in (text, *clocks.get("limited_by", [])) if part)


def layers(results: Mapping[str, Result]) -> str:
    """ "8 layers", of the models of steps and peers."""
    facts = [result.get("facts", {}) for result in results.values()]
    counts = {known["layers"] for known in facts if "layers" in known}
    return f"{'/'.join(map(str, sorted(counts)))} layers"


def steps(results: Mapping[str, Result]) -> list[list[str]]:
    base = figures(results, "step.bf16").get("tokens_per_second")
    rows = [
        [
            f"step, {layers(results)}", "tokens/s", "ms", "TFLOP/s", "of own bf16", "GB", "clocks",
            "attention",
        ]
    ]
    for name, result in results.items():
        found = figures(results, name)
        if not name.startswith("step.") or not found:
            continue
        rows.append([
            name[5:],
            f"{found['tokens_per_second']:,.0f}",
            f"{1e3 * found['seconds_per_step']:.1f}",
            f"{found['gflops'] / 1e3:.0f}",
            f"{found['tokens_per_second'] / base:.3f}" if base else "",
            f"{found['memory_bytes'] / 1e9:.1f}",
            clock_text(result),
            str(found.get("attention", ""))[:60],
        ])
    return rows


def shares(results: Mapping[str, Result]) -> list[list[str]]:
    """Where the time of each step goes, operation by operation."""
    plans = [
        name
        for name in results
        if name.startswith("step.") and figures(results, name).get("time_shares")
    ]
    operations = dict.fromkeys(
        operation for plan in plans for operation in figures(results, plan)["time_shares"]
    )
    rows = [[f"share of a step, {layers(results)}", *(plan[5:] for plan in plans)]]
    for operation in operations:
        rows.append([
            operation,
            *(
                f"{100 * figures(results, plan)['time_shares'].get(operation, 0.0):.1f} %"
                for plan in plans
            ),
        ])
    return rows


def peers(results: Mapping[str, Result]) -> list[list[str]]:
    """The median over the rounds."""
    rates: dict[str, list[float]] = {}
    for name in results:
        rate = figures(results, name).get("tokens_per_second")
        if name.startswith("peers.") and rate:
            rates.setdefault(name.split(".", 2)[2], []).append(rate)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    bf16 = max(
        (rate for name, rate in medians.items() if name.startswith("torch.bf16")), default=None
    )
    float8 = max(
        (rate for name, rate in medians.items() if name.startswith("torch.torchao")), default=None
    )
    rows = [
        [
            f"same model, alternately, {layers(results)}", "tokens/s", "of PyTorch's best bf16",
            "of torchao's best float8", "rounds",
        ]
    ]
    for name, rate in medians.items():
        ratios = [f"{rate / best:.3f}" if best else "" for best in (bf16, float8)]
        rows.append([
            name,
            f"{rate:,.0f}",
            *ratios,
            " ".join(f"{value:,.0f}" for value in rates[name]),
        ])
    return rows


def products(results: Mapping[str, Result]) -> list[list[str]]:
    rows = [["product", "shape", "operands", "result", "accumulation", "TFLOP/s", "tuned"]]
    ways: dict[tuple[str, ...], list[str]] = {}
    timed = [name for name in results if name.startswith("products.") and name != RIGHT]
    for name in timed:
        for entry in figures(results, name).get("results", []):
            way = (
                f"{entry['layer']} {entry['product']}",
                entry["shape"],
                entry["operands"],
                entry["result"],
                "fast" if entry["fast_accumulate"] else "",
            )
            said = (
                f"{entry['gflops'] / 1e3:.0f}"
                if "gflops" in entry
                else str(entry.get("error") or entry.get("dequantized"))[:60]
            )
            ways.setdefault(way, ["", ""])[1 if name == "products.tuned" else 0] = said
    return rows + [[*way, *rates] for way, rates in sorted(ways.items())]


def errors(results: Mapping[str, Result]) -> list[list[str]]:
    """The largest error of the products of each kind, next to its bound."""
    rows = [["products with a known result", "result", "products", "error", "at most"]]
    kinds: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for entry in figures(results, RIGHT).get("results", []):
        if isinstance(entry.get("error"), (int, float)):
            kinds.setdefault((entry["operands"], entry["result"]), []).append(entry)
    for (operands, result), entries in kinds.items():
        worst = max(entries, key=lambda entry: entry["error"])
        rows.append([
            operands, result, str(len(entries)), f"{worst['error']:.1e}", f"{worst['bound']:.1e}",
        ])
    return rows


def casts(results: Mapping[str, Result]) -> list[list[str]]:
    found = figures(results, "casts")
    rows = [
        [
            f"cast, a copy moves {found.get('copy_gbytes_per_second', 0):,.0f} GB/s",
            "orientations",
            "GB/s",
            "of the copy",
        ]
    ]
    for entry in found.get("results", []):
        rows.append([
            f"{entry['from']} to {entry['to']}, {entry['scales']}",
            str(entry["orientations"]),
            f"{entry['gbytes_per_second']:,.0f}",
            f"{entry['share_of_copy']:.0%}",
        ])
    return rows


def attention(results: Mapping[str, Result]) -> list[list[str]]:
    rows = [["attention", "forward TFLOP/s", "backward TFLOP/s", "kernels"]]
    for name in ("attention", "attention.deterministic"):
        found = figures(results, name)
        if found:
            rows.append([
                name,
                f"{found['forward_gflops'] / 1e3:.0f}",
                f"{found['backward_gflops'] / 1e3:.0f}",
                str(found.get("kernels", "")),
            ])
    return rows


def profiles(results: Mapping[str, Result]) -> list[list[str]]:
    rows = [["kernel", "launches", "us", "GB/s", "instructions", "occupancy"]]
    for name, result in results.items():
        for kernel in result.get("detail", {}).get("kernels", []):
            rows.append([
                f"{name[8:]}: {kernel['kernel'][:70]}",
                str(kernel["launches"]),
                f"{kernel['nanoseconds'] / 1e3:,.0f}",
                f"{kernel['gbytes_per_second']:,.0f}",
                f"{kernel['instructions']:.3g}",
                f"{kernel['occupancy']:.0f} %",
            ])
    return rows


def render_machine(results: Mapping[str, Result]) -> str:
    """Of one GPU; `results`: the last of each item."""
    overview = [["item", "state", "seconds", "", "lines on standard error"]]
    for name, result in results.items():
        overview.append([
            name, STATES[result["passed"]], f"{result['seconds']:.1f}", note(result),
            str(len(result.get("stderr", [])) or ""),
        ])
    sections = [columns(overview)]
    for rows in (
        steps(results), shares(results), peers(results), attention(results), casts(results),
        profiles(results), errors(results), products(results),
    ):
        if len(rows) > 1:
            sections.append(columns(rows))
    return (
        "\n".join(machine(results))
        + "\n"
        + "".join("\n" + "\n".join(section) + "\n" for section in sections)
    )


def render(results: Iterable[Result]) -> str:
    """All results in order. GPUs and models that may not be compared have tables of their own."""
    machines: list[list[Result]] = []
    for result in results:
        for known in machines:
            if same_machine(known[0].get("facts", {}), result.get("facts", {})):
                known.append(result)
                break
        else:
            machines.append([result])
    return f"\n{'=' * 79}\n\n".join(render_machine(latest(known)) for known in machines)
