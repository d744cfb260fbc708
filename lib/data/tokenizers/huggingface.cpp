// tokenizer.json of Hugging Face's tokenizers (huggingface/tokenizers, version 1.0 of the format).
// A text goes through its parts in this order: added tokens, normalizer, added tokens that are
// looked for in normalized text, pre-tokenizers, model.

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/input_file.h"
#include "base/json_error.h"
#include "base/json_reader.h"
#include "base/log.h"
#include "data/tokenizers/added_tokens.h"
#include "data/tokenizers/own_format.h"
#include "data/tokenizers/pre_tokenizers.h"
#include "data/tokenizers/registry.h"
#include "data/tokenizers/text_parts.h"
#include "data/tokenizers/token_model.h"
#include "data/tokenizers/unicode.h"
#include "data/utf8.h"

namespace fp8train {
namespace tokenizers {
namespace {

constexpr size_t kMaxBytes = 256U << 20;

/// Names of tokens in tokenizer_config.json.
struct NamedEnds {
  std::optional<std::string> bos, eos;
  std::optional<bool> adds_bos;
};

std::vector<AddedToken> added_tokens_of(const JsonPart& file, const TokenModel& model) {
  std::vector<AddedToken> added;
  if (!file.has("added_tokens")) return added;
  added = read_added_tokens(file.at("added_tokens"), model.tokens().size());
  for (const AddedToken& token : added) {
    const auto& tokens = model.tokens();
    const auto id = static_cast<size_t>(token.id);
    if (id < tokens.size() && !tokens[id].empty() && tokens[id] != token.content) {
      file.refuse(fmt::format("added token '{}' has the id {} of the token '{}'",
                              printable(token.content), id, printable(tokens[id])));
    }
  }
  return added;
}

std::vector<AddedToken> without_special(std::vector<AddedToken> tokens) {
  std::erase_if(tokens, [](const AddedToken& token) { return token.special; });
  return tokens;
}

/// Finds added tokens in a text, and then in its parts once they are normalized.
struct Finders {
  Finders(const std::vector<AddedToken>& tokens, const Normalizer& normalizer,
          const std::string& where)
      : raw(tokens, false, normalizer, where), normalized(tokens, true, normalizer, where) {}

  AddedTokenFinder raw, normalized;
};

class HuggingFaceTokenizer final : public Tokenizer {
 public:
  HuggingFaceTokenizer(const JsonPart& file, std::string text, NamedEnds ends)
      : normalizer_(file.has("normalizer") ? read_normalizer(file.at("normalizer"))
                                           : Normalizer{.apply = {}, .works_in_parts = true}),
        pre_tokenizers_(file.has("pre_tokenizer") ? PreTokenizers(file.at("pre_tokenizer"))
                                                  : PreTokenizers()),
        model_(read_token_model(file.at("model"), pre_tokenizers_.byte_level())),
        added_(added_tokens_of(file, *model_)),
        all_(added_, normalizer_, file.where()),
        ordinary_(without_special(added_), normalizer_, file.where()),
        decoder_(file.has("decoder") ? read_decoder(file.at("decoder")) : Decoder()),
        text_(std::move(text)),
        ends_(std::move(ends)),
        tokens_(model_->tokens()) {
    // Lengths that transformers does not take over either, and that a caller would have to ask for.
    file.only({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
               "post_processor", "decoder", "model"});
    if (file.has("post_processor")) around_ = read_post_processor(file.at("post_processor"));
    for (const AddedToken& token : added_) {
      const auto id = static_cast<size_t>(token.id);
      if (id >= tokens_.size()) tokens_.resize(id + 1);
      tokens_[id] = token.content;
      if (token.special) special_.insert(token.id);
    }
    find_ends(file);
    cuts_at_spaces_ = normalizer_.works_in_parts && pre_tokenizers_.works_at_spaces() &&
                      !all_.raw.touches_spaces() && !all_.normalized.touches_spaces();
    cuts_at_lines_ = normalizer_.works_in_parts && pre_tokenizers_.works_at_lines() &&
                     !all_.raw.touches_lines() && !all_.normalized.touches_lines();
  }

  TokenizerType type() const override { return TokenizerType::huggingface; }
  int64_t vocab_size() const override { return static_cast<int64_t>(tokens_.size()); }
  int32_t bos_id() const override { return bos_; }
  int32_t eos_id() const override { return eos_; }
  SequenceFrame frame() const override { return frame_; }
  std::string to_json() const override { return text_; }

