// fp8train version: what was compiled in, and with -v what is found here.

#include <fmt/format.h>

#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json_text.h"
#include "base/machine.h"
#include "base/screen.h"
#include "base/text.h"
#include "commands.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_libraries.h"
#include "numeric/cpu_isa.h"

namespace fp8train {

/// The commit of the sources: "1a2b3c4d5e6f", with "-dirty" where files differed from it; empty
/// outside of a repository (cmake/commit.cmake).
extern const char* const kCommit;

namespace {

std::string describe_gpu() {
  try {
    const std::string obstacle = why_cuda_is_unusable();
    return obstacle.empty() ? make_device(DeviceKind::cuda)->description() : obstacle;
  } catch (const Error& error) {
    return error.what();
  }
}

/// Names and texts, the version first.
std::vector<std::pair<std::string, std::string>> version_facts(bool libraries) {
  std::vector<std::pair<std::string, std::string>> facts = {{"version", FP8TRAIN_VERSION}};
  if (*kCommit != '\0') {
    facts.emplace_back("commit", kCommit);
  }
  facts.emplace_back("compiler", FP8TRAIN_COMPILER " " __VERSION__);
  facts.emplace_back("features", FP8TRAIN_FEATURES);
  if (libraries) {
    facts.emplace_back("processor",
                       fmt::format("{}, kernels for {}", processor_name(), name_of(cpu_isa())));
    facts.emplace_back("GPU", describe_gpu());
    for (const std::string& line : describe_cuda_libraries()) {
      const size_t colon = line.find(": ");
      facts.emplace_back(line.substr(0, colon), line.substr(colon + 2));
    }
  }
  return facts;
}

void print_json(bool libraries) {
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  for (const auto& [name, text] : version_facts(libraries)) {
    object[name] = text;
  }
  object["features"] = split(FP8TRAIN_FEATURES, ' ');
  fmt::print("{}\n", json_text(object, 2));
}

}  // namespace

std::string version_number() {
  return FP8TRAIN_VERSION;
}

std::string version_text(bool libraries) {
  std::string text = "fp8train";
  for (const auto& [name, value] : version_facts(libraries)) {
    text += name == "version" ? " " + value : fmt::format("\n{}: {}", name, value);
  }
  return text;
}

void add_version(Arguments command, Action& action) {
  auto verbose = std::make_shared<bool>(false);
  auto json = std::make_shared<bool>(false);
  command.flag("-v,--verbose", *verbose, "Also the GPU, and the files of NVIDIA's libraries");
  command.flag("--json", *json, "Print a JSON object");
  command.run(action, [verbose, json] {
    *json ? print_json(*verbose) : print_fitted("{}\n", version_text(*verbose));
    return 0;
  });
}

/// with_command() makes `help ...` the option --help; this gives it its line and its own page.
void add_help(Arguments command, Action& /*action*/) {
  auto words = std::make_shared<std::string>();
  command.option("COMMAND", *words, "A command, or one and a part of it");
}

}  // namespace fp8train
