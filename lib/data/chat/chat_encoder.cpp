#include "data/chat/chat_encoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "data/chat/chat_template.h"
#include "data/chat/jinja/text.h"
#include "data/tokenizers/unicode.h"

namespace fp8train {
namespace {

class IdWriter {
 public:
  IdWriter(std::string_view text, const std::vector<ByteRange>& targets, const Tokenizer& tokenizer)
      : text_(text), targets_(targets), tokenizer_(tokenizer) {}

  /// The text up to a token, and the token.
  void add(const FoundToken& token) {
    const TokenStrips strips = tokenizer_.strips(token.id);
    std::string_view before = text_.substr(done_, token.begin - done_);
    if (strips.before) before = before.substr(0, tokenizers::without_spaces_at_end(before));
    add_text(before);
    out_.ids.push_back(token.id);
    out_.is_target.push_back(std::any_of(targets_.begin(), targets_.end(), [&](ByteRange range) {
      return range.begin <= token.begin && token.end <= range.end;
    }));
    done_ = token.end;
    if (strips.after) done_ += tokenizers::spaces_at_start(text_.substr(done_));
  }

  ChatEncoder::Encoded finish() {
    add_text(text_.substr(done_));
    return std::move(out_);
  }

 private:
  /// Text without special tokens is encoded in one piece.
  void add_text(std::string_view part) {
    if (part.empty()) return;
    const bool at_start = out_.ids.empty();
    const std::vector<int32_t> ids = tokenizer_.encode_ordinary(part, at_start);
    const size_t first = out_.ids.size();
    out_.ids.insert(out_.ids.end(), ids.begin(), ids.end());
    out_.is_target.resize(out_.ids.size());
    const auto begin = static_cast<size_t>(part.data() - text_.data());
    for (const ByteRange& range : targets_) {
      const size_t from = std::max(range.begin, begin),
                   to = std::min(range.end, begin + part.size());
      if (from >= to) continue;
      const size_t first_target = ids_before(ids, part.substr(0, from - begin), at_start, false);
      const size_t end = to == begin + part.size()
                             ? ids.size()
                             : ids_before(ids, part.substr(0, to - begin), at_start, true);
      std::fill(out_.is_target.begin() + static_cast<std::ptrdiff_t>(first + first_target),
                out_.is_target.begin() + static_cast<std::ptrdiff_t>(first + end), true);
    }
  }

  /// How many of `ids` belong to a beginning of their text. `counts_shared`: also one that
  /// continues behind it.
  size_t ids_before(const std::vector<int32_t>& ids, std::string_view beginning, bool at_start,
                    bool counts_shared) const {
    if (beginning.empty()) return 0;
    const std::vector<int32_t> alone = tokenizer_.encode_ordinary(beginning, at_start);
    const auto [differs, rest] = std::mismatch(ids.begin(), ids.end(), alone.begin(), alone.end());
    const auto same = static_cast<size_t>(differs - ids.begin());
    return counts_shared && rest != alone.end() && same < ids.size() ? same + 1 : same;
  }

  std::string_view text_;
  const std::vector<ByteRange>& targets_;
  const Tokenizer& tokenizer_;
  ChatEncoder::Encoded out_;
  size_t done_ = 0;
};

/// Returns the ids of a text. Special tokens are found in the template's own text alone, and white
/// space that belongs to them is left out. Ids with a byte of `targets` are targets. Throws as
/// Tokenizer::encode() does.
ChatEncoder::Encoded write_ids(const jinja::Text& text, const std::vector<ByteRange>& targets,
                               const Tokenizer& tokenizer, const SpecialTokens& tokens) {
  IdWriter writer(text.bytes, targets, tokenizer);
  size_t begin = 0;
  const auto add_own_text = [&](size_t end) {
    const std::string_view own = std::string_view(text.bytes).substr(begin, end - begin);
    for (const FoundToken& token : tokens.in(own)) {
      writer.add({begin + token.begin, begin + token.end, token.id});
    }
  };
  for (const jinja::Span& span : text.spans) {
    add_own_text(span.begin);
    begin = span.end;
  }
  add_own_text(text.bytes.size());
  return writer.finish();
}

/// Of a dialogue, which is rendered up to each answer and each question for one.
constexpr int64_t kMaxSteps = 50 * jinja::Budget::kMaxSteps;

using jinja::Span;
using jinja::Text;
using jinja::Value;

/// The message as a template sees it. transformers gives thoughts by both names that templates have
/// for them.
Value value_of(const ChatMessage& message, int32_t index) {
  jinja::Dict fields;
  const auto add = [&](const char* name, Text text) {
    fields.entries.emplace_back(Value::text(name), Value(std::move(text)));
    fields.extent.hold(extent_of(fields.entries.back().second));
  };
  if (message.reasoning) add("thinking", Text(*message.reasoning, index));
  add("role", Text(std::string(name_of(message.role))));
  add("content", Text(message.content, index));
  if (message.reasoning) add("reasoning_content", Text(*message.reasoning, index));
  return Value(std::move(fields));
}

size_t common_prefix(std::string_view a, std::string_view b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first -
                             a.begin());
}

/// The template's own text behind the last part that comes from a message.
std::string_view tail_of(const Text& text) {
  return std::string_view(text.bytes).substr(text.spans.empty() ? 0 : text.spans.back().end);
}

}  // namespace

