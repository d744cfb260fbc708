// fp8train doctor: is this machine ready for a run, and what is to be done about it.

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/terminal.h"
#include "commands.h"
#include "config/wrap.h"
#include "doctor.h"

namespace fp8train {
namespace {

constexpr int kExitProblem = 4;

struct DoctorOptions {
  std::string folder = ".";
  bool json = false;
};

void print_json(const std::vector<Finding>& findings) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const Finding& one : findings) {
    all.push_back({{"name", one.name},
                   {"health", name_of(one.health)},
                   {"text", one.text},
                   {"fix", one.fix}});
  }
  fmt::print("{}\n", all.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

void print_lines(const std::vector<Finding>& findings) {
  const size_t columns = std::min(kColumns, terminal_columns(stdout));
  for (const Finding& one : findings) {
    const std::string word = fmt::format("{:<8}", name_of(one.health));
    fmt::print(
        "{} {:<11} {}\n",
        one.health == Health::ok
            ? word
            : colored(stdout, one.health == Health::warning ? Color::yellow : Color::red, word),
        one.name, one.text);
    if (!one.fix.empty()) {
      fmt::print("{}", wrapped("                     -> " + one.fix, columns));
    }
  }
}

int examine(const DoctorOptions& options) {
  const std::vector<Finding> findings = examine_machine(options.folder);
  const auto count = [&](Health health) {
    return std::count_if(findings.begin(), findings.end(),
                         [&](const Finding& one) { return one.health == health; });
  };
  const auto problems = count(Health::problem);
  if (options.json) {
    print_json(findings);
  } else {
    print_lines(findings);
    fmt::print("{} problem{}, {} warning{}\n", problems, problems == 1 ? "" : "s",
               count(Health::warning), count(Health::warning) == 1 ? "" : "s");
  }
  return problems > 0 ? kExitProblem : 0;
}

}  // namespace

void add_doctor(Arguments command, Action& action) {
  auto options = std::make_shared<DoctorOptions>();
  command.option("folder", options->folder, "Where runs will put their files");
  command.flag("--json", options->json, "As a list of objects: name, health, text, fix");
  command.run(action, [options] { return examine(*options); });
}

}  // namespace fp8train
