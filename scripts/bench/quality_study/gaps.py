"""Gaps of plans to bf16 with intervals, bases as replicates.

The gap of a plan on a base is its loss over the mean of bf16's replicates on that base, less one,
in percent. Bases are independent, so that the mean gap over n bases has Student's interval with
n - 1 degrees of freedom from the gaps' own deviation: neither equal variances nor the effect of a
base being the same for all plans is assumed. A plan is equivalent to bf16 within a margin if its
90 % interval lies inside of it (two one-sided tests at 5 %; D. J. Schuirmann, J. Pharmacokinet.
Biopharm. 15, 1987)."""

import dataclasses
import math
import statistics

from quality_study import models

MEASURES = ("as_trained", "in_bf16")
MARGINS = (0.10, 0.25)  # percent


@dataclasses.dataclass(frozen=True)
class Gap:
    """The mean over bases, in percent."""

    mean: float
    deviation: float  # of a base's gap; nan for one base
    bases: int

    @property
    def error(self):
        return self.deviation / math.sqrt(self.bases)

    def half_width(self, confidence=0.95):
        """Of the interval around the mean."""
        if self.bases < 2:
            return math.nan
        return quantile_of_t((1 + confidence) / 2, self.bases - 1) * self.error

    def margin(self):
        """The smallest of MARGINS that the gap is shown to lie within, or None."""
        return next((margin for margin in MARGINS
                     if abs(self.mean) + self.half_width(0.9) < margin), None)


def gap_of(values):
    return Gap(statistics.mean(values), deviation_of(values), len(values))


def deviation_of(values):
    return statistics.stdev(values) if len(values) > 1 else math.nan


def quantile_of_t(probability, freedom):
    """Of Student's distribution, for a probability above one half: its density summed by Simpson's
    rule, and bisection."""
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(
        freedom * math.pi)

    def above_half(t, steps=400):
        width = t / steps
        weights = [1, *(4 if i % 2 else 2 for i in range(1, steps)), 1]
        return width / 3 * scale * sum(
            weight * (1 + (i * width) ** 2 / freedom) ** (-(freedom + 1) / 2)
            for i, weight in enumerate(weights))

    low, high = 0.0, 1.0
    while above_half(high) < probability - 0.5:
        high *= 2
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if above_half(middle) < probability - 0.5 else (low, middle)
    return high


def table_of(lines, measure):
    """base: {plan: loss}, of bases that have bf16."""
    table = {}
    for line in lines:
        table.setdefault(line["base"], {})[line["plan"]] = statistics.mean(line[measure])
    return {base: row for base, row in table.items() if models.BASELINE in row}


class Study:
    """Of one model, condition and measure."""

    def __init__(self, lines, measure):
        self.table = table_of(lines, measure)
        self.references = {
            base: statistics.mean(row[name] for name in models.REPLICATES if name in row)
            for base, row in self.table.items()}
        self.names = [name for name in dict.fromkeys(line["plan"] for line in lines)
                      if name != models.BASELINE]

    def loss(self):
        return statistics.mean(self.references.values())

    def spread(self):
        """Deviation of bf16's own loss over bases, in percent."""
        return 100 * deviation_of(list(self.references.values())) / self.loss()

    def gaps(self, name):
        """{base: percent} of a plan. Of a replicate: against the mean of the others."""
        found = {}
        for base, row in self.table.items():
            others = [row[other] for other in models.REPLICATES if other in row and other != name]
            reference = statistics.mean(others) if name in models.REPLICATES else \
                self.references[base]
            if name in row:
                found[base] = 100 * (row[name] / reference - 1)
        return found

    def gap(self, name):
        return gap_of(list(self.gaps(name).values()))

    def family(self):
        """The contrast: the mean of FP8 plans, on bases that have all that the study has."""
        members = [name for name in self.names if name in models.FP8]
        of_plan = [self.gaps(name) for name in members]
        bases = set.intersection(*map(set, of_plan)) if of_plan else set()
        return gap_of([statistics.mean(gap[base] for gap in of_plan) for base in sorted(bases)]) \
            if bases else None

    def difference(self, name, other):
        """Of two plans on the same bases, in percent of bf16's loss."""
        first, second = self.gaps(name), self.gaps(other)
        shared = [first[base] - second[base] for base in first if base in second]
        return gap_of(shared) if shared else None
