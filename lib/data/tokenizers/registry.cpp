#include "data/tokenizers/registry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/input_file.h"
#include "base/json_reader.h"
#include "base/key_error.h"
#include "base/nearest.h"
#include "base/text.h"
#include "data/folder_files.h"

namespace fp8train {
namespace tokenizers {
namespace {

constexpr size_t kHeadBytes = 4096;

/// A kind of tokenizer files, and the functions that recognize and open them.
struct TokenizerKind {
  std::string_view files;  ///< what such a file is called, for messages
  bool (*recognizes)(const TokenizerProbe& probe);
  std::unique_ptr<Tokenizer> (*open)(const TokenizerProbe& probe);
  bool takes_pattern = false;
};

/// In the order in which files are tried.
const TokenizerKind kKinds[] = {
    {"tokenizer.json",
     [](const TokenizerProbe& probe) { return probe.path.extension() == ".json"; },
     open_tokenizer_json},
    {"tokenizer.model of sentencepiece", is_sentencepiece, open_sentencepiece},
    {"ranks of tiktoken", is_tiktoken, open_tiktoken, true}};

constexpr const char* kFolderFiles[] = {"tokenizer.json", "tokenizer.model"};

}  // namespace

std::span<const char* const> tokenizer_file_names() {
  return kFolderFiles;
}

nlohmann::json tokenizer_config(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "tokenizer_config.json";
  if (!has_file(path)) return nlohmann::json::object();
  nlohmann::json document = read_json_file(path);
  if (!document.is_object()) {
    throw DataError(
        fmt::format("{}: expected an object, and this is {}: copy the file of the model "
                    "again, or remove it",
                    path.string(), json_type_of(document)));
  }
  return document;
}

bool has_tokenizer(const std::filesystem::path& folder) {
  return std::any_of(std::begin(kFolderFiles), std::end(kFolderFiles),
                     [&](const char* name) { return has_file(folder / name); });
}

}  // namespace tokenizers

namespace {

namespace fs = std::filesystem;

/// A tokenizer that no file is needed for. Its name is that of its type.
struct Builtin {
  TokenizerType type;
  std::unique_ptr<Tokenizer> (*make)(const std::function<std::string()>& training_text);

  std::string name() const { return std::string(name_of(type)); }
};

constexpr Builtin kBuiltins[] = {
    {TokenizerType::byte, [](const auto& /*text*/) { return make_byte_tokenizer(); }},
    {TokenizerType::character, [](const auto& text) { return make_char_tokenizer(text()); }},
    {TokenizerType::none, [](const auto& /*text*/) { return make_id_tokenizer(); }}};

/// `option`: what names another one; empty where nothing does.
fs::path file_in(const fs::path& folder, std::string_view option = "") {
  for (const char* name : tokenizers::tokenizer_file_names()) {
    if (has_file(folder / name)) return folder / name;
  }
  throw DataError(fmt::format("{}: the folder has no {}{}{}", folder.string(),
                              fmt::join(tokenizers::tokenizer_file_names(), " and no "),
                              option.empty() ? "" : "; name a tokenizer with ", option));
}

[[noreturn]] void refuse_name(const std::string& name, std::string_view option) {
  std::vector<std::string> names;
  for (const Builtin& builtin : kBuiltins) names.push_back(builtin.name());
  const std::string nearest = nearest_name(name, names);
  throw KeyError(std::string(option),
                 fmt::format(": Unknown tokenizer '{}' (expected {}, or the path of a tokenizer "
                             "file or of a model folder){}",
                             name, joined(names),
                             nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest)));
}

}  // namespace

SequenceFrame Tokenizer::frame() const {
  SequenceFrame ids;
  if (bos_id() >= 0) ids.before_prompt = {bos_id()};
  if (eos_id() >= 0) ids.after_document = {eos_id()};
  return ids;
}

std::vector<TokenizerFile> Tokenizer::own_files() const {
  return {{"tokenizer.json", to_json()}};
}

std::vector<TokenizerFile> Tokenizer::files() const {
  std::vector<TokenizerFile> files = own_files();
  for (const TokenizerFile& file : more_files_) {
    const auto same = std::ranges::find(files, file.name, &TokenizerFile::name);
    if (same == files.end()) {
      files.push_back(file);
    } else if (same != files.begin()) {
      *same = file;
    }
  }
  return files;
}

void Tokenizer::set_file(TokenizerFile file) {
  const auto same = std::ranges::find(more_files_, file.name, &TokenizerFile::name);
  if (same == more_files_.end()) {
    more_files_.push_back(std::move(file));
  } else {
    *same = std::move(file);
  }
}

std::unique_ptr<Tokenizer> open_tokenizer(const fs::path& path, const std::string& pattern) {
  tokenizers::TokenizerProbe probe;
  probe.path = fs::is_directory(path) ? file_in(path) : path;
  probe.pattern = pattern;
  {
    const InputFile file(probe.path);
    refuse_lfs_pointer(file);
    probe.head.resize(std::min<uint64_t>(file.size(), tokenizers::kHeadBytes));
    file.read(0, probe.head.data(), probe.head.size());
  }
  for (const tokenizers::TokenizerKind& kind : tokenizers::kKinds) {
    if (kind.recognizes(probe)) {
      if (!pattern.empty() && !kind.takes_pattern) {
        throw DataError(
            fmt::format("{}: is a {}, which says itself how texts are split; name it without '#{}'",
                        probe.path.string(), kind.files, pattern));
      }
      tokenizers::tokenizer_config(probe.path.parent_path());  // some kinds do not read it
      std::unique_ptr<Tokenizer> opened = kind.open(probe);
      for (TokenizerFile& file : read_part(probe.path.parent_path(), FolderPart::tokenizer)) {
        opened->set_file(std::move(file));
      }
      return opened;
    }
  }
  throw DataError(fmt::format("{}: not a tokenizer file that is known (expected {})", path.string(),
                              joined(tokenizers::kKinds, &tokenizers::TokenizerKind::files)));
}

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name_or_path,
                                          const std::function<std::string()>& training_text,
                                          std::string_view option) {
  for (const Builtin& builtin : kBuiltins) {
    if (builtin.name() == name_or_path) return builtin.make(training_text);
  }
  if (fs::is_directory(name_or_path)) return open_tokenizer(file_in(name_or_path, option));
  if (fs::exists(name_or_path)) return open_tokenizer(name_or_path);
  const size_t mark = name_or_path.rfind('#');  // FILE#PATTERN
  if (mark != std::string::npos && fs::exists(name_or_path.substr(0, mark))) {
    return open_tokenizer(name_or_path.substr(0, mark), name_or_path.substr(mark + 1));
  }
  refuse_name(name_or_path, option);
}

std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> ids = tokenizer.frame().before_prompt;
  const std::vector<int32_t> encoded = tokenizer.encode(text);
  ids.insert(ids.end(), encoded.begin(), encoded.end());
  return ids;
}

}  // namespace fp8train
