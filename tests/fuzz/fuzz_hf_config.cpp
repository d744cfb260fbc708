// Any bytes as config.json of a model folder: a configuration, or a CheckpointError or ConfigError
// with a message of its own.

#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "io/hf_config.h"
#include "plain_message.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    fp8train::parse_hf_config({reinterpret_cast<const char*>(data), size}, "input");
  } catch (const fp8train::Error& error) {
    require_plain(error);
  }
  return 0;
}
