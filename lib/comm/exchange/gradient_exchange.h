#pragma once
// The exchange of gradients between ranks, in the format of the plan's wire. A bucket is a flat
// piece of the gradients; the exchange replaces it by factor * (sum over ranks) on every rank
// (DDP), or leaves each rank the shard that it owns (ZeRO).
//
//   pack (round once) -> all-to-all of bytes -> fp32 sum in rank order [-> pack -> all-gather]
//
// A large bucket goes in pieces, one after another in the same scratch memory: the same elements of
// each rank's shard at a time. The order of sums, and with it every bit, does not depend on the
// size of pieces: scales belong to the format's groups of elements, or for code_sum to whole
// tensors, whose amax is exchanged before the first piece.
//
// two_hop does the all-to-all and the sum twice: among the ranks of a node, then among those of
// equal local rank. Shard r is elements r * shard_elements() .. of the bucket on every wire.
//
// An exchange is made once per bucket and run once per step: start() when the bucket is complete,
// advance() from time to time so that it progresses during other work, finish() before the result
// is read. Running it allocates nothing on the device; memory between start() and finish() is the
// caller's.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/math.h"
#include "base/not_copied.h"
#include "base/trace.h"
#include "comm/communicator.h"
#include "comm/exchange/side_stream.h"
#include "device/device.h"
#include "ops/exchange/wire.h"
#include "ops/storage/storage.h"
#include "tensor/encoded.h"

namespace fp8train {

/// The name of an exchange on a timeline (base/trace.h).
inline constexpr const char* kExchangeFlight = "exchange";

enum class WireKind : uint8_t {
  plain,     ///< values without scales; fp32 sums
  code_sum,  ///< codes with a scale for each tensor, shared by all ranks; the sum is rounded at
             ///< each addend
  two_shot,  ///< codes with a scale for each group of elements; fp32 sums
  two_hop,   ///< the same, within a node and then between nodes
};

/// The formats in which gradients cross between ranks.
struct GradientWire {
  WireKind kind = WireKind::plain;
  TensorFormat format;     ///< format of a contribution
  TensorFormat first_hop;  ///< two_hop: format of a contribution within a node
  /// DDP: the format of the means that are gathered. Plain wires: `format`, and a ZeRO shard is
  /// rounded to it as well, so that all layouts have the same bits.
  TensorFormat gather;
  /// The rank's own contribution to its shard is not rounded.
  bool self_exact = false;

  bool operator==(const GradientWire&) const = default;
};

/// The wire that a plan's gradient_wire format means for these ranks: two hops where there are
/// several nodes of several ranks, without self_exact. Means of codes are gathered in bf16. With
/// GradientBucket::shard_ranks below the number of ranks bf16 makes two hops too, and no wire does
/// unless these are the ranks of a node. Throws ConfigError for a format that crosses no wire.
GradientWire gradient_wire(const TensorFormat& format, bool self_exact, const Topology& topology,
                           int shard_ranks = 0);

/// The gradients that one exchange sums.
struct GradientBucket {
  /// Flat: fp32 or bf16; or codes as they cross the wire, whose scales are one for each of the
  /// format's groups of elements (two_shot, two_hop) or [tensors, 2], as those of Encoded are
  /// (code_sum).
  Encoded gradients;
  /// The first element of each tensor: multiples of 128, ascending from 0; code_sum only.
  std::vector<int64_t> tensors;
  /// Bytes of gradients in a piece, which has at least range_alignment() elements of each shard. 0:
  /// one piece.
  int64_t piece_bytes = 0;
  /// code_sum: the controller of each tensor's scale, on the device (ops::shared_scales); none
  /// where scales are divided by sqrt(N). Each rank counts in it what is at the maximum of its
  /// shard of the sum; all ranks' counts make the factor of the next step
  /// (ops::update_auto_scales).
  std::vector<ops::AutoScale*> automatic;
  /// code_sum: these ranks, among them those of the exchange, have parts of the same tensors, and
  /// agree on the scales. Null: those of the exchange.
  Communicator* scale_ranks = nullptr;
  /// ExchangeResult::shard: the ranks, one after another, that share the bucket. Those with the
  /// same number in all such groups get the same shard: each of them sums a part of it, and they
  /// gather the parts. 0: all ranks.
  int shard_ranks = 0;
  /// The sum is added to the shard, which is fp32.
  bool adds = false;
  /// With code_sum and ExchangeResult::whole, the codes of the sum and their scales go here, laid
  /// out as `gradients`, which stay as they are. Empty: the sum goes to `gradients`.
  Encoded result = {};
};

enum class ExchangeResult : uint8_t { whole, shard };

/// The exchange of one bucket. There is one class for wires whose contributions are packets with
/// their own scales (packet_exchange.cpp), and one for codes under scales that all ranks share
/// (code_exchange.cpp).
class GradientExchange : NotCopied {
 public:
  /// The communicators that an exchange uses, made by the first exchange that gets them.
  struct Groups {
    std::unique_ptr<Communicator> all, node, peers, scales;
  };
  /// The arguments of make_gradient_exchange().
  struct Parts {
    Communicator& comm;
    Device& device;
    GradientWire wire;
    GradientBucket bucket;
    ExchangeResult result;
    Groups* groups = nullptr;
  };

