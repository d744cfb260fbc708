#include "train/inference/multiple_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "base/error.h"
#include "base/math.h"
#include "data/utf8.h"

namespace fp8train {
namespace {

constexpr std::string_view kWhiteSpace = " \t\n\v\f\r";

std::vector<int32_t> encode_text(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> ids = tokenizer.frame().before_prompt;
  const std::vector<int32_t> of_text = tokenizer.encode(text);
  ids.insert(ids.end(), of_text.begin(), of_text.end());
  return ids;
}

Continuation behind_nothing(const Tokenizer& tokenizer, std::string_view continuation) {
  const int32_t prefix = tokenizer.bos_id() >= 0 ? tokenizer.bos_id() : tokenizer.eos_id();
  Continuation result{tokenizer.encode(continuation), 0};
  if (!result.tokens.empty() && prefix >= 0 && result.tokens.front() != prefix) {
    result.tokens.insert(result.tokens.begin(), prefix);
  }
  result.targets = result.tokens.empty() ? 0 : result.tokens.size() - 1;
  return result;
}

size_t best(const std::vector<double>& values) {
  return static_cast<size_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

}  // namespace

Continuation encode_continuation(const Tokenizer& tokenizer, std::string_view context,
                                 std::string_view continuation, int64_t longest) {
  Continuation result;
  if (context.empty()) {
    result = behind_nothing(tokenizer, continuation);
  } else {
    const std::string whole = std::string(context) + std::string(continuation);
    const size_t last = context.find_last_not_of(kWhiteSpace);
    const auto before = context.substr(0, last == std::string_view::npos ? 0 : last + 1);
    const size_t context_ids = encode_text(tokenizer, before).size();
    result.tokens = encode_text(tokenizer, whole);
    result.targets = result.tokens.size() - std::min(result.tokens.size(), context_ids);
    if (result.targets == result.tokens.size() && result.targets > 0) {
      --result.targets;  // white space without a token in front: the first id has no likelihood
    }
  }
  if (result.targets == 0 || result.targets > static_cast<size_t>(longest)) {
    throw DataError(
        fmt::format("the continuation has {} tokens behind its context (expected 1 to {}, the "
                    "longest sequence)",
                    result.targets, longest));
  }
  const size_t most = static_cast<size_t>(longest) + 1;
  if (result.tokens.size() > most) {
    result.tokens.erase(result.tokens.begin(),
                        result.tokens.end() - static_cast<std::ptrdiff_t>(most));
  }
  return result;
}

std::vector<Continuation> encode_question(const Tokenizer& tokenizer,
                                          const ChoiceQuestion& question, int64_t longest) {
  std::vector<Continuation> result;
  for (const std::string& choice : question.choices) {
    try {
      result.push_back(encode_continuation(tokenizer, question.context, " " + choice, longest));
    } catch (const DataError& error) {
      throw DataError(
          fmt::format("{}: choice {}: {}", question.where, result.size(), error.what()));
    }
  }
  return result;
}

ContinuationBatches::ContinuationBatches(const std::vector<Continuation>& texts, int64_t rows,
                                         int64_t columns)
    : texts_(texts), most_rows_(rows), most_columns_(columns), order_(texts.size()) {
  std::iota(order_.begin(), order_.end(), size_t{0});
  std::stable_sort(order_.begin(), order_.end(), [&](size_t a, size_t b) {
    return texts[a].tokens.size() > texts[b].tokens.size();
  });
}

Batch ContinuationBatches::next(bool padded) {
  const size_t count = std::min(order_.size() - next_, static_cast<size_t>(most_rows_));
  rows_.assign(order_.begin() + static_cast<std::ptrdiff_t>(next_),
               order_.begin() + static_cast<std::ptrdiff_t>(next_ + count));
  next_ += count;
  const auto inputs = static_cast<int64_t>(texts_[rows_.front()].tokens.size()) - 1;
  Batch batch;
  batch.rows = padded ? most_rows_ : static_cast<int64_t>(count);
  batch.columns =
      padded ? most_columns_ : std::min(most_columns_, round_up(inputs, kColumnMultiple));
  batch.tokens.assign(static_cast<size_t>(batch.rows * batch.columns), 0);
  batch.targets.assign(batch.tokens.size(), kIgnoredTarget);
  for (size_t row = 0; row < count; ++row) {
    const Continuation& text = texts_[rows_[row]];
    const size_t begin = row * static_cast<size_t>(batch.columns);
    const size_t first_target = text.tokens.size() - text.targets;
    for (size_t i = 0; i + 1 < text.tokens.size(); ++i) {
      batch.tokens[begin + i] = text.tokens[i];
      if (i + 1 >= first_target) batch.targets[begin + i] = text.tokens[i + 1];
    }
  }
  return batch;
}

std::vector<double> log_likelihoods(Engine& engine, const std::vector<Continuation>& texts,
                                    const std::function<void(size_t)>& progress) {
  std::vector<double> result(texts.size());
  ContinuationBatches batches(texts, engine.settings().step.micro_batch_size,
                              engine.settings().step.seq_length);
  for (size_t done = 0; !batches.done();) {
    const Batch batch = batches.next(false);
    const std::vector<float> losses = engine.target_losses(batch);
    const std::vector<size_t> rows = batches.rows();
    for (size_t row = 0; row < rows.size(); ++row) {
      const auto begin = losses.begin() + static_cast<std::ptrdiff_t>(row) * batch.columns;
      result[rows[row]] = -std::accumulate(begin, begin + batch.columns, 0.0);
    }
    done += rows.size();
    if (progress) progress(done);
  }
  return result;
}

ChoiceAnswers choose(const ChoiceQuestion& question, const std::vector<double>& log_likelihoods) {
  std::vector<double> per_character;
  std::vector<double> per_byte;
  for (size_t i = 0; i < log_likelihoods.size(); ++i) {
    const std::string& choice = question.choices[i];
    const auto characters =
        std::count_if(choice.begin(), choice.end(), [](char c) { return !is_continuation(c); });
    per_character.push_back(log_likelihoods[i] / static_cast<double>(characters));
    per_byte.push_back(log_likelihoods[i] / static_cast<double>(choice.size()));
  }
  return {best(log_likelihoods), best(per_character), best(per_byte)};
}

Accuracy accuracy(size_t right, size_t questions) {
  const auto count = static_cast<double>(questions);
  const double mean = static_cast<double>(right) / count;
  return {mean, questions > 1 ? std::sqrt(mean * (1 - mean) / (count - 1)) : 0.0};
}

}  // namespace fp8train
