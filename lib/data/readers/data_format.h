#pragma once
// The formats of data files: each is one file in this folder and one line in data_formats(). A
// format of text hands out documents, one of token ids opens a TokenStore.

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/input_file.h"
#include "data/chat/dialogue.h"
#include "data/token_store.h"

namespace fp8train {

/// The content of the files of a format.
enum class DataContent : uint8_t {
  text,       ///< a file is one document, which may be cut anywhere
  documents,  ///< a file has many
  dialogues,  ///< documents of messages, some of which are learned
  tokens,
};

/// The beginning of a file, by which `format: auto` recognizes it.
struct FileHead {
  const std::filesystem::path& path;
  const InputFile& file;
  std::string_view bytes;  ///< the first 4096, without those of a compression
  std::string_view key;    ///< what sets the format, in front of its name in messages
};

/// The treatment of a record that cannot be learned.
enum class BadLines : uint8_t {
  error,  ///< all are counted, and the first one is the error
  skip,   ///< it is left out; a warning counts them and names the first three
};
inline constexpr std::pair<BadLines, std::string_view> kBadLines[] = {{BadLines::error, "error"},
                                                                      {BadLines::skip, "skip"}};

/// How records are read, and what sets it, for messages.
struct RecordRules {
  std::string text_key = "text";  ///< of a document
  BadLines bad_lines = BadLines::error;
  std::string_view text_key_option = "data.text_key";
  std::string_view bad_lines_option = "data.bad_lines:";

  bool operator==(const RecordRules&) const = default;
};
/// The rules of commands, whose options set them.
inline RecordRules rules_of_command() {
  return {.text_key_option = "--text-key", .bad_lines_option = "--bad-lines"};
}

/// Gets the text of a document.
using DocumentVisitor = std::function<void(std::string document)>;
/// Gets a dialogue. `where`: file and line, for messages.
using DialogueVisitor = std::function<void(const Dialogue& dialogue, const std::string& where)>;

/// A format of data files, and the functions that read it.
struct DataFormat {
  std::string_view name;  ///< name in data.train[].format
  /// The endings of names of such files, as ".jsonl", ".ndjson" and ".json"; the rest is empty.
  std::array<std::string_view, 3> suffixes;
  DataContent content;

  /// Returns whether `format: auto` reads the file so. May throw DataError for a file that looks
  /// like this format but cannot be read as it.
  bool (*matches)(const FileHead& head);

  /// Calls `visit` for every document in file order. Throws DataError with file and line. Null for
  /// formats of tokens.
  void (*for_each_document)(const std::filesystem::path& path, const RecordRules& rules,
                            const DocumentVisitor& visit) = nullptr;

  /// Does the same for dialogues, with their messages. Null for other formats.
  void (*for_each_dialogue)(const std::filesystem::path& path, const RecordRules& rules,
                            const DialogueVisitor& visit) = nullptr;

  /// Opens a file of tokens and checks sizes and headers; reading throws DataError for an id that
  /// is not below `vocab_size`. `with_documents`: the store has documents() if the files say where
  /// these end; if false, it has them only if they say which tokens are targets. Throws DataError
  /// that names the file and the numbers. Null for other formats.
  std::shared_ptr<const TokenStore> (*open)(const std::filesystem::path& path, int64_t vocab_size,
                                            bool with_documents) = nullptr;

  /// Returns the files in addition to `path` whose content decides what open() with the same
  /// arguments reads. Null: there are none.
  std::vector<std::filesystem::path> (*companions)(const std::filesystem::path& path,
                                                   bool with_documents) = nullptr;

  bool has_tokens() const { return content == DataContent::tokens; }

  /// Whether the name ends as those of such files do. Text may be compressed, which adds an ending.
  bool has_suffix(const std::filesystem::path& path) const;
};

const DataFormat& llmc_format();     ///< llmc.cpp
const DataFormat& npy_format();      ///< npy.cpp
const DataFormat& chat_format();     ///< chat.cpp
const DataFormat& jsonl_format();    ///< jsonl.cpp
const DataFormat& indexed_format();  ///< indexed.cpp
const DataFormat& raw_u16_format();  ///< raw_u16.cpp
const DataFormat& text_format();     ///< text.cpp

/// Returns all formats, in the order in which `format: auto` tries them.
const std::vector<const DataFormat*>& data_formats();

/// data.train[].format of a source whose path is a command of the shell, which writes the data.
inline constexpr std::string_view kCommandFormat = "command";

/// Whether a file is asked for its own format: "auto", "command" or "".
inline bool is_automatic_format(std::string_view format) {
  return format.empty() || format == "auto" || format == kCommandFormat;
}

/// Returns "auto" and the names of all formats of files.
std::vector<std::string> data_format_names();

/// Returns the names of the formats that hold no tokens.
std::vector<std::string> text_format_names();

/// Returns the suffixes by which files of a folder are data, each once: those of all formats but
/// .json, which many other files have.
std::vector<std::string_view> data_suffixes();

/// The text before a format's name in advice: of a source, and of a file of a command.
inline constexpr std::string_view kFormatKey = "format:", kFormatOption = "--format";

/// Returns the format that `format` names, or for an automatic one the first that matches the
/// file. Throws ConfigError for an unknown name, and DataError if none matches or the file cannot
/// be read. These errors list the formats, or `texts_only`, behind `key`.
const DataFormat& format_of(const std::filesystem::path& path, const std::string& format,
                            std::string_view key = kFormatKey, bool texts_only = false);

}  // namespace fp8train
