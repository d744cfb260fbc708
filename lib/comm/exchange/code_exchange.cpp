// code_sum: codes under a scale for each tensor that all ranks share, summed as codes (MS-AMP's
// DDP, msamp/nn/distributed.py): the scale is 2^floor(log2(448 / amax)) / sqrt(N), the sum of codes
// is rounded at each addend, and what is read is divided by N. A controller's mu (FP8-LM), which
// starts at 1 / sqrt(N), replaces that factor, rounded down to a power of two.

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/math.h"
#include "comm/exchange/gradient_exchange.h"
#include "ops/exchange/shared_wire.h"
#include "ops/exchange/wire.h"
#include "tensor/tensor.h"

namespace fp8train {
namespace {

/// Scratch memory: codes of a piece that are sent, later those that are gathered; codes that are
/// received; the amax of each rank and tensor; the scale of each tensor. Where gradients are codes
/// themselves, their scales change with the last piece: until then contributions are read with
/// them.
class CodeExchange final : public GradientExchange {
 public:
  explicit CodeExchange(const Parts& parts);

 protected:
  size_t piece_scratch() const override {
    return 2 * codes_bytes() + aligned_scratch(amax().bytes()) + aligned_scratch(scales().bytes());
  }
  void begin() override;
  void send_second() override;
  bool sum() override;
  void read_sums() override;

 private:
  void name_tensors(Device& device);
  View own_names() const;
  void find_scales();
  void pack();
  void read_shard();

  size_t codes_bytes() const {
    return aligned_scratch(static_cast<size_t>(ranks()) * static_cast<size_t>(piece_));
  }
  View codes(std::byte* from, int64_t rows) const {
    return {from, wire_.format.dtype, {rows, here()}};
  }
  std::byte* received() const { return ranks() == 1 ? scratch_ : scratch_ + codes_bytes(); }
  std::byte* own_codes() const {
    return scratch_ + static_cast<size_t>(comm_->rank()) * static_cast<size_t>(here());
  }
  Communicator& scale_ranks() const {
    return bucket_.scale_ranks == nullptr ? *comm_ : *groups_->scales;
  }
  View amax() const {
    return {scratch_ + 2 * codes_bytes(), DType::f32, {scale_ranks().size(), tensors_}};
  }
  View own_amax() const {
    return {amax().as<float>() + scale_ranks().rank() * tensors_, DType::f32, {tensors_}};
  }
  View scales() const {
    return {scratch_ + 2 * codes_bytes() + aligned_scratch(amax().bytes()), DType::f32, {tensors_}};
  }
  ops::SharedBucket whole() const {
    return {bucket_.gradients.codes, bucket_.gradients.scales, tensor_of_group_};
  }

