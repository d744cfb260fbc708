#pragma once
// Loading from a text in a test.

#include <string>
#include <vector>

#include "base/error.h"
#include "config/load.h"

namespace fp8train::test {

inline Settings load_text(const std::string& text, std::vector<std::string> sets = {},
                          std::string env = "") {
  LoadRequest request;
  request.path = "run.yaml";
  request.text = text;
  request.sets = std::move(sets);
  request.env = std::move(env);
  return load_settings(request);
}

/// The message of the ConfigError that loading throws; "loaded" when it does not.
inline std::string error_of(const std::string& text, std::vector<std::string> sets = {},
                            std::string env = "") {
  try {
    load_text(text, std::move(sets), std::move(env));
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "loaded";
}

/// A complete small configuration; further lines can be appended.
inline const std::string kBase =
    "model: {preset: toy}\n"
    "data: {train: a.txt}\n"
    "training: {max_steps: 100}\n";

/// The same for kBase, which has 3 lines, with one more: line 4.
inline std::string error_with(const std::string& line) {
  return error_of(kBase + line + "\n");
}

}  // namespace fp8train::test
