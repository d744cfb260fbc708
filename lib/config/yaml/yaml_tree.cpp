#include "config/yaml/yaml_tree.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <sstream>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/json_error.h"

namespace fp8train {
namespace {

constexpr const char* kNoAliases =
    "YAML aliases (*name) are not supported; put a text that begins with * in quotes";

/// Leaves the parser early; what was wrong is already reported.
struct Stop {};

class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(std::string_view text, std::string path, size_t source, Problems& problems)
      : text_(text), path_(std::move(path)), source_(source), problems_(problems) {}

  YamlNode take() {
    if (!frames_.empty() && !frames_.back().node.items.empty()) {
      frames_.back().node.items.back().reported = true;  // a syntax error has cut it off
    }
    while (!frames_.empty()) {  // these it left open
      close();
    }
    return std::move(root_);
  }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (begun_) {
      problems_.add({source_, mark.line + 1, 1}, path_, "a second YAML document; write only one");
      throw Stop{};
    }
    begun_ = true;
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    YamlNode node = at(mark);
    node.reported = anchor != YAML::NullAnchor;
    node.text = "null";
    add(std::move(node));
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    YamlNode node = at(mark);
    node.reported = true;
    complain(mark, kNoAliases);
    add(std::move(node));
  }

  void OnAnchor(const YAML::Mark& mark, const std::string& name) override {
    complain(mark,
             fmt::format("YAML anchors (&name) are not supported, got {}; put a text that begins "
                         "with & in quotes",
                         quoted_for_message("&" + name)));
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    YamlNode node = at(mark);
    node.kind = YamlNode::Kind::scalar;
    node.reported = anchor != YAML::NullAnchor;
    node.text = value;
    node.quoted = tag == "!";
    refuse_tag(mark, tag == "!" ? "?" : tag, node);
    add(std::move(node));
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    open(mark, tag, YamlNode::Kind::sequence);
  }
  void OnSequenceEnd() override { close(); }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {
    open(mark, tag, YamlNode::Kind::map);
  }
  void OnMapEnd() override { close(); }

 private:
  struct Frame {
    YamlNode node;
    std::string path;
    std::unordered_map<std::string, int> seen;  // key -> line
    bool has_key = false;                       // a map's key waits for its value
    bool drop_value = false;                    // that value belongs to a repeated key
  };

  static YamlNode at(const YAML::Mark& mark) {
    YamlNode node;
    node.line = mark.line + 1;
    node.column = mark.column + 1;
    return node;
  }

  /// The dotted key of the node that comes next.
  std::string next_path() const {
    if (frames_.empty()) {
      return path_;
    }
    const Frame& frame = frames_.back();
    if (frame.node.kind == YamlNode::Kind::sequence) {
      return fmt::format("{}[{}]", frame.path, frame.node.items.size());
    }
    return frame.has_key ? child_path(frame, frame.node.keys.back().text) : frame.path;
  }

  static std::string child_path(const Frame& frame, const std::string& key) {
    return frame.path.empty() ? key : frame.path + "." + key;
  }

  void complain(const YAML::Mark& mark, const std::string& text) {
    problems_.add({source_, mark.line + 1, mark.column + 1}, next_path(), text);
  }

  void refuse_tag(const YAML::Mark& mark, const std::string& tag, YamlNode& node) {
    if (tag != "?" && !tag.empty()) {
      complain(mark, fmt::format("YAML tags are not supported, got {}; put a text that begins "
                                 "with ! in quotes",
                                 quoted_for_message(tag)));
      node.reported = true;
    }
  }

  bool waits_for_key() const {
    return !frames_.empty() && frames_.back().node.kind == YamlNode::Kind::map &&
           !frames_.back().has_key;
  }

  [[noreturn]] void refuse_key(const YamlNode& node) {
    if (const std::optional<JsonError> open = unclosed(text_)) {
      problems_.add({source_, static_cast<int>(open->line), static_cast<int>(open->column)},
                    frames_.back().path, "not valid YAML: " + open->what);
      throw Stop{};
    }
    problems_.add({source_, node.line, node.column}, frames_.back().path,
                  "a key must be plain text on one line");
    throw Stop{};
  }

