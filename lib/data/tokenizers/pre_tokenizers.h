#pragma once
// Pre-tokenizers of tokenizer.json (huggingface/tokenizers, src/pre_tokenizers): they split a
// normalized text into the pieces that the model turns into ids, one by one. At most some 64 follow
// each other; each takes time in proportion to the text, but for regular expressions (regex.h).

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizers/json_part.h"

namespace fp8train::tokenizers {

/// A piece of a text.
struct Piece {
  std::string_view text;  ///< never empty; valid during the call that gets it
  bool at_start;          ///< the text that is tokenized begins here
};

using PieceSink = std::function<void(Piece)>;

/// The behaviour of a stage at a position at which a long text may be cut.
enum class AtCut : uint8_t {
  splits,    ///< a piece ends there, whatever else the text holds
  is_local,  ///< it makes no difference to the stage whether the text is cut there
  unknown
};

/// A stage of splitting.
struct PreTokenizer {
  /// Calls `sink` for each piece of `piece`, in order. May be called from several threads.
  std::function<void(Piece piece, const PieceSink& sink)> split;
  /// The behaviour in front of a space between two letters that no normal form changes.
  AtCut at_space = AtCut::unknown;
  /// The behaviour behind a single line feed and in front of such a letter, if such a letter or
  /// punctuation is in front of the line feed.
  AtCut at_line = AtCut::unknown;
};

/// The stages of the field "pre_tokenizer", flattened.
class PreTokenizers {
 public:
  PreTokenizers() = default;  ///< of a file without any: the text is one piece

  /// Throws DataError for a kind or an order that is not supported, and for more than 64 kinds in
  /// sequence.
  explicit PreTokenizers(const JsonPart& part);

  /// Whether the model's tokens are spelled in the byte-level alphabet of GPT-2. Pieces hold the
  /// bytes themselves.
  bool byte_level() const { return byte_level_; }
  /// Whether a text may be cut where PreTokenizer::at_space or at_line says, and split in parts.
  bool works_at_spaces() const { return works_at(&PreTokenizer::at_space); }
  bool works_at_lines() const { return works_at(&PreTokenizer::at_line); }

  /// Calls `sink` for each piece of `piece`, in order. Throws DataError where Regex::find() does.
  void split(Piece piece, const PieceSink& sink) const { run(0, piece, sink); }

 private:
  void add(const JsonPart& part);
  bool works_at(AtCut PreTokenizer::*cut) const;
  void run(size_t stage, Piece piece, const PieceSink& sink) const;

  std::vector<PreTokenizer> stages_;
  bool byte_level_ = false;
};

/// U+2581, which spells a space in the vocabularies of sentencepiece.
inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

/// The settings of "Metaspace", which the pre-tokenizer and the decoder share: spaces are spelled
/// as a visible character.
struct Metaspace {
  enum class Prepend : uint8_t { always, first, never };
  std::string replacement;  ///< one character, usually U+2581
  Prepend prepend = Prepend::always;
  bool splits = true;
};

/// Reads the settings. Files of before tokenizers 0.15 say add_prefix_space instead of
/// prepend_scheme. Throws DataError.
Metaspace read_metaspace(const JsonPart& part);

}  // namespace fp8train::tokenizers
