// fp8train config: everything about configurations that needs no data and no device.

#include <fmt/format.h>

#include <cstdio>
#include <memory>

#include "config/show.h"
#include "verbs.h"

namespace fp8train {
namespace {

struct ShowOptions {
  CommonOptions common;
  bool resolved = false;
  bool comments = false;
};

void add_show(Arguments parent, Action& action) {
  auto options = std::make_shared<ShowOptions>();
  Arguments show = parent.part("show", "Check a configuration and print it as YAML");
  add_common(show, options->common);
  show.flag("--resolved", options->resolved, "Every setting, not only what differs");
  show.flag("--comments", options->comments, "With a line of documentation per key");
  show.run(action, [options] {
    fmt::print("{}", show_settings(load(options->common), options->resolved, options->comments));
    return 0;
  });
}

void add_explain_key(Arguments parent, Action& action) {
  auto key = std::make_shared<std::string>();
  Arguments explain = parent.part("explain", "Explain one key or section");
  explain.required("key", *key, "Dotted key, such as optimizer.lr");
  explain.run(action, [key] {
    fmt::print("{}", explain_key(*key));
    return 0;
  });
}

/// A subcommand without options that prints a text.
void add_text(Arguments parent, Action& action, const char* name, const char* help,
              std::string (*text)()) {
  parent.part(name, help).run(action, [text] {
    fmt::print("{}", text());
    return 0;
  });
}

std::string keys_text() {
  std::string result;
  for (const std::string& key : config_keys()) {
    result += key + "\n";
  }
  return result;
}

}  // namespace

void add_config(Arguments verb, Action& action) {
  add_show(verb, action);
  add_explain_key(verb, action);
  add_text(verb, action, "keys", "List all keys", keys_text);
  add_text(verb, action, "list", "List the model presets", presets_text);
  add_text(verb, action, "docs", "Print the documentation page of all keys", configuration_page);
}

}  // namespace fp8train
