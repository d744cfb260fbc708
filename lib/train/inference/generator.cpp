#include "train/inference/generator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/flight_recorder.h"
#include "base/philox.h"
#include "comm/backends/backends.h"
#include "model/linear_sites.h"
#include "ops/pointwise/elementwise.h"
#include "parallel/tensor_ranks.h"

namespace fp8train {
namespace {

constexpr int64_t kPrefillChunk = 64;
constexpr uint64_t kSamplingPurpose = 0x5A3B;

std::vector<Tensor> allocate_caches(Device& device, const Decoder& model, int64_t capacity,
                                    std::vector<KvCache>& caches) {
  const ModelConfig& config = model.config();
  const int64_t heads = config.num_key_value_heads / model.tensor_share().ranks;
  const Shape shape = {1, capacity, heads * config.head_dim};
  std::vector<Tensor> memory;
  for (int64_t i = 0; i < model.part().blocks(); ++i) {
    for (int part = 0; part < 2; ++part) {
      memory.emplace_back(device, model.plan().activation, shape,
                          MemoryCategory::saved_activations);
    }
    const size_t last = memory.size() - 1;
    caches.push_back({memory[last - 1].view(), memory[last].view(), 0, capacity});
  }
  return memory;
}

/// Rows between two parts of a model; empty: the whole model has none.
Tensor boundary(Device& device, const Decoder& model, int64_t rows) {
  return !model.part().is_whole()
             ? Tensor(device, model.plan().activation, {rows, model.config().hidden_size},
                      MemoryCategory::workspace)
             : Tensor();
}

/// `ranks.tensor` gives each rank all rows.
StepContext inference_context(Device& device, Arena& saved, Arena& scratch, const Decoder& model,
                              const ModelRanks& ranks) {
  return {.device = &device,
          .stream = device.stream(),
          .saved = &saved,
          .scratch = &scratch,
          .training = false,
          .collect_statistics = false,
          .gatherer = ranks.gatherer,
          .tensor_ranks = ranks.tensor,
          .tensor_parts = model.tensor_share().parts,
          .sums_in_fp32 = ranks.sums_in_fp32,
          .expert_ranks = ranks.experts};
}

/// Has all values at hand, and has layers make anew what they make of them.
class EachPassAnew final : public ParameterGatherer {
 public:
  bool gathers_per_pass() const override { return true; }
  Gathered gather(size_t /*unit*/, size_t /*next*/) override { return Gathered::again; }
  void combine_amax(const View& /*amax*/, bool /*of_experts*/) override {}
  void begin_gradients(size_t /*unit*/, bool /*overwrites*/) override {}
};

/// Scratch bytes of the longest prefill chunk and of one token, from a run on the meta device.
size_t plan_scratch(const Device& device, const Decoder& model, int64_t capacity,
                    const ModelRanks& ranks) {
  EachPassAnew anew;
  ModelRanks dry = {.sums_in_fp32 = ranks.sums_in_fp32};
  if (ranks.gatherer != nullptr && ranks.gatherer->gathers_per_pass()) {
    dry.gatherer = &anew;
  }
  const std::unique_ptr<Device> meta = make_meta_device(device.traits());
  const auto dry_ranks = [](const auto& share) {
    return make_dry_run(Topology::blocks(share.ranks, share.ranks), share.rank);
  };
  const TensorShare& share = model.tensor_share();
  const ExpertShare& of_experts = model.expert_share();
  const std::unique_ptr<Communicator> comms[] = {dry_ranks(share), dry_ranks(of_experts)};
  TensorRanks tensor(*comms[0]);
  TensorRanks experts(*comms[1]);
  WholeRows whole_rows(tensor);
  dry.tensor = share.ranks == 1 ? nullptr : &whole_rows;
  dry.experts = of_experts.ranks == 1 ? nullptr : &experts;
  Decoder twin(*meta, model.config(), model.plan(),
               {.gradients = false, .part = model.part(), .tensor = share, .experts = of_experts});
  Arena saved(*meta, MemoryCategory::saved_activations);
  Arena scratch(*meta, MemoryCategory::workspace);
  const auto run = [&](int64_t length, bool plain) {
    std::vector<KvCache> caches;
    const std::vector<Tensor> memory = allocate_caches(*meta, twin, capacity, caches);
    const Tensor tokens(*meta, DType::i32, {1, length}, MemoryCategory::batch);
    const Tensor x = boundary(*meta, twin, length);
    const Tensor y = boundary(*meta, twin, length);
    const ArenaScope scope(scratch);
    StepContext context = inference_context(*meta, saved, scratch, twin, dry);
    context.plain = plain;
    for (int chunk = 0; chunk < std::ssize(twin.part().chunks); ++chunk) {
      twin.next_token_logits(
          context, {.tokens = tokens, .targets = {}, .x = x, .y = y, .chunk = chunk, .saved = {}},
          caches);
    }
  };
  const int64_t lengths[] = {std::min(kPrefillChunk, capacity), 1};
  for (const int64_t length : lengths) {
    run(length, false);
    if (!model.plan().schedule.empty()) {
      run(length, true);
    }
  }
  twin.scaling().end_first_windows();
  for (const int64_t length : lengths) {
    run(length, false);
  }
  return scratch.high_water();
}

/// Keeps the smallest prefix of `order` (descending probability) that top_k and top_p allow.
size_t allowed_count(const std::vector<int32_t>& order, const std::vector<double>& probabilities,
                     const SamplingSettings& settings) {
  size_t count = order.size();
  if (settings.top_k > 0) {
    count = std::min(count, static_cast<size_t>(settings.top_k));
  }
  double sum = 0;
  for (size_t i = 0; i < count; ++i) {
    sum += probabilities[static_cast<size_t>(order[i])];
    if (sum >= settings.top_p) {
      return i + 1;
    }
  }
  return count;
}

}  // namespace

int32_t sample_token(const std::vector<float>& logits, const SamplingSettings& settings,
                     int64_t position) {
  const auto best = std::max_element(logits.begin(), logits.end());
  if (settings.temperature == 0.0) {
    return static_cast<int32_t>(best - logits.begin());
  }
  std::vector<double> probabilities(logits.size());
  double total = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    probabilities[i] = std::exp((static_cast<double>(logits[i]) - *best) / settings.temperature);
    total += probabilities[i];
  }
  for (double& probability : probabilities) {
    probability /= total;
  }
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return probabilities[static_cast<size_t>(a)] > probabilities[static_cast<size_t>(b)];
  });
  const size_t count = allowed_count(order, probabilities, settings);
  double allowed = 0;
  for (size_t i = 0; i < count; ++i) {
    allowed += probabilities[static_cast<size_t>(order[i])];
  }
  const uint64_t key = philox_key(settings.seed, kSamplingPurpose);
  const PhiloxBlock bits = philox(key, 0, static_cast<uint64_t>(position));
  double remaining = uniform_from_bits(bits.word[0]) * allowed;
  for (size_t i = 0; i + 1 < count; ++i) {
    remaining -= probabilities[static_cast<size_t>(order[i])];
    if (remaining < 0) {
      return order[i];
    }
  }
  return order[count - 1];
}

