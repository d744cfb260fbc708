#include "program.h"

#include <fcntl.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <random>
#include <sstream>
#include <thread>

namespace fp8train::test {
namespace {

constexpr int kCannotExec = 126;

void send_output_to(const std::string& path, int descriptor) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (file < 0 || dup2(file, descriptor) < 0) {
    _exit(kCannotExec);
  }
}

std::vector<char*> pointers(Words& words) {
  std::vector<char*> result;
  for (std::string& word : words) {
    result.push_back(word.data());
  }
  result.push_back(nullptr);
  return result;
}

/// The environment of the tests without what would change a run, and with `more`.
Words environment_with(const Words& more) {
  Words result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const bool ours =
        std::strncmp(*entry, "FP8TRAIN_", 9) == 0 || std::strncmp(*entry, "OMP_", 4) == 0 ||
        std::strncmp(*entry, "GOMP_", 5) == 0 || std::strncmp(*entry, "SLURM_", 6) == 0;
    if (!ours) {
      result.emplace_back(*entry);
    }
  }
  result.insert(result.end(), more.begin(), more.end());
  return result;
}

}  // namespace

Process::Process(const fs::path& where, const Words& words, const Words& environment,
                 const Words& launcher, const char* program) {
  Words command = launcher;
  command.emplace_back(program);
  command.insert(command.end(), words.begin(), words.end());
  Words variables = environment_with(environment);
  const std::vector<char*> arguments = pointers(command);
  const std::vector<char*> variable_pointers = pointers(variables);
  const std::string out = (output_ / "out").string();
  const std::string err = (output_ / "err").string();
  pid_ = fork();
  REQUIRE(pid_ >= 0);
  if (pid_ == 0) {
    send_output_to(out, STDOUT_FILENO);
    send_output_to(err, STDERR_FILENO);
    if (chdir(where.c_str()) == 0) {
      execve(arguments[0], arguments.data(), variable_pointers.data());
    }
    _exit(kCannotExec);
  }
}

Process::~Process() {
  if (!ended_) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
}

void Process::limit_file_size(uint64_t bytes) const {
  struct rlimit limit = {};
  REQUIRE(prlimit(pid_, RLIMIT_FSIZE, nullptr, &limit) == 0);
  limit.rlim_cur = bytes;
  REQUIRE(prlimit(pid_, RLIMIT_FSIZE, &limit, nullptr) == 0);
}

void Process::send(int signal) const {
  REQUIRE(kill(pid_, signal) == 0);
}

void Process::collect(int options) {
  if (ended_) {
    return;
  }
  int status = 0;
  struct rusage usage = {};
  const pid_t changed = wait4(pid_, &status, options, &usage);
  REQUIRE(changed >= 0);
  if (changed == 0) {
    return;
  }
  ended_ = true;
  outcome_.code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  outcome_.peak_kib = usage.ru_maxrss;
  constexpr double kMicro = 1e-6;
  outcome_.cpu_seconds =
      static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
      kMicro * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
  outcome_.out = read_file(output_ / "out");
  outcome_.err = read_file(output_ / "err");
  REQUIRE(outcome_.code != kCannotExec);
}

bool Process::has_ended() {
  collect(WNOHANG);
  return ended_;
}

bool Process::is_waiting() const {
  const std::string status = read_file("/proc/" + std::to_string(pid_) + "/stat");
  const size_t name_end = status.rfind(')');
  return name_end != std::string::npos && status.compare(name_end, 3, ") S") == 0;
}

Outcome Process::wait() {
  collect(0);
  return outcome_;
}

bool Process::wait_until(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!condition()) {
    if (has_ended() || std::chrono::steady_clock::now() > deadline) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

Outcome run_program(const fs::path& where, const Words& words, const Words& environment) {
  return Process(where, words, environment).wait();
}

Screen on_terminal(const fs::path& where, Words words, int columns, const Words& environment,
                   const Words& typed) {
  winsize size = {};
  size.ws_col = static_cast<unsigned short>(columns);
  size.ws_row = 40;
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, &size);
  REQUIRE(child >= 0);
  if (child == 0) {
    setenv("TERM", "xterm", 1);
    for (const char* name : {"NO_COLOR", "SLURM_JOB_ID", "OMPI_COMM_WORLD_SIZE"}) {
      unsetenv(name);
    }
    for (const std::string& variable : environment) {
      putenv(const_cast<char*>(variable.c_str()));
    }
    words.insert(words.begin(), FP8TRAIN_PROGRAM);
    std::vector<char*> arguments;
    for (std::string& word : words) {
      arguments.push_back(word.data());
    }
    arguments.push_back(nullptr);
    if (chdir(where.c_str()) == 0) {
      execv(FP8TRAIN_PROGRAM, arguments.data());
    }
    _exit(127);
  }
  Screen screen;
  char part[4096];
  auto next = typed.begin();
  int questions = 0;
  for (ssize_t got = 0; (got = read(terminal, part, sizeof part)) > 0;) {
    screen.text.append(part, static_cast<size_t>(got));
    if (screen.text.ends_with(": ")) {
      const bool asks_for_ever = ++questions > 200;
      const std::string line = asks_for_ever ? "\x04" : (next == typed.end() ? "" : *next++) + "\n";
      REQUIRE(write(terminal, line.data(), line.size()) == static_cast<ssize_t>(line.size()));
    }
  }
  int status = 0;
  waitpid(child, &status, 0);
  close(terminal);
  screen.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return screen;
}

Outcome expect_code(int code, const fs::path& where, const Words& words) {
  Outcome outcome = run_program(where, words);
  INFO("output:\n" << outcome.out << "\nerrors:\n" << outcome.err);
  REQUIRE(outcome.code == code);
  return outcome;
}

long last_logged_step(const fs::path& run_directory) {
  std::ifstream stream(run_directory / "metrics.jsonl");
  const std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  const size_t end = text.rfind('\n');
  const std::string key = "{\"step\":";
  const size_t begin = end == std::string::npos ? end : text.rfind(key, end);
  return begin == std::string::npos ? 0 : std::strtol(&text[begin + key.size()], nullptr, 10);
}

bool same_bytes(const fs::path& a, const fs::path& b) {
  return read_file(a) == read_file(b);
}

std::string small_text(size_t bytes) {
  const char* const words[] = {"the ", "river ",  "ran ",  "over ", "stones ", "and ",
                               "we ",  "slept\n", "cold ", "moon ", "told ",   "no one. "};
  std::mt19937 random(7);  // the same numbers everywhere, unlike the distributions
  std::string text;
  while (text.size() < bytes) {
    text += words[random() % std::size(words)];
  }
  return text;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line);
  }
  return lines;
}

}  // namespace fp8train::test
