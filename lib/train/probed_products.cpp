#include "train/probed_products.h"

#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <optional>
#include <string_view>
#include <system_error>

#include "base/atomic_file.h"
#include "base/content_hash.h"
#include "base/error.h"
#include "base/input_file.h"
#include "base/log.h"
#include "device/cuda/cuda_libraries.h"
#include "ops/gemm/gemm_support.h"

namespace fp8train {
namespace {

constexpr size_t kFileLimit = size_t{64} << 10;

/// Calls `work` with every product that some GPU has, in a fixed order.
template <typename Work>
void for_each_product(const Work& work) {
  for (size_t pair = 0; pair < kScalePairs; ++pair) {
    const auto scales = static_cast<ScalePair>(pair);
    for (const DType a : ProductCodes::kTypes) {
      for (const DType b : ProductCodes::kTypes) {
        for (const DType c : ProductResults::kTypes) {
          for (const bool fast : {false, true}) {
            if (have_product(scales, a, b) && (!fast || has_fast_accumulation(scales))) {
              work(Fp8Product{scales, a, b, c, fast});
            }
          }
        }
      }
    }
  }
}

/// A digit for the support of each product.
std::string digits_of(const Fp8Products& products) {
  std::string digits;
  for_each_product([&](const Fp8Product& product) {
    digits += static_cast<char>('0' + static_cast<int>(products.support(product)));
  });
  return digits;
}

/// The products that `digits` describe; a probe takes support away and never adds any. Nothing if
/// they are not its result.
std::optional<Fp8Products> products_of(const std::string& digits, Fp8Products asked) {
  size_t next = 0;
  bool is_result = true;
  Fp8Products found = asked;
  for_each_product([&](const Fp8Product& product) {
    const int digit = next < digits.size() ? digits[next] - '0' : -1;
    is_result = is_result && digit >= 0 && digit <= static_cast<int>(asked.support(product));
    if (is_result) {
      found.set(product, static_cast<Fp8Support>(digit));
    }
    ++next;
  });
  return is_result && next == digits.size() ? std::optional(found) : std::nullopt;
}

/// Warns of products that have less support than was asked for.
void warn_of_missing(const Fp8Products& asked, const Fp8Products& found,
                     const std::filesystem::path& file) {
  size_t missing = 0;
  size_t restricted = 0;
  for_each_product([&](const Fp8Product& product) {
    if (found.support(product) != asked.support(product)) {
      (found.support(product) == Fp8Support::none ? missing : restricted) += 1;
    }
  });
  if (missing + restricted > 0) {
    log_warning(fmt::format(
        "of the FP8 products that cuBLASLt should have on this GPU, {} are missing and {} exist "
        "for multiples of 8, 16 or 128 only, as an earlier start found ({}); "
        "FP8TRAIN_GEMM_PROBE=always tries them again and names them",
        missing, restricted, file.string()));
  }
}

/// The version of the driver's kernel module; empty if it is not known.
std::string driver_module() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string line;
  std::getline(file, line);
  return line;
}

std::optional<std::string> read_stored(const std::filesystem::path& file) {
  try {
    return std::filesystem::exists(file) ? std::optional(read_text_file(file, kFileLimit))
                                         : std::nullopt;
  } catch (const std::exception&) {  // it cannot be read: the products are tried again
    return std::nullopt;
  }
}

void store(const std::filesystem::path& file, const std::string& text) {
  try {
    create_folder(file.parent_path());
    write_file_atomically(file, text);
  } catch (const DeviceError&) {  // the next process tries the products again
  }
}

bool reads_stored() {
  const char* const choice = std::getenv("FP8TRAIN_GEMM_PROBE");
  if (choice == nullptr || *choice == '\0') {
    return true;
  }
  if (std::string_view(choice) == "always") {
    return false;
  }
  throw ConfigError(fmt::format("FP8TRAIN_GEMM_PROBE={}: expected always", choice));
}

}  // namespace

std::string probe_key(const Device& device) {
  const std::filesystem::path file = cuda_library(CudaLibrary::cublaslt).file;
  std::error_code unknown;
  const auto bytes = std::filesystem::file_size(file, unknown);
  const auto changed = std::filesystem::last_write_time(file, unknown).time_since_epoch().count();
  return fmt::format("probe {}\n{}\n{}\n{}, {} bytes, {}\n", ops::kProbeVersion,
                     device.description(), driver_module(),
                     describe_cuda_library(CudaLibrary::cublaslt), bytes, changed);
}

void find_products(Device& device, const std::filesystem::path& folder, const std::string& key) {
  const Fp8Products asked = device.traits().fp8_products;
  const std::string head = fmt::format("{}asked {}\nfound ", key, digits_of(asked));
  const std::filesystem::path file =
      folder / fmt::format("fp8-products-{:016x}.txt", content_hash(head.data(), head.size()));
  if (reads_stored()) {
    const std::optional<std::string> text = read_stored(file);
    const bool is_whole = text && text->starts_with(head) && text->ends_with('\n');
    const std::optional<Fp8Products> found =
        is_whole ? products_of(text->substr(head.size(), text->size() - head.size() - 1), asked)
                 : std::nullopt;
    if (found) {
      ops::probe_gemms(device, &*found);
      warn_of_missing(asked, *found, file);
      return;
    }
  }
  if (ops::probe_gemms(device)) {
    store(file, head + digits_of(device.traits().fp8_products) + '\n');
  }
}

void find_products(Device& device, const std::filesystem::path& folder) {
  if (device.kind() == DeviceKind::cuda) {
    find_products(device, folder, probe_key(device));
  }
}

}  // namespace fp8train