  int64_t tensors_ = 0;
  Tensor tensor_of_group_;
  Tensor automatic_;  ///< addresses; empty: none
};

CodeExchange::CodeExchange(const Parts& parts) : GradientExchange(parts) {
  check(is_fp8(wire_.format.dtype) && wire_.format.block == per::tensor,
        "codes that are summed have a scale for the tensor");
  check(bucket_.result.codes.empty() || (!to_shard() && bucket_.result.format == wire_.format &&
                                         bucket_.result.count() == bucket_.gradients.count()),
        "what codes are read to is as large as the bucket, in the format of the wire");
  check(!wire_.self_exact, "self_exact has no meaning where codes are summed");
  if (bucket_.scale_ranks != nullptr && groups_->scales == nullptr) {
    groups_->scales = bucket_.scale_ranks->duplicate();
  }
  name_tensors(parts.device);
}

void CodeExchange::name_tensors(Device& device) {
  const std::vector<int64_t>& begins = bucket_.tensors;
  check(!begins.empty() && begins.front() == 0 && std::is_sorted(begins.begin(), begins.end()),
        "a bucket's tensors are named from its start on");
  tensors_ = static_cast<int64_t>(begins.size());
  const int64_t groups = ceil_div(count_, kRangeAlignment);
  std::vector<int32_t> table(static_cast<size_t>(groups));
  for (size_t tensor = 0; tensor < begins.size(); ++tensor) {
    check(begins[tensor] % kRangeAlignment == 0, "tensors of a bucket start at whole groups");
    const int64_t first = std::min(begins[tensor] / kRangeAlignment, groups);
    std::fill(table.begin() + first, table.end(), static_cast<int32_t>(tensor));
  }
  tensor_of_group_ = Tensor(device, DType::i32, {groups}, MemoryCategory::workspace);
  copy_from_host(device, tensor_of_group_, table.data());
  if (!bucket_.automatic.empty()) {
    static_assert(sizeof(ops::AutoScale*) == sizeof(int64_t));
    check(bucket_.automatic.size() == begins.size(), "each tensor of a bucket has a controller");
    automatic_ = Tensor(device, DType::i64, {tensors_}, MemoryCategory::workspace);
    copy_from_host(device, automatic_, bucket_.automatic.data());
  }
}

/// From this rank's shard of the piece on.
View CodeExchange::own_names() const {
  const View names = tensor_of_group_;
  const int64_t before = (own_chunk() * chunk_ + offset_) / kRangeAlignment;
  return {names.as<int32_t>() + before, DType::i32, {names.count() - before}};
}

void CodeExchange::begin() {
  if (!first_piece()) {
    return pack();
  }
  ops::shared_amax(stream_, whole(), own_amax());
  if (scale_ranks().size() > 1) {
    work_ = scale_ranks().all_gather(stream_, own_amax().data, amax().data, own_amax().bytes());
  }
  stage_ = Stage::second_send;
}

void CodeExchange::send_second() {
  find_scales();
  pack();
}

void CodeExchange::find_scales() {
  const float pre_scale = ranks() == 1 ? 1.0F : 1.0F / std::sqrt(static_cast<float>(ranks()));
  ops::shared_scales(stream_, amax(), wire_.format, pre_scale, scales(), automatic_.view());
}

void CodeExchange::pack() {
  for (int group = 0; group < copies(); ++group) {  // the parts that its ranks sum
    const auto before = static_cast<size_t>(group * sharing_) * static_cast<size_t>(here());
    ops::pack_shared(stream_, whole(), scales(), codes(scratch_ + before, sharing_),
                     {.first = offset_ + group * chunk_, .stride = copies() * chunk_});
  }
  if (ranks() > 1) {
    work_ = comm_->all_to_all(stream_, scratch_, received(), static_cast<size_t>(here()));
  }
  stage_ = Stage::sum;
}

bool CodeExchange::sum() {
  if (ranks() > 1) {
    ops::sum_shared(stream_, codes(received(), ranks()), codes(own_codes(), 1));
  }
  if (!automatic_.empty() && own_here() > 0) {
    ops::count_largest(stream_, {own_codes(), wire_.format.dtype, {own_here()}}, own_names(),
                       automatic_.view());
  }
  if (to_shard()) {
    read_shard();
    return false;
  }
  if (ranks() > 1) {
    work_ = comm_->all_gather(stream_, own_codes(), scratch_, static_cast<size_t>(here()));
  }
  stage_ = Stage::read;
  return true;
}

void CodeExchange::read_shard() {
  const View shard = shard_here();
  if (shard.count() == 0) {
    return;
  }
  ops::read_shared(stream_, codes(own_codes(), 1), scales(), factor_, {shard, {}, own_names()});
}

void CodeExchange::read_sums() {
  ops::SharedBucket to = whole();
  if (!bucket_.result.codes.empty()) {
    to = {bucket_.result.codes, bucket_.result.scales, tensor_of_group_};
  }
  if (!last_piece()) {
    to.code_scales = {};
  }
  ops::read_shared(stream_, codes(scratch_, ranks()), scales(), factor_, to, chunk_range());
}

}  // namespace

std::unique_ptr<GradientExchange> make_code_exchange(const GradientExchange::Parts& parts) {
  return std::make_unique<CodeExchange>(parts);
}

}  // namespace fp8train
