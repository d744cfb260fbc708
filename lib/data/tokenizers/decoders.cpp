#include "data/tokenizers/decoders.h"

#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

#include "data/tokenizers/byte_alphabet.h"
#include "data/tokenizers/metaspace.h"
#include "data/tokenizers/pattern.h"

namespace fp8train::tokenizers {
namespace {

using Tokens = std::vector<std::string>;

void fuse(Tokens& tokens) {
  std::string whole;
  for (const std::string& token : tokens) whole += token;
  tokens = {std::move(whole)};
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  std::string result;
  size_t done = 0;
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, done)) {
    result.append(text, done, at - done).append(to);
    done = at + from.size();
  }
  if (done > 0) text = result.append(text, done);
}

class ByteLevelDecoder final : public Decoder {
 public:
  void apply(Tokens& tokens) const override {
    for (std::string& token : tokens) {
      if (auto bytes = unspelled(token)) token = std::move(*bytes);
    }
  }
};

class ByteFallbackDecoder final : public Decoder {
 public:
  void apply(Tokens& tokens) const override {
    for (std::string& token : tokens) {
      if (const auto byte = byte_of(token)) token.assign(1, *byte);
    }
  }

 private:
  static std::optional<char> byte_of(std::string_view token) {
    if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return {};
    uint8_t byte = 0;
    const char* const end = token.data() + 5;
    const auto [stop, error] = std::from_chars(token.data() + 3, end, byte, 16);
    if (error != std::errc() || stop != end) return {};
    return static_cast<char>(byte);
  }
};

class FuseDecoder final : public Decoder {
 public:
  void apply(Tokens& tokens) const override { fuse(tokens); }
};

class ReplaceDecoder final : public Decoder {
 public:
  ReplaceDecoder(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void apply(Tokens& tokens) const override {
    for (std::string& token : tokens) {
      std::string result;
      pattern_.for_each_part(token, [&](size_t begin, size_t end, bool is_match) {
        result.append(is_match ? std::string_view(content_)
                               : std::string_view(token).substr(begin, end - begin));
      });
      token = std::move(result);
    }
  }

 private:
  Pattern pattern_;
  std::string content_;
};

class StripDecoder final : public Decoder {
 public:
  StripDecoder(std::string content, int64_t left, int64_t right)
      : content_(std::move(content)), left_(left), right_(right) {}
  void apply(Tokens& tokens) const override {
    for (std::string& token : tokens) {
      for (int64_t i = 0; i < left_ && token.starts_with(content_); ++i) {
        token.erase(0, content_.size());
      }
      for (int64_t i = 0; i < right_ && token.ends_with(content_); ++i) {
        token.resize(token.size() - content_.size());
      }
    }
  }

 private:
  std::string content_;
  int64_t left_;
  int64_t right_;
};

class MetaspaceDecoder final : public Decoder {
 public:
  explicit MetaspaceDecoder(Metaspace settings) : settings_(std::move(settings)) {}
  void apply(Tokens& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) {
      const bool drops = i == 0 && settings_.prepend != Metaspace::Prepend::never;
      replace_all(tokens[i], settings_.replacement, drops ? "" : " ");
    }
  }

 private:
  Metaspace settings_;
};

class WordPieceDecoder final : public Decoder {
 public:
  WordPieceDecoder(std::string prefix, bool cleans) : prefix_(std::move(prefix)), cleans_(cleans) {}
  void apply(Tokens& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (i > 0 && tokens[i].starts_with(prefix_)) {
        tokens[i].erase(0, prefix_.size());
      } else if (i > 0) {
        tokens[i].insert(tokens[i].begin(), ' ');
      }
      if (cleans_) clean(tokens[i]);
    }
  }

 private:
  static void clean(std::string& token) {
    constexpr std::pair<std::string_view, std::string_view> kShorter[] = {
        {" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
        {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
        {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    for (const auto& [from, to] : kShorter) replace_all(token, from, to);
  }

  std::string prefix_;
  bool cleans_;
};

class SequenceDecoder final : public Decoder {
 public:
  explicit SequenceDecoder(std::vector<std::unique_ptr<Decoder>> steps)
      : steps_(std::move(steps)) {}
  void apply(Tokens& tokens) const override {
    for (const auto& step : steps_) step->apply(tokens);
  }

 private:
  std::vector<std::unique_ptr<Decoder>> steps_;
};

using MadeDecoder = std::unique_ptr<Decoder>;

MadeDecoder read_decoder_sequence(const JsonPart& part) {
  part.only({"decoders"});
  const JsonPart list = part.at("decoders");
  std::vector<MadeDecoder> steps;
  for (size_t i = 0; i < list.size(); ++i) steps.push_back(read_decoder(list.at(i)));
  return std::make_unique<SequenceDecoder>(std::move(steps));
}

MadeDecoder read_strip(const JsonPart& part) {
  part.only({"content", "start", "stop"});
  std::string content = part.text("content");
  if (content.empty()) part.refuse("'content' is empty");
  return std::make_unique<StripDecoder>(std::move(content), part.number("start"),
                                        part.number("stop"));
}

struct DecoderKind {
  std::string_view type;
  MadeDecoder (*read)(const JsonPart& part);
};

constexpr std::string_view kDecoders =
    "ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace, WordPiece, Sequence";

const DecoderKind kDecoderKinds[] = {
    {"Sequence", read_decoder_sequence},
    {"Strip", read_strip},
    {"ByteLevel",
     [](const JsonPart& part) -> MadeDecoder {
       part.only({"add_prefix_space", "trim_offsets", "use_regex"});
       return std::make_unique<ByteLevelDecoder>();
     }},
    {"ByteFallback",
     [](const JsonPart& part) -> MadeDecoder {
       part.only({});
       return std::make_unique<ByteFallbackDecoder>();
     }},
    {"Fuse",
     [](const JsonPart& part) -> MadeDecoder {
       part.only({});
       return std::make_unique<FuseDecoder>();
     }},
    {"Replace",
     [](const JsonPart& part) -> MadeDecoder {
       part.only({"pattern", "content"});
       return std::make_unique<ReplaceDecoder>(Pattern(part.at("pattern")), part.text("content"));
     }},
    {"Metaspace",
     [](const JsonPart& part) -> MadeDecoder {
       return std::make_unique<MetaspaceDecoder>(read_metaspace(part));
     }},
    {"WordPiece", [](const JsonPart& part) -> MadeDecoder {
       part.only({"prefix", "cleanup"});
       return std::make_unique<WordPieceDecoder>(part.text_or("prefix", "##"),
                                                 part.flag_or("cleanup", true));
     }}};

}  // namespace

std::unique_ptr<Decoder> read_decoder(const JsonPart& part) {
  for (const DecoderKind& kind : kDecoderKinds) {
    if (kind.type == part.type()) return kind.read(part);
  }
  refuse_type(part, "decoders", kDecoders);
}

}  // namespace fp8train::tokenizers