  std::vector<int32_t> encode(std::string_view text) const override {
    return encode_from(text, true, all_);
  }
  std::vector<int32_t> encode_rest(std::string_view text) const override {
    return encode_from(text, false, all_);
  }
  std::vector<int32_t> encode_ordinary(std::string_view text, bool at_start) const override {
    return encode_from(text, at_start, ordinary_);
  }
  std::vector<Added> added_tokens() const override {
    std::vector<Added> tokens;
    for (const AddedToken& token : added_) {
      tokens.push_back({token.content, token.id, token.special});
    }
    return tokens;
  }

  TokenStrips strips(int32_t id) const override {
    const auto found = std::find_if(added_.begin(), added_.end(),
                                    [&](const AddedToken& token) { return token.id == id; });
    return found == added_.end() ? TokenStrips{} : TokenStrips{found->lstrip, found->rstrip};
  }

  /// In front of a space between two letters, and between a line feed and a letter.
  size_t last_cut(std::string_view text) const override {
    if (!cuts_at_spaces_ && !cuts_at_lines_) return 0;
    for (size_t at = text.size(); at-- > 1;) {
      const bool is_space = text[at] == ' ' && cuts_at_spaces_;
      const bool is_line = text[at] == '\n' && cuts_at_lines_;
      if (!(is_space || is_line) || !is_stable_letter(whole_code_point_at(text, at + 1).value))
        continue;
      const char32_t before = code_point_before(text, at).value;
      if (is_stable_letter(before)) return is_space ? at : at + 1;
      if (is_line && is_stable_punctuation(before)) return at + 1;
    }
    return 0;
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::vector<std::string> texts;
    texts.reserve(ids.size());
    for (const int32_t id : ids) {
      const bool known = has_text(id, vocab_size()) && !tokens_[static_cast<size_t>(id)].empty();
      if (known && !special_.contains(id)) texts.push_back(tokens_[static_cast<size_t>(id)]);
    }
    if (decoder_) decoder_(texts);
    std::string text;
    for (size_t i = 0; i < texts.size(); ++i) {
      if (i > 0 && !decoder_) text += ' ';
      text += texts[i];
    }
    return text;
  }

  std::vector<TokenizerFile> own_files() const override {
    return transformers_files(text_, token_of(bos_), token_of(eos_));
  }

 private:
  using Scratch = std::unique_ptr<TokenModel::Scratch>;

  std::string token_of(int32_t id) const { return id < 0 ? "" : tokens_[static_cast<size_t>(id)]; }

  /// -1 where there is no such token.
  int32_t id_of(std::string_view token) const {
    const auto found = std::find(tokens_.rbegin(), tokens_.rend(), token);
    return found == tokens_.rend() ? -1 : static_cast<int32_t>(tokens_.rend() - found) - 1;
  }

  int32_t special_of(const std::vector<int32_t>& around,
                     std::initializer_list<std::string_view> names) const {
    if (around.size() == 1) return around.front();
    for (const std::string_view name : names) {
      const int32_t id = id_of(name);
      if (id >= 0 && special_.contains(id)) return id;
    }
    return -1;
  }

  int32_t named(const std::optional<std::string>& token, const JsonPart& file) const {
    if (!token || token->empty()) return -1;
    const int32_t id = id_of(*token);
    if (id < 0) {
      file.refuse(fmt::format("tokenizer_config.json names the token '{}', which is not there",
                              printable(*token)));
    }
    return id;
  }

  void find_ends(const JsonPart& file) {
    for (const auto* ids : {&around_.before, &around_.after}) {
      for (const int32_t id : *ids) {
        if (id < 0 || id >= vocab_size()) {
          file.at("post_processor").refuse(fmt::format("id {} has no token", id));
        }
      }
    }
    bos_ = ends_.bos ? named(ends_.bos, file)
                     : special_of(around_.before, {"<s>", "<|begin_of_text|>", "<bos>"});
    eos_ = ends_.eos
               ? named(ends_.eos, file)
               : special_of(around_.after, {"</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>"});
    frame_ = {around_.before, around_.before, around_.after};
    const bool begins_with_bos =
        bos_ >= 0 && !around_.before.empty() && around_.before.front() == bos_;
    if (ends_.adds_bos && bos_ >= 0 && *ends_.adds_bos != begins_with_bos) {
      log_warning(fmt::format(
          "tokenizer_config.json has add_bos_token: {}, and the post-processor of tokenizer.json "
          "says otherwise; tokenizer.json is followed, as in transformers 5.24",
          *ends_.adds_bos));
    }
    if (frame_.after_document.empty() && eos_ >= 0) frame_.after_document = {eos_};
  }

