// Every command on a terminal of 80 columns: no line is longer, so that no word is cut. Commands
// are found in the pages of help, and each needs an entry here.

#include <catch2/catch.hpp>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "program.h"
#include "tiny_run.h"

namespace fp8train::test {
namespace {

using Catch::Contains;

constexpr int kTerminal = 80;

/// The lines as a terminal shows them: without colours, and what renewed lines had last.
Words shown_lines(const std::string& text) {
  Words lines;
  for (std::string line : lines_of(text)) {
    const size_t renewed = line.rfind("\x1b[K");
    line.erase(0, renewed == std::string::npos ? 0 : renewed + 3);
    for (size_t begin; (begin = line.find('\x1b')) != std::string::npos;) {
      line.erase(begin, line.find('m', begin) - begin + 1);
    }
    while (line.ends_with('\r')) {
      line.pop_back();
    }
    lines.push_back(line);
  }
  return lines;
}

/// Characters of UTF-8.
size_t width_of(const std::string& line) {
  return static_cast<size_t>(
      std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

void check_fits(const std::string& text, int columns) {
  for (const std::string& line : shown_lines(text)) {
    INFO(line);
    CHECK(width_of(line) <= static_cast<size_t>(columns));
  }
}

Words words_of(const std::string& text) {
  std::istringstream stream(text);
  Words words;
  for (std::string word; stream >> word;) {
    words.push_back(word);
  }
  return words;
}

/// The names under "Commands:" of a page.
Words parts_of(const std::string& page) {
  Words parts;
  bool inside = false;
  for (const std::string& line : lines_of(page)) {
    if (inside && line.starts_with("  ") && line.size() > 2 && line[2] != ' ') {
      parts.push_back(line.substr(2, line.find(' ', 2) - 2));
    }
    inside = line == "Commands:" || (inside && line.starts_with(' '));
  }
  return parts;
}

/// For the program and every command and part below: its words, and its page of help.
void for_each_command(const Words& command,
                      const std::function<void(const Words&, const std::string&)>& visit) {
  Words words = {"help"};
  words.insert(words.end(), command.begin(), command.end());
  const std::string page = expect_code(0, fs::temp_directory_path(), words).out;
  visit(command, page);
  for (const std::string& part : parts_of(page)) {
    Words longer = command;
    longer.push_back(part);
    for_each_command(longer, visit);
  }
}

TEST_CASE("each page of help fits, names its values and has an example") {
  size_t pages = 0;
  for_each_command({}, [&](Words command, const std::string& page) {
    ++pages;
    INFO(page);
    check_fits(page, kTerminal);
    CHECK_THAT(page, Contains("\nUsage: fp8train") && Contains("\nExample:\n  ") &&
                         !Contains("TEXT") && !Contains("{false}") && !Contains("SUBCOMMAND"));
    CHECK(page.substr(page.find("Example:")).find("fp8train") != std::string::npos);
    command.emplace_back("--help");
    for (const int columns : {60, 140}) {
      const Screen screen = on_terminal(fs::temp_directory_path(), command, columns);
      CHECK(screen.code == 0);
      check_fits(screen.text, columns);
      CHECK(words_of(screen.text) == words_of(page));  // a word that is cut is two
    }
  });
  CHECK(pages > 30);
}

TEST_CASE("help and version have the spellings that people try") {
  const fs::path here = fs::temp_directory_path();
  const std::string version = expect_code(0, here, {"--version"}).out;
  const auto json = nlohmann::json::parse(expect_code(0, here, {"version", "--json"}).out);
  CHECK_THAT(version, Contains("fp8train " + json.at("version").get<std::string>() + "\n"));
  CHECK_THAT(version, Contains("features: " + json.at("features").at(0).get<std::string>()));
  CHECK_FALSE(json.contains("GPU"));
  CHECK(
      nlohmann::json::parse(expect_code(0, here, {"version", "--json", "-v"}).out).contains("GPU"));
  CHECK(expect_code(0, here, {"version"}).out == version);
  CHECK(expect_code(0, here, {"-V"}).out == version);
  CHECK(expect_code(0, here, {"help"}).out == expect_code(0, here, {"--help"}).out);
  CHECK(expect_code(0, here, {"help", "bench", "step"}).out ==
        expect_code(0, here, {"bench", "step", "-h"}).out);
  const std::string page = expect_code(0, here, {"help"}).out;
  CHECK_THAT(page, Contains("\n  version  ") && Contains("\n  help  "));
  for (const char* variable :
       {"FP8TRAIN_SET", "FP8TRAIN_CPU_ISA", "FP8TRAIN_CPU_GEMM", "FP8TRAIN_CPU_PACK",
        "FP8TRAIN_CUDA_ATTENTION", "FP8TRAIN_GEMM_PROBE", "FP8TRAIN_CACHE_DIR", "OMP_NUM_THREADS",
        "NO_COLOR"}) {
    CHECK_THAT(page, Contains(std::string("\n  ") + variable));
  }
}

TEST_CASE("arguments have the names of the usage line in errors") {
  const fs::path here = fs::temp_directory_path();
  size_t arguments = 0;
  for_each_command({}, [&](const Words& command, const std::string& page) {
    for (std::string word : words_of(page)) {  // "--resume auto|never|X  auto, never, or X"
      if (const size_t bar = word.find('|'); bar != 0 && bar != std::string::npos) {
        word.replace(bar, 1, ", ");
        CHECK_THAT(page, !Contains(word.substr(0, word.find('|'))));
      }
    }
    const size_t begin = page.find("\nArguments:\n  ");
    if (begin == std::string::npos || command.empty()) {
      return;
    }
    const std::string name = words_of(page.substr(begin + 12)).front();
    INFO(name << " in\n" << page);
    const Outcome refused = run_program(here, command);
    if (page.find(" [OPTIONS] " + name) != std::string::npos) {
      CHECK(refused.code == 2);
      CHECK_THAT(refused.err, Contains("error: " + name + " is required; "));
      ++arguments;
    }
  });
  CHECK(arguments > 8);
}

TEST_CASE("an address is refused wherever a path is read or written") {
  const TempDir folder;
  const std::string at = "s3://b/x";
  const auto refused = [&](const Words& words, const std::string& advice) {
    CAPTURE(words);
    CHECK_THAT(expect_code(2, folder.path(), words).err,
               Contains(at + " is an address, and only files of this machine are " + advice));
  };
  for (const Words& words : {Words{"data", "prepare", at, "--out", "o"},
                             {"data", "inspect", at},
                             {"report", at},
                             {"quantize", at, "--out", "o"},
                             {"check", at},
                             {at},
                             {"explain", at},
                             {"estimate", at},
                             {"config", "show", at},
                             {"config", "convert", at},
                             {"eval", at},
                             {"generate", at},
                             {"export", at, "--out", "o"},
                             {"train", "-c", at},
                             {"check", "a.yaml", at}}) {
    refused(words, "read here; fetch it first");
  }
  for (const Words& words : {Words{"data", "prepare", "a", "--out", at},
                             {"report", "a", "--out", at},
                             {"quantize", "a", "--out", at},
                             {"export", "a", "--out", at},
                             {"config", "--output", at},
                             {"config", "convert", "a", "--output", at},
                             {"doctor", at},
                             {"eval", "a", "--samples", at},
                             {"bench", "step", "--timeline", at},
                             {"train", "model.preset=toy", "data.train=a", "--output-dir", at}}) {
    refused(words, "written here; name a path, and send it there afterwards");
  }
}

/// What is done with a command.
struct Use {
  std::vector<Words> arguments;  ///< one screen each
  Words typed = {};
  int code = 0;
};

Words run_keys(const Words& more) {
  Words keys = tiny_run({"precision.plan=te-delayed"});
  keys.insert(keys.end(), more.begin(), more.end());
  return keys;
}

/// In an order in which files are there when they are read. Commands without an entry here are
/// those of which a test says so below.
std::vector<std::pair<std::string, Use>> uses() {
  const Words nvfp4 = run_keys({"precision.plan=te-nvfp4"});
  const Words job = {"model.preset=llama-8b",
                     "job.gpu=h100",
                     "device=cuda",
                     "job.nodes=4",
                     "job.ranks_per_node=8",
                     "training.max_steps=9",
                     "training.micro_batch_size=1",
                     "data.train=text.txt"};
  Words changed = run_keys({"training.max_steps=5", "-v"});
  Words misspelt = run_keys({"training.max_stps=1"});
  const Words compared =
      run_keys({"--against-one-rank", "--world-size", "4", "parallelism.tensor=2"});
  Words every_layer = run_keys({"--every-layer"});
  Words diff = run_keys({"--diff", "te-mxfp8"});
  Words comments = run_keys({"--resolved", "--comments"});
  Words resolved = run_keys({"--resolved"});
  return {
      {"check", {{run_keys({}), compared}}},
      {"check", {{misspelt}, {}, 2}},
      {"train", {{run_keys({}), changed}}},
      {"explain", {{run_keys({}), nvfp4, every_layer, diff, {"--plans"}}}},
      {"estimate", {{run_keys({}), job}}},
      {"layouts", {{job}}},
      {"config", {{{"--output", "a.yaml"}}, {"text.txt", "?"}}},
      {"config show", {{run_keys({}), comments, resolved}}},
      {"config convert", {{{"accelerate.yaml"}}}},
      {"config explain", {{{"precision"}, {"precision.plan"}, {"fp8.margin"}, {"data.train"}}}},
      {"config keys", {{{}}}},
      {"config list", {{{}}}},
      {"data prepare", {{{"text.txt", "--out", "prep", "--val-fraction", "0.1"}}}},
      {"data inspect", {{{"text.txt"}, {"prep"}}}},
      {"export",
       {{{"run", "--out", "out"}, {"--checkpoint", "run", "--out", "o.gguf", "--to", "gguf"}}}},
      {"quantize", {{{"out/model.safetensors", "--out", "q.safetensors", "--granularity", "row"}}}},
      {"generate",
       {{{"run", "--prompt", "a", "--max-new-tokens", "9"},
         {"--checkpoint", "run", "--prompt", "a", "--max-new-tokens", "9"}}}},
      {"eval", {{{"run", "--data", "text.txt"}, {"--checkpoint", "run", "--data", "text.txt"}}}},
      {"report", {{{"run"}}}},
      {"bench step",
       {{{"--preset", "toy", "--seconds", "0.01"},
         {"--device", "meta:h100", "--preset", "llama-42m"}}}},
      {"bench gemm", {{{"--sizes", "32", "--seconds", "0.01"}}}},
      {"bench products", {{{"--preset", "toy", "--tokens", "64", "--seconds", "0.01"}}}},
      {"bench attention", {{{"--seconds", "0.01"}}}},
      {"bench cast", {{{"--rows", "64", "--columns", "64", "--seconds", "0.01"}}}},
      {"doctor", {{{}, {"a/folder/that/is/not/there/yet"}}}},
      {"version", {{{}}}},
      {"help", {{{}, {"help"}}}},
  };
}

TEST_CASE("explain --diff tells the run from the plan of its name") {
  const TempDir where;
  Words words = {"explain", "model.preset=toy", "--diff", "te-delayed",
                 "precision.plan=te-delayed"};
  CHECK(expect_code(0, where.path(), words).out == "the run and te-delayed have the same roles\n");
  words.emplace_back("precision.moment1=bf16");
  CHECK(expect_code(0, where.path(), words).out ==
        "moment 1\n  the run             bf16\n  te-delayed          fp32\n"
        "bytes per parameter\n  the run             14\n  te-delayed          16\n");
  words = {"explain", "model.preset=toy", "--diff", "torchao-rowwise-gw-hp", "precision.plan=bf16"};
  CHECK_THAT(expect_code(0, where.path(), words).out,
             Contains("\n  torchao-rowwise-gw-hp e4m3 row"));
}

TEST_CASE("every command fits a terminal of 80 columns") {
  const TextFolder folder;
  write_file(folder / "accelerate.yaml",
             "mixed_precision: fp8\nfp8_config:\n  backend: TE\n  amax_history_len: 16\n");
  std::map<std::string, int> screens;
  for (const auto& [command, use] : uses()) {
    for (const Words& arguments : use.arguments) {
      Words words = words_of(command);
      words.insert(words.end(), arguments.begin(), arguments.end());
      const Screen screen = on_terminal(folder.path(), words, kTerminal, {}, use.typed);
      INFO(command << "\n" << screen.text);
      CHECK(screen.code == use.code);
      CHECK(!screen.text.empty());
      check_fits(screen.text, kTerminal);
      ++screens[command];
    }
  }
  // Output for other programs, which no terminal may change.
  for (const char* command :
       {"config docs", "completions bash", "completions zsh", "completions fish"}) {
    ++screens[command];
  }
  for_each_command({}, [&](const Words& command, const std::string& page) {
    std::string name;
    for (const std::string& word : command) {
      name += (name.empty() ? "" : " ") + word;
    }
    INFO("a command without a screen in uses(): " << name);
    CHECK((!parts_of(page).empty() || screens.contains(name)));
  });
}

TEST_CASE("output into a pipe is not wrapped") {
  const TextFolder folder;
  Words words = run_keys({});
  words.insert(words.begin(), "check");
  const std::string out = expect_code(0, folder.path(), words).out;
  CHECK_THAT(out, Contains(" linear layers in FP8, the others in bf16 (`fp8train explain` lists "
                           "them)\n"));
  CHECK(expect_code(0, folder.path(), {"explain", "--plans"}).out.starts_with("| plan |"));
}

}  // namespace
}  // namespace fp8train::test
