#pragma once
// Keys of other programs in a configuration: files of `accelerate config`, DeepSpeed's
// configurations, Megatron's `fp8_...` and `first_last_layers_bf16`. They are rewritten to this
// program's keys before the table of fields reads them, and each is reported; those without a
// meaning here share one line. What would change the run and cannot be had is a problem.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
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

  /// Another file that the last translated source names (deepspeed_config_file), which is to be
  /// translated with the same layer; nothing where it names none.
  struct Included {
    std::string path;
    SourceMark place;
  };
  std::optional<Included> take_included() { return std::exchange(included_, std::nullopt); }

  /// After the last source: what switches FP8 on or off is held against mixed_precision.
  void finish(GivenKeys& given);

  /// "fp8_config.amax_history_length read as fp8.amax_history_len", one line for each key.
  const std::vector<std::string>& notes() const { return notes_; }

  /// How many processes the sources say there are (Accelerate's num_processes); 0: none says.
  int64_t processes() const { return processes_; }

 private:
  /// fp8.enabled, or a key that means the same; or no key at all.
  struct Switch {
    bool on = true;
    std::string spelled;
    SourceMark place;
    int layer = 0;
  };

  Problems& problems_;
  std::vector<std::string> notes_;
  std::optional<Switch> switch_;
  std::optional<Included> included_;
  std::optional<Switch> fp32_;  // a file of DeepSpeed that switches nothing else on
  int64_t processes_ = 0;
};

}  // namespace fp8train