  std::vector<int32_t> encode_from(std::string_view text, bool at_start,
                                   const Finders& finders) const {
    std::string replaced;
    if (!is_utf8(text)) {
      replaced = well_formed(text);
      text = replaced;
    }
    Scratch scratch = take_scratch();
    std::vector<int32_t> ids;
    ids.reserve(text.size() / 4 + 1);
    const PieceSink model = [&](Piece piece) { model_->encode(piece.text, *scratch, ids); };
    const auto add_id = [&](int32_t id) { ids.push_back(id); };
    const auto split = [&](std::string_view part, bool starts) {
      pre_tokenizers_.split({part, starts}, model);
    };
    const auto normalize_part = [&](std::string_view part, bool starts) {
      std::string changed;
      if (normalizer_.apply) {
        changed = part;
        normalizer_.apply(changed);
        part = changed;
      }
      if (!part.empty()) finders.normalized.split(part, starts, split, add_id);
    };
    finders.raw.split(text, at_start, normalize_part, add_id);
    give_scratch(std::move(scratch));
    return ids;
  }

  Scratch take_scratch() const {
    const std::lock_guard lock(mutex_);
    if (scratches_.empty()) return model_->make_scratch();
    Scratch scratch = std::move(scratches_.back());
    scratches_.pop_back();
    return scratch;
  }

  void give_scratch(Scratch scratch) const {
    const std::lock_guard lock(mutex_);
    scratches_.push_back(std::move(scratch));
  }

  Normalizer normalizer_;
  PreTokenizers pre_tokenizers_;
  std::unique_ptr<TokenModel> model_;
  std::vector<AddedToken> added_;
  Finders all_;
  Finders ordinary_;  ///< without special tokens
  Decoder decoder_;   ///< empty where there is none
  PostProcessor around_;
  std::string text_;
  NamedEnds ends_;
  std::vector<std::string> tokens_;  ///< by id, with added tokens
  std::set<int32_t> special_;
  int32_t bos_ = -1;
  int32_t eos_ = -1;
  SequenceFrame frame_;
  bool cuts_at_spaces_ = false;
  bool cuts_at_lines_ = false;
  mutable std::mutex mutex_;
  mutable std::vector<Scratch> scratches_;  ///< one for each thread that encodes at a time
};

/// "</s>" or {"content": "</s>", ...}.
std::optional<std::string> token_in(const JsonPart& config, std::string_view key) {
  if (!config.value().contains(key)) return std::nullopt;
  if (!config.has(key)) return "";  // null: there is none
  const JsonPart token = config.at(key);
  return token.value().is_object() ? token.text("content") : config.text(key);
}

NamedEnds read_ends(const std::filesystem::path& folder) {
  NamedEnds found;
  const std::string where = (folder / "tokenizer_config.json").string();
  const nlohmann::json document = tokenizer_config(folder);
  try {
    const JsonPart config(document, where);
    found.bos = token_in(config, "bos_token");
    found.eos = token_in(config, "eos_token");
    if (config.has("add_bos_token")) found.adds_bos = config.flag_or("add_bos_token", false);
  } catch (const nlohmann::json::exception& error) {
    throw DataError(fmt::format("{}: {}", where, plain_json_error(error)));
  }
  return found;
}

std::unique_ptr<Tokenizer> read_tokenizer_json(std::string_view text, const std::string& where,
                                               const std::filesystem::path* folder) {
  const nlohmann::json document = parse_json(text, where);
  try {
    if (is_own(document)) return read_own(document, where);
    if (!document.is_object() || !document.contains("model")) {
      throw DataError(where + ": not a tokenizer.json: it has no field 'model'");
    }
    if (auto own = recognize_own(document)) return own;
    return std::make_unique<HuggingFaceTokenizer>(JsonPart(document, where), std::string(text),
                                                  folder ? read_ends(*folder) : NamedEnds());
  } catch (const nlohmann::json::exception& error) {
    throw DataError(fmt::format("{}: not a tokenizer.json: {}", where, plain_json_error(error)));
  }
}

}  // namespace

std::unique_ptr<Tokenizer> open_tokenizer_json(const TokenizerProbe& probe) {
  const std::filesystem::path folder = probe.path.parent_path();
  return read_tokenizer_json(read_text_file(probe.path, kMaxBytes), probe.path.string(), &folder);
}

}  // namespace tokenizers

std::unique_ptr<Tokenizer> tokenizer_from_json(std::string_view text, const std::string& where) {
  return tokenizers::read_tokenizer_json(text, where, nullptr);
}

}  // namespace fp8train
