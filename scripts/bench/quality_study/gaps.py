"""Gaps of plans to bf16, their pooled standard error, and a bound for many comparisons at once.

A loss is taken as the effect of its base, plus that of its plan, plus chance: a randomized block
design. The residuals over all scaled plans and bf16 pool into one standard deviation s, which has
(bases - 1) (plans - 1) degrees of freedom where no run is missing. The mean gap over n bases then
has the standard error s sqrt(2 / n). The bound is Dunnett's (two-sided, 95 %): all plans together
are within it of bf16 with that probability where none differs. Its critical value is found by
simulation."""

import dataclasses
import functools
import math
import random
import statistics

from quality_study import models

MEASURES = ("as_trained", "in_bf16")
FAMILY = 0.95
DRAWS = 20_000
ROUNDS = 200  # of alternating means


@dataclasses.dataclass(frozen=True)
class Gap:
    """Of one plan, in percent of bf16's loss."""

    plan: str
    runs: int
    mean: float
    deviation: float  # of a single gap; nan for one run
    error: float  # standard error of the mean: pooled for plans, its own for the control


@dataclasses.dataclass(frozen=True)
class Study:
    """Of one model, condition and measure."""

    gaps: dict  # plan: Gap
    complete: int  # bases that have every plan
    deviation: float  # pooled, of one run, in percent
    freedom: int
    spread: float  # standard deviation of bf16's own loss over bases, in percent

    def bound(self, runs):
        """Of the mean gap of a plan with that many runs, in percent."""
        plans = sum(plan != models.CONTROL for plan in self.gaps)
        if self.freedom < 1:
            return math.nan
        return critical_value(plans, self.freedom) * self.deviation * math.sqrt(2 / runs)


def table_of(lines, measure):
    """base: {plan: loss}, of bases that have bf16."""
    table = {}
    for line in lines:
        table.setdefault(line["base"], {})[line["plan"]] = statistics.mean(line[measure])
    return {base: row for base, row in table.items() if models.BASELINE in row}


def residual_deviation(table):
    """Standard deviation of {base: {plan: value}} with base and plan taken out, and its degrees of
    freedom. Runs may be missing: effects are those of least squares, by alternating means."""
    of_base = dict.fromkeys(table, 0.0)
    of_plan = {plan: 0.0 for row in table.values() for plan in row}
    freedom = sum(map(len, table.values())) - len(of_base) - len(of_plan) + 1
    if freedom < 1:
        return math.nan, 0
    for _ in range(ROUNDS):
        for base, row in table.items():
            of_base[base] = statistics.fmean(row[plan] - of_plan[plan] for plan in row)
        for plan in of_plan:
            of_plan[plan] = statistics.fmean(row[plan] - of_base[base]
                                             for base, row in table.items() if plan in row)
    squares = sum((value - of_base[base] - of_plan[plan]) ** 2
                  for base, row in table.items() for plan, value in row.items())
    return math.sqrt(squares / freedom), freedom


def deviation_of(values):
    return statistics.stdev(values) if len(values) > 1 else math.nan


def study(lines, measure):
    table = table_of(lines, measure)
    plans = list(dict.fromkeys(line["plan"] for line in lines if line["plan"] != models.BASELINE))
    compared = [models.BASELINE] + [plan for plan in plans if plan != models.CONTROL]
    baseline = [row[models.BASELINE] for row in table.values()]
    mean = statistics.mean(baseline)
    complete = sum(all(plan in row for plan in compared) for row in table.values())
    deviation, freedom = residual_deviation({
        base: {plan: 100 * row[plan] / mean for plan in compared if plan in row}
        for base, row in table.items()})
    gaps = {}
    for plan in plans:
        found = [100 * (row[plan] / row[models.BASELINE] - 1)
                 for row in table.values() if plan in row]
        if not found:
            continue
        own = deviation_of(found)
        error = own / math.sqrt(len(found)) if plan == models.CONTROL else \
            deviation * math.sqrt(2 / len(found))
        gaps[plan] = Gap(plan, len(found), statistics.mean(found), own, error)
    spread = 100 * deviation_of(baseline) / mean
    return Study(gaps, complete, deviation, freedom, spread)


@functools.lru_cache(maxsize=None)
def critical_value(comparisons, freedom):
    """Dunnett's, two-sided: the quantile of the largest |t| of comparisons with one control."""
    source = random.Random(1)
    largest = []
    for _ in range(DRAWS):
        control = source.gauss(0, 1)
        scale = math.sqrt(source.gammavariate(freedom / 2, 2) / freedom * 2)
        largest.append(max(abs(source.gauss(0, 1) - control) for _ in range(comparisons)) / scale)
    return sorted(largest)[int(FAMILY * DRAWS)]
