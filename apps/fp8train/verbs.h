#pragma once
// The verbs, in the order of --help. A new one: declare its function, add its line, and name its
// file in CMakeLists.txt.

#include "cli.h"

namespace fp8train {

void add_config(CLI::App& verb, Action& action);

inline const std::vector<Verb>& all_verbs() {
  static const std::vector<Verb> kVerbs = {
      {"config", "Show, explain and document configurations", add_config},
  };
  return kVerbs;
}

}  // namespace fp8train
