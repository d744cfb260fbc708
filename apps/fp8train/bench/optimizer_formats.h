#pragma once
// fp8train bench optimizer-formats: how far AdamW's update is from that of fp32 moments when the
// moments are stored in narrower formats. A property of the formats, not of the machine.

#include <cstdint>
#include <string>
#include <vector>

#include "device/device.h"

namespace fp8train {

/// Gradients of a matrix whose distribution stays as it is: Student's t with 5 degrees of freedom,
/// times a log-normal scale for each row and for each column.
struct OptimizerSimulation {
  int64_t rows = 128, columns = 1024;
  double beta2 = 0.95;
  int64_t steps = 300;
  int64_t compared = 20;   ///< of the last steps
  double deviation = 0.8;  ///< of the logarithm of row and column scales
  uint64_t seed = 1;
};

struct OptimizerFormatError {
  std::string moment1, moment2;
  double bytes_per_parameter;  ///< of both moments with their scales
  double error;                ///< two-norm of the update's difference, relative to the update's
};

/// One entry for each pair of formats that methods use. beta1 is 0.9, and eps negligible.
std::vector<OptimizerFormatError> optimizer_format_errors(Device& device,
                                                          const OptimizerSimulation& simulation);

}  // namespace fp8train