ModelRanks model_ranks(Engine& engine) {
  return {.gatherer = engine.strategy().gatherer(),
          .tensor = engine.tensor_ranks(),
          .experts = engine.expert_ranks(),
          .stages = engine.mesh().group(Group::pipe),
          .sums_in_fp32 = engine.settings().strategy.layout.tensor_parts > 0};
}

Generator::Generator(Device& device, Decoder& model, int64_t capacity, const ModelRanks& ranks)
    : device_(&device),
      model_(&model),
      ranks_(ranks),
      capacity_(std::min(capacity, longest_sequence(model.config()))),
      memory_(allocate_caches(device, model, capacity_, caches_)),
      saved_(device, MemoryCategory::saved_activations),
      scratch_(device, MemoryCategory::workspace),
      tokens_(device, DType::i32, {1, kPrefillChunk}, MemoryCategory::batch),
      logits_(device, DType::f32,
              {1, padded_vocabulary(model.config(), model.tensor_share().divisor())},
              MemoryCategory::workspace),
      x_(boundary(device, model, kPrefillChunk)),
      y_(boundary(device, model, kPrefillChunk)) {
  if (ranks.tensor != nullptr) {
    ranks_.tensor = &whole_rows_.emplace(*ranks.tensor);
  }
  scratch_.reserve(plan_scratch(device, model, capacity_, ranks));
}

