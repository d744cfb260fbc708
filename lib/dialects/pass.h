#pragma once
// One source's tree while keys of other programs are rewritten to ours. What the keys of each
// program mean is in accelerate.cpp and megatron.cpp; how they are put, reported
// and refused in pass.cpp.

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/problems.h"
#include "config/yaml_tree.h"

namespace fp8train::dialects {

/// A foreign key and the one of ours that means the same.
struct Alias {
  std::string_view name;
  std::string_view key;
  bool ignored_by_source = false;  ///< Accelerate writes it and never reads it
};

/// The alias with this name, or null.
template <class Table>
const Alias* find_alias(const Table& table, std::string_view name) {
  const auto* found = std::find_if(std::begin(table), std::end(table),
                                   [&](const Alias& alias) { return alias.name == name; });
  return found == std::end(table) ? nullptr : found;
}

template <class Table>
std::vector<std::string> names_of(const Table& table) {
  std::vector<std::string> names;
  std::transform(std::begin(table), std::end(table), std::back_inserter(names),
                 [](const Alias& alias) { return std::string(alias.name); });
  return names;
}

using Words = std::pair<std::string_view, std::string_view>;

/// The entry whose first word is `name`, or the end.
template <class Table>
auto find_in(const Table& table, std::string_view name) {
  return std::find_if(std::begin(table), std::end(table),
                      [&](const Words& entry) { return entry.first == name; });
}

/// A value on one line, for messages and comparison.
std::string text_of(const YamlNode& node);
/// Values at the place of another one.
YamlNode scalar(std::string text, const YamlNode& place);
YamlNode flags(const std::array<bool, 3>& values, const YamlNode& place);
/// True or false, or neither.
std::optional<bool> flag_in(const YamlNode& node);

class Pass {
 public:
  Pass(YamlNode& root, size_t source, Problems& problems, std::vector<std::string>& notes)
      : root_(root), source_(source), problems_(problems), notes_(notes) {}

  /// False when nothing foreign was there.
  bool run();

  /// fp8.enabled as it was written; null when it was not.
  const YamlNode* enabled() const { return enabled_ ? &*enabled_ : nullptr; }
  const YamlKey& enabled_key() const { return enabled_key_; }
  /// The top-level fp8_format, which means "train in FP8" without saying it; null without it.
  const YamlKey* implied_key() const { return implied_key_ ? &*implied_key_ : nullptr; }

 private:
  struct Entry {
    std::string name;     ///< within its section
    std::string spelled;  ///< dotted, as written
    YamlKey place;
    YamlNode node;
  };
  struct Pending {
    std::string key;  ///< ours, dotted
    Entry entry;      ///< with the value in our spelling
  };

  // dialects.cpp
  YamlNode own_section(const YamlNode& section);

  // accelerate.cpp
  static bool conflicts_with(std::string_view name);
  void note_conflict(const Entry& entry);
  void accelerate(const Entry& section);
  void accelerate_key(const Alias& alias, const Entry& entry);
  void tell_switch(const Alias& alias, const Entry& entry);
  void override_linear_precision(const Alias& alias, const Entry& entry);

  // megatron.cpp
  static bool is_megatron(std::string_view name);
  void megatron(const Entry& entry);
  void megatron_key(const Alias& alias, const Entry& entry);
  void finish_blocks();
  void tell_defaults();

  // pass.cpp
  static void keep(YamlNode& map, const YamlKey& key, YamlNode node);
  void tell(std::string line);
  void complain(const Entry& entry, const std::string& text);
  void unknown(const Entry& entry, const std::vector<std::string>& known);
  /// The value under our key, noted with a remark.
  void put(std::string_view key, const Entry& entry, YamlNode value, const char* remark = "");
  /// True, false, or neither with a problem.
  std::optional<bool> flag(const Entry& entry);
  void insert_pending();
  YamlNode& section_for(const std::string& name, const YamlKey& place);

  YamlNode& root_;
  size_t source_;
  Problems& problems_;
  std::vector<std::string>& notes_;
  bool changed_ = false;
  std::vector<Pending> pending_;
  std::vector<std::pair<const Alias*, Entry>> counts_;  // num_layers_at_..._in_bf16
  std::optional<Entry> blocks_;                         // first_last_layers_bf16
  bool keeps_blocks_ = false;
  bool gives_history_ = false;
  std::optional<YamlNode> enabled_;
  YamlKey enabled_key_;
  std::optional<YamlKey> implied_key_;
};

}  // namespace fp8train::dialects
