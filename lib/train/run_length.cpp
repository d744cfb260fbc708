#include "train/run_length.h"

#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "base/math.h"

namespace fp8train {
namespace {

constexpr int64_t kMaxTokens = int64_t{1} << 62;

int64_t tokens_of_step(const StepSettings& step, int data_ranks) {
  int64_t tokens = step.micro_batch_tokens();  // check_batch() bounds it
  if (__builtin_mul_overflow(tokens, step.gradient_accumulation_steps, &tokens) ||
      __builtin_mul_overflow(tokens, static_cast<int64_t>(data_ranks), &tokens) ||
      tokens > kMaxTokens) {
    throw ConfigError(fmt::format(
        "a step of training.micro_batch_size {} * data.seq_length {} * {} micro-batches "
        "* {} ranks has more than 2^62 tokens",
        step.micro_batch_size, step.seq_length, step.gradient_accumulation_steps, data_ranks));
  }
  return tokens;
}

/// transformers (Trainer.set_initial_training_values) rounds up as well, but ends each epoch with a
/// step of its own; here steps continue in the next epoch, so that only the last one is rounded.
double steps_of_epochs(double epochs, uint64_t epoch_samples, double samples_of_step) {
  // 0.07 * 100 is a little more than 7 in doubles: the last bits must not add a step.
  constexpr double kRounding = 0x1p-50;
  const double steps = epochs * static_cast<double>(epoch_samples) / samples_of_step;
  return std::ceil(steps * (1 - kRounding));
}

}  // namespace

int64_t resolve_max_steps(const TrainingSettings& training, const StepSettings& step,
                          int data_ranks, uint64_t epoch_samples) {
  const int64_t of_step = tokens_of_step(step, data_ranks);
  if (training.max_tokens > 0) {
    return ceil_div(training.max_tokens, of_step);
  }
  auto steps = static_cast<double>(training.max_steps);
  if (training.max_epochs > 0) {
    const int64_t samples_of_step = of_step / step.seq_length;
    steps =
        steps_of_epochs(training.max_epochs, epoch_samples, static_cast<double>(samples_of_step));
  }
  if (steps * static_cast<double>(of_step) > static_cast<double>(kMaxTokens)) {
    throw ConfigError(fmt::format("{}: {:.0f} steps of {} tokens have more than 2^62 tokens",
                                  length_key(training), steps, of_step));
  }
  return static_cast<int64_t>(steps);
}

std::string length_key(const TrainingSettings& training) {
  return training.max_steps > 0    ? "training.max_steps"
         : training.max_epochs > 0 ? "training.max_epochs"
                                   : "training.max_tokens";
}

}  // namespace fp8train
