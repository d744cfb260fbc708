#pragma once
// The part that all exchanges of gradients have in common. There is one class for wires whose
// contributions are packets with their own scales, and one for codes under scales that all ranks
// share.

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "base/math.h"
#include "base/trace.h"
#include "comm/exchange/gradient_exchange.h"
#include "comm/exchange/side_stream.h"
#include "ops/exchange/wire.h"
#include "tensor/tensor.h"

namespace fp8train {

class ExchangeRun : public GradientExchange {
 public:
  ExchangeRun(Communicator& comm, Device& device, const GradientWire& wire, GradientBucket bucket,
              ExchangeResult result, Groups* groups);
  ExchangeRun(const ExchangeRun&) = delete;
  ExchangeRun& operator=(const ExchangeRun&) = delete;

  size_t scratch_bytes() const final { return added_bytes() + piece_scratch(); }
  void start(Stream stream, void* scratch, float factor, const View& shard, bool last) override;
  bool advance() override { return advance_as_far(false); }
  void finish() override;

  int64_t shard_elements() const override { return chunk_; }
  int64_t own_elements() const override;
  int64_t pieces() const override { return ceil_div(chunk_, piece_); }

 protected:
  /// The work that follows when the messages under way have arrived.
  enum class Stage : uint8_t { second_send, sum, read, gathered };

  /// Returns the bytes of scratch memory for the exchange of one piece.
  virtual size_t piece_scratch() const = 0;
  /// Starts the first messages of a piece, if there are any, and sets the stage.
  virtual void begin() = 0;
  /// Starts the second messages, which depend on the first (the amax of all ranks, or the sums of a
  /// node), and sets the stage to sum.
  virtual void send_second() = 0;
  /// Adds the contributions. Returns true, with the stage set to read, if there is something to
  /// gather or to read.
  virtual bool sum() = 0;
  /// Reads the sums of all ranks into the bucket.
  virtual void read_sums() = 0;

  int ranks() const { return comm_->size(); }
  bool encoded() const { return bucket_.gradients.format.is_scaled(); }
  bool to_shard() const { return result_ == ExchangeResult::shard; }
  /// The number of groups that share the bucket.
  int copies() const { return ranks() / sharing_; }
  /// The chunk of the bucket that this rank sums.
  int own_chunk() const { return comm_->rank() % sharing_ * copies() + comm_->rank() / sharing_; }

  /// Elements of a shard in the piece under way; those of this rank's shard that the bucket has.
  int64_t here() const { return std::min(piece_, chunk_ - offset_); }
  int64_t own_here() const { return std::clamp(own_elements() - offset_, int64_t{0}, here()); }
  /// The memory for the sums of this piece.
  View shard_here() const {
    return bucket_.adds ? View{scratch_ - added_bytes(), DType::f32, {own_here()}} : stored_here();
  }
  /// The position of the piece under way in the bucket: one chunk for each rank.
  ops::ChunkRange chunk_range() const { return {.first = offset_, .stride = chunk_}; }
  bool first_piece() const { return offset_ == 0; }
  bool last_piece() const { return offset_ + piece_ >= chunk_; }

  Groups own_groups_;
  Groups* groups_;
  Communicator* comm_;  ///< groups_->all
  GradientWire wire_;
  GradientBucket bucket_;
  ExchangeResult result_;
  int sharing_;  ///< GradientBucket::shard_ranks, or all
  int64_t count_ = 0;
  int64_t chunk_ = 0;  ///< elements of a shard
  int64_t piece_ = 0;  ///< elements of each shard in a piece

  // The members that follow belong to the run under way.
  Stream stream_{DeviceKind::cpu, nullptr, nullptr};
  std::byte* scratch_ = nullptr;
  float factor_ = 1.0F;
  View shard_;          ///< the part that this rank sums
  int64_t offset_ = 0;  ///< offset of the piece in each shard
  Work work_;
  Stage stage_ = Stage::sum;

 private:
  View stored_here() const;
  size_t added_bytes() const;
  /// Starts to gather the parts of the shard if several groups sum one each.
  bool gather_parts();
  /// Runs the stage. Returns false after the piece's last one.
  bool next();
  /// False where more would take waiting, which only `waiting` allows.
  bool advance_as_far(bool waiting);
  bool next_piece();
  void show_end();

  bool under_way_ = false;
  View whole_shard_;
  bool last_ = true;
  TraceFlight flight_;
  /// Where messages follow streams the whole exchange is submitted at once, concurrently with the
  /// caller's stream. Ranks then submit in one order, which NCCL's kernels need.
  std::optional<SideStream> side_;
  std::shared_ptr<StreamEvent> end_;
  Stream caller_{DeviceKind::cpu, nullptr, nullptr};
};

/// Makes the exchange of all wires but code_sum (packet_exchange.cpp).
std::unique_ptr<GradientExchange> make_packet_exchange(Communicator& comm, Device& device,
                                                       const GradientWire& wire,
                                                       GradientBucket bucket, ExchangeResult result,
                                                       GradientExchange::Groups* groups);

/// Makes the exchange of code_sum (code_exchange.cpp).
std::unique_ptr<GradientExchange> make_code_exchange(Communicator& comm, Device& device,
                                                     const GradientWire& wire,
                                                     GradientBucket bucket, ExchangeResult result,
                                                     GradientExchange::Groups* groups);

/// Pieces of scratch memory start at multiples of this.
constexpr size_t kScratchAlignment = 256;
inline size_t aligned_scratch(size_t bytes) {
  return round_up(bytes, kScratchAlignment);
}

/// Sums of a piece that are then added to the shard precede the scratch memory of the piece.
inline size_t ExchangeRun::added_bytes() const {
  return bucket_.adds ? aligned_scratch(static_cast<size_t>(piece_) * sizeof(float)) : 0;
}

}  // namespace fp8train