ChatEncoder::ChatEncoder(const Tokenizer& tokenizer, const std::string& chat_template,
                         std::string_view option)
    : tokenizer_(tokenizer),
      tokens_(tokenizer),
      template_(find_chat_template(tokenizer, tokens_, chat_template, option)),
      variables_(token_variables(tokenizer, tokens_)) {
  variables_.emplace_back("tools", Value::none());
  variables_.emplace_back("documents", Value::none());
  end_ = find_end();
}

jinja::Rendered ChatEncoder::render(const Dialogue& dialogue, const Request& request,
                                    int64_t& steps) const {
  jinja::List list;
  for (size_t i = 0; i < request.messages; ++i) {
    list.items.push_back(value_of(dialogue[i], static_cast<int32_t>(i)));
    list.extent.hold(extent_of(list.items.back()));
  }
  jinja::Variables variables = variables_;
  variables.emplace_back("messages", Value(std::move(list)));
  variables.emplace_back("add_generation_prompt", Value(request.asks));
  if (!request.thinks) variables.emplace_back("enable_thinking", Value(false));
  jinja::Budget budget;
  jinja::Rendered rendered = template_.render(variables, budget);
  steps -= jinja::Budget::kMaxSteps - budget.steps;
  if (steps < 0) {
    throw jinja::OverBudget(
        fmt::format("a dialogue of {} messages takes more than {} steps of the chat template",
                    dialogue.size(), kMaxSteps));
  }
  return rendered;
}

ChatEncoder::Encoded ChatEncoder::encode(const Dialogue& dialogue) const {
  check(!dialogue.empty(), "a dialogue has messages");
  int64_t steps = kMaxSteps;
  const jinja::Rendered whole = render(dialogue, {dialogue.size()}, steps);
  warn_of_messages_left_out(dialogue, whole.text);
  return write_ids(whole.text, answers(dialogue, whole, steps), tokenizer_, tokens_);
}

std::vector<int32_t> ChatEncoder::prompt(const Dialogue& dialogue, bool thinks) const {
  if (!thinks && !template_.uses("enable_thinking")) {
    throw ConfigError(
        "the chat template has no thinking to leave out: it does not have enable_thinking");
  }
  int64_t steps = kMaxSteps;
  const jinja::Rendered whole = render(dialogue, {dialogue.size(), true, thinks}, steps);
  return write_ids(whole.text, {}, tokenizer_, tokens_).ids;
}

void ChatEncoder::warn_of_messages_left_out(const Dialogue& dialogue, const Text& text) const {
  std::vector<bool> has(dialogue.size());
  for (const Span& span : text.spans) has[static_cast<size_t>(span.message)] = true;
  for (size_t i = 0; i < dialogue.size(); ++i) {
    const std::string& content = dialogue[i].content;
    const bool is_empty = tokenizers::spaces_at_start(content) == content.size();
    if (has[i] || is_empty || dialogue[i].is_target || has_warned_.exchange(true)) continue;
    log_warning(fmt::format(
        "the chat template leaves out message {} ({}) of a dialogue, and perhaps others", i + 1,
        name_of(dialogue[i].role)));
  }
}

std::vector<ByteRange> ChatEncoder::answers(const Dialogue& dialogue, const jinja::Rendered& whole,
                                            int64_t& steps) const {
  if (!whole.generations.empty()) return marked_answers(dialogue, whole);
  std::vector<ByteRange> found;
  for (size_t i = 0; i < dialogue.size(); ++i) {
    if (dialogue[i].is_target) found.push_back(answer(dialogue, i, whole.text, steps));
  }
  return found;
}

/// A mark with text of messages counts if one of them is learned; a mark without, if the next
/// answer is.
std::vector<ByteRange> ChatEncoder::marked_answers(const Dialogue& dialogue,
                                                   const jinja::Rendered& whole) const {
  std::vector<ByteRange> found;
  std::vector<bool> is_marked(dialogue.size());
  for (const auto& [begin, end] : whole.generations) {
    bool has_text = false, counts = false;
    size_t next = 0;
    for (const Span& span : whole.text.spans) {
      const auto message = static_cast<size_t>(span.message);
      if (span.end <= begin && span.begin < begin) next = message + 1;
      if (span.begin < begin || span.end > end) continue;
      has_text = true;
      is_marked[message] = true;
      counts = counts || dialogue[message].is_target;
    }
    while (next < dialogue.size() && dialogue[next].role != ChatRole::assistant) ++next;
    if (!has_text && next < dialogue.size()) {
      const std::string& answer = dialogue[next].content;
      is_marked[next] = is_marked[next] || tokenizers::spaces_at_start(answer) == answer.size();
      counts = dialogue[next].is_target;
    }
    if (counts) found.push_back({begin, end});
  }
  for (size_t i = 0; i < dialogue.size(); ++i) {
    if (dialogue[i].is_target && !is_marked[i]) {
      throw DataError(fmt::format(
          "message {}: the chat template has no {{% generation %}} around this answer", i + 1));
    }
  }
  return found;
}