  virtual ~GradientExchange() = default;

  /// Elements that a rank sums: a multiple of the wire's range_alignment(). The last of these may
  /// lie beyond the bucket.
  int64_t shard_elements() const { return chunk_; }
  /// Elements of the bucket that this rank sums.
  int64_t own_elements() const;

  /// Returns the number of pieces of the bucket.
  int64_t pieces() const { return ceil_div(chunk_, piece_); }

  /// Returns the bytes of scratch memory that one piece needs.
  size_t scratch_bytes() const { return added_bytes() + piece_scratch(); }

  /// Packs the first piece and starts to send. scratch: 256-byte aligned, free again after
  /// finish(). `shard` (ExchangeResult::shard only): this rank's elements, fp32 or bf16; may be
  /// their part of the bucket. `last`: false if a later exchange adds to the shard, so that nobody
  /// reads it yet.
  void start(Stream stream, void* scratch, float factor, const View& shard = {}, bool last = true);

  /// Progresses as far as that takes no waiting. Returns true when the result is there or, where
  /// communicators keep the order of the stream, when all of it is submitted.
  bool advance() { return advance_as_far(false); }

  /// Waits until work that is submitted to the stream of start() from now on sees the result. All
  /// ranks call it in the same order. Throws CommError.
  void finish();

 protected:
  explicit GradientExchange(const Parts& parts);

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

  /// Parts of scratch memory start at multiples of 256 bytes.
  static size_t aligned_scratch(size_t bytes) { return round_up(bytes, size_t{256}); }
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
  /// Sums of a piece that are then added to the shard precede the scratch memory of the piece.
  size_t added_bytes() const {
    return bucket_.adds ? aligned_scratch(static_cast<size_t>(piece_) * sizeof(float)) : 0;
  }
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

/// Makes an exchange. Collective: all ranks make the same exchanges in the same order. `comm`,
/// `groups` and the memory of the bucket outlive it. How far advance() comes differs between ranks,
/// so that exchanges which are under way at the same time need groups of their own (null: made
/// here); those that run one after another can share them.
std::unique_ptr<GradientExchange> make_gradient_exchange(
    Communicator& comm, Device& device, const GradientWire& wire, GradientBucket bucket,
    ExchangeResult result, GradientExchange::Groups* groups = nullptr);

/// The same for code_sum, and for all other wires.
std::unique_ptr<GradientExchange> make_code_exchange(const GradientExchange::Parts& parts);
std::unique_ptr<GradientExchange> make_packet_exchange(const GradientExchange::Parts& parts);

}  // namespace fp8train
