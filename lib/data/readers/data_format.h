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
#include <vector>

#include "base/input_file.h"
#include "data/chat/dialogue.h"
#include "data/token_store.h"

namespace fp8train {

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
};

/// The key of the text in a record, and what sets it, for messages.
struct TextKey {
  std::string name;
  std::string_view option = "data.text_key";
};

using DocumentVisitor = std::function<void(std::string document)>;
/// `where`: file and line, for messages.
using DialogueVisitor = std::function<void(const Dialogue& dialogue, const std::string& where)>;

struct DataFormat {
  std::string_view name;  ///< name in data.train[].format
  /// The endings of names of such files, as ".jsonl" and ".ndjson"; the rest is empty.
  std::array<std::string_view, 2> suffixes;
  DataContent content;

  /// Whether `format: auto` reads the file so. May throw DataError: it would be such a file, but
  /// something speaks against it.
  bool (*matches)(const FileHead& head);

  /// All but tokens: calls `visit` for every document in file order. Throws DataError with file
  /// and line.
  void (*for_each_document)(const std::filesystem::path& path, const TextKey& text_key,
                            const DocumentVisitor& visit) = nullptr;

  /// dialogues: the same with their messages.
  void (*for_each_dialogue)(const std::filesystem::path& path,
                            const DialogueVisitor& visit) = nullptr;

  /// tokens: checks sizes and headers; reading throws DataError for an id that is not below
  /// `vocab_size`. `with_documents`: documents() are there where the files say where these end;
  /// without, only those whose targets matter. Throws DataError that names the file and the
  /// numbers.
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

/// "auto" and the names of all.
std::vector<std::string> data_format_names();

/// The names of those that hold no tokens.
std::vector<std::string> text_format_names();

/// The suffixes of all, each once.
std::vector<std::string_view> data_suffixes();

/// What `format` says, or for "auto" and "" the first that matches. Throws ConfigError for an
/// unknown name, DataError where "auto" cannot tell; `advice` replaces the names that they list.
const DataFormat& format_of(const std::filesystem::path& path, const std::string& format,
                            std::string_view advice = {});

}  // namespace fp8train
