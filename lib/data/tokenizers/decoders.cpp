#include "data/tokenizers/decoders.h"

#include <string_view>
#include <utility>

#include "base/text.h"
#include "data/tokenizers/byte_alphabet.h"
#include "data/tokenizers/pre_tokenizers.h"
#include "data/tokenizers/regex.h"

namespace fp8train::tokenizers {
namespace {

using Tokens = std::vector<std::string>;
constexpr size_t kMostTokenBytes = 64U << 20;  // also of the whole text behind "Fuse"

/// Changes each token by itself.
template <typename Change>
Decoder for_each_token(Change change) {
  return [change = std::move(change)](Tokens& tokens) {
    for (std::string& token : tokens) change(token);
  };
}

Decoder read_byte_level(const JsonPart& part) {
  part.only({"add_prefix_space", "trim_offsets", "use_regex"});
  return for_each_token([](std::string& token) {
    if (auto bytes = unspelled(token)) token = std::move(*bytes);
  });
}

Decoder read_byte_fallback(const JsonPart& part) {
  part.only({});
  return for_each_token([](std::string& token) {
    if (const auto byte = byte_of_token(token)) token.assign(1, static_cast<char>(*byte));
  });
}

Decoder read_fuse(const JsonPart& part) {
  part.only({});
  return [](Tokens& tokens) {
    std::string whole;
    for (const std::string& token : tokens) whole += token;
    tokens = {std::move(whole)};
  };
}

Decoder read_replace(const JsonPart& part) {
  part.only({"pattern", "content"});
  return for_each_token([pattern = Pattern(part.at("pattern")), content = part.text("content"),
                         where = part.where()](std::string& token) {
    token = pattern.replaced(token, content, kMostTokenBytes, where);
  });
}

Decoder read_strip(const JsonPart& part) {
  part.only({"content", "start", "stop"});
  const std::string content = part.text("content");
  if (content.empty()) part.refuse("'content' is empty");
  return for_each_token(
      [content, start = part.number("start"), stop = part.number("stop")](std::string& token) {
        for (int64_t i = 0; i < start && token.starts_with(content); ++i) {
          token.erase(0, content.size());
        }
        for (int64_t i = 0; i < stop && token.ends_with(content); ++i) {
          token.resize(token.size() - content.size());
        }
      });
}

Decoder read_metaspace_decoder(const JsonPart& part) {
  return [settings = read_metaspace(part)](Tokens& tokens) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      const bool drops = i == 0 && settings.prepend != Metaspace::Prepend::never;
      tokens[i] = replaced(tokens[i], settings.replacement, drops ? "" : " ");
    }
  };
}

/// Removes the spaces that clean_up_tokenization_spaces of transformers removes.
std::string without_extra_spaces(std::string token) {
  constexpr std::pair<std::string_view, std::string_view> kShorter[] = {
      {" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
      {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
      {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kShorter) token = replaced(token, from, to);
  return token;
}

Decoder read_word_piece(const JsonPart& part) {
  part.only({"prefix", "cleanup"});
  return [prefix = part.text_or("prefix", "##"),
          cleans = part.flag_or("cleanup", true)](Tokens& tokens) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (i > 0 && tokens[i].starts_with(prefix)) {
        tokens[i].erase(0, prefix.size());
      } else if (i > 0) {
        tokens[i].insert(tokens[i].begin(), ' ');
      }
      if (cleans) tokens[i] = without_extra_spaces(std::move(tokens[i]));
    }
  };
}

Decoder read_decoder_sequence(const JsonPart& part) {
  part.only({"decoders"});
  return [steps = part.list("decoders", read_decoder)](Tokens& tokens) {
    for (const Decoder& step : steps) step(tokens);
  };
}

constexpr PartKind<Decoder(const JsonPart&)> kDecoders[] = {{"ByteLevel", read_byte_level},
                                                            {"ByteFallback", read_byte_fallback},
                                                            {"Fuse", read_fuse},
                                                            {"Replace", read_replace},
                                                            {"Strip", read_strip},
                                                            {"Metaspace", read_metaspace_decoder},
                                                            {"WordPiece", read_word_piece},
                                                            {"Sequence", read_decoder_sequence}};

}  // namespace

Decoder read_decoder(const JsonPart& part) {
  return kind_of(part, "decoders", kDecoders).read(part);
}

}  // namespace fp8train::tokenizers
