// The data of a session, whose samples are looked at before the run starts, and the length of the
// run, which may depend on them.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/key_error.h"
#include "base/math.h"
#include "base/text.h"
#include "data/samples.h"
#include "train/inference/generator.h"
#include "train/session.h"

namespace fp8train {
namespace {

/// The sources that the validation data come from, for messages.
std::string validation_sources(const DataSettings& settings) {
  return joined(settings.val.empty() ? settings.train : settings.val, &DataSource::path);
}

void describe_samples(const std::string& name, const Samples& samples, Session& session) {
  std::vector<std::string> notes;
  std::vector<std::string> warnings;
  samples.describe(name, notes, warnings);
  for (std::string& note : notes) {
    session.note(FileRemark{std::move(note)}, SessionNote::Kind::choice);
  }
  for (std::string& warning : warnings) {
    session.note(FileRemark{std::move(warning)});
  }
}

/// An error is better here than in the first evaluation.
void look_at_validation(Session& session) {
  const DataSettings& data = session.settings.data;
  if (session.data.val.size() < 2 && !data.val.empty()) {
    throw Keyed<DataError>("data.val",
                           fmt::format(": {}: no token follows another, as an evaluation "
                                       "needs",
                                       validation_sources(data)));
  }
  if (session.data.val.size() == 0) {
    return;
  }
  const auto look = [&] {
    const Samples samples(session.data.val, session.engine.step.seq_length,
                          {.walk = SampleWalk::once});
    describe_samples("validation data", samples, session);
  };
  keyed<DataError>(data.val.empty() ? "data.val_fraction" : "data.val", look,
                   fmt::format("validation data ({}): ", validation_sources(data)));
}

/// A prompt that cannot be encoded or does not fit is an error before the run, not in the middle of
/// it.
void check_prompts(const SampleSettings& sample, const Tokenizer& tokenizer,
                   const ModelConfig& model) {
  for (const std::string& prompt : sample.prompts) {
    std::vector<int32_t> ids;
    try {
      ids = encode_prompt(tokenizer, prompt);
    } catch (const DataError& error) {
      throw KeyError("sample.prompts", fmt::format(": {}", error.what()));
    }
    if (ids.empty()) {
      throw KeyError("sample.prompts",
                     ": an empty prompt needs a tokenizer with a beginning-of-sequence id");
    }
    for (const int32_t id : ids) {
      if (id >= model.vocab_size) {
        throw KeyError(
            "sample.prompts",
            fmt::format(": token id {} is not below the vocabulary's {}", id, model.vocab_size));
      }
    }
  }
  if (longest_prompt(sample, tokenizer) > longest_sequence(model)) {
    throw KeyError("sample.prompts",
                   fmt::format(": the longest has {} tokens, the model reads {}",
                               longest_prompt(sample, tokenizer), longest_sequence(model)));
  }
}

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

void open_corpora_of(Session& session) {
  session.data =
      open_corpora(session.settings.data, *session.tokenizer, session.engine.model.vocab_size);
  const Samples samples = training_samples(session);  // at least one of each source
  if (samples.holds_documents()) {
    describe_samples("data", samples, session);
    session.engine.counts_targets = true;
  }
  session.epoch_samples = samples.samples_per_epoch();
  set_length(session);
  note_many_epochs(session, samples.epochs(session.samples()));
  note_unused_vocabulary(session);
  look_at_validation(session);
  session.engine.masks_documents = session.data.train.form().masks_documents;
}

Samples training_samples(const Session& session) {
  return keyed<DataError>("data.train", [&] {
    return Samples(session.data.train, session.engine.step.seq_length,
                   {.walk = SampleWalk::training,
                    .shuffle = session.settings.data.shuffle,
                    .seed = session.settings.step.seed});
  });
}

int64_t longest_prompt(const SampleSettings& sample, const Tokenizer& tokenizer) {
  size_t longest = 0;
  for (const std::string& prompt : sample.prompts) {
    longest = std::max(longest, encode_prompt(tokenizer, prompt).size());
  }
  return static_cast<int64_t>(longest);
}

void add_samples(Session& session) {
  const SampleSettings& sample = session.settings.sample;
  check_prompts(sample, *session.tokenizer, session.engine.model);
  const int64_t capacity = longest_prompt(sample, *session.tokenizer) + sample.max_new_tokens;
  session.engine.samples = [capacity, texts = std::ssize(sample.prompts)](Engine& engine) {
    return make_sampler(engine, capacity, texts);
  };
}

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
    throw KeyError(
        length_key(training),
        fmt::format(": {:.0f} steps of {} tokens have more than 2^62 tokens", steps, of_step));
  }
  return static_cast<int64_t>(steps);
}

std::string length_key(const TrainingSettings& training) {
  return training.max_steps > 0    ? "training.max_steps"
         : training.max_epochs > 0 ? "training.max_epochs"
                                   : "training.max_tokens";
}

}  // namespace fp8train