  void open(const YAML::Mark& mark, const std::string& tag, YamlNode::Kind kind) {
    YamlNode node = at(mark);
    if (waits_for_key()) {
      refuse_key(node);
    }
    refuse_tag(mark, tag, node);
    std::string path = next_path();
    if (frames_.size() >= kMaxYamlDepth) {
      complain(mark, fmt::format("nested deeper than {} levels", kMaxYamlDepth));
      throw Stop{};
    }
    node.kind = kind;
    frames_.push_back({std::move(node), std::move(path), {}, false, false});
  }

  void close() {
    YamlNode node = std::move(frames_.back().node);
    if (node.keys.size() > node.items.size() && node.kind == YamlNode::Kind::map) {
      node.keys.pop_back();
    }
    frames_.pop_back();
    add(std::move(node));
  }

  void add(YamlNode node) {
    if (frames_.empty()) {
      root_ = std::move(node);
      return;
    }
    if (waits_for_key()) {
      add_key(node);
      return;
    }
    Frame& frame = frames_.back();
    if (frame.drop_value) {
      frame.node.keys.pop_back();
    } else {
      frame.node.items.push_back(std::move(node));
    }
    frame.has_key = false;
    frame.drop_value = false;
  }

  void add_key(const YamlNode& node) {
    if (node.kind != YamlNode::Kind::scalar || node.text.find('\n') != std::string::npos) {
      refuse_key(node);
    }
    Frame& frame = frames_.back();
    const auto [entry, is_new] = frame.seen.emplace(node.text, node.line);
    if (!is_new) {
      problems_.add({source_, node.line, node.column}, child_path(frame, node.text),
                    fmt::format("given twice, first in line {}", entry->second));
    }
    frame.node.keys.push_back({node.text, node.line, node.column, {}});
    frame.has_key = true;
    frame.drop_value = !is_new;
  }

  std::string_view text_;
  std::string path_;
  size_t source_;
  Problems& problems_;
  std::vector<Frame> frames_;
  YamlNode root_;
  bool begun_ = false;
};

std::string_view line_of(std::string_view text, int line) {
  for (; line > 0 && !text.empty(); --line) {
    text.remove_prefix(std::min(text.find('\n'), text.size() - 1) + 1);
  }
  return text.substr(0, text.find('\n'));
}

bool has_tab_indent(std::string_view line) {
  return line.substr(0, line.find_first_not_of(" \t")).find('\t') != std::string_view::npos;
}

/// The reader's messages in a user's words.
std::string in_words(const std::string& message) {
  static const std::pair<const char*, const char*> kWords[] = {
      {YAML::ErrorMsg::END_OF_MAP, "this line is not indented as the keys above it are"},
      {YAML::ErrorMsg::END_OF_SEQ, "this line is not indented as the list above it is"},
      {YAML::ErrorMsg::END_OF_MAP_FLOW, "a comma or } is missing before this"},
      {YAML::ErrorMsg::END_OF_SEQ_FLOW, "a comma or ] is missing before this"},
      {YAML::ErrorMsg::FLOW_END, "this } or ] closes nothing"},
      {YAML::ErrorMsg::MAP_VALUE,
       "a key cannot begin here: a second colon in a line (put the text in quotes), or a line that "
       "is indented deeper than the one before it"},
      {YAML::ErrorMsg::BLOCK_ENTRY, "a list cannot begin here: put it below its key"},
      {YAML::ErrorMsg::EOF_IN_SCALAR, "the text ends, but a quote is not closed"},
      {YAML::ErrorMsg::UNKNOWN_TOKEN, "no value begins with this character: put it in quotes"}};
  const auto found = std::find_if(std::begin(kWords), std::end(kWords),
                                  [&](const auto& one) { return message == one.first; });
  return found == std::end(kWords) ? message : found->second;
}

/// Adds the problem of an exception at its mark.
void complain(const YAML::Exception& error, std::string_view text, const std::string& path,
              size_t source, Problems& problems) {
  SourceMark mark = {source, error.mark.line + 1, error.mark.column + 1};
  if (error.msg.starts_with(YAML::ErrorMsg::UNKNOWN_ANCHOR)) {
    problems.add(mark, path, kNoAliases);
    return;
  }
  for (int line = std::max(error.mark.line - 1, 0); line <= error.mark.line; ++line) {
    if (has_tab_indent(line_of(text, line))) {
      problems.add({source, line + 1, 1}, path,
                   "not valid YAML: the line begins with a tab; indent with spaces");
      return;
    }
  }
  std::string what = in_words(error.msg);
  const bool ends = error.mark.pos >= static_cast<int>(text.find_last_not_of(" \t\r\n"));
  if (const std::optional<JsonError> open = ends ? unclosed(text) : std::nullopt) {
    mark = {source, static_cast<int>(open->line), static_cast<int>(open->column)};
    what = open->what;
  }
  problems.add(mark, path, "not valid YAML: " + what);
}

