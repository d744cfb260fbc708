// The configuration that the options of a command describe.

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "base/log.h"
#include "base/screen.h"
#include "base/text.h"
#include "cli.h"
#include "config/load.h"
#include "io/checkpoint/run_directory.h"

namespace fp8train {

bool is_assignment(const std::string& text) {
  const size_t equals = text.find('=');
  const std::string key = text.substr(0, equals);
  return equals != std::string::npos && !key.empty() && key.find('/') == std::string::npos;
}

namespace {

/// Takes the configuration of a run whose folder is named instead of a file. The folder may have
/// been moved. Throws ConfigError for other folders.
void read_run(LoadRequest& request) {
  std::error_code unseen;
  if (request.path.empty() || !std::filesystem::is_directory(request.path, unseen)) {
    return;
  }
  const RunDirectory run{request.path};
  if (!std::filesystem::is_regular_file(run.config(), unseen)) {
    throw ConfigError(
        fmt::format("{}: is a folder without the configuration of a run ({}); name a YAML file",
                    request.path, run.config().filename().string()));
  }
  request.output_dir = request.path;
  request.path = run.config().string();
}

/// The files and the changes of keys that the options name.
LoadRequest request_of(const CommonOptions& options) {
  LoadRequest request;
  request.path = options.config;
  request.sets = options.sets;
  for (const std::string& text : options.positionals) {
    if (is_assignment(text)) {
      request.sets.push_back(text);
      continue;
    }
    const WrittenPath written = written_path(text);
    if (!written.problem.empty()) {
      throw ConfigError(written.problem);
    }
    if (request.path.empty()) {
      request.path = written.path;
    } else {
      request.further_paths.push_back(written.path);
    }
  }
  for (const auto& [key, value] : options.shortcuts) {
    if (has_control(value)) {  // YAML would make a line feed a space
      throw ConfigError(fmt::format("{}: the value has a control character", key));
    }
    if (!value.empty()) {
      request.sets.push_back(fmt::format("{}={}", key, value));
    }
  }
  return request;
}

}  // namespace

std::string run_command(const CommonOptions& options, int64_t ranks) {
  const LoadRequest request = request_of(options);
  std::string command = launcher_of(ranks) + "fp8train";
  const auto add = [&](const std::string& word) { command += " " + shell_word(word); };
  if (request.path.empty() && request.sets.empty()) {
    add("train");
  }
  if (!request.path.empty()) {
    add(request.path);
  }
  std::ranges::for_each(request.further_paths, add);
  std::ranges::for_each(request.sets, add);
  return command;
}

Settings load(const CommonOptions& options, bool is_estimate) {
  set_log_level(options.quiet         ? LogLevel::warning
                : options.verbose > 0 ? LogLevel::debug
                                      : LogLevel::info);
  LoadRequest request = request_of(options);
  read_run(request);
  request.is_estimate = is_estimate;
  if (const char* env = std::getenv("FP8TRAIN_SET")) {
    request.env = env;
  }
  if (request.path.empty() && request.sets.empty() && request.env.empty()) {
    throw ConfigError(
        "no configuration: give a YAML file or --set a.b=v; `fp8train config` writes a file");
  }
  return load_settings(request);
}

}  // namespace fp8train
