#pragma once
// Orders of the rows of weights in files: which rows of q and k RoPE rotates together, and matrices
// stored as [in, out].

#include <cstdint>
#include <vector>

namespace fp8train {

/// Returns the rows of `weight` ([heads * head_dim, any]) moved from half-split pairs (j, j +
/// head_dim / 2) to pairs of neighbours (2j, 2j + 1), head by head (llama.cpp's converter calls it
/// permute). Throws InternalError if the sizes do not fit.
std::vector<float> neighbour_rope_rows(const std::vector<float>& weight, int64_t heads,
                                       int64_t head_dim);

/// Returns a matrix [rows, columns] as [columns, rows].
std::vector<float> transposed(const std::vector<float>& values, int64_t rows, int64_t columns);

}  // namespace fp8train
