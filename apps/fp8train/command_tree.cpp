#include "command_tree.h"

#include <CLI/CLI.hpp>
#include <algorithm>

namespace fp8train {
namespace {

CommandOption option_of(const CLI::Option& option) {
  CommandOption result;
  for (const std::string& name : option.get_snames()) {
    result.names.push_back("-" + name);
  }
  for (const std::string& name : option.get_lnames()) {
    result.names.push_back("--" + name);
  }
  if (result.names.empty()) {
    result.names.push_back(option.get_type_name());
  }
  result.help = option.get_description();
  result.value = option.get_type_name();
  result.argument = option.get_positional() ? result.value : "";
  result.is_required = option.get_required();
  result.is_repeated = option.get_items_expected_max() > 1 && option.get_allow_extra_args();
  result.default_value = option.get_default_str();
  result.takes_value = option.get_items_expected_max() > 0;
  return result;
}

CommandNode node_of(const CLI::App& app) {
  CommandNode node = {.name = app.get_name(),
                      .help = app.get_description(),
                      .example = app.get_footer(),
                      .needs_part = app.get_require_subcommand_min() > 0};
  for (const CLI::Option* option : app.get_options()) {
    node.options.push_back(option_of(*option));
  }
  for (const CLI::App* part : app.get_subcommands({})) {
    node.parts.push_back(node_of(*part));
  }
  return node;
}

}  // namespace

bool CommandNode::takes_keys() const {
  return std::any_of(options.begin(), options.end(),
                     [](const CommandOption& one) { return one.names.front() == "--set"; });
}

CommandNode command_tree(Arguments command) {
  const CLI::App* root = &command.app();
  while (root->get_parent() != nullptr) {
    root = root->get_parent();
  }
  return node_of(*root);
}

std::string help_page(const CLI::App& command) {
  std::string path = command.get_name();
  for (const CLI::App* app = command.get_parent(); app != nullptr; app = app->get_parent()) {
    path.insert(0, app->get_name() + " ");
  }
  return help_page(node_of(command), path);
}

}  // namespace fp8train
