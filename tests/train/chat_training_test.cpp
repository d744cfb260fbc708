// Fine-tuning on dialogues: the loss of each step against transformers
// (tests/golden/make_chat_training.py), and packed documents against documents alone.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "data/corpus.h"
#include "data/loader.h"
#include "engine/dry_run.h"
#include "engine/engine.h"
#include "io/hf_config.h"
#include "io/safetensors/tensor_source.h"
#include "support/files.h"
#include "support/small_gpt2.h"
#include "support/small_llama.h"
#include "train/checkpoint/weights.h"

namespace fp8train::test {
namespace {

namespace fs = std::filesystem;

const fs::path kChat = fs::path(FP8TRAIN_GOLDEN_DIR) / "chat";
constexpr int64_t kLength = 256;  // as in make_chat_training.py
constexpr int64_t kMicroBatch = 4;
constexpr int64_t kAccumulation = 2;

struct Fixture {
  Fixture() : numbers(nlohmann::json::parse(read_file(kChat / "training/expected.json"))) {
    settings.train = {{(kChat / "training/dialogues.jsonl.gz").string(), "auto", 1.0}};
    settings.tokenizer = (kChat / "llama3").string();
    tokenizer = make_tokenizer(settings);
  }

  EngineSettings engine(const std::string& plan, bool masks) const {
    EngineSettings engine;
    engine.model = completed(read_hf_config(kChat / "training").model);
    engine.plan = plan_named(plan);
    engine.step = {.seq_length = kLength,
                   .micro_batch_size = kMicroBatch,
                   .gradient_accumulation_steps = kAccumulation,
                   .seed = 0};
    engine.masks_documents = masks;
    engine.counts_targets = true;
    engine.optimizer.lr = numbers.at("lr");
    engine.optimizer.betas = {numbers.at("betas")[0], numbers.at("betas")[1]};
    engine.optimizer.eps = numbers.at("eps");
    engine.optimizer.weight_decay = numbers.at("weight_decay");
    engine.optimizer.grad_clip = numbers.at("grad_clip");
    return engine;
  }

