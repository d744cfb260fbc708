#include "data/folder_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/input_file.h"
#include "base/text.h"
#include "data/tokenizers/registry.h"

namespace fp8train {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxBytes = 256U << 20;
constexpr size_t kMaxNames = 1000;

struct Companion {
  std::string_view name;
  FolderPart part;
};

/// huggingface/transformers: src/transformers/tokenization_utils_base.py, utils/hub.py,
/// generation/configuration_utils.py, and the vocab_files_names of its tokenizers. Terms of use
/// apply to models that are trained from others.
constexpr Companion kCompanions[] = {{"tokenizer_config.json", FolderPart::tokenizer},
                                     {"special_tokens_map.json", FolderPart::tokenizer},
                                     {"added_tokens.json", FolderPart::tokenizer},
                                     {"vocab.json", FolderPart::tokenizer},
                                     {"merges.txt", FolderPart::tokenizer},
                                     {"vocab.txt", FolderPart::tokenizer},
                                     {"tokenizer.model", FolderPart::tokenizer},
                                     {"tekken.json", FolderPart::tokenizer},
                                     {"chat_template.jinja", FolderPart::tokenizer},
                                     {"chat_template.json", FolderPart::tokenizer},
                                     {"generation_config.json", FolderPart::model},
                                     {"LICENSE", FolderPart::model},
                                     {"LICENSE.txt", FolderPart::model},
                                     {"LICENSE.md", FolderPart::model},
                                     {"NOTICE", FolderPart::model},
                                     {"NOTICE.txt", FolderPart::model},
                                     {"USE_POLICY.md", FolderPart::model}};
constexpr std::string_view kTemplates = "additional_chat_templates";

/// The names in a folder that can be copied into a checkpoint, sorted; none where there is no
/// folder.
std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code unseen;
  for (fs::directory_iterator entry(folder, unseen), end; entry != end && names.size() < kMaxNames;
       entry.increment(unseen)) {
    names.push_back(entry->path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

bool is_template(const std::string& name) {
  return name.ends_with(".jinja") && name.front() != '.' && name.size() <= 100 &&
         std::ranges::all_of(name, [](char c) {
           return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '_' ||
                  c == '-';
         });
}

bool is_other(const std::string& name) {
  const auto tokenizers = tokenizers::tokenizer_file_names();
  const bool is_known =
      name == "config.json" || name == kTemplates || std::ranges::count(tokenizers, name) > 0 ||
      std::ranges::find(kCompanions, name, &Companion::name) != std::end(kCompanions);
  return !is_known && !name.starts_with('.') && name.find(".safetensors") == std::string::npos;
}

}  // namespace

std::vector<std::string> names_of_part(const fs::path& folder, FolderPart part) {
  std::vector<std::string> names;
  for (const Companion& each : kCompanions) {
    if (each.part == part && has_file(folder / each.name)) {
      names.emplace_back(each.name);
    }
  }
  for (const std::string& name : names_in(folder / kTemplates)) {
    if (part == FolderPart::tokenizer && is_template(name)) {
      names.push_back(fmt::format("{}/{}", kTemplates, name));
    }
  }
  return names;
}

std::vector<TokenizerFile> read_part(const fs::path& folder, FolderPart part) {
  std::vector<TokenizerFile> files;
  for (std::string& name : names_of_part(folder, part)) {
    std::string text = read_text_file(folder / name, kMaxBytes);
    files.push_back({std::move(name), std::move(text)});
  }
  return files;
}

std::string note_left_out(const fs::path& folder) {
  std::vector<std::string> names = names_in(folder);
  std::erase_if(names, [](const std::string& name) { return !is_other(name); });
  for (const std::string& name : names_in(folder / kTemplates)) {
    if (!is_template(name)) names.push_back(fmt::format("{}/{}", kTemplates, name));
  }
  constexpr size_t kShown = 10;
  const size_t more = names.size() - std::min(names.size(), kShown);
  names.resize(names.size() - more);
  return names.empty() ? ""
                       : fmt::format("{}: not copied: {}{}", folder.string(), joined(names),
                                     more > 0 ? fmt::format(" and {} more", more) : "");
}

}  // namespace fp8train
