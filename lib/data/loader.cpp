#include "data/loader.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/math.h"

namespace fp8train {

/// Makes the batches from one position on, in order, into a bounded queue. Ends after the first
/// error, which travels through the queue in its place. Destruction stops and joins.
class Loader::Prefetcher {
 public:
  Prefetcher(const Loader& loader, uint64_t position)
      : loader_(loader), thread_([this, position] { run(position); }) {}

  ~Prefetcher() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  Batch take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !queue_.empty(); });
    Item item = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    changed_.notify_all();
    if (item.error) {
      std::rethrow_exception(item.error);
    }
    return std::move(item.batch);
  }

 private:
  struct Item {
    Batch batch;
    std::exception_ptr error;
  };

  void run(uint64_t position) {
    for (bool failed = false; !failed; position += loader_.samples_per_batch()) {
      Item item;
      try {
        item.batch = loader_.make_batch(position);
      } catch (...) {
        item.error = std::current_exception();
        failed = true;
      }
      std::unique_lock lock(mutex_);
      changed_.wait(lock,
                    [this] { return stopping_ || queue_.size() < loader_.settings_.prefetch; });
      if (stopping_) {
        return;
      }
      queue_.push_back(std::move(item));
      lock.unlock();
      changed_.notify_all();
    }
  }

  const Loader& loader_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> queue_;
  bool stopping_ = false;
  std::thread thread_;  // last: everything it uses is constructed before it starts
};

Loader::Loader(const Corpus& corpus, const LoaderSettings& settings)
    : corpus_(corpus),
      settings_(settings),
      order_(corpus, settings.seq_length, settings.shuffle, settings.seed) {
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

Batch Loader::make_batch(uint64_t position) const {
  const int64_t columns = settings_.seq_length;
  Batch batch;
  batch.rows = settings_.micro_batch_size;
  batch.columns = columns;
  batch.tokens.resize(static_cast<size_t>(batch.rows * columns));
  batch.targets.resize(batch.tokens.size());
  std::vector<int32_t> window(static_cast<size_t>(columns) + 1);
  for (int64_t row = 0; row < batch.rows; ++row) {
    const uint64_t sample = position + static_cast<uint64_t>(row * settings_.data_ranks) +
                            static_cast<uint64_t>(settings_.data_rank);
    corpus_.read(order_.start_of(sample), columns + 1, window.data());
    std::copy(window.begin(), window.end() - 1, batch.tokens.begin() + row * columns);
    std::copy(window.begin() + 1, window.end(), batch.targets.begin() + row * columns);
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
  position_ = position;
}

ValidationBatches::ValidationBatches(const Corpus& corpus, int64_t batch_size, int64_t seq_length,
                                     int data_rank, int data_ranks, int64_t stride)
    : corpus_(corpus),
      batch_size_(batch_size),
      seq_length_(seq_length),
      stride_(stride == 0 ? seq_length : stride),
      data_rank_(data_rank),
      data_ranks_(data_ranks) {
  check(batch_size >= 1 && seq_length >= 1, "batch_size and seq_length must be positive");
  check(stride_ >= 1 && stride_ <= seq_length, "a stride is from 1 to seq_length");
  check(data_ranks >= 1 && data_rank >= 0 && data_rank < data_ranks,
        "the rank is outside the world");
  const int64_t rows_of_all = batch_size * data_ranks;
  const int64_t behind_first = std::max<int64_t>(0, target_count() - seq_length);
  window_count_ = target_count() == 0 ? 0 : 1 + ceil_div(behind_first, stride_);
  batch_count_ = ceil_div(window_count_, rows_of_all);
}

int64_t ValidationBatches::target_count() const {
  return std::max<int64_t>(0, corpus_.size() - 1);
}

std::optional<Batch> ValidationBatches::next() {
  if (batch_ >= batch_count_) {
    return std::nullopt;
  }
  Batch batch;
  batch.rows = batch_size_;
  batch.columns = seq_length_;
  batch.tokens.assign(static_cast<size_t>(batch_size_ * seq_length_), 0);
  batch.targets.assign(batch.tokens.size(), kIgnoredTarget);
  std::vector<int32_t> window(static_cast<size_t>(seq_length_) + 1);
  for (int64_t row = 0; row < batch_size_; ++row) {
    const int64_t index = (batch_ * batch_size_ + row) * data_ranks_ + data_rank_;
    if (index >= window_count_) {
      continue;  // an empty row, so that all ranks make the same number of batches
    }
    const int64_t start = index * stride_;
    const int64_t targets = std::min(seq_length_, target_count() - start);
    const int64_t counted_before = index == 0 ? 0 : seq_length_ - stride_;
    corpus_.read(start, targets + 1, window.data());
    std::copy_n(window.begin(), targets, batch.tokens.begin() + row * seq_length_);
    std::copy(window.begin() + 1 + counted_before, window.begin() + 1 + targets,
              batch.targets.begin() + row * seq_length_ + counted_before);
  }
  ++batch_;
  return batch;
}

}  // namespace fp8train
