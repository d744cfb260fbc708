// The input is a chat template. What is read renders a dialogue within its budget, or is refused in
// words; the parts of its text that come from messages are in order.

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "data/chat/jinja/template.h"

namespace {

using fp8train::jinja::Value;

fp8train::jinja::Variables variables() {
  fp8train::jinja::List messages;
  int32_t index = 0;
  for (const auto& [role, content] :
       {std::pair("system", "Be brief."), std::pair("user", " a<think>b</think>\n\xC3\xA4"),
        std::pair("assistant", "c")}) {
    fp8train::jinja::Dict message;
    message.set(Value::text("role"), Value::text(role));
    message.set(Value::text("content"), Value(fp8train::jinja::Text(content, index++)));
    message.extent = {1, 5};
    messages.extent.hold(message.extent);
    messages.items.emplace_back(std::move(message));
  }
  return {{"messages", Value(std::move(messages))},
          {"add_generation_prompt", Value(true)},
          {"bos_token", Value::text("<s>")}};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fp8train::jinja::Variables all = variables();
  try {
    const std::string_view source(reinterpret_cast<const char*>(data), size);
    const fp8train::jinja::Template chat_template(source, "t");
    fp8train::jinja::Budget budget;
    budget.steps = 200'000;
    budget.bytes = 1 << 24;
    const fp8train::jinja::Rendered rendered = chat_template.render(all, budget);
    size_t end = 0;
    for (const auto& span : rendered.text.spans) {
      if (span.begin < end || span.end < span.begin) std::abort();
      end = span.end;
    }
    if (end > rendered.text.bytes.size()) std::abort();
  } catch (const fp8train::ConfigError&) {
  } catch (const fp8train::DataError&) {
  }
  return 0;
}
