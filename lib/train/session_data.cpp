// The data of a session: what its samples hold is looked at before the run starts.

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/error_prefix.h"
#include "base/text.h"
#include "data/samples.h"
#include "train/session.h"
#include "train/session_notes.h"

namespace fp8train {
namespace {

/// The sources that the validation data come from, for messages.
std::string validation_sources(const DataSettings& settings) {
  return joined(settings.val.empty() ? settings.train : settings.val, &DataSource::path);
}

/// An error is better here than in the first evaluation.
void look_at_validation(Session& session) {
  if (session.data.val.size() == 0) {
    return;
  }
  const DataSettings& data = session.settings.data;
  const std::string about =
      fmt::format("{}: validation data ({}): ", data.val.empty() ? "data.val_fraction" : "data.val",
                  validation_sources(data));
  with_prefix<DataError>(about, [&] {
    const Samples samples(session.data.val, session.engine.step.seq_length,
                          {.walk = SampleWalk::once});
    samples.describe("validation data", session.settings.notes.lines, session.notes);
  });
}

}  // namespace

void open_corpora_of(Session& session) {
  session.data =
      open_corpora(session.settings.data, *session.tokenizer, session.engine.model.vocab_size);
  const Samples samples = training_samples(session);  // at least one of each source
  if (samples.holds_documents()) {
    samples.describe("data", session.settings.notes.lines, session.notes);
    session.engine.counts_targets = true;
  }
  session.epoch_samples = samples.samples_per_epoch();
  set_length(session);
  note_many_epochs(session.data.train, samples.epochs(session.samples()), session.notes);
  note_unused_vocabulary(session.settings, *session.tokenizer, session.engine.model.vocab_size,
                         session.notes);
  look_at_validation(session);
  session.engine.masks_documents = session.data.train.form().masks_documents;
}

Samples training_samples(const Session& session) {
  return with_prefix<DataError>("data.train: ", [&] {
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

}  // namespace fp8train
