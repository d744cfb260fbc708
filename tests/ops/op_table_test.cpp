// Every backend has every operation. That a function is missing shows when the program is linked;
// here are the tables themselves, and that each CPU level has kernels of its own.

#include <catch2/catch.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/trace.h"
#include "ops/dispatch/cpu_operations.h"
#include "ops/dispatch/op_table.h"

using namespace fp8train;

namespace {

/// The operations that a table lacks.
std::vector<std::string> missing(const ops::OpTable& table) {
  std::vector<std::string> names;
#define FP8TRAIN_OPERATION(name) \
  if (table.name == nullptr) {   \
    names.emplace_back(#name);   \
  }
#include "ops/dispatch/operations.def"
  return names;
}

/// The functions that two tables share.
std::set<std::string> shared(const ops::OpTable& a, const ops::OpTable& b) {
  std::set<std::string> names;
#define FP8TRAIN_OPERATION(name) \
  if (a.name == b.name) {        \
    names.insert(#name);         \
  }
#include "ops/dispatch/operations.def"
  return names;
}

/// The operations that the cpu compiles once for all levels.
std::set<std::string> library_operations() {
  std::set<std::string> names;
#define FP8TRAIN_OPERATION(name)
#define FP8TRAIN_LIBRARY_OPERATION(name) names.insert(#name);
#include "ops/dispatch/operations.def"
  return names;
}

const ops::OpTable& table_of(DeviceKind kind) {
  return ops::op_table(Stream(kind, nullptr, nullptr));
}

std::vector<CpuIsa> levels_here() {
  std::vector<CpuIsa> levels;
  for (const CpuIsa isa : cpu_isas()) {
    if (ops::cpu::table_of(isa) != nullptr) {
      levels.push_back(isa);
    }
  }
  return levels;
}

}  // namespace

TEST_CASE("No table of operations has an empty entry", "[op_table]") {
  REQUIRE(!levels_here().empty());
  for (const CpuIsa isa : levels_here()) {
    CAPTURE(name_of(isa));
    CHECK(missing(*ops::cpu::table_of(isa)).empty());
  }
  CHECK(missing(table_of(DeviceKind::cpu)).empty());
  CHECK(missing(table_of(DeviceKind::meta)).empty());
  if (std::string(FP8TRAIN_CUDA_FORM) != "OFF") {
    CHECK(missing(table_of(DeviceKind::cuda)).empty());
  }
}

TEST_CASE("Levels share the operations that are compiled once, and backends share none",
          "[op_table]") {
  const std::vector<CpuIsa> levels = levels_here();
  for (size_t i = 1; i < levels.size(); ++i) {
    CHECK(shared(*ops::cpu::table_of(levels[i - 1]), *ops::cpu::table_of(levels[i])) ==
          library_operations());
  }
  CHECK(shared(table_of(DeviceKind::cpu), table_of(DeviceKind::meta)).empty());
  if (std::string(FP8TRAIN_CUDA_FORM) != "OFF") {
    CHECK(shared(table_of(DeviceKind::cuda), table_of(DeviceKind::cpu)).empty());
    CHECK(shared(table_of(DeviceKind::cuda), table_of(DeviceKind::meta)).empty());
  }
}

TEST_CASE("An operation is dispatched in a span of its name", "[op_table]") {
  float value = 0.0F;
  set_tracing(true);
  const Stream stream(DeviceKind::cpu, nullptr, nullptr);
  ops::dispatch<&ops::OpTable::fill>(stream, View{&value, DType::f32, {1}}, 2.0F);
  ops::dispatch_as<&ops::OpTable::fill>("another", stream, View{&value, DType::f32, {1}}, 3.0F);
  set_tracing(false);
  std::set<std::string> names;
  for (const SpanTotal& total : trace_totals()) {
    names.insert(total.name);
  }
  CHECK(names == std::set<std::string>{"fill", "another"});
  CHECK(value == 3.0F);
}
