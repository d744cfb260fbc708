#pragma once
// Non-owning views: a pointer into device memory, an element type and a shape, packed row-major.
// Cheap to copy. Whoever owns the memory (Tensor, Arena, Buffer) outlives the view.

#include <cstddef>

#include "numeric/dtype.h"
#include "tensor/shape.h"

namespace fp8train {

/// Bytes of a tensor: packed but for types of less than a byte, whose rows begin at bytes.
constexpr size_t storage_bytes(DType dtype, const Shape& shape) {
  return facts_of(dtype).bits % 8 == 0 ? static_cast<size_t>(shape.count()) * size_of(dtype)
                                       : bytes_of_rows(dtype, shape.rows(), shape.back());
}

/// A view of memory that is only read.
struct ConstView {
  const void* data = nullptr;
  DType dtype = DType::f32;
  Shape shape;

  bool empty() const { return data == nullptr; }
  int64_t count() const { return shape.count(); }
  size_t bytes() const { return storage_bytes(dtype, shape); }
  template <typename T>
  const T* as() const {
    return static_cast<const T*>(data);
  }
};

/// A view of memory that may be written.
struct View {
  void* data = nullptr;
  DType dtype = DType::f32;
  Shape shape;

  bool empty() const { return data == nullptr; }
  int64_t count() const { return shape.count(); }
  size_t bytes() const { return storage_bytes(dtype, shape); }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
  operator ConstView() const {
    return {data, dtype, shape};
  }  // NOLINT(google-explicit-constructor)
};

/// Returns rows [begin, begin + count) of a view seen as a matrix [rows, last extent]. Throws
/// InternalError if they are out of range.
ConstView rows_of(const ConstView& view, int64_t begin, int64_t count);
/// Returns the same rows of a view that may be written.
View rows_of(const View& view, int64_t begin, int64_t count);

/// Returns the same memory as fp32 words, to be filled; its bytes are a multiple of four.
View as_words(const View& view);

/// Returns the same elements under another shape of equal count. Throws InternalError for another
/// count.
ConstView reshaped(const ConstView& view, const Shape& shape);
/// Reshapes a view that may be written.
View reshaped(const View& view, const Shape& shape);

}  // namespace fp8train
