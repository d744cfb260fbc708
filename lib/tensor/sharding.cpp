#include "tensor/sharding.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "base/error.h"
#include "base/nearest.h"

namespace fp8train {
namespace {

/// Throws unless ranks can share `count` rows or columns equally.
void check_divides(int64_t count, const char* what, int ranks) {
  if (count % ranks == 0) {
    return;
  }
  throw ConfigError(std::to_string(ranks) + " ranks cannot share " + std::to_string(count) + " " +
                    what + " equally; the nearest number of ranks that can is " +
                    std::to_string(nearest_divisor(count, ranks)));
}

}  // namespace

int64_t Sharding::rows() const {
  return std::accumulate(runs.begin(), runs.end(), int64_t{0},
                         [](int64_t sum, const ShardRun& run) { return sum + run.rows; });
}

Shape Sharding::shape() const {
  return is_whole() ? whole : whole.rank() == 1 ? Shape{rows()} : Shape{rows(), columns};
}

int64_t Sharding::element(int64_t local) const {
  int64_t row = local / columns;
  for (const ShardRun& run : runs) {
    if (row < run.rows) {
      return (run.begin + row) * width() + first_column + local % columns;
    }
    row -= run.rows;
  }
  throw InternalError("an element lies in its part");
}

ElementMap Sharding::elements() const {
  if (is_whole()) {
    return {};
  }
  check(runs.size() <= ElementMap::kMaxRuns, "kernels know parts of few runs");
  ElementMap map = {.columns = columns, .width = width(), .first_column = first_column};
  std::fill(std::begin(map.begins), std::end(map.begins), whole[0]);
  int64_t row = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    map.begins[i] = row;
    map.rows_before[i] = runs[i].begin - row;
    row += runs[i].rows;
  }
  const bool by_rows = columns < width();
  for (size_t i = 0; i < runs.size(); ++i) {
    // All rows of a run begin as its first does if a row is a multiple of four, here and there.
    map.by_fours = map.by_fours && map.begins[i] * columns % 4 == 0 &&
                   (runs[i].begin * width() + first_column) % 4 == 0 &&
                   (!by_rows || runs[i].rows == 1 || (columns % 4 == 0 && width() % 4 == 0));
  }
  return map;
}

Sharding whole_of(const Shape& whole, uint64_t index) {
  Sharding all = {.whole = whole, .runs = {{0, whole[0]}}, .index = index};
  all.columns = all.width();
  return all;
}

Sharding rows_of_pieces(const Sharding& whole, std::span<const int64_t> pieces, int rank,
                        int ranks) {
  check(whole.is_whole() && 0 <= rank && rank < ranks, "a rank of some cuts a whole");
  check(std::accumulate(pieces.begin(), pieces.end(), int64_t{0}) == whole.rows(),
        "the pieces of a parameter are its rows");
  Sharding part = whole;
  part.cut = Axis::tensor;
  part.runs.clear();
  int64_t begin = 0;
  for (const int64_t piece : pieces) {
    check_divides(piece, "rows", ranks);
    part.runs.push_back({begin + piece / ranks * rank, piece / ranks});
    begin += piece;
  }
  return part;
}

Sharding columns_of(const Sharding& whole, int rank, int ranks) {
  check(whole.is_whole() && 0 <= rank && rank < ranks, "a rank of some cuts a whole");
  check_divides(whole.width(), "columns", ranks);
  Sharding part = whole;
  part.cut = Axis::tensor;
  part.columns = whole.width() / ranks;
  part.first_column = part.columns * rank;
  return part;
}

}  // namespace fp8train
