#include <algorithm>

#include "bench/bench.h"
#include "bench/parts.h"
#include "ops/pointwise/elementwise.h"

namespace fp8train {
namespace {

class CastBench {
 public:
  CastBench(Device& device, int64_t rows, int64_t columns, double seconds)
      : device_(&device), rows_(rows), columns_(columns), seconds_(seconds) {}

  /// Each cast from fp32 and bf16 against the better copy.
  Json run() {
    double best_copy = 0;
    Json casts = Json::array();
    for (const DType from : {DType::f32, DType::bf16}) {
      const Tensor x = random_matrix(*device_, from, rows_, columns_);
      best_copy = std::max(best_copy, copy(x));
      for (const bool both : {false, true}) {
        for (const DType to : {DType::e4m3, DType::e5m2}) {
          casts.push_back(
              rate_of(x, codes_format(per::tensor, to, ScalePolicy::delayed), "delayed", both));
        }
        casts.push_back(rate_of(x, codes_format(per::tensor), "current", both));
        for (const ScaleBlock block :
             {per::row, per::block_1x128, per::block_128x128, per::block_1x32}) {
          casts.push_back(rate_of(x, codes_format(block), std::string(name_of(block)), both));
        }
      }
    }
    for (Json& cast : casts) {
      cast["share_of_copy"] = cast["gbytes_per_second"].get<double>() * 1e9 / best_copy;
    }
    return {{"copy_gbytes_per_second", best_copy / 1e9}, {"results", casts}};
  }

 private:
  double copy(const Tensor& x) const {
    const Tensor y(*device_, x.view().dtype, {rows_, columns_}, MemoryCategory::workspace);
    return 2.0 * static_cast<double>(x.view().bytes()) /
           device_seconds(
               *device_, [&] { ops::cast(device_->stream(), x, y); }, seconds_);
  }

  Json rate_of(const Tensor& x, const TensorFormat& format, const std::string& scales,
               bool both) const {
    const BenchCodes codes(*device_, format, rows_, columns_, both);
    const double seconds = device_seconds(
        *device_, [&] { codes.cast(device_->stream(), x); }, seconds_);
    size_t scale_bytes = 0;
    for (const Tensor* scale : {&codes.rowwise.scales, &codes.columnwise.scales}) {
      scale_bytes += scale->empty() ? 0 : scale->view().bytes();
    }
    const auto elements = static_cast<double>(rows_ * columns_);
    const double bytes = static_cast<double>(x.view().bytes() + scale_bytes) +
                         elements * static_cast<double>(size_of(format.dtype)) * (both ? 2 : 1);
    return {{"from", name_of(x.view().dtype)},
            {"to", name_of(format.dtype)},
            {"scales", scales},
            {"orientations", both ? 2 : 1},
            {"gelements_per_second", elements / seconds / 1e9},
            {"gbytes_per_second", bytes / seconds / 1e9}};
  }

  Device* device_;
  int64_t rows_, columns_;
  double seconds_;
};

Json measure_casts(Device& device, const BenchOptions& options) {
  // Beyond the second-level cache of a GPU and the third-level one of a CPU.
  const int64_t rows = options.rows != 0                   ? options.rows
                       : device.kind() == DeviceKind::cuda ? 8192
                                                           : 2048;
  const int64_t columns = options.columns != 0 ? options.columns : 8192;
  Json report = {{"rows", rows}, {"columns", columns}};
  report.update(CastBench(device, rows, columns, options.seconds / 24).run());
  return report;
}

void add_cast_options(Arguments part, BenchOptions& options) {
  part.option("--rows", options.rows, 0, "Rows of the matrix; 0: by the device");
  part.option("--columns", options.columns, 0, "Columns of the matrix; 0: by the device");
}

}  // namespace

const BenchPart kCastBench = {"cast", "FP8 casts against the bandwidth of a copy",
                              "fp8train bench cast --rows 4096 --columns 4096", add_cast_options,
                              measure_casts};

}  // namespace fp8train
