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
void add_layouts(Arguments command, Action& action);
void add_config(Arguments command, Action& action);
void add_data(Arguments command, Action& action);
void add_export(Arguments command, Action& action);
void add_quantize(Arguments command, Action& action);
void add_generate(Arguments command, Action& action);
void add_eval(Arguments command, Action& action);
void add_report(Arguments command, Action& action);
void add_bench(Arguments command, Action& action);
void add_doctor(Arguments command, Action& action);
void add_completions(Arguments command, Action& action);
void add_version(Arguments command, Action& action);
void add_help(Arguments command, Action& action);

inline constexpr Command kCommands[] = {
    {"train", "Train or continue a run (the default command)",
     "mpirun -n 2 fp8train run.yaml training.max_steps=100", add_train},
    {"check", "Check a run without starting it: model, memory, data",
     "fp8train check run.yaml --world-size 32", add_check},
    {"explain", "What runs in which format, layer by layer, and why",
     "fp8train explain run.yaml --diff bf16", add_explain},
    {"estimate", "Memory, wire bytes and time on many ranks",
     "fp8train estimate run.yaml --world-size 1024 --gpu h100", add_estimate},
    {"layouts", "Tensor ranks, pipeline, ZeRO, micro-batch: the fastest first",
     "fp8train layouts run.yaml --world-size 64 --gpu h100", add_layouts},
    {"config", "Write run.yaml in a dialogue; show, explain, document it",
     "fp8train config --output runs/first.yaml", add_config},
    {"data", "Prepare and inspect token files", "fp8train data inspect text.txt", add_data, true},
    {"export", "Write a trained model for other programs",
     "fp8train export runs/default --out model --dtype bf16", add_export, true},
    {"quantize", "Cast a safetensors file or a model folder to FP8, INT8 or FP4",
     "fp8train quantize model --out model-fp8 --granularity 128x128", add_quantize, true},
    {"generate", "Text from a trained model",
     "fp8train generate runs/default --prompt \"Once upon a time\"", add_generate, true},
    {"eval", "Loss and multiple-choice accuracy of a trained model, in any plan",
     "fp8train eval runs/default --data text.txt --plan bf16", add_eval, true},
    {"report", "Runs as one HTML page: curves, FP8 health, configuration",
     "fp8train report runs/bf16 runs/fp8 --out report.html", add_report, true},
    {"bench", "Measure steps, GEMMs and casts", "fp8train bench step --plan fp32,bf16", add_bench},
    {"doctor", "Check this machine: GPU, libraries, MPI, limits, disk", "fp8train doctor runs",
     add_doctor},
    {"completions", "Completion script of a shell", "eval \"$(fp8train completions bash)\"",
     add_completions},
    {"version", "The version and what was compiled in", "fp8train version -v", add_version},
    {"help", "The page of a command", "fp8train help bench step", add_help},
};

inline const std::vector<Command>& all_commands() {
  static const std::vector<Command> kAll(std::begin(kCommands), std::end(kCommands));
  return kAll;
}

}  // namespace fp8train
