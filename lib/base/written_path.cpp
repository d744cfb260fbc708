#include "base/written_path.h"

#include <fmt/format.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

namespace fp8train {
namespace {

bool is_name_character(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

/// The commands that fetch the files of an address and that send some there.
struct Service {
  std::string_view begin;  ///< of the address
  std::string_view fetch, send;
};

constexpr Service kServices[] = {
    {"s3://", "aws s3 cp --recursive ADDRESS FOLDER", "aws s3 cp --recursive FOLDER ADDRESS"},
    {"gs://", "gcloud storage cp -r ADDRESS FOLDER", "gcloud storage cp -r FOLDER ADDRESS"},
    {"hf://datasets/", "hf download NAME --repo-type dataset --local-dir FOLDER",
     "hf upload NAME FOLDER --repo-type dataset"},
    {"https://huggingface.co/datasets/", "hf download NAME --repo-type dataset --local-dir FOLDER",
     "hf upload NAME FOLDER --repo-type dataset"},
    {"hf://", "hf download NAME --local-dir FOLDER", "hf upload NAME FOLDER"},
    {"https://huggingface.co/", "hf download NAME --local-dir FOLDER", "hf upload NAME FOLDER"},
    {"http", "curl -LO ADDRESS", ""}};

/// Why an address of the network is not a path; empty for any other text.
std::string refused_address(const std::string& text, PathUse use) {
  const size_t end = text.find("://");
  if (end == std::string::npos || end == 0 ||
      !std::ranges::all_of(text.substr(0, end), is_name_character)) {
    return "";
  }
  const bool is_input = use == PathUse::input;
  const auto* known = std::ranges::find_if(
      kServices, [&](const Service& service) { return text.starts_with(service.begin); });
  const std::string_view command = known == std::end(kServices) ? ""
                                   : is_input                   ? known->fetch
                                                                : known->send;
  return fmt::format(
      "{} is an address, and only files of this machine are {} here; {}{}", text,
      is_input ? "read" : "written",
      is_input ? "fetch it first and name the copy" : "name a path, and send it there afterwards",
      command.empty() ? "" : fmt::format(", for example with `{}`", command));
}

/// Returns the first `$NAME` or `${NAME}` as it is written.
std::optional<std::string> variable_in(const std::string& text) {
  for (size_t at = text.find('$'); at != std::string::npos; at = text.find('$', at + 1)) {
    const bool braces = text.substr(at + 1, 1) == "{";
    const size_t begin = at + (braces ? 2 : 1);
    size_t end = begin;
    while (end < text.size() && is_name_character(text[end])) {
      ++end;
    }
    const bool is_name = end > begin && std::isdigit(static_cast<unsigned char>(text[begin])) == 0;
    if (is_name && (!braces || text.substr(end, 1) == "}")) {
      return text.substr(at, end + (braces ? 1 : 0) - at);
    }
  }
  return std::nullopt;
}

}  // namespace

std::string home_directory() {
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0') {
    return home;
  }
  const passwd* account = getpwuid(geteuid());
  return account == nullptr || account->pw_dir == nullptr ? "" : account->pw_dir;
}

WrittenPath written_path(const std::string& text, PathUse use) {
  if (const auto variable = variable_in(text)) {
    return {text, fmt::format("{} is not expanded here: write the path itself, or let the shell "
                              "do it (\"key={}\" in double quotes)",
                              *variable, text)};
  }
  if (std::string problem = refused_address(text, use); !problem.empty()) {
    return {text, std::move(problem)};
  }
  if (!text.starts_with('~')) {
    return {text, ""};
  }
  if (text.size() > 1 && text[1] != '/') {
    return {text, fmt::format("only ~/ is expanded here: write the path of {} itself, or ./{} for "
                              "a file of that name",
                              text.substr(0, text.find('/')), text)};
  }
  const std::string home = home_directory();
  if (home.empty()) {
    return {text, "~ is the home directory, which is not known: HOME is not set"};
  }
  return {home + text.substr(1), ""};
}

}  // namespace fp8train
