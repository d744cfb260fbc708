#include <string_view>
#include <utility>

#include "base/text.h"
#include "data/tokenizers/byte_alphabet.h"
#include "data/tokenizers/pre_tokenizers.h"
#include "data/tokenizers/regex.h"
#include "data/tokenizers/text_parts.h"

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

void read_template(const JsonPart& part, PostProcessor& ids) {
  part.only({"single", "pair", "special_tokens"});
  const JsonPart single = part.at("single");
  bool behind_text = false;
  for (size_t i = 0; i < single.size(); ++i) {
    const JsonPart item = single.at(i);
    if (item.has("Sequence")) {
      if (behind_text) item.refuse("a second text in a template is not supported");
      behind_text = true;
      continue;
    }
    const std::string name = item.at("SpecialToken").text("id");
    const JsonPart list = part.at("special_tokens").at(name).at("ids");
    for (size_t j = 0; j < list.size(); ++j) {
      const JsonPart id = list.at(j);
      if (!id.value().is_number_integer()) list.refuse("is not a list of ids");
      (behind_text ? ids.after : ids.before).push_back(id.value().get<int32_t>());
    }
  }
}

/// ["[CLS]", 101]
int32_t read_pair(const JsonPart& part) {
  const JsonPart id = part.at(1);
  if (!id.value().is_number_integer()) id.refuse("is not an id");
  return id.value().get<int32_t>();
}

void read_processor(const JsonPart& part, PostProcessor& ids) {
  const std::string type = part.type();
  if (type == "ByteLevel") {  // changes offsets only
    part.only({"add_prefix_space", "trim_offsets", "use_regex"});
  } else if (type == "TemplateProcessing") {
    read_template(part, ids);
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    part.only({"sep", "cls", "trim_offsets", "add_prefix_space"});
    ids.before.push_back(read_pair(part.at("cls")));
    ids.after.push_back(read_pair(part.at("sep")));
  } else if (type == "Sequence") {
    part.only({"processors"});
    const JsonPart list = part.at("processors");
    for (size_t i = 0; i < list.size(); ++i) read_processor(list.at(i), ids);
  } else {
    refuse_type(part, "post-processors",
                "ByteLevel, TemplateProcessing, BertProcessing, RobertaProcessing, Sequence");
  }
}

}  // namespace

Decoder read_decoder(const JsonPart& part) {
  return kind_of(part, "decoders", kDecoders).read(part);
}

PostProcessor read_post_processor(const JsonPart& part) {
  PostProcessor ids;
  read_processor(part, ids);
  return ids;
}

}  // namespace fp8train::tokenizers
