#include "ops/attention/copy_rows.h"

#include "base/error.h"
#include "ops/dispatch/op_table.h"

namespace fp8train::ops {

void copy_rows(Stream stream, const RowCopy& call) {
  check(call.from != nullptr && call.to != nullptr && call.width > 0,
        "copy_rows: from, to and a width expected");
  dispatch<&OpTable::copy_rows>(stream, call);
}

}  // namespace fp8train::ops
