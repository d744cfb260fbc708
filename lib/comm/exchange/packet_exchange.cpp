// Wires whose contributions are packets: plain, two_shot and two_hop.

#include <algorithm>

#include "base/error.h"
#include "comm/exchange/gradient_exchange.h"
#include "ops/exchange/wire.h"
#include "ops/storage/storage.h"

namespace fp8train {
namespace {

size_t packet_bytes(const TensorFormat& format, int64_t count) {
  return static_cast<size_t>(ops::wire_bytes(format, count));
}

/// Scratch memory of a piece: what is sent, later the means that are gathered; what is received;
/// fp32 values.
class PacketExchange final : public GradientExchange {
 public:
  explicit PacketExchange(const Parts& parts);

 protected:
  size_t piece_scratch() const override { return sent_bytes_ + received_bytes_ + values_bytes_; }
  void begin() override;
  void send_second() override;
  bool sum() override;
  void read_sums() override;

 private:
  void plan_memory();
  void sum_into(const View& y);
  void sum_to_shard();
  void sum_alone();

  bool two_hop() const { return node_ != nullptr; }
  bool gathers() const { return !to_shard() && ranks() > 1; }
  std::byte* sent() const { return scratch_; }
  std::byte* received() const { return ranks() == 1 ? sent() : scratch_ + sent_bytes_; }
  View values(int64_t count) const {
    return {scratch_ + sent_bytes_ + received_bytes_, DType::f32, {count}};
  }
  size_t mean_bytes() const { return packet_bytes(gather_, here()); }
  std::byte* means() const { return in_place_ ? bucket_.gradients.codes.as<std::byte>() : sent(); }
  std::byte* own_mean() const {
    return means() + static_cast<size_t>(comm_->rank()) * mean_bytes();
  }

