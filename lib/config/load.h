#pragma once
// From a YAML file, the environment and the command line to Settings. Precedence: defaults < model
// preset < files in their order < FP8TRAIN_SET < --set, a later --set winning over an earlier one.

#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "config/settings.h"

namespace fp8train {

/// The files and options from which settings are loaded.
struct LoadRequest {
  std::string path;                        ///< YAML (or JSON) file; empty: none
  std::string output_dir;                  ///< replaces that of the file at `path`; empty: none
  std::vector<std::string> further_paths;  ///< more files, each replacing what those before it say
  std::vector<std::string> sets;           ///< "a.b=v", v in YAML
  std::string env;                         ///< FP8TRAIN_SET: "a.b=v;c.d=w"
  std::optional<std::string> text;  ///< the file's content when it is already in memory; `path`
                                    ///< then only names it in messages
  bool is_estimate = false;         ///< data, and the length of the run, may be missing
};

/// Reads, validates and completes the settings of a run. Throws one ConfigError that lists every
/// problem (at most 50) on its own line, in order of their marks: "run.yaml:14:3: optimizer.lr:
/// expected a number > 0, got "3e-4x"" or "--set a.b=v: a.b: ...".
///
/// Where settings exclude each other, the one with the higher precedence replaces the other; a line
/// in Settings::notes reports that (config/yaml/given_keys.h).
Settings load_settings(const LoadRequest& request);

/// Reads the assignments of FP8TRAIN_SET alone. Throws ConfigError as load_settings does for wrong
/// syntax, unknown keys and values that a key never has, names of plans among them; whether keys
/// fit together depends on the files.
void check_assignments(const std::string& assignments);

/// Puts the location of a given key before an error of the key (base/key_error.h), as
/// load_settings does.
void add_location(Error& error, const Settings& settings);

/// Returns the result of `work`, and adds locations to the errors that it throws.
template <class Work>
auto with_locations(const Settings& settings, const Work& work) {
  try {
    return work();
  } catch (Error& error) {
    add_location(error, settings);
    throw;
  }
}

/// A key of the table and its value as YAML in one line.
struct Answer {
  std::string key;
  std::string value;
};

/// An objection to an answer. `key` is the key that it concerns, or empty.
struct Objection {
  std::string key;
  std::string text;  ///< text, which begins with the key if it is about another one
};

/// The settings that answers give while others may follow: nothing counts as missing yet.
struct ReadAnswers {
  Settings settings;
  std::vector<Objection> objections;
};
/// Reads the answers of a dialogue. Problems become objections; nothing is thrown for them.
ReadAnswers read_answers(const std::vector<Answer>& answers);

/// Returns the keys that a file gives as answers. The file may be incomplete, but all that it gives
/// must be right. Throws ConfigError as load_settings does.
std::vector<Answer> answers_in_file(const std::string& path);

/// A file of any program in the keys of this one.
struct Conversion {
  Settings settings;
  std::vector<std::string> keys;   ///< keys that the files give, in the order of the table
  std::vector<std::string> notes;  ///< keys that were read as others, and keys without a meaning
  int64_t processes = 0;           ///< how many the files say there are; 0: they do not
};

/// Returns the settings of the file `path` over those of the file `base` (empty: none). Both may be
/// incomplete. Throws ConfigError as load_settings does.
Conversion convert_file(const std::string& path, const std::string& base);

}  // namespace fp8train
