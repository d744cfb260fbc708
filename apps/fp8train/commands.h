#pragma once
// The commands, in the order of --help. A new one: declare its function, add its line, and name its
// file in CMakeLists.txt.

#include <iterator>
#include <vector>

#include "cli.h"

namespace fp8train {

void add_train(Arguments command, Action& action);
void add_check(Arguments command, Action& action);
void add_explain(Arguments command, Action& action);
void add_estimate(Arguments command, Action& action);
void add_config(Arguments command, Action& action);
void add_data(Arguments command, Action& action);
void add_import(Arguments command, Action& action);
void add_export(Arguments command, Action& action);
void add_quantize(Arguments command, Action& action);
void add_generate(Arguments command, Action& action);
void add_eval(Arguments command, Action& action);
void add_report(Arguments command, Action& action);
void add_bench(Arguments command, Action& action);
void add_doctor(Arguments command, Action& action);
void add_completions(Arguments command, Action& action);
void add_man(Arguments command, Action& action);

inline constexpr Command kCommands[] = {
    {"train", "Train or continue a run (the default command)", add_train},
    {"check", "Check a run without starting it: model, memory, data", add_check},
    {"explain", "What runs in which format, layer by layer, and why", add_explain},
    {"estimate", "Memory, wire bytes and time on many ranks", add_estimate},
    {"config", "Write run.yaml in a dialogue; show, explain, document it", add_config},
    {"data", "Prepare and inspect token files, train tokenizers", add_data},
    {"import", "Import models of other programs", add_import},
    {"export", "Write a trained model for other programs", add_export},
    {"quantize", "Cast a safetensors file to FP8 or INT8", add_quantize},
    {"generate", "Text from a trained model", add_generate},
    {"eval", "Loss and multiple-choice accuracy of a trained model, in any plan", add_eval},
    {"report", "Runs as one HTML page: curves, FP8 health, configuration", add_report},
    {"bench", "Measure steps, GEMMs and casts", add_bench},
    {"doctor", "Check this machine: GPU, libraries, MPI, limits, disk", add_doctor},
    {"completions", "Completion script of a shell", add_completions},
    {"man", "Manual page, in the form that man reads", add_man},
};

inline const std::vector<Command>& all_commands() {
  static const std::vector<Command> kAll(std::begin(kCommands), std::end(kCommands));
  return kAll;
}

}  // namespace fp8train
