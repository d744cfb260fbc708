#pragma once
// The part of a parameter that the ranks of a layer store: rows and columns of the whole. Pure
// data. The whole is a matrix of shape[0] rows, a vector one of a column; a part has runs of rows,
// in the order in which they lie in memory, and of each row the same columns.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tensor/axis.h"
#include "tensor/element_map.h"
#include "tensor/shape.h"

namespace fp8train {

/// Consecutive rows of the whole.
struct ShardRun {
  int64_t begin = 0, rows = 0;

  bool operator==(const ShardRun&) const = default;
};

/// The part of a parameter that a rank stores.
struct Sharding {
  Shape whole;
  std::vector<ShardRun> runs;
  int64_t first_column = 0, columns = 0;
  std::optional<Axis> cut;  ///< the axis whose ranks have different parts; none: each has all
  bool partial = false;     ///< the gradient is a sum over the ranks of the tensor axis
  /// The parameter's position in the model of one rank: the key of every draw.
  uint64_t index = 0;

  int64_t width() const { return whole[0] == 0 ? 0 : whole.count() / whole[0]; }
  int64_t rows() const;
  /// Returns the shape of the part: that of the whole where it is one.
  Shape shape() const;
  bool is_whole() const { return rows() == whole[0] && columns == width(); }
  /// Returns the element of the whole that an element of the part is.
  int64_t element(int64_t local) const;
  /// Returns the same for kernels. Throws InternalError for more than ElementMap::kMaxRuns runs.
  ElementMap elements() const;

  /// Calls visit(local, element, count) for each stretch of elements that follow one another in the
  /// part from `local` on, and in the whole from `element` on.
  template <typename Visit>
  void for_each_stretch(const Visit& visit) const {
    const bool by_rows = columns < width();
    int64_t local = 0;
    for (const ShardRun& run : runs) {
      const int64_t count = by_rows ? columns : run.rows * columns;
      for (int64_t row = run.begin; row < run.begin + (by_rows ? run.rows : 1); ++row) {
        visit(local, row * width() + first_column, count);
        local += count;
      }
    }
  }

  bool operator==(const Sharding&) const = default;
};

/// Returns all of a parameter.
Sharding whole_of(const Shape& whole, uint64_t index);

/// Returns the part of rank `rank` of `ranks` where each piece of the rows (q, k and v; gate and
/// up) is cut into equal parts: a run of each piece. Throws ConfigError with the nearest number of
/// ranks that works if they do not divide a piece; InternalError unless the pieces are the rows.
Sharding rows_of_pieces(const Sharding& whole, std::span<const int64_t> pieces, int rank,
                        int ranks);
/// Returns the part of a rank where the columns are cut, with the same errors.
Sharding columns_of(const Sharding& whole, int rank, int ranks);

}  // namespace fp8train
