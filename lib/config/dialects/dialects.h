#pragma once
// Keys of other programs in a configuration: files of `accelerate config`, DeepSpeed's
// configurations, Megatron's `fp8_...`, `first_last_layers_bf16` and precision file. They are
// rewritten to this program's keys before the table of fields reads them, and each is reported;
// those without a meaning here share one line. An unsupported key that would change the run is a
// problem.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/dialects/pass.h"
#include "config/yaml/problems.h"
#include "config/yaml/yaml_tree.h"
#include "precision/plan.h"

namespace fp8train {

class GivenKeys;

/// The foreign keys of all sources of a load; errors in them go to the Problems.
class Dialects {
 public:
  explicit Dialects(Problems& problems) : problems_(problems) {}

  /// Rewrites the keys of one source; `root` is its tree. Returns false when there was nothing
  /// foreign in it.
  bool translate(YamlNode& root, size_t source, int layer) {
    return root.kind == YamlNode::Kind::map &&
           dialects::Pass(root, source, layer, problems_, state_).run();
  }
  /// Returns another file that the last translated source names, which is to be translated with the
  /// same layer, once; nothing where there is none.
  std::optional<dialects::Included> take_included() {
    return std::exchange(state_.included, std::nullopt);
  }
  /// Called after the last source, before keys replace others that they exclude. Adds keys that
  /// give way to keys of other sources.
  void settle(GivenKeys& given);
  /// Called after settle() and those replacements. Compares the keys that switch FP8 on or off with
  /// mixed_precision, and adds keys that only all sources together decide.
  void finish(GivenKeys& given);
  /// "fp8_config.amax_history_length read as fp8.amax_history_len", one line for each key.
  const std::vector<std::string>& notes() const { return state_.notes; }
  /// Returns the number of processes that the sources state, or 0 if none does.
  int64_t processes() const { return state_.processes; }

 private:
  void assume_misspelled_precision(GivenKeys& given) const;
  std::string asks_for_fp8(const GivenKeys& given) const;
  void settle_half(const dialects::State::Half& half, GivenKeys& given);
  void settle_default(const dialects::State::Default& file, GivenKeys& given);

  Problems& problems_;
  dialects::State state_;
};

// Configurations of trainers whose files are not translated: axolotl, LLaMA-Factory, litgpt and
// TrainingArguments of transformers.

/// Returns one sentence that names the program whose file this is, repeats the file's keys that
/// have a key here, with their values, and names all others; nothing for any other file. A program
/// is recognized by two of its keys at the top level, in a file without a section of this program.
std::optional<std::string> refusal_of_other_trainer(const YamlNode& root);

// The file of plans for layers that Megatron reads with --te-precision-config-file
// (Megatron-LM, megatron/core/quantization/quant_config.py and
// megatron/core/extensions/transformer_engine.py, TEQuantizationParams): named configurations, and
// matchers of which the first enabled one whose pattern matches a layer counts.

/// Returns the layers of the file's text in the order of PrecisionPlan::layers, of which the last
/// one counts. Everything wrong, and everything that no plan here has, goes to `problems` with
/// `path`.
std::vector<LayerRequest> read_precision_file(const std::string& path, const std::string& text,
                                              Problems& problems);

}  // namespace fp8train
