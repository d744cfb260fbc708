#pragma once
// Configurations of trainers whose files are not translated: axolotl, LLaMA-Factory, litgpt and
// TrainingArguments of transformers.

#include <optional>
#include <string>

#include "config/yaml/yaml_tree.h"

namespace fp8train {

/// Returns one sentence that names the program whose file this is, repeats the file's keys that
/// have a key here, with their values, and names all others; nothing for any other file. A program
/// is recognized by two of its keys at the top level, in a file without a section of this program.
std::optional<std::string> refusal_of_other_trainer(const YamlNode& root);

}  // namespace fp8train
