#pragma once
// From a YAML file, the environment and the command line to Settings. Precedence: defaults < model
// preset < file < FP8TRAIN_SET < --set, a later --set winning over an earlier one.

#include <optional>
#include <string>
#include <vector>

#include "config/settings.h"

namespace fp8train {

struct LoadRequest {
  std::string path;                 ///< YAML file; empty: none
  std::vector<std::string> sets;    ///< "a.b=v", v in YAML
  std::string env;                  ///< FP8TRAIN_SET: "a.b=v;c.d=w"
  std::optional<std::string> text;  ///< the file's content when it is already in memory; `path`
                                    ///< then only names it in messages
};

/// Reads, validates and completes the settings of a run. Throws one ConfigError that lists every
/// problem on its own line, in order of place: "run.yaml:14:3: optimizer.lr: expected a number > 0,
/// got "3e-4x"" or "--set a.b=v: a.b: ...".
///
/// Of two settings that exclude each other (max_steps and max_tokens; gradient_accumulation_steps
/// and global_batch_size) the one with the higher precedence replaces the other.
Settings load_settings(const LoadRequest& request);

}  // namespace fp8train
