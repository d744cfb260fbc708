#include "bench_cast.h"

#include <algorithm>

#include "bench.h"
#include "ops/cast/quantize.h"
#include "ops/pointwise/elementwise.h"

namespace fp8train {
namespace {

class CastBench {
 public:
  CastBench(Device& device, int64_t rows, int64_t columns, double seconds)
      : device_(&device), rows_(rows), columns_(columns), seconds_(seconds) {}

  CastRates run() {
    CastRates rates = {};
    for (const DType from : {DType::f32, DType::bf16}) {
      const Tensor x = random_matrix(*device_, from, rows_, columns_);
      rates.copy_bytes_per_second = std::max(rates.copy_bytes_per_second, copy(x));
      for (const bool both : {false, true}) {
        for (const DType to : {DType::e4m3, DType::e5m2}) {
          rates.casts.push_back(one_scale(x, to, false, both));
        }
        rates.casts.push_back(one_scale(x, DType::e4m3, true, both));
        for (const ScaleBlock block :
             {per::row, per::block_1x128, per::block_128x128, per::block_1x32}) {
          rates.casts.push_back(blocks(x, block, both));
        }
      }
    }
    return rates;
  }

 private:
  double copy(const Tensor& x) const {
    const Tensor y(*device_, x.view().dtype, {rows_, columns_}, MemoryCategory::workspace);
    return 2.0 * static_cast<double>(x.view().bytes()) /
           device_seconds(
               *device_, [&] { ops::cast(device_->stream(), x, y); }, seconds_);
  }

  CastRate one_scale(const Tensor& x, DType to, bool current, bool both) const {
    const TensorCodes codes(*device_, to, rows_, columns_, both);
    const double seconds = device_seconds(
        *device_, [&] { codes.cast(device_->stream(), x, current); }, seconds_);
    return rate_of(x, to, current ? "current" : "delayed", both, 0, seconds);
  }

  CastRate blocks(const Tensor& x, ScaleBlock block, bool both) const {
    const TensorFormat format = blockwise_role_format(block);
    const BlockwiseCodes along_rows(*device_, format, rows_, columns_);
    const BlockwiseCodes along_columns(*device_, format, columns_, rows_);
    QuantizedTensor out;
    out.rowwise = along_rows.view();
    if (both) {
      out.columnwise = along_columns.view();
    }
    out.format = format;
    out.layout = along_rows.layout;
    const double seconds = device_seconds(
        *device_, [&] { ops::quantize(device_->stream(), x, out, nullptr, nullptr); }, seconds_);
    const size_t scales =
        along_rows.scale_inv.view().bytes() + (both ? along_columns.scale_inv.view().bytes() : 0);
    return rate_of(x, format.dtype, std::string(name_of(block)), both, scales, seconds);
  }

  CastRate rate_of(const Tensor& x, DType to, const std::string& scales, bool both,
                   size_t scale_bytes, double seconds) const {
    const auto elements = static_cast<double>(rows_ * columns_);
    const double bytes = static_cast<double>(x.view().bytes() + scale_bytes) +
                         elements * static_cast<double>(size_of(to)) * (both ? 2 : 1);
    return {x.view().dtype, to, scales, both, elements / seconds, bytes / seconds};
  }

  Device* device_;
  int64_t rows_, columns_;
  double seconds_;
};

}  // namespace

CastRates cast_rates(Device& device, int64_t rows, int64_t columns, double seconds) {
  return CastBench(device, rows, columns, seconds).run();
}

}  // namespace fp8train
