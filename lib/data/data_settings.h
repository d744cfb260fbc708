#pragma once
// The settings under `data`: sources of tokens, the tokenizer, and how sequences are made.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/readers/data_format.h"

namespace fp8train {

/// A source of tokens: a file, a folder or a pattern, and how to read it.
struct DataSource {
  std::string path;     ///< a file, a folder or a glob; files are read in sorted order
  std::string format;   ///< a name of data/readers/data_format.h; auto: by content and name
  double weight = 1.0;  ///< if one is not 1, samples are dealt out in these proportions

  bool operator==(const DataSource&) const = default;
};

/// The content of a sequence of training and evaluation.
enum class Packing : uint8_t {
  automatic,  ///< documents where sources are dialogues, else windows
  windows,    ///< consecutive tokens of the sources, which run on from one document to the next
  documents,  ///< whole documents, which do not see each other, then padding
  none,       ///< one document, then padding
};

inline constexpr std::pair<Packing, std::string_view> kPackings[] = {
    {Packing::automatic, "auto"},
    {Packing::windows, "windows"},
    {Packing::documents, "documents"},
    {Packing::none, "none"},
};

/// The settings of the section `data`, but for the length of a sequence.
struct DataSettings {
  std::vector<DataSource> train;
  std::vector<DataSource> val;  ///< empty: val_fraction of train is held back
  double val_fraction = 0.0;
  std::string tokenizer = "byte";  ///< as in make_tokenizer()
  bool shuffle = true;             ///< false: consecutive windows in file order
  std::string text_key = "text";   ///< JSONL
  BadLines bad_lines = BadLines::error;
  std::string chat_template = "auto";  ///< as ChatEncoder takes it
  Packing packing = Packing::automatic;
  bool document_mask = false;  ///< windows: documents, which end with end-of-sequence, are apart

  RecordRules rules() const { return {.text_key = text_key, .bad_lines = bad_lines}; }
  bool operator==(const DataSettings&) const = default;
};

}  // namespace fp8train
