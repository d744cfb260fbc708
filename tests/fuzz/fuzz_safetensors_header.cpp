// The input is a safetensors file's header followed by its data; the first two bytes say how long
// the header is. Whatever is accepted must keep the promises of the header: tensors in order,
// without hole or overlap, each as large as its shape, up to the end.

#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "io/safetensors/safetensors.h"
#include "plain_message.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) {
    return 0;
  }
  const size_t announced = data[0] + 256U * data[1];
  const std::string_view rest(reinterpret_cast<const char*>(data) + 2, size - 2);
  const std::string_view json = rest.substr(0, announced);
  const uint64_t data_bytes = rest.size() - json.size();
  try {
    const auto header = fp8train::parse_safetensors_header(json, data_bytes, "input");
    uint64_t position = 0;
    for (const fp8train::SafetensorsEntry& entry : header.entries) {
      if (entry.begin != position || entry.end < entry.begin || entry.count() < 0) {
        std::abort();
      }
      position = entry.end;
    }
    if (position != data_bytes) {
      std::abort();
    }
  } catch (const fp8train::CheckpointError& error) {
    require_plain(error);
  }
  return 0;
}