constexpr std::string_view kBlanks = " \t\r\n";

/// Returns the end of the comment that begins at `at`, or `at` if none does. `before`: the last
/// character before it that is not blank. A path after a colon (`//host/file`) is no comment, and
/// neither are slashes within a word.
size_t end_of_comment(std::string_view text, size_t at, char before) {
  const std::string_view rest = text.substr(at);
  const bool in_word = at > 0 && (kBlanks.find(text[at - 1]) == std::string_view::npos) &&
                       std::string_view(",{}[]\"'/").find(text[at - 1]) == std::string_view::npos;
  if (in_word) {
    return at;
  }
  if (rest.starts_with("/*")) {
    const size_t end = rest.find("*/", 2);
    return end == std::string_view::npos ? at : at + end + 2;
  }
  if (rest.starts_with('#') || (rest.starts_with("//") && before != ':')) {
    return std::min(text.find('\n', at), text.size());
  }
  return at;
}

}  // namespace

YamlNode parse_yaml(std::string_view text, const std::string& path, size_t source,
                    Problems& problems) {
  YamlNode unusable;
  unusable.reported = true;
  if (text.size() > kMaxYamlBytes) {
    problems.add({source, 0, 0}, path, "larger than 1 MiB, which no configuration is");
    return unusable;
  }
  if (text.find('\0') != std::string_view::npos) {
    problems.add({source, 0, 0}, path, "holds a zero byte, so it is not text");
    return unusable;
  }
  const bool is_json = text.substr(0, text.find_first_not_of(" \t\r\n") + 1).ends_with('{') &&
                       text.find('#') == std::string_view::npos;
  if (const std::optional<JsonError> open = is_json ? unclosed(text) : std::nullopt) {
    problems.add({source, static_cast<int>(open->line), static_cast<int>(open->column)}, path,
                 "not valid JSON: " + open->what);
    return unusable;
  }
  TreeBuilder builder(text, path, source, problems);
  bool complete = false;
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
    complete = true;
  } catch (const Stop&) {  // it has said why
  } catch (const YAML::Exception& error) {
    complain(error, text, path, source, problems);
  }
  YamlNode root = builder.take();
  root.reported = root.reported || !complete;
  return root;
}

bool is_toml(std::string_view text) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const size_t begin = line.find_first_not_of(kBlanks);
    if (begin == std::string_view::npos || line[begin] == '#') {
      continue;
    }
    const std::string_view rest = line.substr(begin, line.find_last_not_of(kBlanks) + 1 - begin);
    const bool is_section = rest.starts_with('[') && rest.ends_with(']') &&
                            rest.find_first_of(",:{\"'") == std::string_view::npos;
    const size_t equals = rest.find('=');
    return is_section ||
           (equals != std::string_view::npos && equals > 0 &&
            rest.substr(0, equals).find_first_of(":{[\"'#") == std::string_view::npos);
  }
  return false;
}

std::string json_as_yaml(std::string text) {
  constexpr std::string_view kBegin = "{\"";  // a flow mapping of YAML has other keys
  std::string plain = text;
  char before = ' ', quote = 0;
  size_t seen = 0;
  for (size_t i = 0; i < plain.size(); ++i) {
    const char c = plain[i];
    if (quote != 0) {
      i += c == '\\' && quote == '"' ? 1 : 0;
      quote = c == quote ? 0 : quote;
      continue;
    }
    if (const size_t end = end_of_comment(text, i, before); end > i) {
      for (; i < end; ++i) {
        plain[i] = plain[i] == '\n' ? '\n' : ' ';
      }
      --i;
      continue;
    }
    if (kBlanks.find(c) != std::string_view::npos) {
      plain[i] = c == '\t' ? ' ' : c;
      continue;
    }
    if (seen < kBegin.size() && c != kBegin[seen++]) {
      return text;
    }
    // After other characters an apostrophe is a character like any other.
    const bool begins_value = std::string_view("{[,:").find(before) != std::string_view::npos;
    quote = c == '"' || (c == '\'' && begins_value) ? c : 0;
    before = c;
  }
  return seen == kBegin.size() ? plain : text;
}

}  // namespace fp8train
