#pragma once
// The dry runs of the layouts of a search, with the time of each. Those of a deep model whose
// blocks are all alike run few of them.

#include <optional>
#include <vector>

#include "layouts.h"

namespace fp8train {

class LayoutRuns {
 public:
  /// `settings`: of the run; they and `memory` must outlive this object. Throws what open_session()
  /// throws.
  LayoutRuns(const Settings& settings, const RankMemory& memory, int ranks);

  /// Makes the dry run of a layout, or of few of its blocks (Layout::is_estimate). `others` (null:
  /// none) gets it with the schedules with which the same passes take less time.
  Layout plan(const Settings& settings, std::vector<Layout>* others) const;
  /// Makes the whole dry run of a layout. `limit`: where it ends.
  Layout run(const Settings& settings, size_t limit) const;

  /// Returns the model, which can be in a folder.
  const ModelConfig& model() const { return model_; }
  size_t limit() const { return memory_.bytes == 0 ? SIZE_MAX : memory_.bytes; }
  bool fits(const Layout& layout) const { return layout.bytes <= limit(); }

 private:
  /// The session of a layout, with the blocks of all parts.
  Session session_of(const Settings& settings) const;
  void set_parts(ParallelLayout& layout) const;
  Layout layout_of(const Settings& settings, const Session& session, StageRuns& runs,
                   bool is_bound) const;
  Layout run(const Settings& settings, size_t limit, std::vector<Layout>* others) const;
  void set_time(const EngineSettings& engine, StageRuns& runs, Layout& layout) const;
  void add_schedules(const Session& session, StageRuns& runs, const Layout& layout,
                     std::vector<Layout>& others) const;

  const RankMemory& memory_;
  int ranks_;
  Topology topology_;
  ModelConfig model_;
  int64_t bucket_bytes_ = 0;    ///< of the whole model
  double flops_per_token_ = 0;  ///< the same
  double head_blocks_ = 0;      ///< the same
  bool runs_few_ = false;       ///< of the blocks
};

}  // namespace fp8train
