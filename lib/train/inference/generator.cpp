#include "train/inference/generator.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/flight_recorder.h"
#include "comm/backends/backends.h"
#include "model/linear_sites.h"
#include "ops/pointwise/elementwise.h"

namespace fp8train {
namespace {

constexpr int64_t kPrefillChunk = 64;

/// The caches of `texts` sequences: those of the first block, then those of the second, and so on.
std::vector<Tensor> allocate_caches(Device& device, const Decoder& model, int64_t capacity,
                                    int64_t texts, std::vector<KvCache>& caches) {
  const ModelConfig& config = model.config();
  const int64_t heads = config.num_key_value_heads / model.tensor_share().ranks;
  const Shape shape = {texts * capacity, heads * config.head_dim};
  std::vector<Tensor> memory;
  for (int64_t i = 0; i < model.part().blocks(); ++i) {
    for (int part = 0; part < 2; ++part) {
      memory.emplace_back(device, model.plan().activation, shape,
                          MemoryCategory::saved_activations);
    }
    const View keys = memory[memory.size() - 2].view();
    const View values = memory.back().view();
    for (int64_t text = 0; text < texts; ++text) {
      const int64_t first = text * capacity;
      caches.push_back(
          {rows_of(keys, first, capacity), rows_of(values, first, capacity), 0, capacity});
    }
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

/// Scratch bytes of the longest prefill chunk, of one token and of one of each text, from a run on
/// the meta device.
size_t plan_scratch(const Device& device, const Decoder& model, int64_t capacity, int64_t texts,
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
  const auto run = [&](const Shape& shape, bool plain) {
    std::vector<KvCache> caches;
    const std::vector<Tensor> memory = allocate_caches(*meta, twin, capacity, shape[0], caches);
    const Tensor tokens(*meta, DType::i32, shape, MemoryCategory::batch);
    const Tensor x = boundary(*meta, twin, shape.count());
    const Tensor y = boundary(*meta, twin, shape.count());
    const ArenaScope scope(scratch);
    StepContext context = inference_context(*meta, saved, scratch, twin, dry);
    context.plain = plain;
    for (int chunk = 0; chunk < std::ssize(twin.part().chunks); ++chunk) {
      twin.next_token_logits(
          context, {.tokens = tokens, .targets = {}, .x = x, .y = y, .chunk = chunk, .saved = {}},
          caches);
    }
  };
  const Shape shapes[] = {{1, std::min(kPrefillChunk, capacity)}, {1, 1}, {texts, 1}};
  for (const Shape& shape : shapes) {
    run(shape, false);
    if (!model.plan().schedule.empty()) {
      run(shape, true);
    }
  }
  twin.scaling().end_first_windows();
  for (const Shape& shape : shapes) {
    run(shape, false);
  }
  return scratch.high_water();
}

}  // namespace

ModelRanks model_ranks(Engine& engine) {
  return {.gatherer = engine.strategy().gatherer(),
          .tensor = engine.tensor_ranks(),
          .experts = engine.expert_ranks(),
          .stages = engine.mesh().group(Group::pipe),
          .sums_in_fp32 = engine.settings().strategy.layout.tensor_parts > 0};
}

bool has_independent_rows(const Decoder& model) {
  return std::ranges::all_of(model.linear_plans(), [](const LinearPlan& plan) {
    const TensorFormat& x = plan.fprop.a;
    const bool is_current = x.policy == ScalePolicy::current ||
                            x.policy == ScalePolicy::automatic || x.is_current_at_first();
    const bool by_rows = x.block.rows == 1 && (!x.is_two_level() || x.row_scaled);
    return !plan.evaluate_scaled || !x.is_scaled() ||
           (!plan.is_smoothed() && x.rounding == Rounding::nearest_even &&
            (!is_current || by_rows));
  });
}

/// A text that is under way.
struct Generator::Text {
  size_t request, slot;
  std::vector<float> logits;
  int64_t count = 0;  ///< new tokens
};

Generator::Generator(Device& device, Decoder& model, int64_t capacity, const ModelRanks& ranks,
                     int64_t texts)
    : device_(&device),
      model_(&model),
      ranks_(ranks),
      capacity_(std::min(capacity, longest_sequence(model.config()))),
      lengths_(static_cast<size_t>(has_independent_rows(model) ? texts : 1)),
      memory_(allocate_caches(device, model, capacity_, std::ssize(lengths_), caches_)),
      saved_(device, MemoryCategory::saved_activations),
      scratch_(device, MemoryCategory::workspace),
      tokens_(device, DType::i32, {std::max(kPrefillChunk, std::ssize(lengths_))},
              MemoryCategory::batch),
      starts_(device, DType::i32, {std::ssize(lengths_)}, MemoryCategory::batch),
      logits_(
          device, DType::f32,
          {std::ssize(lengths_), padded_vocabulary(model.config(), model.tensor_share().divisor())},
          MemoryCategory::workspace),
      x_(boundary(device, model, tokens_.view().shape.count())),
      y_(boundary(device, model, tokens_.view().shape.count())) {
  if (ranks.tensor != nullptr) {
    ranks_.tensor = &whole_rows_.emplace(*ranks.tensor);
  }
  scratch_.reserve(plan_scratch(device, model, capacity_, std::ssize(lengths_), ranks));
}

/// Where the positions of rows begin, if the longest text begins at 0; empty for one text.
View Generator::starts_of(const std::vector<size_t>& slots) {
  if (slots.size() == 1) {
    return {};
  }
  int64_t longest = 0;
  for (const size_t slot : slots) {
    longest = std::max(longest, lengths_[slot]);
  }
  std::vector<int32_t> starts;
  for (const size_t slot : slots) {
    starts.push_back(static_cast<int32_t>(longest - lengths_[slot]));
  }
  const View view = {starts_.view().data, DType::i32, {std::ssize(starts), 1}};
  copy_from_host(*device_, view, starts.data());
  return view;
}

/// Each chunk waits for the one before it, which the stage before has.
void Generator::run_stage(MicroBatchPass pass, const std::vector<size_t>& slots,
                          const View& logits) {
  const int stages = ranks_.stages == nullptr ? 1 : ranks_.stages->size();
  const int stage = ranks_.stages == nullptr ? 0 : ranks_.stages->rank();
  const auto exchange = [&](int peer, bool sends, const View& rows) {
    const Message message[] = {{peer, sends, rows.data, rows.bytes()}};
    ranks_.stages->exchange(device_->stream(), message).wait();
  };
  StepContext context = inference_context(*device_, saved_, scratch_, *model_, ranks_);
  context.plain = plain_;
  context.document_starts = starts_of(slots);
  std::vector<KvCache> caches;
  for (size_t block = 0; block < caches_.size(); block += lengths_.size()) {
    for (const size_t slot : slots) {
      caches.push_back(caches_[block + slot]);
      caches.back().length = lengths_[slot];
    }
  }
  View made;
  const auto chunks = static_cast<int>(model_->part().chunks.size());
  for (pass.chunk = 0; pass.chunk < chunks; ++pass.chunk) {
    if (pass.chunk > 0 || stage > 0) {
      exchange((stage + stages - 1) % stages, false, pass.x);
    }
    made = model_->next_token_logits(context, pass, caches);
    if (pass.chunk + 1 < chunks || stage + 1 < stages) {
      exchange((stage + 1) % stages, true, pass.y);
    }
  }
  if (!made.empty()) {
    ops::cast(device_->stream(), made, logits);
  }
  if (ranks_.stages != nullptr) {
    ranks_.stages->broadcast(device_->stream(), logits.data, logits.bytes(), stages - 1).wait();
  }
}

std::vector<std::vector<float>> Generator::next_logits(const std::vector<size_t>& slots,
                                                       const int32_t* tokens, int64_t length) {
  const int64_t texts = std::ssize(slots);
  const View view = {tokens_.view().data, DType::i32, {texts, length}};
  copy_from_host(*device_, view, tokens);
  const ArenaScope scope(scratch_);
  const auto rows = [&](const Tensor& chunk) {
    return chunk.empty() ? View() : rows_of(chunk.view(), 0, texts * length);
  };
  const View logits = rows_of(logits_.view(), 0, texts);
  run_stage({.tokens = view, .targets = {}, .x = rows(x_), .y = rows(y_), .saved = {}}, slots,
            logits);
  const std::vector<float> values = to_host_f32(*device_, logits);
  std::vector<std::vector<float>> of_slots;
  for (int64_t text = 0; text < texts; ++text) {
    lengths_[slots[static_cast<size_t>(text)]] += length;
    const auto begin = values.begin() + text * logits.shape.back();
    of_slots.emplace_back(begin, begin + model_->config().vocab_size);
  }
  return of_slots;
}

void Generator::check_prompt(const std::vector<int32_t>& prompt) const {
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
}

std::vector<float> Generator::logits_after(const std::vector<int32_t>& prompt, size_t slot) {
  const auto length = static_cast<int64_t>(prompt.size());
  lengths_[slot] = 0;
  std::vector<float> logits;
  for (int64_t begin = 0; begin < length; begin += kPrefillChunk) {
    logits =
        next_logits({slot}, prompt.data() + begin, std::min(kPrefillChunk, length - begin)).front();
  }
  return logits;
}

std::vector<float> Generator::logits_after(const std::vector<int32_t>& prompt) {
  check_prompt(prompt);
  return logits_after(prompt, 0);
}

void Generator::generate(const std::vector<TextRequest>& requests,
                         const std::function<bool(size_t text, int32_t token)>& on_token) {
  for (const TextRequest& request : requests) {
    check_prompt(request.prompt);
  }
  std::vector<size_t> free(lengths_.size());
  std::iota(free.rbegin(), free.rend(), size_t{0});
  std::vector<Text> texts;
  for (size_t next = 0; next < requests.size() || !texts.empty();) {
    for (; next < requests.size() && !free.empty(); ++next) {
      texts.push_back({next, free.back(), logits_after(requests[next].prompt, free.back())});
      free.pop_back();
    }
    std::vector<int32_t> tokens;
    std::vector<size_t> slots;
    std::vector<Text> unfinished;
    for (const Text& text : texts) {
      const auto& [prompt, sampling] = requests[text.request];
      const int64_t position = std::ssize(prompt) + text.count;
      const bool is_full = text.count >= sampling.max_new_tokens;
      const int32_t token = is_full ? 0 : sample_token(text.logits, sampling, position);
      if (is_full || token == model_->config().eos_token_id || !on_token(text.request, token) ||
          position >= capacity_ || text.count + 1 == sampling.max_new_tokens) {
        free.push_back(text.slot);
        continue;
      }
      tokens.push_back(token);
      slots.push_back(text.slot);
      unfinished.push_back({text.request, text.slot, {}, text.count + 1});
    }
    texts = std::move(unfinished);
    if (!texts.empty()) {
      std::vector<std::vector<float>> logits = next_logits(slots, tokens.data(), 1);
      for (size_t i = 0; i < texts.size(); ++i) {
        texts[i].logits = std::move(logits[i]);
      }
    }
  }
}

void Generator::generate(const std::vector<int32_t>& prompt, const SamplingSettings& settings,
                         const std::function<bool(int32_t)>& on_token) {
  generate({{prompt, settings}}, [&](size_t, int32_t token) { return on_token(token); });
}

std::shared_ptr<Generator> make_sampler(Engine& engine, int64_t capacity, int64_t texts) {
  constexpr int64_t kSamplesAtOnce = 8;
  if (!engine.mesh().leads() && !engine.passes_are_collective()) {
    return nullptr;
  }
  return std::make_shared<Generator>(engine.device(), engine.model(), capacity, model_ranks(engine),
                                     std::clamp<int64_t>(texts, 1, kSamplesAtOnce));
}

std::string sample_texts(Generator& generator, const Tokenizer& tokenizer,
                         const SampleSettings& settings, uint64_t seed,
                         const std::function<void()>& on_token) {
  const SamplingSettings sampling = {.max_new_tokens = settings.max_new_tokens,
                                     .temperature = settings.temperature,
                                     .top_k = settings.top_k,
                                     .top_p = settings.top_p,
                                     .seed = seed};
  std::vector<TextRequest> requests;
  std::vector<std::vector<int32_t>> texts;
  for (const std::string& prompt : settings.prompts) {
    texts.push_back(encode_prompt(tokenizer, prompt));
    requests.push_back({texts.back(), sampling});
  }
  generator.generate(requests, [&](size_t text, int32_t token) {
    texts[text].push_back(token);
    section_advances();
    on_token();
    return true;
  });
  std::string all;
  for (const std::vector<int32_t>& text : texts) {
    all += tokenizer.decode(text) + "\n";
  }
  return all;
}

}  // namespace fp8train