  Communicator* node_ = nullptr;
  Communicator* peers_ = nullptr;
  TensorFormat gather_;
  bool in_place_ = false;  ///< means are gathered in the bucket itself
  size_t sent_bytes_ = 0, received_bytes_ = 0, values_bytes_ = 0;
};

PacketExchange::PacketExchange(const Parts& parts) : GradientExchange(parts) {
  gather_ = encoded() ? bucket_.gradients.format : wire_.gather;
  check(ops::is_wire_format(wire_.format) && ops::is_wire_format(gather_),
        "contributions and means cross in a wire's format");
  check(!wire_.self_exact || (!encoded() && wire_.kind != WireKind::two_hop),
        "self_exact is for gradients in fp32 or bf16 that make one hop");
  if (wire_.kind == WireKind::two_hop && ranks() > 1) {
    if (groups_->node == nullptr) {
      groups_->node = parts.comm.node_group();
    }
    if (groups_->peers == nullptr) {
      groups_->peers = parts.comm.peer_group();
    }
    node_ = groups_->node.get();
    peers_ = groups_->peers.get();
  }
  in_place_ = !encoded() && pieces() == 1 && chunk_ * ranks() == count_ &&
              gather_ == bucket_.gradients.format;
  plan_memory();
}

void PacketExchange::plan_memory() {
  const auto all = static_cast<size_t>(ranks());
  const size_t fp32_bytes = static_cast<size_t>(piece_) * sizeof(float);
  sent_bytes_ = all * packet_bytes(wire_.format, piece_);
  if (two_hop()) {
    // The second hop sends a node's part of that.
    const size_t second = sent_bytes_ / static_cast<size_t>(node_->size());
    sent_bytes_ = std::max(second, all * packet_bytes(wire_.first_hop, piece_));
    values_bytes_ = static_cast<size_t>(peers_->size()) * fp32_bytes;
  }
  received_bytes_ = ranks() == 1 ? 0 : sent_bytes_;
  if (gathers() && !in_place_) {
    sent_bytes_ = std::max(sent_bytes_, all * packet_bytes(gather_, piece_));
  }
  if (to_shard() || encoded() || gather_.is_scaled()) {
    values_bytes_ = std::max(values_bytes_, fp32_bytes);
  }
  sent_bytes_ = aligned_scratch(sent_bytes_);
  received_bytes_ = aligned_scratch(received_bytes_);
}

void PacketExchange::begin() {
  const TensorFormat& format = two_hop() ? wire_.first_hop : wire_.format;
  // Chunks lie by rank or, where groups share the bucket, by rank in the group and then by group.
  // They are sent by rank or, in two hops, by rank in the node and then by node.
  const bool in_order = two_hop() == (copies() > 1);
  ops::pack_wire(stream_, {.x = bucket_.gradients,
                           .format = format,
                           .chunk = here(),
                           .chunks = ranks(),
                           .range = chunk_range(),
                           .inner = in_order    ? 1
                                    : two_hop() ? node_->size()
                                                : copies(),
                           .packets = sent()});
  const size_t packet = packet_bytes(format, here());
  if (two_hop()) {
    const auto nodes = static_cast<size_t>(peers_->size());
    work_ = node_->all_to_all(stream_, sent(), received(), nodes * packet);
    stage_ = Stage::second_send;
    return;
  }
  if (ranks() > 1) {
    work_ = comm_->all_to_all(stream_, sent(), received(), packet);
  }
  stage_ = Stage::sum;
}

/// The second hop: sums of a node's contributions go to its peers.
void PacketExchange::send_second() {
  const int64_t nodes = peers_->size();
  const View sums = values(nodes * here());
  ops::sum_wire(stream_, {.packets = received(),
                          .format = wire_.first_hop,
                          .contributions = node_->size(),
                          .chunk = here(),
                          .chunks = nodes,
                          .y = sums});
  ops::pack_wire(
      stream_,
      {.x = sums, .format = wire_.format, .chunk = here(), .chunks = nodes, .packets = sent()});
  work_ = peers_->all_to_all(stream_, sent(), received(), packet_bytes(wire_.format, here()));
  stage_ = Stage::sum;
}

/// factor * sum of the contributions to this rank's shard.
void PacketExchange::sum_into(const View& y) {
  if (y.count() == 0) {
    return;
  }
  ops::SumWire call = {.packets = received(),
                       .format = wire_.format,
                       .contributions = two_hop() ? peers_->size() : ranks(),
                       .chunk = here(),
                       .factor = factor_,
                       .y = y};
  if (wire_.self_exact) {
    const View& all = bucket_.gradients.codes;
    const auto before = static_cast<size_t>(own_chunk() * chunk_ + offset_) * size_of(all.dtype);
    call.exact_index = comm_->rank();
    call.exact = {all.as<std::byte>() + before, all.dtype, {y.count()}};
  }
  ops::sum_wire(stream_, call);
}

bool PacketExchange::sum() {
  if (to_shard()) {
    sum_to_shard();
    return false;
  }
  if (ranks() == 1) {
    sum_alone();
    return false;
  }
  const int64_t own = own_here();
  if (gather_.is_scaled()) {
    const View mean = values(own);
    sum_into(mean);
    ops::pack_wire(stream_, {.x = mean, .format = gather_, .chunk = here(), .packets = own_mean()});
  } else {
    sum_into({own_mean(), gather_.dtype, {own}});
  }
  work_ = comm_->all_gather(stream_, own_mean(), means(), mean_bytes());
  stage_ = Stage::read;
  return true;
}

void PacketExchange::sum_to_shard() {
  // Plain wires: the bits of a mean that has been gathered.
  const bool rounds =
      !wire_.format.is_scaled() && ranks() > 1 && gather_.dtype != shard_.dtype && !bucket_.adds;
  const View shard = shard_here();
  if (!rounds || shard.count() == 0) {
    return sum_into(shard);
  }
  const View mean = {values(0).data, gather_.dtype, shard.shape};
  sum_into(mean);
  ops::sum_wire(stream_, {.packets = mean.data, .format = gather_, .chunk = here(), .y = shard});
}

void PacketExchange::sum_alone() {
  if (!encoded()) {
    return sum_into(bucket_.gradients.codes);
  }
  const View mean = values(count_);
  sum_into(mean);
  ops::store(stream_, {.x = mean, .to = bucket_.gradients});
}

void PacketExchange::read_sums() {
  if (in_place_) {
    return;
  }
  if (encoded()) {
    return ops::unpack_wire(stream_, {.packets = means(),
                                      .chunk = here(),
                                      .chunks = ranks(),
                                      .y = bucket_.gradients,
                                      .range = chunk_range()});
  }
  ops::sum_wire(stream_, {.packets = means(),
                          .format = gather_,
                          .chunk = here(),
                          .chunks = ranks(),
                          .y = bucket_.gradients.codes,
                          .range = chunk_range()});
}

}  // namespace

std::unique_ptr<GradientExchange> make_packet_exchange(const GradientExchange::Parts& parts) {
  return std::make_unique<PacketExchange>(parts);
}

}  // namespace fp8train
