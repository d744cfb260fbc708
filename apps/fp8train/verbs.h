#pragma once
// The verbs, in the order of --help. A new one: declare its function, add its line, and name its
// file in CMakeLists.txt.

#include "cli.h"

namespace fp8train {

void add_train(Arguments verb, Action& action);
void add_check(Arguments verb, Action& action);
void add_explain(Arguments verb, Action& action);
void add_estimate(Arguments verb, Action& action);
void add_config(Arguments verb, Action& action);
void add_data(Arguments verb, Action& action);
void add_import(Arguments verb, Action& action);
void add_export(Arguments verb, Action& action);
void add_quantize(Arguments verb, Action& action);
void add_generate(Arguments verb, Action& action);
void add_eval(Arguments verb, Action& action);
void add_bench(Arguments verb, Action& action);

inline const std::vector<Verb>& all_verbs() {
  static const std::vector<Verb> kVerbs = {
      {"train", "Train or continue a run (the default verb)", add_train},
      {"check", "Check a run without starting it: model, memory, data", add_check},
      {"explain", "What runs in which format, layer by layer, and why", add_explain},
      {"estimate", "Memory, wire bytes and time on many ranks", add_estimate},
      {"config", "Write run.yaml in a dialogue; show, explain, document it", add_config},
      {"data", "Prepare token files", add_data},
      {"import", "Import models of other programs", add_import},
      {"export", "Write a trained model for other programs", add_export},
      {"quantize", "Cast a safetensors file to FP8 or INT8", add_quantize},
      {"generate", "Text from a trained model", add_generate},
      {"eval", "Loss of a trained model on a text, in any precision row", add_eval},
      {"bench", "Measure steps, GEMMs and casts", add_bench},
  };
  return kVerbs;
}

}  // namespace fp8train
