// Any bytes as a configuration: either Settings that survive being shown and loaded again, or a
// ConfigError.

#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "config/load.h"
#include "config/show.h"
#include "plain_message.h"

namespace {

void load(fp8train::LoadRequest request) {
  try {
    const fp8train::Settings settings = fp8train::load_settings(request);
    fp8train::LoadRequest again;
    again.text = fp8train::show_settings(settings, true);
    if (fp8train::load_settings(again) != settings) {
      std::abort();
    }
  } catch (const fp8train::ConfigError& error) {
    require_plain(error);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const std::string text(reinterpret_cast<const char*>(bytes), size);
  fp8train::LoadRequest file;
  file.path = "fuzz.yaml";
  file.text = text;
  load(file);

  fp8train::LoadRequest arguments;
  arguments.sets = {"model.preset=toy", "data.train=a.txt", "training.max_steps=3", text};
  arguments.env = text;
  load(arguments);
  return 0;
}
