#pragma once
// Keys of other programs in a configuration: files of `accelerate config`, DeepSpeed's
// configurations, Megatron's `fp8_...`, `first_last_layers_bf16` and precision file. They are
// rewritten to this program's keys before the table of fields reads them, and each is reported;
// those without a meaning here share one line. An unsupported key that would change the run is a
// problem.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/yaml/foreign_keys.h"
#include "config/yaml/problems.h"
#include "config/yaml/yaml_tree.h"
#include "precision/plan.h"

namespace fp8train {

/// Makes all dialects, for LoadRequest::foreign_keys.
std::unique_ptr<ForeignKeys> make_dialects(Problems& problems);

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
