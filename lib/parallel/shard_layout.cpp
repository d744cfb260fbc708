#include <algorithm>

#include "base/error.h"
#include "base/math.h"
#include "nn/parameter.h"
#include "parallel/store_layout.h"
#include "parallel/strategy.h"

namespace fp8train {
namespace {

/// Whether a parameter can lie in the segment that `other` is in.
bool alike(const Parameter& parameter, const Parameter& other) {
  return parameter.formats == other.formats && parameter.trained == other.trained &&
         parameter.of_experts() == other.of_experts() &&
         parameter.gathered.form == other.gathered.form &&
         parameter.gathered.dtype == other.gathered.dtype;
}

class LayoutMaker {
 public:
  LayoutMaker(const ParameterStore& parameters, const StrategySite& site)
      : parameters_(parameters), site_(site) {
    const int index = site.mesh.index(Group::state);
    const int sharing = site.shard_ranks();
    layout_.shared = {.count = sharing, .rank = index % sharing};
    const MeshShape& shape = site.mesh.shape();
    const int of_experts = sharing * shape.tensor / shape.expert;
    layout_.of_experts = {.count = of_experts,
                          .rank = site.mesh.index(Group::expert_state) % of_experts};
    layout_.writes = index < sharing;
    layout_.operands_share_slots = stage() >= 3;
    layout_.adds_shards = site.adds_shards();
    layout_.parts.resize(parameters.all().size());
  }

  StoreLayout make() {
    const std::vector<size_t> begins = parameters_.unit_begins();
    const size_t units = begins.size() - 1;
    for (size_t unit = 0; unit < units; ++unit) {
      layout_.slot_groups.push_back(slot_group_of(unit, units));
      const size_t first_segment = layout_.segments.size();
      for (size_t i = begins[unit]; i < begins[unit + 1]; ++i) {
        add(i, segment_for(i, unit, first_segment));
      }
    }
    for (size_t i = 0; i < layout_.segments.size(); ++i) {
      cut(i);
    }
    return std::move(layout_);
  }

 private:
  int64_t stage() const { return site_.settings.zero_stage; }

  /// Neighbours, and the two ends where they are read together, do not share memory.
  size_t slot_group_of(size_t unit, size_t units) const {
    constexpr size_t kEnds = 2;
    if (unit == 0) {
      return kEnds;
    }
    return unit + 1 < units ? unit % 2 : site_.ties_embeddings ? kEnds + 1 : kEnds;
  }

  int64_t gradient_bytes(size_t parameter) const {
    const Parameter& of = *parameters_.all()[parameter];
    const DType dtype = running_gradient(of.formats, true).dtype;
    return static_cast<int64_t>(storage_bytes(dtype, {of.shape.count()}));
  }

  size_t segment_for(size_t parameter, size_t unit, size_t first_segment) {
    for (size_t i = first_segment; i < layout_.segments.size(); ++i) {
      int64_t bytes = gradient_bytes(parameter);
      for (const size_t member : layout_.segments[i].parameters) {
        bytes += gradient_bytes(member);
      }
      const Parameter& other = *parameters_.all()[layout_.segments[i].parameters.front()];
      if (bytes <= site_.settings.bucket_bytes && alike(*parameters_.all()[parameter], other)) {
        return i;
      }
    }
    const Parameter& first = *parameters_.all()[parameter];
    const bool is_read = first.gathered.form != GatheredForm::operands;
    layout_.segments.push_back({.unit = unit,
                                .parameters = {},
                                .begins = {},
                                .shard = 0,
                                .of_experts = first.of_experts(),
                                .values_stay = stage() < 3 && is_read,
                                .gradients_stay = stage() < 2 ||
                                                  (site_.accumulates && !layout_.adds_shards) ||
                                                  !first.trained});
    return layout_.segments.size() - 1;
  }

  /// `shard` counts all elements until cut().
  void add(size_t parameter, size_t index) {
    StoreLayout::Segment& segment = layout_.segments[index];
    segment.parameters.push_back(parameter);
    segment.begins.push_back(segment.shard);
    const Parameter& added = *parameters_.all()[parameter];
    segment.shard += round_up(added.shape.count(), range_alignment(added.formats.gradient_wire));
    layout_.parts[parameter].segment = index;
  }

  void cut(size_t index) {
    StoreLayout::Segment& segment = layout_.segments[index];
    const Parameter& member = *parameters_.all()[segment.parameters.front()];
    const int64_t alignment = range_alignment(member.formats.gradient_wire);
    const int64_t sharing = layout_.ranks_of(segment).count;
    // The groups of ranks that share a copy sum equal parts of a shard.
    const int64_t summing =
        site_.mesh.size(segment.of_experts ? Group::expert_state : Group::state);
    segment.shard = round_up(segment.shard, alignment * summing) / sharing;
    const int64_t begin = layout_.shard_begin(segment);
    const int64_t end = begin + segment.shard;
    for (size_t i = 0; i < segment.parameters.size(); ++i) {
      StoreLayout::Part& part = layout_.parts[segment.parameters[i]];
      const int64_t at = segment.begins[i];
      const int64_t count = parameters_.all()[segment.parameters[i]]->shape.count();
      const int64_t first = std::max(begin - at, int64_t{0});
      part.count = std::max(std::min(end - at, count) - first, int64_t{0});
      part.first = part.count > 0 ? first : 0;
    }
  }

  const ParameterStore& parameters_;
  const StrategySite& site_;
  StoreLayout layout_;
};

}  // namespace

StoreLayout shard_layout(const ParameterStore& parameters, const StrategySite& site) {
  const int64_t stage = site.settings.zero_stage;
  check(stage >= 1 && stage <= 3, "ZeRO has the stages 1, 2 and 3");
  return LayoutMaker(parameters, site).make();
}

}  // namespace fp8train
