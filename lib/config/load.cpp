#include "config/load.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>

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
bool add_file(const LoadRequest& request, GivenKeys& given, ForeignKeys& foreign,
              Problems& problems) {
  const std::string name = request.path.empty() ? "configuration" : request.path;
  const size_t source = problems.add_source(name, true);
  const std::string text = request.text ? *request.text : read_config_file(request.path);
  YamlNode root = parse_yaml(text, "", source, problems);
  const bool complete = !root.reported && root.kind == YamlNode::Kind::map;
  if (!root.reported && root.kind == YamlNode::Kind::null) {
    problems.add({source, 0, 0}, "", "the file is empty");
    return false;
  }
  root.reported = root.kind == YamlNode::Kind::null;
  foreign.translate(root, source, 0);
  given.add("", root, {source, root.line, root.column}, 0);
  return complete;
}

std::unique_ptr<ForeignKeys> foreign_keys_of(const ForeignKeysMaker& make, Problems& problems) {
  return make ? make(problems) : std::make_unique<ForeignKeys>();
}

/// The tree in which `value` is at a dotted key.
YamlNode nested(const std::string& key, const YamlNode& value) {
  const size_t dot = key.find('.');
  YamlNode map;
  map.kind = YamlNode::Kind::map;
  map.keys.push_back({key.substr(0, dot), 0, 0, {}});
  map.items.push_back(dot == std::string::npos ? value : nested(key.substr(dot + 1), value));
  return map;
}

/// "a.b=v" from the command line or the environment.
void add_assignment(const std::string& assignment, const std::string& origin, int layer,
                    GivenKeys& given, ForeignKeys& foreign, Problems& problems) {
  const size_t source = problems.add_source(fmt::format("{} {}", origin, assignment), false);
  const size_t equals = assignment.find('=');
  const std::string key = assignment.substr(0, equals);
  if (equals == std::string::npos || key.empty()) {
    problems.add({source, 0, 0}, "", "expected key=value such as optimizer.lr=1e-3");
    return;
  }
  const YamlNode value = parse_yaml(assignment.substr(equals + 1), key, source, problems);
  if (value.reported) {
    return;
  }
  constexpr std::ptrdiff_t kDeepest = 4;  // dots; no key of this or another program has more
  const bool shallow = std::count(key.begin(), key.end(), '.') <= kDeepest;
  YamlNode tree = shallow ? nested(key, value) : YamlNode{};
  if (foreign.translate(tree, source, layer)) {
    given.add("", tree, {source, 0, 0}, layer);
  } else {
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

void follow_global_batch(TrainingSettings& training) {
  if (training.global_batch_size > 0) {
    training.gradient_accumulation_steps = training.global_batch_size / training.micro_batch_size;
  }
}

/// Every key that the file gives; of a key that is only read, those that it sets.
std::vector<Answer> answers_of(const GivenKeys& given, const Settings& settings) {
  Settings base;
  if (const Preset* preset = find_preset(settings.model.preset)) {
    apply_preset(*preset, base);
  }
  std::vector<Answer> answers;
  for (const Field& field : field_table()) {
    const std::string value = field.write(settings);
    const bool changed = given.find(field.key) != nullptr || value != field.write(base);
    if (!field.input_only && changed && !value.empty()) {
      answers.push_back({field.key, value});
    }
  }
  return answers;
}

}  // namespace

Settings load_settings(const LoadRequest& request) {
  Problems problems;
  GivenKeys given(problems);
  const std::unique_ptr<ForeignKeys> foreign = foreign_keys_of(request.foreign_keys, problems);
  int layer = 1;
  bool complete = true;
  if (request.text || !request.path.empty()) {
    complete = add_file(request, given, *foreign, problems);
  } else {
    problems.add_source("command line", false);
  }
  for (const std::string& assignment : split_env(request.env)) {
    add_assignment(assignment, "FP8TRAIN_SET", layer++, given, *foreign, problems);
  }
  for (const std::string& assignment : request.sets) {
    add_assignment(assignment, "--set", layer++, given, *foreign, problems);
  }
  drop_replaced_keys(given);
  foreign->finish(given);

  Settings settings;
  apply_given_preset(given, settings);
  given.read_all(settings);
  if (complete) {
    check_settings(settings, given, problems);
  }
  problems.raise();
  settings.notes.lines = foreign->notes();
  follow_global_batch(settings.training);
  return settings;
}

ReadAnswers read_answers(const std::vector<Answer>& answers) {
  Problems problems;
  const size_t nobodys = problems.add_source("", false);
  GivenKeys given(problems);
  for (const Answer& answer : answers) {
    const size_t source = problems.add_source(answer.key, false);
    const YamlNode node = parse_yaml(answer.value, answer.key, source, problems);
    given.add(answer.key, node, {source, 0, 0}, 1);
  }
  ReadAnswers result;
  apply_given_preset(given, result.settings);
  given.read_all(result.settings);
  check_settings(result.settings, given, problems, Extent::begun);
  follow_global_batch(result.settings.training);
  for (const auto& [place, key, text] : problems.all()) {
    const std::string owner = place.source == nobodys ? "" : answers[place.source - 1].key;
    const bool own = key == owner || key.empty();
    result.objections.push_back({owner, own ? text : fmt::format("{}: {}", key, text)});
  }
  return result;
}

std::vector<Answer> answers_in_file(const std::string& path, const ForeignKeysMaker& foreign_keys) {
  LoadRequest request;
  request.path = path;
  Problems problems;
  GivenKeys given(problems);
  const std::unique_ptr<ForeignKeys> foreign = foreign_keys_of(foreign_keys, problems);
  add_file(request, given, *foreign, problems);
  foreign->finish(given);
  Settings settings;
  apply_given_preset(given, settings);
  given.read_all(settings);
  check_settings(settings, given, problems, Extent::begun);
  problems.raise();
  return answers_of(given, settings);
}

}  // namespace fp8train
