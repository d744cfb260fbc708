#include "data/loader.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <future>
#include <mutex>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/math.h"

namespace fp8train {

/// Makes the batches from one position on, in order, into a bounded queue. Ends after the first
/// error, which travels through the queue as its batch. Destruction stops and joins.
class Loader::Prefetcher {
 public:
  Prefetcher(Loader& loader, uint64_t position)
      : loader_(loader),
        thread_([this, position](const std::stop_token& stop) { run(position, stop); }) {}

  Batch take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !queue_.empty(); });
    std::future<Batch> batch = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    changed_.notify_all();
    return batch.get();
  }

 private:
  void run(uint64_t position, const std::stop_token& stop) {
    for (; !stop.stop_requested(); position += loader_.samples_per_batch()) {
      bool failed = true;
      std::packaged_task<Batch()> make([&] {
        Batch batch = loader_.make_batch(position);
        failed = false;
        return batch;
      });
      make();
      std::unique_lock lock(mutex_);
      const bool has_space =
          changed_.wait(lock, stop, [this] { return queue_.size() < loader_.settings_.prefetch; });
      if (!has_space) return;
      queue_.push_back(make.get_future());
      lock.unlock();
      changed_.notify_all();
      if (failed) return;
    }
  }

  Loader& loader_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<std::future<Batch>> queue_;
  std::jthread thread_;  // last: everything it uses is constructed before it starts
};

Loader::Loader(const Corpus& corpus, const LoaderSettings& settings)
    : settings_(settings),
      samples_(corpus, settings.seq_length,
               {.walk = SampleWalk::training, .shuffle = settings.shuffle, .seed = settings.seed}) {
  check(settings.micro_batch_size >= 1, "micro_batch_size must be positive");
  check(settings.data_ranks >= 1 && settings.data_rank >= 0 &&
            settings.data_rank < settings.data_ranks,
        "the rank is outside the world");
}

Loader::~Loader() = default;

uint64_t Loader::samples_per_batch() const {
  return static_cast<uint64_t>(settings_.micro_batch_size) *
         static_cast<uint64_t>(settings_.data_ranks);
}

/// Counts the targets of the step that `position` is in, once where batches are made in order.
int64_t Loader::step_targets(uint64_t position) {
  const uint64_t of_step = samples_per_batch() * static_cast<uint64_t>(settings_.batches_per_step);
  const uint64_t begin = position - (position - first_position_) % of_step;
  if (!step_ || step_->begin != begin) {
    StepTargets step = {.begin = begin};
    for (uint64_t sample = begin; sample < begin + of_step; ++sample) {
      step.targets += samples_.targets(sample);
    }
    step_ = step;
  }
  return step_->targets;
}

Batch Loader::make_batch(uint64_t position) {
  Batch batch = samples_.empty_batch(settings_.micro_batch_size);
  for (int64_t row = 0; row < batch.rows; ++row) {
    const uint64_t sample = position + static_cast<uint64_t>(row * settings_.data_ranks) +
                            static_cast<uint64_t>(settings_.data_rank);
    samples_.read(sample, batch, row);
  }
  if (samples_.holds_documents()) {
    batch.step_targets = step_targets(position);
  }
  return batch;
}

Batch Loader::next() {
  Batch batch;
  if (settings_.prefetch == 0) {
    batch = make_batch(position_);
  } else {
    if (prefetcher_ == nullptr) {
      prefetcher_ = std::make_unique<Prefetcher>(*this, position_);
    }
    try {
      batch = prefetcher_->take();
    } catch (...) {
      prefetcher_.reset();
      throw;
    }
  }
  position_ += samples_per_batch();
  return batch;
}

void Loader::seek(uint64_t position) {
  prefetcher_.reset();
  step_.reset();
  position_ = position;
  first_position_ = position;
}

Batch without_padding(const Batch& batch, int64_t column_multiple) {
  check(batch.document_starts.empty(), "a batch without its padding has no masked documents");
  Batch result = {.rows = 0, .columns = 0, .step_targets = batch.step_targets};
  for (int64_t i = 0; i < batch.rows * batch.columns; ++i) {
    if (batch.targets[static_cast<size_t>(i)] != kIgnoredTarget) {
      result.rows = i / batch.columns + 1;
      result.columns = std::max(result.columns, i % batch.columns + 1);
    }
  }
  result.columns = std::min(batch.columns, round_up(result.columns, column_multiple));
  for (int64_t row = 0; row < result.rows; ++row) {
    const auto begin = static_cast<std::ptrdiff_t>(row * batch.columns);
    const auto end = begin + static_cast<std::ptrdiff_t>(result.columns);
    result.tokens.insert(result.tokens.end(), batch.tokens.begin() + begin,
                         batch.tokens.begin() + end);
    result.targets.insert(result.targets.end(), batch.targets.begin() + begin,
                          batch.targets.begin() + end);
  }
  return result;
}

ValidationBatches::ValidationBatches(const Corpus& corpus, int64_t batch_size, int64_t seq_length,
                                     const ValidationWalk& walk)
    : samples_(
          corpus, seq_length,
          {.walk = SampleWalk::once, .stride = walk.stride, .length_option = walk.length_option}),
      batch_size_(batch_size),
      data_rank_(walk.data_rank),
      data_ranks_(walk.data_ranks) {
  check(batch_size >= 1 && seq_length >= 1, "batch_size and seq_length must be positive");
  check(data_ranks_ >= 1 && data_rank_ >= 0 && data_rank_ < data_ranks_,
        "the rank is outside the world");
  batch_count_ =
      ceil_div(static_cast<int64_t>(samples_.samples_per_epoch()), batch_size * data_ranks_);
}

int64_t ValidationBatches::target_count() const {
  return samples_.target_count();
}

std::optional<Batch> ValidationBatches::next() {
  if (batch_ >= batch_count_) {
    return std::nullopt;
  }
  // Rows beyond the last sample stay empty, so that all ranks make the same number of batches.
  Batch batch = samples_.empty_batch(batch_size_);
  for (int64_t row = 0; row < batch_size_; ++row) {
    const int64_t index = (batch_ * batch_size_ + row) * data_ranks_ + data_rank_;
    samples_.read(static_cast<uint64_t>(index), batch, row);
  }
  ++batch_;
  return batch;
}

}  // namespace fp8train
