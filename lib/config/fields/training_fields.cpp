// How long a run trains and in what portions.

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <limits>

#include "config/fields/check_context.h"
#include "config/fields/field_builders.h"
#include "config/fields/field_table.h"

namespace fp8train {
namespace {

using namespace fields;

constexpr double kMaxPasses = 1 << 20;     // micro-batch, and micro-batches of a step
constexpr double kMaxSequences = 1 << 30;  // of a step
constexpr double kMaxTokens = 1e15;        // of a run

constexpr auto in_training = under(&Settings::training);
constexpr auto in_step = under(&Settings::step);

int64_t planned_ranks(const Settings& settings) {
  return settings.job.nodes * settings.job.ranks_per_node;
}

/// Returns the tokens of an optimizer step on so many ranks; saturating.
int64_t tokens_per_step(const Settings& settings, int64_t ranks) {
  const int64_t global = settings.training.global_batch_size;
  const StepSettings& step = settings.step;
  const int64_t sequences = global > 0 ? global : step.micro_batch_size;
  int64_t tokens = step.seq_length;
  for (const int64_t factor :
       {sequences, global > 0 ? 1 : step.gradient_accumulation_steps, global > 0 ? 1 : ranks}) {
    if (__builtin_mul_overflow(tokens, factor, &tokens)) {
      return std::numeric_limits<int64_t>::max();
    }
  }
  return tokens;
}

void check_max_steps(const CheckContext& at) {
  if (!at.is_given() && !at.has("training.max_tokens") && !at.has("training.max_epochs")) {
    at.missing("missing; give one of max_steps, max_tokens and max_epochs");
  }
}

/// Complains and returns true if the field is given together with another one of these keys.
bool conflicts(const CheckContext& at, std::initializer_list<const char*> keys) {
  const auto* const other =
      std::ranges::find_if(keys, [&](const char* key) { return at.is_given() && at.has(key); });
  if (other == keys.end()) {
    return false;
  }
  at.complain(fmt::format("conflicts with {}; remove one of them", *other));
  return true;
}

void check_max_tokens(const CheckContext& at) {
  const int64_t of_step = tokens_per_step(at.settings, 1);
  if (conflicts(at, {"training.max_steps"})) {
    return;
  }
  if (at.settings.training.max_tokens > 0 && at.usable("data.seq_length") &&
      at.settings.training.max_tokens < of_step) {
    at.complain(fmt::format("less than one optimizer step of {} tokens", of_step));
  }
}

void check_global_batch_size(const CheckContext& at) {
  const int64_t sequences = at.settings.training.global_batch_size;
  const int64_t micro_batch = at.settings.step.micro_batch_size;
  if (sequences == 0) {
    return;
  }
  // A run is started on any number of ranks; a job that is planned has them.
  const int64_t ranks = planned_ranks(at.settings);
  if (at.has("training.gradient_accumulation_steps")) {
    at.complain("conflicts with training.gradient_accumulation_steps; remove one of them");
  } else if (at.usable("training.micro_batch_size") && sequences % micro_batch != 0) {
    at.complain(fmt::format("{} is not a multiple of training.micro_batch_size {}", sequences,
                            micro_batch));
  } else if (at.extent == Extent::begun && sequences / micro_batch % ranks != 0) {
    at.complain(fmt::format("{} is not a multiple of {} ranks x training.micro_batch_size {}",
                            sequences, ranks, micro_batch));
  }
}

Field max_epochs_field() {
  return field("training.max_epochs", in_training(&TrainingSettings::max_epochs),
               {.range = above_up_to(0, kMaxWhole), .is_unset_at_0 = true},
               "Passes over the training samples, such as 3 or 0.5, instead of max_steps. The "
               "steps are max_epochs x samples / samples of a step, rounded up; a step may span "
               "two epochs. Samples are the windows of data.seq_length tokens, or the sequences "
               "of packed documents, of one pass over data.train; if sources have weights, as "
               "many as all of them have together, distributed by weight")
      .asked({.topic = Topic::optimization,
              .text = "Epochs: passes over the training samples",
              .when =
                  [](const Settings& s) {
                    return s.training.max_steps == 0 && s.training.max_tokens == 0;
                  }})
      .checked([](const CheckContext& at) {
        conflicts(at, {"training.max_steps", "training.max_tokens"});
      });
}

/// Length of the run.
std::vector<Field> length_fields() {
  return {
      field("training.max_steps", in_training(&TrainingSettings::max_steps), count_up_to(kMaxWhole),
            "Optimizer steps of the whole run; either this, max_tokens or max_epochs")
          .asked({.topic = Topic::optimization,
                  .text = "Optimizer steps, - to give tokens or epochs instead",
                  .suggest =
                      [](const Settings& s) {
                        return s.training.max_tokens > 0 || s.training.max_epochs > 0 ? "" : "1000";
                      },
                  .optional = true})
          .checked(check_max_steps),
      field("training.max_tokens", in_training(&TrainingSettings::max_tokens),
            count_up_to(kMaxTokens), "Tokens of the whole run, such as 100M, instead of max_steps")
          .asked({.topic = Topic::optimization,
                  .text = "Tokens of the whole run, - to give epochs instead",
                  .when = [](const Settings& s) { return s.training.max_steps == 0; },
                  .optional = true})
          .checked(check_max_tokens),
      max_epochs_field(),
  };
}

/// Sequences of a step.
std::vector<Field> batch_fields() {
  return {
      field("training.micro_batch_size", in_step(&StepSettings::micro_batch_size),
            between(1, kMaxPasses), "Sequences per forward pass and rank")
          .asked({.topic = Topic::optimization,
                  .text = "Micro-batch: sequences per forward pass and rank",
                  .changes_memory = true}),
      field("training.gradient_accumulation_steps",
            in_step(&StepSettings::gradient_accumulation_steps), between(1, kMaxPasses),
            "Forward passes per optimizer step")
          .when([](const Settings& s) { return s.training.global_batch_size == 0; }),
      field("training.global_batch_size", in_training(&TrainingSettings::global_batch_size),
            count_up_to(kMaxSequences),
            "Sequences per optimizer step over all ranks; instead of "
            "gradient_accumulation_steps")
          .asked({.topic = Topic::optimization,
                  .text = "Global batch: sequences per step over all ranks",
                  .unless = {"training.gradient_accumulation_steps"},
                  .suggest =
                      [](const Settings& s) {
                        return std::to_string(s.step.micro_batch_size * planned_ranks(s));
                      },
                  .optional = true})
          .checked(check_global_batch_size),
  };
}

/// Fields of a step's passes, and of the length of the run.
std::vector<Field> pass_fields() {
  return {
      make("training.seed", "a whole number >= 0", "Seed of every random draw",
           in_step(&StepSettings::seed), read_unsigned),
      field("training.z_loss", in_step(&StepSettings::decoder, &DecoderSettings::z_loss),
            between(0, 1000),
            "Weight, in the loss that is minimized, of the squared log of the softmax's "
            "normalizer; logged apart, as z_loss"),
      field("training.head_chunk_rows",
            in_step(&StepSettings::decoder, &DecoderSettings::head_chunk_rows),
            between(0, kMaxSequences),
            "Rows of logits alive at a time; 0: chosen from the vocabulary and the GPU's memory"),
      field("training.frozen", in_step(&StepSettings::decoder, &DecoderSettings::frozen),
            "Names of parameters (* and ? match), such as embedding.weight and layers.0.*, that "
            "stay as they are: they have no gradient and no optimizer state"),
      field("training.max_time", in_training(&TrainingSettings::max_time_seconds),
            seconds("3h50m", true), "Save and stop with exit code 75 after this time"),
  };
}

std::vector<Field> divergence_fields() {
  return {
      choice("training.non_finite", in_training(&TrainingSettings::non_finite), kOnNonFinite,
             "What to do with a step whose gradient norm is not finite"),
      field("training.max_consecutive_skips", in_training(&TrainingSettings::max_consecutive_skips),
            at_least(1),
            "Skipped steps in a row that count as divergence; at the end of the run one is enough"),
      choice("training.on_divergence", in_training(&TrainingSettings::on_divergence), kOnDivergence,
             "stop: exit code 5; rollback: go back to the newest checkpoint from before the "
             "divergence and leave out the batches seen since"),
      field("training.max_rollbacks", in_training(&TrainingSettings::max_rollbacks), at_least(1),
            "Number of rollbacks after which a further divergence ends the run"),
      field("training.spike_threshold", in_training(&TrainingSettings::spike_threshold),
            at_least(0),
            "A loss is high if it is this many standard deviations above the mean of spike_window "
            "losses; 0: no search for spikes"),
      field("training.spike_window", in_training(&TrainingSettings::spike_window),
            between(2, 65536),
            "Number of previous losses, leaving out high ones, that a loss is compared with"),
      field("training.spike_steps", in_training(&TrainingSettings::spike_steps), at_least(1),
            "High losses in a row that make a spike, which counts as divergence"),
  };
}

Field deterministic_field() {
  return field(
      "training.deterministic", in_step(&StepSettings::deterministic),
      "On a GPU with cuDNN: take its deterministic backward pass of attention, which is slower "
      "and on sm_80 to sm_90 needs 2 bytes for each score, so that runs and resumed runs have "
      "the same bits; everything else has them either way");
}

}  // namespace

std::vector<Field> training_fields() {
  return concat({length_fields(), batch_fields(), pass_fields(), divergence_fields(),
                 std::vector{deterministic_field()}});
}

int64_t planned_steps(const Settings& settings) {
  const TrainingSettings& training = settings.training;
  return training.max_steps > 0
             ? training.max_steps
             : training.max_tokens / tokens_per_step(settings, planned_ranks(settings));
}

}  // namespace fp8train
