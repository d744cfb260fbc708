#pragma once
// The FP8 products of a GPU as an earlier process found them. Trying each of them takes seconds,
// which short commands would spend at every start. The results lie in the cache folder, in a file
// for each GPU, driver, cuBLASLt and version of the probe; one that differs in any of these, or is
// damaged, is not read. With FP8TRAIN_GEMM_PROBE=always none is read.

#include <filesystem>
#include <string>

#include "device/device.h"

namespace fp8train {

/// Identifies all on which the result of a probe depends: lines of text.
std::string probe_key(const Device& device);

/// ops::probe_gemms(), or the result that `folder` has for `key`, with a warning for products that
/// failed. Stores the result of a probe there if another trial would find the same; a folder that
/// cannot be written is no error. Throws DeviceError as ops::probe_gemms() does.
void find_products(Device& device, const std::filesystem::path& folder, const std::string& key);

/// The same with the device's own key; a device other than a GPU has nothing to find.
void find_products(Device& device, const std::filesystem::path& folder);

}  // namespace fp8train
