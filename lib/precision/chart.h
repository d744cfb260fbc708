#pragma once
// A plan as one line of the chart, in words.

#include <string>
#include <vector>

#include "precision/plan.h"

namespace fp8train {

/// A column and what stands in it.
struct ChartColumn {
  const char* title;
  std::string text;
};

/// Computation, wire, weight, master, weight gradient, moments, bytes per parameter.
std::vector<ChartColumn> chart_columns(const PrecisionPlan& plan);

/// The bytes per parameter of what is kept, in all: "7.19".
std::string bytes_text(const PrecisionPlan& plan);

/// Every cell of a plan, in order, with "-" where there is nothing.
std::vector<ChartColumn> plan_columns(const PrecisionPlan& plan);

/// The chart in lines of at most 100 columns: the types of all, and how scales are shared.
std::string chart_text();

/// The whole chart as a Markdown table.
std::string chart_markdown();

}  // namespace fp8train
