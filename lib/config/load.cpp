#include "config/load.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "base/error.h"
#include "config/cross_checks.h"
#include "config/given_keys.h"
#include "config/presets.h"

namespace fp8train {
namespace {

/// At most one byte more than is allowed, so that the size check sees an oversized file.
std::string read_config_file(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    throw ConfigError(fmt::format("{}: is a folder, not a configuration file", path));
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw ConfigError(
        fmt::format("{}: cannot open the configuration file: {}", path, std::strerror(errno)));
  }
  std::string text(kMaxYamlBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (file.bad()) {
    throw ConfigError(fmt::format("{}: cannot read the configuration file", path));
  }
  return text;
}

/// False when the file could not be read to its end, so that a key may be missing for that reason.
bool add_file(const LoadRequest& request, GivenKeys& given, Problems& problems) {
  const std::string name = request.path.empty() ? "configuration" : request.path;
  const size_t source = problems.add_source(name, true);
  const std::string text = request.text ? *request.text : read_config_file(request.path);
  YamlNode root = parse_yaml(text, "", source, problems);
  const bool complete = !root.reported;
  if (complete && root.kind == YamlNode::Kind::null) {
    problems.add({source, 0, 0}, "", "the file is empty");
    return false;
  }
  root.reported = root.kind == YamlNode::Kind::null;
  given.add("", root, {source, root.line, root.column}, 0);
  return complete;
}

/// "a.b=v" from the command line or the environment.
void add_assignment(const std::string& assignment, const std::string& origin, int layer,
                    GivenKeys& given, Problems& problems) {
  const size_t source = problems.add_source(fmt::format("{} {}", origin, assignment), false);
  const size_t equals = assignment.find('=');
  const std::string key = assignment.substr(0, equals);
  if (equals == std::string::npos || key.empty()) {
    problems.add({source, 0, 0}, "", "expected key=value such as optimizer.lr=1e-3");
    return;
  }
  const YamlNode value = parse_yaml(assignment.substr(equals + 1), key, source, problems);
  if (!value.reported) {
    given.add(key, value, {source, 0, 0}, layer);
  }
}

std::vector<std::string> split_env(const std::string& env) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (begin <= env.size()) {
    const size_t end = std::min(env.find(';', begin), env.size());
    std::string part = env.substr(begin, end - begin);
    part.erase(0, std::min(part.find_first_not_of(" \t\n"), part.size()));
    if (!part.empty()) {
      parts.push_back(std::move(part));
    }
    begin = end + 1;
  }
  return parts;
}

Place place_of_value(const GivenKey& given) {
  const bool has_own = given.node.line > 0;
  return {given.place.source, has_own ? given.node.line : given.place.line,
          has_own ? given.node.column : given.place.column};
}

void read_field(const GivenKey& given, Settings& settings, Problems& problems) {
  given.field->read(settings,
                    FieldValue(given.node, given.spelled, place_of_value(given), problems));
}

/// The preset's values go below everything that was written. A bad name is reported when the key
/// itself is read.
void apply_given_preset(const GivenKeys& given, Settings& settings) {
  const GivenKey* key = given.find("model.preset");
  if (key == nullptr) {
    return;
  }
  Problems reported_later;
  reported_later.add_source("", false);
  Settings probe;
  key->field->read(probe, FieldValue(key->node, key->spelled, {}, reported_later));
  if (const Preset* preset = find_preset(probe.model.preset)) {
    apply_preset(*preset, settings);
  }
}

}  // namespace

Settings load_settings(const LoadRequest& request) {
  Problems problems;
  GivenKeys given(problems);
  int layer = 1;
  bool complete = true;
  if (request.text || !request.path.empty()) {
    complete = add_file(request, given, problems);
  } else {
    problems.add_source("command line", false);
  }
  for (const std::string& assignment : split_env(request.env)) {
    add_assignment(assignment, "FP8TRAIN_SET", layer++, given, problems);
  }
  for (const std::string& assignment : request.sets) {
    add_assignment(assignment, "--set", layer++, given, problems);
  }
  drop_replaced_keys(given);

  Settings settings;
  apply_given_preset(given, settings);
  for (const auto& [position, key] : given.all()) {
    read_field(key, settings, problems);
  }
  if (complete) {
    check_settings(settings, given, problems);
  }
  problems.raise();
  const TrainingSettings& training = settings.training;
  if (training.global_batch_size > 0) {
    settings.training.gradient_accumulation_steps =
        training.global_batch_size / training.micro_batch_size;
  }
  return settings;
}

}  // namespace fp8train