  nlohmann::json numbers;
  DataSettings settings;
  std::unique_ptr<Tokenizer> tokenizer;
};

TEST_CASE("five steps on dialogues have the losses of transformers", "[chat]") {
  const Fixture fixture;
  const CorpusSplits data =
      open_corpora(fixture.settings, *fixture.tokenizer, fixture.tokenizer->vocab_size());
  REQUIRE(data.train.documents().size() == 2000);
  Loader loader(data.train, {.micro_batch_size = kMicroBatch,
                             .seq_length = kLength,
                             .shuffle = false,
                             .batches_per_step = kAccumulation});
  CHECK(loader.samples().samples_per_epoch() == fixture.numbers.at("sequences").get<uint64_t>());
  CHECK(loader.samples().documents()->cut() > 0);
  const EngineSettings settings = fixture.engine("fp32", true);
  const auto device = make_device(DeviceKind::cpu);
  Engine engine(*device, settings);
  engine.reserve(dry_run_step(settings, {}).plan);
  load_weights(*device, engine.model(), TensorSource(kChat / "training"));
  engine.weights_changed();
  for (size_t step = 0; step < fixture.numbers.at("losses").size(); ++step) {
    engine.step([&] { return loader.next(); }, static_cast<int64_t>(step), settings.optimizer.lr,
                false);
    const LossReport loss = engine.step_loss();
    CHECK(loss.targets == fixture.numbers["targets"][step].get<int64_t>());
    CHECK(loss.mean == Approx(fixture.numbers["losses"][step].get<double>()).epsilon(1e-5));
  }
}

struct Trained {
  LossReport loss;
  std::vector<std::vector<float>> gradients;
  double evaluation = 0;
};

/// One step, without an update, over the batches of a corpus.
Trained train(EngineSettings settings, const Corpus& corpus, DeviceKind kind) {
  const Samples samples(corpus, settings.step.seq_length);
  const auto count = static_cast<int64_t>(samples.samples_per_epoch());
  settings.step.micro_batch_size = 1;
  settings.step.gradient_accumulation_steps = count;
  settings.masks_documents = corpus.form().masks_documents;
  settings.counts_targets = true;
  settings.optimizer.grad_clip = 0;
  const auto device = make_device(kind);
  Engine engine(*device, settings);
  engine.reserve(dry_run_step(settings, *device).plan);
  engine.model().initialize(3);
  engine.weights_changed();
  Loader loader(
      corpus,
      {.seq_length = settings.step.seq_length, .shuffle = false, .batches_per_step = count});
  engine.step([&] { return loader.next(); }, 0, 0.0, false);
  Trained trained;
  trained.loss = engine.step_loss();
  for (const auto& parameter : engine.model().parameters().all()) {
    trained.gradients.push_back(to_host_f32(*device, parameter->gradient));
  }
  engine.begin_evaluation();
  ValidationBatches batches(corpus, 1, settings.step.seq_length);
  while (const auto batch = batches.next()) engine.evaluate(*batch);
  trained.evaluation = engine.evaluation_loss().mean;
  return trained;
}

/// Twelve documents, the first tokens of which are no targets.
Corpus documents(Packing packing) {
  std::vector<int32_t> tokens;
  DocumentTable table;
  const int lengths[] = {5, 9, 3, 7, 12, 4, 17, 6, 2, 8, 3, 10};
  for (const int length : lengths) {
    for (int i = 0; i < length; ++i) {
      const PhiloxBlock bits = philox(11, 0, tokens.size());
      tokens.push_back(static_cast<int32_t>(bits.word[0] % kSmallVocabulary));
      table.is_target.push_back(i > length / 3);
    }
    table.ends.push_back(static_cast<int64_t>(tokens.size()));
  }
  const auto size = static_cast<int64_t>(tokens.size());
  Corpus corpus;
  corpus.append(memory_store(tokens, table), 0, size);
  corpus.set_form({.packing = packing, .masks_documents = packing == Packing::documents});
  return corpus;
}

double relative_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0;
  double length = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - b[i];
    difference += d * d;
    length += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(difference / length);
}

void check_packing(const EngineSettings& settings, DeviceKind kind, double tolerance) {
  const Trained packed = train(settings, documents(Packing::documents), kind);
  const Trained alone = train(settings, documents(Packing::none), kind);
  CHECK(packed.loss.targets == alone.loss.targets);
  CHECK(packed.loss.mean == Approx(alone.loss.mean).epsilon(tolerance));
  CHECK(packed.evaluation == Approx(alone.evaluation).epsilon(tolerance));
  REQUIRE(packed.gradients.size() == alone.gradients.size());
  for (size_t i = 0; i < alone.gradients.size(); ++i) {
    INFO("parameter " << i);
    CHECK(relative_difference(packed.gradients[i], alone.gradients[i]) < 10 * tolerance);
  }
}

TEST_CASE("packed documents have the loss and gradients of documents alone", "[chat]") {
  check_packing(small_llama("fp32"), DeviceKind::cpu, 1e-6);
  check_packing(small_gpt2("fp32"), DeviceKind::cpu, 1e-6);
  EngineSettings again = small_llama("fp32");
  again.step.decoder.recompute = Recompute::block;
  check_packing(again, DeviceKind::cpu, 1e-6);
  // Without the mask they differ: the comparison sees it.
  Corpus unmasked = documents(Packing::documents);
  unmasked.set_form({.packing = Packing::documents, .masks_documents = false});
  const EngineSettings settings = small_llama("fp32");
  const Trained mixed = train(settings, unmasked, DeviceKind::cpu);
  const Trained alone = train(settings, documents(Packing::none), DeviceKind::cpu);
  CHECK(std::abs(mixed.loss.mean - alone.loss.mean) > 1e-4);
}

#if defined(FP8TRAIN_CHAT_ON_CUDA)
TEST_CASE("packed documents on the cuda device", "[cuda][chat]") {
  check_packing(small_llama("fp32"), DeviceKind::cuda, 1e-5);
  check_packing(small_gpt2("fp32"), DeviceKind::cuda, 1e-5);
  check_packing(small_llama("bf16"), DeviceKind::cuda, 5e-3);  // alone through cuDNN's fake
  const Trained want = train(small_llama("fp32"), documents(Packing::documents), DeviceKind::cpu);
  const Trained got = train(small_llama("fp32"), documents(Packing::documents), DeviceKind::cuda);
  CHECK(got.loss.mean == Approx(want.loss.mean).epsilon(1e-5));
}
#endif

TEST_CASE("ranks and micro-batches share the mean over all targets", "[chat]") {
  // The same step in one micro-batch and in several: a mean of means would differ.
  const Corpus corpus = documents(Packing::documents);
  EngineSettings settings = small_llama("fp32");
  const Trained apart = train(settings, corpus, DeviceKind::cpu);
  const Samples samples(corpus, settings.step.seq_length);
  settings.step.micro_batch_size = static_cast<int64_t>(samples.samples_per_epoch());
  settings.masks_documents = settings.counts_targets = true;
  settings.optimizer.grad_clip = 0;
  const auto device = make_device(DeviceKind::cpu);
  Engine engine(*device, settings);
  engine.reserve(dry_run_step(settings, {}).plan);
  engine.model().initialize(3);
  engine.weights_changed();
  Loader loader(corpus, {.micro_batch_size = settings.step.micro_batch_size,
                         .seq_length = settings.step.seq_length,
                         .shuffle = false});
  engine.step([&] { return loader.next(); }, 0, 0.0, false);
  CHECK(engine.step_loss().mean == Approx(apart.loss.mean).epsilon(1e-6));
  for (size_t i = 0; i < apart.gradients.size(); ++i) {
    const auto gradient = to_host_f32(*device, engine.model().parameters().all()[i]->gradient);
    CHECK(relative_difference(gradient, apart.gradients[i]) < 1e-5);
  }
}

}  // namespace
}  // namespace fp8train::test
