#include "ops/attention/copy_rows.h"

#include "base/error.h"
#include "ops/dispatch/op_table.h"

namespace fp8train::ops {

void copy_rows(Stream stream, const RowCopy& call) {
  check(call.from != nullptr && call.to != nullptr && call.width > 0,
        "copy_rows: from, to and a width expected");
  dispatch<&OpTable::copy_rows>(stream, call);
}

void copy_between(Stream stream, const RowOrder& a, const RowOrder& b, RowCopy rows, bool forward) {
  const RowOrder& from = forward ? a : b;
  const RowOrder& to = forward ? b : a;
  rows.from = from.data;
  rows.from_strides = from.strides;
  rows.to = to.data;
  rows.to_strides = to.strides;
  copy_rows(stream, rows);
}

}  // namespace fp8train::ops