ByteRange ChatEncoder::answer(const Dialogue& dialogue, size_t index, const Text& whole,
                              int64_t& steps) const {
  const auto is_of_it = [&](const Span& span) {
    return span.message == static_cast<int32_t>(index);
  };
  const auto first = std::find_if(whole.spans.begin(), whole.spans.end(), is_of_it);
  if (first == whole.spans.end()) {
    throw DataError(fmt::format("message {}: the chat template leaves this {}answer out", index + 1,
                                dialogue[index].content.empty() ? "empty " : ""));
  }
  const auto last = std::find_if(whole.spans.rbegin(), whole.spans.rend(), is_of_it).base();
  if (!std::all_of(first, last, is_of_it)) {
    throw DataError(fmt::format(
        "message {}: the chat template writes this answer twice; {{% generation %}} in the "
        "template marks what is learned",
        index + 1));
  }
  const std::string_view text = whole.bytes;
  const size_t before = first == whole.spans.begin() ? 0 : std::prev(first)->end;
  const size_t begin = first->begin, end = std::prev(last)->end;
  const size_t after = last == whole.spans.end() ? text.size() : last->begin;
  return {before + begin_of_answer(dialogue, index, text.substr(before, begin - before), steps),
          end + end_of_answer(dialogue, index, text.substr(end, after - end), steps)};
}

/// Where an answer begins in the template's text in front of it: behind what the template writes to
/// ask for it, if that is there.
size_t ChatEncoder::begin_of_answer(const Dialogue& dialogue, size_t index, std::string_view before,
                                    int64_t& steps) const {
  try {
    const jinja::Rendered asked = render(dialogue, {index, true}, steps);
    const std::string_view question = tail_of(asked.text);
    const bool is_there = !question.empty() && before.starts_with(question);
    return is_there ? question.size() : before.size();
  } catch (const jinja::OverBudget&) {
    throw;
  } catch (const DataError&) {
    return before.size();  // such a dialogue is not asked for an answer
  }
}

/// Where an answer ends in the template's text behind it: behind the first special token of what
/// the template writes to end it. Where it writes none, the token that begins the next message ends
/// it, as models of such templates have learned it.
size_t ChatEncoder::end_of_answer(const Dialogue& dialogue, size_t index, std::string_view after,
                                  int64_t& steps) const {
  std::string_view own = after;
  if (index + 1 < dialogue.size()) {
    try {
      const jinja::Rendered ended = render(dialogue, {index + 1}, steps);
      own = after.substr(0, common_prefix(after, tail_of(ended.text)));
    } catch (const jinja::OverBudget&) {
      throw;
    } catch (const DataError&) {
      // Such a dialogue does not end here; the token that ends the answer may still be found.
    }
  }
  if (const size_t end = end_behind(own); end > 0) return end;
  const std::vector<FoundToken> next = tokens_.in(after);
  if (!next.empty() && next.front().begin == tokenizers::spaces_at_start(after)) {
    return next.front().end;
  }
  return tokenizers::without_spaces_at_end(own);
}

/// The end of the first token in a text, or of the end of sequence if that follows among tokens
/// without text between them; 0 where there is no token.
size_t ChatEncoder::end_behind(std::string_view text) const {
  const std::vector<FoundToken> tokens = tokens_.in(text);
  size_t end = 0;
  for (const FoundToken& token : tokens) {
    if (end > 0 && token.begin != end) break;
    end = token.end;
    if (token.id == tokenizer_.eos_id()) return end;
  }
  return tokens.empty() ? 0 : tokens.front().end;
}

/// Found in what the template writes behind an answer, at the end of a dialogue or else in front of
/// a further question.
int32_t ChatEncoder::find_end() const {
  const ChatMessage question = {ChatRole::user, "a", false, {}};
  const Dialogue sample = {question, {ChatRole::assistant, "b", true, {}}, question};
  for (const size_t messages : {size_t{2}, size_t{3}}) {
    try {
      int64_t steps = kMaxSteps;
      const Text text = render(sample, {messages}, steps).text;
      size_t from = std::string::npos;
      for (const Span& span : text.spans) {
        if (span.message == 1) from = span.end;
      }
      if (from != std::string::npos) {
        const std::string_view behind = std::string_view(text.bytes).substr(from);
        const size_t end = end_behind(behind);
        for (const FoundToken& token : tokens_.in(behind.substr(0, end))) {
          if (token.end == end) return token.id;
        }
      }
    } catch (const DataError&) {
      continue;  // a dialogue that the template does not take
    }
    if (messages == 2) {
      log_warning(
          "the chat template writes no token behind the last answer of a dialogue: the model does "
          "not learn there that an answer ends");
    }
  }
  return -1;
}

}  // namespace fp8train
