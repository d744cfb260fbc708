"""The tables of the study in Markdown."""

import math
import statistics
import textwrap

from quality_study import gaps, models, outliers

SCALES = {  # what shares a scale at the input of forward products
    "te-delayed": "tensor", "te-current": "tensor", "msamp-o2": "tensor",
    "torchao-rowwise": "row", "te-mxfp8": "block of 32", "te-blockwise": "block of 128",
    "deepseek-v3": "block of 128", "fp8-lean": "block of 128",
}


def number(value, digits=3, sign=False):
    return "-" if math.isnan(value) else f"{value:{'+' if sign else ''}.{digits}f}"


def markdown(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def with_interval(gap):
    return f"{number(gap.mean, sign=True)} ± {number(gap.half_width())}"


def within(gap):
    return f"{gap.margin():.2f} %" if gap.margin() else "-"


def trained_rows(trained, plain):
    for name in trained.names:
        gap = plain.gap(name)
        yield [f"`{name}`", str(gap.bases), with_interval(trained.gap(name)), with_interval(gap),
               number(gap.deviation), within(gap)]
    family = trained.family(), plain.family()
    if all(family):
        yield ["**FP8, all plans**", str(family[1].bases), *map(with_interval, family),
               number(family[1].deviation), within(family[1])]


def trained_table(name, lines):
    trained, plain = (gaps.Study(lines, measure) for measure in gaps.MEASURES)
    head = ["plan", "bases", "gap as trained, %", "gap evaluated in bf16, %",
            "deviation of a gap", "equivalent within"]
    twice = plain.difference("te-current-halves", "te-current")
    text = (f"± is half of the 95 % interval. {lines[0]['base_steps']} steps in bf16, "
            f"{lines[0]['steps']} under each plan, {lines[0]['tokens_per_step']} tokens a step; "
            f"loss of bf16 {plain.loss():.4f}, its standard deviation over bases "
            f"{number(plain.spread(), 2)} %.")
    if twice:
        text += (" `te-current-halves` less `te-current`, evaluated in bf16: "
                 f"{with_interval(twice)} %.")
    return "\n".join([f"### {name}\n", markdown(head, trained_rows(trained, plain)), "",
                      textwrap.fill(text, 100)])


def outlier_gaps(results, model, kind):
    """{exponent: {plan: {base: gap in percent}}}"""
    found = {}
    for name, condition in results.studies():
        if name != model or not condition.startswith(f"outliers-{kind}-"):
            continue
        table = gaps.table_of(results.of(name, condition), "as_trained")
        plans = list(dict.fromkeys(plan for row in table.values() for plan in row))
        found[int(condition.rsplit("-", 1)[1])] = {
            plan: {base: 100 * (row[plan] / row[models.BASELINE] - 1)
                   for base, row in table.items() if plan in row} for plan in plans}
    return dict(sorted(found.items()))


def outlier_plans(by_exponent):
    """{plan: what shares a scale} of all plans found but bf16: first those of SCALES, then others
    with "-"."""
    found = {plan for row in by_exponent.values() for plan in row} - {models.BASELINE}
    return {plan: SCALES.get(plan, "-") for plan in [*SCALES, *sorted(found - SCALES.keys())]
            if plan in found}


def outlier_cell(values):
    if not values:
        return "-"
    text = number(statistics.mean(values), 2, sign=True)
    error = gaps.deviation_of(values) / math.sqrt(len(values))
    return text if math.isnan(error) else f"{text} ± {number(error, 2)}"


def separation(of_exponent):
    """The smallest gap of a plan with tensor scales less the largest of one with blocks of 128: its
    mean over bases, and that in standard errors where there are three bases or more."""
    def values(scales):
        return [gap for plan, gap in of_exponent.items() if SCALES.get(plan) == scales]
    tensor, block = values("tensor"), values("block of 128")
    if not tensor or not block:
        return math.nan, math.nan
    bases = set.intersection(*(set(gap) for gap in tensor + block))
    if not bases:
        return math.nan, math.nan
    differences = [min(gap[base] for gap in tensor) - max(gap[base] for gap in block)
                   for base in sorted(bases)]
    error = gaps.deviation_of(differences) / math.sqrt(len(differences))
    mean = statistics.mean(differences)
    return mean, mean / error if len(differences) > 2 and error > 0 else math.nan


def outlier_table(results, model, kind):
    by_exponent = outlier_gaps(results, model, kind)
    head = ["plan", "scale for each"] + [f"S = 2^{exponent}" for exponent in by_exponent]
    rows = [[f"`{plan}`", scales] + [outlier_cell(list(row.get(plan, {}).values()))
                                     for row in by_exponent.values()]
            for plan, scales in outlier_plans(by_exponent).items()]
    split = [separation(row) for row in by_exponent.values()]
    rows.append(["least tensor less largest block of 128", ""] + [
        number(mean, 2, sign=True) + ("" if math.isnan(errors) else f" ({errors:.0f} errors)")
        for mean, errors in split])
    bases = [str(max(map(len, row.values()))) for row in by_exponent.values()]
    rows.append(["bases", ""] + bases)
    return f"### {model}, outliers: {kind}\n\n" + markdown(head, rows)


def text(results):
    parts = []
    for name, condition in results.studies():
        if condition == outliers.PLAIN:
            parts.append(trained_table(name, results.of(name, condition)))
    for name in dict.fromkeys(name for name, _ in results.studies()):
        for kind in outliers.KINDS:
            if outlier_gaps(results, name, kind):
                parts.append(outlier_table(results, name, kind))
    return "\n\n".join(parts)
