// Mutants of valid inputs of every reader, as the fuzz targets take them (tests/fuzz): no crash, no
// message of a library, at most 10 seconds for one, at most 2 GiB of memory for all.
//
//   mutants_test TESTS [READER]     FP8TRAIN_MUTANTS=10000 mutants_test tests
//
// A mutant that fails is left in mutant-READER in the folder for temporary files.

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" {
using Target = int(const uint8_t* data, size_t size);
Target mutant_of_bootstrap, mutant_of_checkpoint, mutant_of_config, mutant_of_hf_config,
    mutant_of_launch, mutant_of_manifest, mutant_of_metrics, mutant_of_report,
    mutant_of_safetensors_header, mutant_of_token_file, mutant_of_tokenizer,
    mutant_of_tokenizer_file;
}

namespace {

namespace fs = std::filesystem;

constexpr unsigned kMostSeconds = 10;
constexpr long kMostKibibytes = 2L << 20;

struct Reader {
  const char* name;
  Target* target;
  std::vector<std::string> seeds;  ///< folders and files below tests/
};

std::vector<Reader> readers() {
  return {{"bootstrap", mutant_of_bootstrap, {"fuzz/corpus/bootstrap"}},
          {"checkpoint", mutant_of_checkpoint, {"fuzz/corpus/checkpoint"}},
          {"config", mutant_of_config, {"../configs", "config/deepspeed.json"}},
          {"hf_config", mutant_of_hf_config, {"golden/families"}},
          {"launch", mutant_of_launch, {"fuzz/corpus/launch"}},
          {"manifest", mutant_of_manifest, {"fuzz/corpus/manifest"}},
          {"metrics", mutant_of_metrics, {"fuzz/corpus/metrics"}},
          {"report", mutant_of_report, {"fuzz/corpus/metrics"}},
          {"safetensors_header", mutant_of_safetensors_header, {"fuzz/corpus/safetensors_header"}},
          {"token_file", mutant_of_token_file, {"fuzz/corpus/token_file"}},
          {"tokenizer", mutant_of_tokenizer, {"fuzz/corpus/tokenizer"}},
          {"tokenizer_file", mutant_of_tokenizer_file, {"golden/tokenizers"}}};
}

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The seeds of a reader, each at most 64 KiB.
std::vector<std::string> seeds_of(const Reader& reader, const fs::path& tests) {
  std::vector<fs::path> files;
  for (const std::string& seed : reader.seeds) {
    if (!fs::is_directory(tests / seed)) files.push_back(tests / seed);
    for (const auto& entry : fs::is_directory(tests / seed)
                                 ? fs::recursive_directory_iterator(tests / seed)
                                 : fs::recursive_directory_iterator()) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  const bool is_hf = reader.target == mutant_of_hf_config;
  std::vector<std::string> seeds;
  for (const fs::path& file : files) {
    std::string bytes = read_file(file);
    if (bytes.size() > 65536) continue;
    if (is_hf && file.filename() != "config.json") continue;
    if (reader.target == mutant_of_tokenizer_file) {
      if (file.filename() != "tokenizer.json" && file.extension() != ".model") continue;
      bytes.insert(bytes.begin(), file.extension() == ".model" ? '\1' : '\0');
    }
    seeds.push_back(std::move(bytes));
  }
  return seeds;
}

class Mutator {
 public:
  explicit Mutator(std::vector<std::string> seeds) : seeds_(std::move(seeds)) {}

  std::string mutant() {
    std::string bytes = seeds_[below(seeds_.size())];
    for (size_t changes = 1 + below(4); changes > 0; --changes) change(bytes);
    return bytes;
  }

 private:
  size_t below(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random_); }

  void change(std::string& bytes) {
    static const std::vector<std::string> kNasty = {"null",
                                                    "-1",
                                                    "0",
                                                    "1e999",
                                                    "1e308",
                                                    "18446744073709551616",
                                                    "-9223372036854775808",
                                                    "9223372036854775807",
                                                    "1000000000000",
                                                    "true",
                                                    "\"\"",
                                                    "[]",
                                                    "{}",
                                                    "[[[[",
                                                    "}}",
                                                    "\"",
                                                    "\\ud800",
                                                    "\xFF\xFE",
                                                    std::string(1, '\0'),
                                                    "\x1b[2J",
                                                    "nan",
                                                    ".inf",
                                                    "*a",
                                                    "&a [*a]",
                                                    "0x7fffffff",
                                                    "\n",
                                                    ": ",
                                                    std::string(300, '['),
                                                    std::string(300, 'a'),
                                                    "2147483648"};
    const size_t at = below(bytes.size() + 1);
    const size_t length = std::min(bytes.size() - at, size_t{1} + below(12));
    switch (below(8)) {
      case 0:
        if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      case 1:
        if (at < bytes.size()) bytes[at] = static_cast<char>(below(256));
        break;
      case 2:
        bytes.erase(at, length);
        break;
      case 3:
        bytes.insert(at, bytes.substr(at, length));
        break;
      case 4:
        bytes.replace(at, length, kNasty[below(kNasty.size())]);
        break;
      case 5:
        replace_number(bytes, at, kNasty[below(kNasty.size())]);
        break;
      case 6: {
        const std::string& other = seeds_[below(seeds_.size())];
        const size_t from = below(other.size() + 1);
        bytes.replace(at, below(40), other.substr(from, below(400)));
        break;
      }
      default:
        bytes.resize(at);
    }
  }

  static void replace_number(std::string& bytes, size_t at, const std::string& value) {
    const size_t begin = bytes.find_first_of("0123456789", at);
    if (begin == std::string::npos) return;
    const size_t end = bytes.find_first_not_of("0123456789", begin);
    bytes.replace(begin, end == std::string::npos ? end : end - begin, value);
  }

  std::vector<std::string> seeds_;
  std::mt19937 random_{1};
};

std::string current;
std::string current_path;

void leave_mutant(int signal) {
  std::ofstream(current_path, std::ios::binary) << current;
  const std::string text = fmt::format("signal {}: the mutant is in {}\n", signal, current_path);
  [[maybe_unused]] const ssize_t done = ::write(STDERR_FILENO, text.data(), text.size());
  std::_Exit(1);
}

/// Whether memory stayed below the bound.
bool run_reader(const Reader& reader, const fs::path& tests, int count) {
  std::vector<std::string> seeds = seeds_of(reader, tests);
  if (seeds.empty()) {
    fmt::print("{}: no seeds\n", reader.name);
    return false;
  }
  current_path = fs::temp_directory_path() / (std::string("mutant-") + reader.name);
  const size_t seed_count = seeds.size();
  Mutator mutator(std::move(seeds));
  double slowest = 0;
  for (int i = 0; i < count; ++i) {
    current = mutator.mutant();
    const auto begin = std::chrono::steady_clock::now();
    alarm(kMostSeconds);
    try {
      reader.target(reinterpret_cast<const uint8_t*>(current.data()), current.size());
    } catch (const std::exception& error) {
      fmt::print(stderr, "{}: {}\n", reader.name, error.what());
      leave_mutant(0);
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    slowest = std::max(slowest, took.count());
  }
  alarm(0);
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  fmt::print("{:<20} {:>6} mutants of {:>3} seeds, the slowest {:.3f} s, at most {} MiB so far\n",
             reader.name, count, seed_count, slowest, usage.ru_maxrss >> 10);
  return usage.ru_maxrss < kMostKibibytes;
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 2) return 2;
  const char* const wanted = std::getenv("FP8TRAIN_MUTANTS");
  for (const int signal : {SIGSEGV, SIGABRT, SIGALRM, SIGFPE, SIGBUS, SIGILL}) {
    std::signal(signal, leave_mutant);
  }
  bool all_small = true;
  for (const Reader& reader : readers()) {
    if (count > 2 && reader.name != std::string(arguments[2])) continue;
    all_small &= run_reader(reader, arguments[1], wanted == nullptr ? 100 : std::atoi(wanted));
  }
  return all_small ? 0 : 1;
}
