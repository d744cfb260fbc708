#pragma once
// Keys of other programs in a configuration: what Accelerate writes as `fp8_config`, DeepSpeed's
// `fp8.enabled`, Megatron's `fp8_...` and `first_last_layers_bf16`. They are rewritten to this
// program's keys before the table of fields reads them, and each is reported in one line; what has
// no meaning here is a problem, unless it says nothing about precision.

#include <optional>
#include <string>
#include <vector>

#include "config/given_keys.h"
#include "config/problems.h"
#include "config/yaml_tree.h"

namespace fp8train {

class Dialects {
 public:
  explicit Dialects(Problems& problems) : problems_(problems) {}

  /// Rewrites what one source says; `root` is its tree. False when there was nothing foreign in it.
  bool translate(YamlNode& root, size_t source, int layer);

  /// After the last source: what switches FP8 on or off is held against mixed_precision.
  void finish(GivenKeys& given);

  /// "fp8_config.amax_history_length read as fp8.amax_history_len", one line for each key.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  /// fp8.enabled, or a key that means the same.
  struct Switch {
    bool on = true;
    std::string spelled;
    SourceMark place;
    int layer = 0;
  };

  Problems& problems_;
  std::vector<std::string> notes_;
  std::optional<Switch> switch_;
};

}  // namespace fp8train
