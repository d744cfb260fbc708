#pragma once
// A plan as one line of the table of plans, in words.

#include <string>
#include <vector>

#include "precision/plan.h"

namespace fp8train {

/// A column and its text.
struct PlanColumn {
  const char* title;
  std::string text;
};

inline constexpr const char* kComputationColumn = "computation";
inline constexpr const char* kBytesColumn = "bytes per parameter";

/// Returns these columns: computation, wire, weight, master, weight gradient, moments, bytes per
/// parameter.
std::vector<PlanColumn> table_columns(const PrecisionPlan& plan);

/// Returns all stored bytes per parameter, such as "7.19".
std::string bytes_text(const PrecisionPlan& plan);

/// Returns the request whose options and roles spell out the formats that the plan has by default.
/// Options that have no meaning for the plan are not set.
PlanRequest request_of(const PrecisionPlan& plan);

/// Returns every role of a plan, in order, with "-" for one without a format.
std::vector<PlanColumn> plan_columns(const PrecisionPlan& plan);

/// Returns the table of plans in lines of at most `columns`: the types of all, and how scales are
/// shared.
std::string plan_table_text(size_t columns);

/// Returns the whole table of plans as a Markdown table.
std::string plan_table_markdown();

}  // namespace fp8train
