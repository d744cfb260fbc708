#include "dialects/dialects.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/nearest.h"
#include "config/yaml/given_keys.h"
#include "dialects/other_trainers.h"
#include "dialects/pass.h"
#include "dialects/precision_file.h"

namespace fp8train {
namespace dialects {

using Kind = YamlNode::Kind;

std::span<const Pass::Program> Pass::programs() {
  static constexpr Program kPrograms[] = {
      {&Pass::recognize_accelerate, &Pass::is_accelerate, &Pass::read_accelerate,
       &Pass::launch_sections},
      {&Pass::recognize_deepspeed, &Pass::is_deepspeed, &Pass::deepspeed, &Pass::finish_deepspeed},
      {nullptr, &Pass::is_megatron, &Pass::read_megatron, &Pass::finish_blocks},
  };
  return kPrograms;
}

bool Pass::run() {
  const std::span<const Program> all = programs();
  for (const Program& program : all) {
    if (program.recognize_file != nullptr) {
      (this->*program.recognize_file)();
    }
  }
  YamlNode stored = root_;
  stored.keys.clear();
  stored.items.clear();
  for (size_t i = 0; i < root_.items.size(); ++i) {
    const Entry entry = {root_.keys[i].text, root_.keys[i].text, root_.keys[i], root_.items[i]};
    const auto program = std::find_if(
        all.begin(), all.end(), [&](const Program& one) { return (this->*one.recognizes)(entry); });
    if (program != all.end()) {
      (this->*program->read)(entry);
    } else if (entry.name == "fp8" && entry.node.kind == Kind::map) {
      keep(stored, entry.key, own_section(entry.node));
    } else {
      keep(stored, entry.key, entry.node);
    }
  }
  for (const Program& program : all) {
    if (program.finish != nullptr) {
      (this->*program.finish)();
    }
  }
  tell_without_meaning();
  if (changed_) {
    root_ = std::move(stored);
    insert_pending();
    tell_defaults();
  }
  return changed_;
}

/// `fp8` with its switch and Megatron's names taken out.
YamlNode Pass::own_section(const YamlNode& section) {
  YamlNode stored = section;
  stored.keys.clear();
  stored.items.clear();
  for (size_t i = 0; i < section.items.size(); ++i) {
    const YamlKey& key = section.keys[i];
    const Entry entry = {key.text, "fp8." + key.text, key, section.items[i]};
    if (key.text == "enabled") {
      changed_ = true;
      if (flag(entry)) {
        enabled_ = entry.node;
        enabled_key_ = key;
      }
    } else if (is_megatron_key(key.text)) {
      megatron(entry);
    } else {
      keep(stored, key, entry.node);
    }
  }
  return stored;
}

}  // namespace dialects

namespace {

class Dialects : public ForeignKeys {
 public:
  explicit Dialects(Problems& problems) : problems_(problems) {}

  bool translate(YamlNode& root, size_t source, int layer) override;
  std::optional<std::string> refusal(const YamlNode& root) const override {
    return refusal_of_other_trainer(root);
  }
  std::optional<Included> take_included() override {
    return std::exchange(included_, std::nullopt);
  }
  std::vector<LayerRequest> layers_in_file(const std::string& path,
                                           const std::string& text) override {
    return read_precision_file(path, text, problems_);
  }
  void settle(GivenKeys& given) override;
  /// Compares the keys that switch FP8 on or off with mixed_precision.
  void finish(GivenKeys& given) override;
  /// "fp8_config.amax_history_length read as fp8.amax_history_len", one line for each key.
  std::vector<std::string> notes() const override { return notes_; }
  int64_t processes() const override { return processes_; }

 private:
  /// fp8.enabled, or a key that means the same; or no key at all.
  struct Switch {
    bool on = true;
    std::string spelled;
    SourceMark mark;
    int layer = 0;
  };

  /// fp16.enabled or bf16.enabled of a file of DeepSpeed.
  struct Half {
    dialects::Pass::HalfPrecision on;
    SourceMark mark;
    int layer = 0;
  };

  struct Default {
    dialects::Pass::BackendDefault value;
    SourceMark mark;
    int layer = 0;
  };

