#pragma once
// The keys that a user has written: the sources merged by precedence, before any value is read.

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "config/fields/field_table.h"
#include "config/yaml/problems.h"
#include "config/yaml/yaml_tree.h"

namespace fp8train {

/// A key that a source gives.
struct GivenKey {
  const Field* field = nullptr;
  std::string spelled;  ///< the key as written: an alias or the field's own
  YamlNode node;
  SourceMark mark;  ///< position of the key
  int layer = 0;
  bool usable = true;  ///< its value could be read
};

/// The keys that the sources give, with their positions.
class GivenKeys {
 public:
  explicit GivenKeys(Problems& problems) : problems_(problems) {}

  /// Adds the keys of a source. `path` is the dotted key of `node` (empty: the root). Values of a
  /// higher `layer` replace earlier ones, which is noted between two files; the same field twice in
  /// one layer is a problem, unless two files say the same. `spelled`: the key as the user wrote
  /// it, where that is another one.
  void add(const std::string& path, const YamlNode& node, SourceMark mark, int layer,
           const std::string& spelled = "");

  /// Returns null if no source gives the key.
  const GivenKey* find(std::string_view field_key) const;
  void erase(std::string_view field_key);
  /// Removes every key of a section, because of an empty value at `mark`, and notes it.
  void remove_section(const std::string& section, SourceMark mark);

  /// Notes on replacements that nobody would expect, one line each.
  const std::vector<std::string>& notes() const { return notes_; }
  void note(std::string line) { notes_.push_back(std::move(line)); }

  /// Returns the given keys in the order of the table of fields.
  const std::map<size_t, GivenKey>& all() const { return keys_; }

  /// Reads every value into `settings` and notes which ones were usable.
  void read_all(Settings& settings);

  /// Adds a problem at the key as it was written; where nobody wrote it, at its section.
  void complain(const std::string& key, const std::string& text) const;
  /// Adds a problem of the key at another location.
  void complain_at(SourceMark mark, const std::string& key, const std::string& text) const;

  /// Returns the text with which messages about each key begin: "run.yaml:7:3: ".
  std::map<std::string, std::string> locations() const;

  /// Whether an unknown key may be a misspelling of `key`: it is in the same section, or it is
  /// a section itself.
  bool may_be_misspelled(const std::string& key) const;

 private:
  void add_section(const std::string& path, const YamlNode& node, SourceMark mark, int layer);
  void add_value(const Field& field, const std::string& spelled, const YamlNode& node,
                 SourceMark mark, int layer);
  void add_unknown(const std::string& path, const YamlNode& node, SourceMark mark);

  Problems& problems_;
  std::vector<std::string> notes_;
  std::map<size_t, GivenKey> keys_;  // by position in the table
  std::map<std::string, SourceMark> sections_;
  std::set<std::string> sections_with_unknown_;
  bool unknown_section_ = false;
};

// Replacement of keys: a key that excludes others replaces those of earlier files and settings.

/// Whether the key is one of the shape that model.preset and model.from have.
bool describes_shape(const std::string& key);

/// Removes each key that one of a higher layer contradicts, and notes it:
/// - max_steps, max_tokens and max_epochs, gradient_accumulation_steps and global_batch_size,
///   data.val and data.val_fraction (but for val_fraction: 0), parallelism.schedule and
///   schedule_file, model.preset and model.from exclude each other;
/// - model.from has the shape, so that it replaces the fields of `model` that describe one;
/// - mixed_precision replaces precision.plan, and, other than fp8, the section fp8 and
///   precision.schedule;
/// - precision.plan replaces the keys of the section fp8 that select a plan, and, where it scales
///   nothing, the whole section and precision.schedule; a key that selects a plan there replaces
///   precision.plan.
void replace_contradicted(GivenKeys& given, const Problems& problems);

/// Removes and notes the options of lower layers that have no meaning for the plan selected. All
/// that selects one must have been given.
void replace_meaningless(GivenKeys& given, const Problems& problems);

}  // namespace fp8train