/// Each chunk waits for the one before it, which the stage before has.
void Generator::run_stage(MicroBatchPass pass) {
  const int stages = ranks_.stages == nullptr ? 1 : ranks_.stages->size();
  const int stage = ranks_.stages == nullptr ? 0 : ranks_.stages->rank();
  const auto exchange = [&](int peer, bool sends, const View& rows) {
    const Message message[] = {{peer, sends, rows.data, rows.bytes()}};
    ranks_.stages->exchange(device_->stream(), message).wait();
  };
  StepContext context = inference_context(*device_, saved_, scratch_, *model_, ranks_);
  context.plain = plain_;
  View logits;
  const auto chunks = static_cast<int>(model_->part().chunks.size());
  for (pass.chunk = 0; pass.chunk < chunks; ++pass.chunk) {
    if (pass.chunk > 0 || stage > 0) {
      exchange((stage + stages - 1) % stages, false, pass.x);
    }
    logits = model_->next_token_logits(context, pass, caches_);
    if (pass.chunk + 1 < chunks || stage + 1 < stages) {
      exchange((stage + 1) % stages, true, pass.y);
    }
  }
  if (!logits.empty()) {
    ops::cast(device_->stream(), logits, logits_);
  }
  if (ranks_.stages != nullptr) {
    ranks_.stages
        ->broadcast(device_->stream(), logits_.view().data, logits_.view().bytes(),
                    ranks_.stages->size() - 1)
        .wait();
  }
}

std::vector<float> Generator::next_logits(const int32_t* tokens, int64_t count) {
  const View view = {tokens_.view().data, DType::i32, {1, count}};
  copy_from_host(*device_, view, tokens);
  const ArenaScope scope(scratch_);
  const auto rows = [count](const Tensor& chunk) {
    return chunk.empty() ? View() : rows_of(chunk.view(), 0, count);
  };
  run_stage({.tokens = view, .targets = {}, .x = rows(x_), .y = rows(y_), .saved = {}});
  std::vector<float> values = to_host_f32(*device_, logits_);
  values.resize(static_cast<size_t>(model_->config().vocab_size));
  return values;
}

std::vector<float> Generator::logits_after(const std::vector<int32_t>& prompt) {
  const auto length = static_cast<int64_t>(prompt.size());
  if (length == 0) {
    throw ConfigError("the prompt is empty; give at least one character");
  }
  if (length > capacity_) {
    throw ConfigError(
        fmt::format("the prompt has {} tokens, the model reads at most {}", length, capacity_));
  }
  for (const int32_t token : prompt) {
    if (token < 0 || token >= model_->config().vocab_size) {
      throw ConfigError(fmt::format("the prompt's token id {} is outside the vocabulary of {}",
                                    token, model_->config().vocab_size));
    }
  }
  for (KvCache& cache : caches_) {
    cache.length = 0;
  }
  std::vector<float> logits;
  for (int64_t begin = 0; begin < length; begin += kPrefillChunk) {
    logits = next_logits(prompt.data() + begin, std::min(kPrefillChunk, length - begin));
  }
  return logits;
}

void Generator::generate(const std::vector<int32_t>& prompt, const SamplingSettings& settings,
                         const std::function<bool(int32_t)>& on_token) {
  const auto length = static_cast<int64_t>(prompt.size());
  std::vector<float> logits = logits_after(prompt);
  for (int64_t i = 0; i < settings.max_new_tokens; ++i) {
    const int32_t token = sample_token(logits, settings, length + i);
    if (token == model_->config().eos_token_id || !on_token(token) || length + i >= capacity_) {
      return;
    }
    if (i + 1 < settings.max_new_tokens) {
      logits = next_logits(&token, 1);
    }
  }
}

std::string sample_texts(Generator& generator, const Tokenizer& tokenizer,
                         const SampleSettings& settings, uint64_t seed,
                         const std::function<void()>& on_token) {
  const SamplingSettings sampling = {.max_new_tokens = settings.max_new_tokens,
                                     .temperature = settings.temperature,
                                     .top_k = settings.top_k,
                                     .top_p = settings.top_p,
                                     .seed = seed};
  std::string text;
  for (const std::string& prompt : settings.prompts) {
    std::vector<int32_t> tokens = encode_prompt(tokenizer, prompt);
    generator.generate(tokens, sampling, [&](int32_t token) {
      tokens.push_back(token);
      section_advances();
      on_token();
      return true;
    });
    text += tokenizer.decode(tokens) + "\n";
  }
  return text;
}

}  // namespace fp8train
