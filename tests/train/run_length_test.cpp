// Steps of a run that is given in epochs.

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <string>

#include "base/error.h"
#include "config/load.h"
#include "support/files.h"
#include "support/temp_dir.h"
#include "train/session.h"

namespace fp8train::test::run_length_test {
namespace {

int64_t steps_of(double epochs, uint64_t samples, int64_t micro_batch, int64_t accumulation = 1,
                 int ranks = 1) {
  TrainingSettings training;
  training.max_epochs = epochs;
  StepSettings step;
  step.seq_length = 8;
  step.micro_batch_size = micro_batch;
  step.gradient_accumulation_steps = accumulation;
  return resolve_max_steps(training, step, ranks, samples);
}

TEST_CASE("epochs are rounded up to whole steps, once") {
  CHECK(steps_of(2, 100, 4) == 50);
  CHECK(steps_of(1, 101, 4) == 26);
  CHECK(steps_of(2, 101, 4) == 51);  // and not 2 x 26
  CHECK(steps_of(0.5, 100, 4) == 13);
  CHECK(steps_of(0.001, 100, 4) == 1);
  CHECK(steps_of(3, 96, 2, 3, 4) == 12);  // 24 samples a step
  CHECK(steps_of(3, 97, 2, 3, 4) == 13);
  CHECK(steps_of(0.07, 100, 1) == 7);  // 7.000000000000001 in doubles
}

TEST_CASE("epochs without samples have no number of steps, and too many are an error") {
  CHECK(steps_of(2, 0, 4) == 0);
  CHECK_THAT(message_of<ConfigError>([] { steps_of(1e12, 10000000, 1); }),
             Catch::Contains("training.max_epochs: ") &&
                 Catch::Contains(" steps of 8 tokens have more than 2^62 tokens"));
}

Session session_of(const TempDir& folder, const std::string& data, const std::string& more = "",
                   bool open_data = true, int ranks = 1) {
  LoadRequest request;
  request.path = "run.yaml";
  std::string in_folder = data;
  for (size_t at = 0; (at = in_folder.find('@', at)) != std::string::npos;) {
    in_folder.replace(at, 1, folder.path().string() + "/");
  }
  request.text = "model: {preset: toy}\ndata: {seq_length: 16, " + in_folder +
                 "}\ntraining: {max_epochs: 2, micro_batch_size: 3}\n" + more;
  return open_session(load_settings(request), open_data, ranks);
}

TEST_CASE("an epoch has the samples of one pass over the data") {
  const TempDir folder;
  write_file(folder.path() / "a.txt", std::string(165, 'a'));
  write_file(folder.path() / "b.txt", std::string(100, 'b'));
  const Session one = session_of(folder, "shuffle: false, train: @a.txt");
  CHECK(one.epoch_samples == 10);
  CHECK(one.max_steps == 7);  // 20 samples, 3 a step
  CHECK(one.stages.back().end == 7);
  CHECK(session_of(folder, "shuffle: false, train: @a.txt", "", true, 2).max_steps == 4);

  // Joined: the windows of one text. Dealt out: those of each source.
  const Session joined = session_of(folder, "shuffle: false, train: [@a.txt, @b.txt]");
  CHECK(joined.epoch_samples == 16);
  const Session dealt = session_of(
      folder, "shuffle: false, train: [{path: @a.txt, weight: 3}, {path: @b.txt, weight: 1}]");
  CHECK(dealt.epoch_samples == 10 + 6);
  CHECK(dealt.max_steps == 11);

  // Packed, a sample is a sequence of whole documents.
  write_file(folder.path() / "d.jsonl",
             "{\"text\": \"0123456789\"}\n{\"text\": \"01234\"}\n{\"text\": \"0123456789\"}\n");
  const Session packed = session_of(folder, "packing: documents, train: @d.jsonl");
  CHECK(packed.epoch_samples == 2);
  CHECK(packed.max_steps == 2);
  const Session apart = session_of(folder, "packing: none, train: @d.jsonl");
  CHECK(apart.epoch_samples == 3);
}

TEST_CASE("without the data, the steps of epochs are not known") {
  const TempDir folder;
  const std::string schedule =
      "precision: {plan: te-current, schedule: [{until: 0.5, plan: bf16}, {plan: te-current}]}\n";
  const Session closed = session_of(folder, "train: @none.txt", schedule, false);
  CHECK(closed.max_steps == 0);
  CHECK(closed.samples() == 0);
  using Notes = std::vector<SessionNote>;  // on no warm-up that is too long
  CHECK(closed.notes == Notes{{SessionNote::Kind::choice, SessionFact::unknown_steps}});

  write_file(folder.path() / "a.txt", std::string(165, 'a'));
  const Session open = session_of(folder, "shuffle: false, train: @a.txt", schedule);
  CHECK(open.engine.plain_steps == std::vector<std::pair<int64_t, int64_t>>{{0, 3}});
  CHECK(open.notes.empty());
}

TEST_CASE("the default warm-up of a model that is trained already follows from the steps") {
  const TempDir folder;
  write_file(folder.path() / "a.txt", std::string(8005, 'a'));
  const auto session = [&](const std::string& more, bool open_data = true) {
    LoadRequest request;
    request.path = "run.yaml";
    request.text = fmt::format(
        "model: {{from: {}, resize_vocabulary: 258}}\ndata: {{seq_length: 16, tokenizer: byte, "
        "train: {}}}\n"
        "training: {{max_epochs: 2, micro_batch_size: 3}}\n{}",
        FP8TRAIN_GOLDEN_DIR "/tiny-llama", (folder.path() / "a.txt").string(), more);
    return open_session(load_settings(request), open_data, 1);
  };
  const Session usual = session("");
  CHECK(usual.max_steps == 333);
  CHECK(usual.settings.scheduler.warmup_steps == 10);
  const SessionNote note = {SessionNote::Kind::choice, SessionFact::default_warmup};
  CHECK(std::ranges::count(usual.notes, note) == 1);
  CHECK_THAT(usual.settings.notes.lines.front(),
             Catch::Contains("1e-05, after a warm-up over 3 % of the steps, is used"));
  CHECK(session("", false).settings.scheduler.warmup_steps == 0);
  CHECK(session("scheduler: {warmup_steps: 0}\n").settings.scheduler.warmup_steps == 0);
  CHECK(session("optimizer: {lr: 1e-4}\n").settings.scheduler.warmup_steps == 0);
}

TEST_CASE("the schedule of a run of epochs is held against its steps") {
  const TempDir folder;
  write_file(folder.path() / "a.txt", std::string(165, 'a'));
  const Session session =
      session_of(folder, "shuffle: false, train: @a.txt", "scheduler: {warmup_steps: 7}\n");
  CHECK(session.notes == std::vector<SessionNote>{
                             {SessionNote::Kind::warning_of_training, SessionFact::long_warmup}});
}

}  // namespace
}  // namespace fp8train::test::run_length_test
