#include "config/load.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/key_error.h"
#include "base/text.h"
#include "base/written_path.h"
#include "config/dialects/dialects.h"
#include "config/fields/check_context.h"
#include "config/fields/scalar.h"
#include "config/model_folder.h"
#include "config/presets.h"
#include "config/yaml/given_keys.h"
#include "config/yaml/yaml_tree.h"

namespace fp8train {
namespace {

/// The text of a file, at most one byte more than parse_yaml takes. Throws ConfigError where it
/// cannot be read.
std::string read_config_file(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    throw ConfigError(path + ": is a folder, not a configuration file");
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

/// The file that `name`, a value in the file `from`, means: below the working directory, or else
/// next to `from`.
std::string named_file(const std::string& name, const std::string& from) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (fs::path(name).is_absolute() || fs::exists(name, error)) {
    return name;
  }
  return (fs::path(from).parent_path() / name).lexically_normal().string();
}

/// Whether it has the key that transformers writes into every config.json.
bool is_config_of_model(const YamlNode& root) {
  return std::any_of(root.keys.begin(), root.keys.end(), [](const YamlKey& key) {
    return key.text == "model_type" || key.text == "architectures";
  });
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

void follow_global_batch(Settings& settings) {
  const int64_t sequences = settings.training.global_batch_size;
  if (sequences > 0) {
    settings.step.gradient_accumulation_steps = sequences / settings.step.micro_batch_size;
  }
}

/// Sets keys that nobody gave by the folder of model.from, and notes that.
void follow_model_folder(GivenKeys& given, Settings& settings) {
  const std::string& folder = settings.model.from;
  if (folder.empty()) {
    return;
  }
  DataSettings& data = settings.data;
  if (const std::string usual = usual_tokenizer(settings);
      given.find("data.tokenizer") == nullptr && usual != data.tokenizer) {
    data.tokenizer = usual;
    given.note(fmt::format("data.tokenizer is not given: the tokenizer of model.from ({}) is used",
                           usual));
  }
  if (const int64_t usual = usual_seq_length(settings);
      given.find("data.seq_length") == nullptr && usual < settings.step.seq_length) {
    settings.step.seq_length = usual;
    given.note(fmt::format(
        "data.seq_length is not given: the context length of model.from ({}) is used", usual));
  }
  if (const double usual = usual_rate(settings);
      given.find("optimizer.lr") == nullptr && usual != settings.optimizer.lr) {
    settings.optimizer.lr = usual;
    settings.notes.default_warmup = given.find("scheduler.warmup_steps") == nullptr;
    if (settings.notes.default_warmup) {
      settings.scheduler.warmup_steps = usual_warmup(settings);
    }
    const int64_t warmup = settings.scheduler.warmup_steps;
    given.note(
        fmt::format("optimizer.lr is not given: {}{} is used for the model of model.from", usual,
                    warmup > 0 ? fmt::format(", after {} of warm-up,", counted(warmup, "step"))
                    : settings.notes.default_warmup ? ", after a warm-up over 3 % of the steps,"
                                                    : " without warm-up (scheduler.warmup_steps)"));
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

/// Sources and the settings that they make, for all ways to load.
class Loading {
 public:
  Loading() : given(problems), foreign(problems) {}

  /// Files, environment and command line; of keys that exclude each other one is left.
  void add_sources(const LoadRequest& request) {
    add_files(request);
    layer_ = std::max(layer_, 1);
    for (std::string& assignment : split(request.env, ';')) {
      assignment.erase(0, std::min(assignment.find_first_not_of(" \t\n"), assignment.size()));
      if (!assignment.empty()) {
        add_assignment(assignment, "FP8TRAIN_SET");
      }
    }
    for (const std::string& assignment : request.sets) {
      add_assignment(assignment, "--set");
    }
    foreign.settle(given);
    replace_contradicted(given, problems);
    foreign.finish(given);
    replace_meaningless(given, problems);
  }

  /// All that was given, over the preset. `follows_folder`: model.from decides what nobody gave.
  void read_values(bool follows_folder) {
    apply_given_preset(given, settings);
    given.read_all(settings);
    if (follows_folder) {
      follow_model_folder(given, settings);
    }
    PlanRequest& precision = settings.precision;
    if (!precision.layers_file.empty()) {
      precision.file_layers = read_precision_file(
          precision.layers_file, read_config_file(precision.layers_file), problems);
    }
  }

  std::vector<std::string> notes() const {
    std::vector<std::string> lines = foreign.notes();
    lines.insert(lines.end(), given.notes().begin(), given.notes().end());
    return lines;
  }

  Problems problems;
  GivenKeys given;
  Dialects foreign;
  Settings settings;
  /// Every file was read to its end: no key is missing for another reason than that nobody gave it.
  bool complete = true;

 private:
  void add_text(const std::string& name, const std::string& text);
  void add_file(const std::string& name, const std::string& text);
  void add_files(const LoadRequest& request);
  void add_assignment(const std::string& assignment, const char* origin);

  int layer_ = 0;  // of the source that comes next
};

void Loading::add_text(const std::string& name, const std::string& text) {
  const size_t source = problems.add_source(name, true);
  if (is_toml(text)) {
    complete = false;
    problems.add({source, 0, 0}, "",
                 "this is TOML or Python, which is not read; write it in YAML: `steps = 10` below "
                 "`[training]` is `training: {max_steps: 10}`");
    return;
  }
  YamlNode root = parse_yaml(json_as_yaml(text), "", source, problems);
  complete = complete && !root.reported && root.kind == YamlNode::Kind::map;
  if (!root.reported && root.kind == YamlNode::Kind::null) {
    problems.add({source, 0, 0}, "", "the file is empty");
    return;
  }
  root.reported = root.kind == YamlNode::Kind::null;
  std::optional<std::string> refusal = refusal_of_other_trainer(root);
  if (!refusal && is_config_of_model(root)) {
    refusal =
        "this is a model's config.json, not the configuration of a run; name its folder with "
        "model.from";
  }
  if (refusal) {
    complete = false;
    problems.add({source, 0, 0}, "", *refusal);
    return;
  }
  foreign.translate(root, source, layer_);
  given.add("", root, {source, root.line, root.column}, layer_);
}

/// A file and the one that it names, if any, in a layer of their own.
void Loading::add_file(const std::string& name, const std::string& text) {
  add_text(name, text);
  if (const auto included = foreign.take_included()) {
    const WrittenPath written = written_path(included->path);
    const std::string path = named_file(written.path, name);
    try {
      if (!written.problem.empty()) {
        throw ConfigError(fmt::format("{}: {}", included->path, written.problem));
      }
      add_text(path, read_config_file(path));
    } catch (const ConfigError& error) {
      complete = false;
      problems.add(included->mark, "", error.what());
    }
    foreign.take_included();  // it is not a file of a program that names others
  }
  ++layer_;
}

void Loading::add_files(const LoadRequest& request) {
  if (!request.text && request.path.empty()) {
    problems.add_source("command line", false);
    return;
  }
  const std::string name = request.path.empty() ? "configuration" : request.path;
  add_file(name, request.text ? *request.text : read_config_file(name));
  if (!request.output_dir.empty()) {
    add_assignment("output_dir=" + yaml_text(request.output_dir), "the folder");
  }
  for (const std::string& path : request.further_paths) {
    add_file(path, read_config_file(path));
  }
}

/// "a.b=v" from the command line or the environment, in a layer of its own.
void Loading::add_assignment(const std::string& assignment, const char* origin) {
  const int layer = layer_++;
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
  if (value.kind == YamlNode::Kind::null && is_section(key) && find_field(key) == nullptr) {
    given.remove_section(key, {source, 0, 0});
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

/// Reads files that may say little; what they say must be right.
void read_part(const LoadRequest& request, Loading& part) {
  part.add_sources(request);
  part.read_values(false);
  check_fields(part.settings, part.given, Extent::begun);
  part.problems.raise();
}

}  // namespace

void check_assignments(const std::string& assignments) {
  Loading part;
  part.add_sources({.env = assignments});
  Settings any;  // of another source of the run: those in which a key has a meaning
  for (const auto& [position, key] : part.given.all()) {
    for (const RopeType type :
         {RopeType::linear, RopeType::dynamic, RopeType::llama3, RopeType::yarn}) {
      if (key.field->applies && !key.field->applies(any)) {
        any.model.config.rope_scaling = default_rope_scaling(type);
      }
    }
    key.field->read(any, FieldValue(key.node, key.spelled, key.mark, part.problems));
  }
  try {
    check_names(any.precision);
  } catch (const KeyError& error) {
    part.given.complain(error.keys().front(), error.what());
  }
  part.problems.raise();
}

Settings load_settings(const LoadRequest& request) {
  Loading run;
  run.add_sources(request);
  run.read_values(true);
  if (run.complete) {
    check_fields(run.settings, run.given, request.is_estimate ? Extent::estimated : Extent::whole);
  }
  run.problems.raise();
  Notes& notes = run.settings.notes;
  notes = {run.notes(), run.foreign.processes(), notes.default_warmup, run.given.locations()};
  follow_global_batch(run.settings);
  return std::move(run.settings);
}

void add_location(Error& error, const Settings& settings) {
  const auto* const keyed = dynamic_cast<const HasKeys*>(&error);
  const auto& locations = settings.notes.locations;
  const auto found = keyed == nullptr ? locations.end() : locations.find(keyed->keys().front());
  // A part of the run may have put it there already.
  if (found != locations.end() && !std::string_view(error.what()).starts_with(found->second)) {
    prepend(error, found->second);
  }
}

ReadAnswers read_answers(const std::vector<Answer>& answers) {
  Loading draft;
  const size_t nobodys = draft.problems.add_source("", false);
  for (const Answer& answer : answers) {
    const size_t source = draft.problems.add_source(answer.key, false);
    const YamlNode node = parse_yaml(answer.value, answer.key, source, draft.problems);
    draft.given.add(answer.key, node, {source, 0, 0}, 1);
  }
  draft.read_values(true);
  check_fields(draft.settings, draft.given, Extent::begun);
  follow_global_batch(draft.settings);
  ReadAnswers result = {std::move(draft.settings), {}};
  for (const auto& [mark, key, text] : draft.problems.all()) {
    const std::string owner = mark.source == nobodys ? "" : answers[mark.source - 1].key;
    const bool own = key == owner || key.empty();
    result.objections.push_back({owner, own ? text : with_key(key, text)});
  }
  return result;
}

std::vector<Answer> answers_in_file(const std::string& path) {
  Loading part;
  read_part({.path = path}, part);
  return answers_of(part.given, part.settings);
}

Conversion convert_file(const std::string& path, const std::string& base) {
  LoadRequest request;
  request.path = base.empty() ? path : base;
  if (!base.empty()) {
    request.further_paths = {path};
  }
  Loading part;
  read_part(request, part);
  Conversion conversion = {std::move(part.settings), {}, part.notes(), part.foreign.processes()};
  for (const auto& [position, key] : part.given.all()) {
    conversion.keys.push_back(key.field->key);
  }
  return conversion;
}

}  // namespace fp8train
