#pragma once
// Settings as text: YAML that loads back, explanations, and the documentation page. All of it comes
// from the field table.

#include <string>
#include <string_view>
#include <vector>

#include "base/screen.h"
#include "config/settings.h"

namespace fp8train {

struct Field;

/// Returns YAML, in the order of the table, that load_settings turns into equal settings.
/// `resolved`: every setting, those that are not set as comments; else only what differs from the
/// defaults (of the preset, when there is one). `comments`: each line with its documentation, next
/// to it or above it.
std::string show_settings(const Settings& settings, bool resolved, bool comments = false,
                          size_t columns = kColumns);

/// Returns the settings that differ from the defaults, and the keys in `also`, as a file for
/// people: each line with its documentation, next to it or above it.
std::string commented_settings(const Settings& settings, const std::vector<std::string>& also,
                               size_t columns = kColumns);

/// Returns the default of a key: a value, "the plan's (te-delayed: 1024)" or "not set".
std::string default_text(const Field& field);

/// Returns the documentation, type, default and other spellings of a key and the plans or presets
/// that it takes, or the keys of a section. Throws ConfigError with a suggestion when there is no
/// such key.
std::string explain_key(const std::string& key, size_t columns = kColumns);

/// Returns every dotted key, in the order of the table.
std::vector<std::string> config_keys();

/// Returns the names and descriptions of all presets, one per line.
std::string presets_text(size_t columns = kColumns);

/// Returns the text of docs/use/configuration.md.
std::string configuration_page();

/// Returns "optimizer.lr: 0.001 -> 0.0005" for each key whose value differs between two resolved
/// configurations (show_settings), in the order of `after`, then those that only `before` has. Left
/// out: keys that change nothing about the training (output_dir, threads, logging, sample,
/// checkpoint and job), unless `all` are compared. Text that is no YAML counts as empty.
std::vector<std::string> changed_settings(std::string_view before, std::string_view after,
                                          bool all = false);

}  // namespace fp8train