  void assume_misspelled_precision(GivenKeys& given) const;
  std::string asks_for_fp8(const GivenKeys& given) const;
  void settle_half(const Half& half, GivenKeys& given);
  void settle_default(const Default& file, GivenKeys& given);

  Problems& problems_;
  std::vector<std::string> notes_;
  std::optional<Switch> switch_;
  std::vector<Half> halves_;
  std::vector<Default> defaults_;
  std::optional<Switch> fp32_;  // a file of DeepSpeed that switches nothing else on
  std::optional<Included> included_;
  int64_t processes_ = 0;
};

bool Dialects::translate(YamlNode& root, size_t source, int layer) {
  if (root.kind != YamlNode::Kind::map) {
    return false;
  }
  dialects::Pass pass(root, source, problems_, notes_);
  const bool changed = pass.run();
  if (const YamlNode* enabled = pass.enabled()) {
    const YamlKey& key = pass.enabled_key();
    switch_ = {dialects::flag_in(*enabled).value_or(true),
               "fp8.enabled",
               {source, key.line, key.column},
               layer};
  } else if (const YamlKey* key = pass.implied_key()) {
    switch_ = {true, key->text, {source, key->line, key->column}, layer};
  }
  if (const YamlNode* file = pass.included()) {
    included_ = Included{file->text, {source, file->line, file->column}};
  }
  if (const auto& half = pass.half_precision_on()) {
    halves_.push_back({*half, {source, half->key.line, half->key.column}, layer});
  }
  for (const auto& value : pass.defaults()) {
    defaults_.push_back({value, {source, value.at.line, value.at.column}, layer});
  }
  if (pass.trains_in_fp32()) {
    fp32_ = Switch{false, "", {source, root.line, root.column}, layer};
  }
  processes_ = pass.processes() > 0 ? pass.processes() : processes_;
  return changed;
}

/// A misspelled mixed_precision is one error, and not one more for each key of fp8.
void Dialects::assume_misspelled_precision(GivenKeys& given) const {
  const std::string meant = "mixed_precision";
  if (given.find(meant) != nullptr || given.find("precision.plan") != nullptr) {
    return;
  }
  const auto& problems = problems_.all();
  const auto& keys = given.all();
  const bool misspelled = std::any_of(problems.begin(), problems.end(), [&](const auto& problem) {
    return nearest_name(problem.key, {meant}) == meant;
  });
  const bool has_options = std::any_of(keys.begin(), keys.end(), [](const auto& entry) {
    return entry.second.field->key.starts_with("fp8.");
  });
  if (misspelled && has_options) {
    given.add(meant, dialects::scalar("fp8", YamlNode{}), {}, 0);
  }
}

/// Returns the key by which any source asks for FP8; empty if none does.
std::string Dialects::asks_for_fp8(const GivenKeys& given) const {
  const GivenKey* precision = given.find("mixed_precision");
  if (precision != nullptr && simplified(precision->node.text) == "fp8") {
    return precision->spelled == "mixed_precision" ? "mixed_precision: fp8" : precision->spelled;
  }
  if (switch_ && switch_->on) {
    return switch_->spelled;
  }
  const GivenKey* plan = given.find("precision.plan");
  if (plan == nullptr || (precision != nullptr && precision->layer > plan->layer)) {
    return "";
  }
  const std::string& name = plan->node.text;
  const std::vector<std::string> names = plan_names();
  const bool known = std::ranges::find(names, name) != names.end();
  return known && has_scaled_gemms(plan_named(name)) ? "precision.plan: " + name : "";
}

/// DeepSpeed has no key for FP8: its half precision is the type under FP8, which another file
/// switches on (Accelerate, utils/dataclasses.py: set_mixed_precision enables bf16 for fp8) or
/// MS-AMP's section in the same one.
void Dialects::settle(GivenKeys& given) {
  for (const Half& half : halves_) {
    settle_half(half, given);
  }
  for (const Default& file : defaults_) {
    settle_default(file, given);
  }
}

/// A default belongs to the backend that its file names; a key of ours, another backend, or a plan
/// of another family leaves it out.
void Dialects::settle_default(const Default& file, GivenKeys& given) {
  const auto& [backend, key, value, reason, at] = file.value;
  const GivenKey* named = given.find("fp8.backend");
  const GivenKey* plan = given.find("precision.plan");
  const GivenKey* precision = given.find("mixed_precision");
  if (named != nullptr && named->layer == file.layer && named->node.text == backend &&
      (plan == nullptr || plan->node.text.starts_with(std::string(backend) + "-")) &&
      (precision == nullptr || simplified(precision->node.text) == "fp8") &&
      given.find(key) == nullptr) {
    given.add(std::string(key), dialects::scalar(std::string(value), YamlNode{}), file.mark,
              file.layer);
    notes_.push_back(fmt::format("fp8_config without {} read as {}: {} ({})",
                                 key.substr(key.find('.') + 1), key, value, reason));
  }
}

void Dialects::settle_half(const Half& half, GivenKeys& given) {
  const auto& [type, spelled, key] = half.on;
  const GivenKey* precision = given.find("mixed_precision");
  if (const std::string fp8 = asks_for_fp8(given); !fp8.empty()) {
    notes_.push_back(
        fmt::format("{}: {} is the type under FP8, which {} asks for", spelled, type, fp8));
  } else if (precision == nullptr || precision->layer < half.layer) {
    notes_.push_back(fmt::format("{}: true read as mixed_precision: {}", spelled, type));
    given.add("mixed_precision", dialects::scalar(type, YamlNode{}), half.mark, half.layer,
              spelled);
  } else if (simplified(precision->node.text) == type) {
    notes_.push_back(fmt::format("{} says what mixed_precision: {} says", spelled, type));
  } else if (precision->layer == half.layer) {
    problems_.add(
        half.mark, spelled,
        fmt::format("says {}, but {} at {} says {}; keep one of them", type, precision->spelled,
                    problems_.where(precision->mark), dialects::text_of(precision->node)));
  } else {
    notes_.push_back(fmt::format("{} ({}) replaces {} ({})", precision->spelled,
                                 problems_.where(precision->mark), spelled,
                                 problems_.where(half.mark)));
  }
}

void Dialects::finish(GivenKeys& given) {
  if (fp32_ && given.find("mixed_precision") == nullptr &&
      given.find("precision.plan") == nullptr && !switch_) {
    given.add("mixed_precision", dialects::scalar("no", YamlNode{}), fp32_->mark, fp32_->layer,
              "mixed_precision");
    notes_.emplace_back(
        "neither fp16 nor bf16 is on, read as mixed_precision: no (DeepSpeed trains in fp32)");
  }
  if (!switch_) {
    assume_misspelled_precision(given);
    return;
  }
  const GivenKey* precision = given.find("mixed_precision");
  const GivenKey* plan = given.find("precision.plan");
  const bool fp8 = precision != nullptr && simplified(precision->node.text) == "fp8";
  const auto complain = [&](const GivenKey& other) {
    problems_.add(switch_->mark, switch_->spelled,
                  fmt::format("{} conflicts with {}: {} at {}; remove one of them",
                              switch_->on ? "switches FP8 on and" : "false", other.spelled,
                              dialects::text_of(other.node), problems_.where(other.mark)));
  };
  if (!switch_->on) {
    if (fp8 || plan != nullptr) {
      complain(fp8 ? *precision : *plan);
    } else {
      notes_.push_back(switch_->spelled + ": false read as: mixed_precision is not fp8");
    }
  } else if (plan != nullptr) {
    notes_.push_back(switch_->spelled + " changes nothing: precision.plan names the plan");
  } else if (precision == nullptr) {
    given.add("mixed_precision", dialects::scalar("fp8", YamlNode{}), switch_->mark, switch_->layer,
              switch_->spelled);
    notes_.push_back(switch_->spelled + " read as mixed_precision: fp8");
  } else if (!fp8) {
    complain(*precision);
  } else {
    notes_.push_back(switch_->spelled + " says what mixed_precision: fp8 says");
  }
}

}  // namespace

std::unique_ptr<ForeignKeys> make_dialects(Problems& problems) {
  return std::make_unique<Dialects>(problems);
}

}  // namespace fp8train
