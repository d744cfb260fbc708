#include "comm/backends/rendezvous.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <thread>

#include "base/atomic_file.h"
#include "base/error.h"
#include "support/temp_dir.h"

namespace fp8train::test {
namespace {

Environment srun(const std::map<std::string, std::string>& more = {}) {
  std::map<std::string, std::string> variables = {
      {"SLURM_PROCID", "1"},  {"SLURM_NTASKS", "9"}, {"SLURM_STEP_NUM_TASKS", "2"},
      {"SLURM_LOCALID", "1"}, {"SLURM_NODEID", "0"}, {"SLURM_JOB_ID", "77"},
      {"SLURM_STEP_ID", "3"}};
  for (const auto& [name, value] : more) {
    variables[name] = value;
  }
  return [variables](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
}

TEST_CASE("a rendezvous is read from what srun says", "[rendezvous]") {
  const Rendezvous rendezvous = slurm_rendezvous(srun(), "here", 5);
  CHECK(rendezvous.rank == 1);
  CHECK(rendezvous.size == 2);
  CHECK(rendezvous.local_rank == 1);
  CHECK(rendezvous.node == 0);
  CHECK(rendezvous.run == "77.3.0");
  CHECK(slurm_rendezvous(srun({{"SLURM_RESTART_COUNT", "2"}}), "here", 5).run == "77.3.2");
  CHECK_THROWS_WITH(
      slurm_rendezvous([](const char*) -> const char* { return nullptr; }, "here", 5),
      Catch::Contains("comm.bootstrap: file needs srun") && Catch::Contains("SLURM_PROCID"));
  CHECK_THROWS_WITH(slurm_rendezvous(srun({{"SLURM_PROCID", "x"}}), "here", 5),
                    Catch::Contains("SLURM_PROCID is 'x'"));
  CHECK_THROWS_AS(slurm_rendezvous(srun({{"SLURM_PROCID", "2"}}), "here", 5), ConfigError);
}

TEST_CASE("a number that is not srun's is refused, and none is cut to what an int holds",
          "[rendezvous]") {
  // 2^32 + 1 was read as 1.
  for (const char* text : {"4294967297", "-1", "-0", " 1", "+1", "1 ", "0x1", "1.0"}) {
    CAPTURE(text);
    CHECK_THROWS_WITH(slurm_rendezvous(srun({{"SLURM_PROCID", text}}), "here", 5),
                      Catch::Contains("SLURM_PROCID"));
    CHECK_THROWS_AS(
        slurm_rendezvous(srun({{"SLURM_NODEID", text}, {"SLURM_LOCALID", text}}), "h", 5),
        ConfigError);
  }
  // They become the name of a file.
  for (const char* name : {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"}) {
    CHECK_THROWS_WITH(slurm_rendezvous(srun({{name, "../7"}}), "here", 5), Catch::Contains(name));
  }
}

TEST_CASE("ranks take the first one's note, and no other run's", "[rendezvous]") {
  const TempDir folder;
  Rendezvous first = {.rank = 0,
                      .size = 2,
                      .run = "77.0.1",
                      .file = folder.path() / "rendezvous",
                      .timeout_seconds = 20};
  Rendezvous second = first;
  second.rank = 1;
  // An earlier start of the job under its own name, and one that has taken this run's name.
  write_file_atomically(folder.path() / "rendezvous.77.0.0",
                        "fp8train rendezvous of 2 ranks, run 77.0.0\nold!");
  write_file_atomically(folder.path() / "rendezvous.77.0.1",
                        "fp8train rendezvous of 2 ranks, run 77.0.0\nold!");
  char received[5] = "none";
  std::thread other([&] { const FileStore note(second, received, 4); });
  std::this_thread::sleep_for(std::chrono::milliseconds(250));
  {
    char sent[5] = "new!";
    const FileStore note(first, sent, 4);
    other.join();
    CHECK(note.path() == folder.path() / "rendezvous.77.0.1");
    using std::filesystem::perms;  // who reads it can take part
    CHECK(std::filesystem::status(note.path()).permissions() ==
          (perms::owner_read | perms::owner_write));
  }
  CHECK(std::strcmp(received, "new!") == 0);
  CHECK_FALSE(std::filesystem::exists(folder.path() / "rendezvous.77.0.1"));
  CHECK(std::filesystem::exists(folder.path() / "rendezvous.77.0.0"));
}

TEST_CASE("a rendezvous that another user has written, or a link to one, is not read",
          "[rendezvous]") {
  const TempDir folder;
  const Rendezvous second = {.rank = 1,
                             .size = 2,
                             .run = "5.0.0",
                             .file = folder.path() / "rendezvous",
                             .timeout_seconds = 0.2};
  const std::filesystem::path file = folder.path() / "rendezvous.5.0.0";
  char bytes[4];
  write_file_atomically(folder.path() / "other", "fp8train rendezvous of 2 ranks, run 5.0.0\nevil");
  std::filesystem::create_symlink(folder.path() / "other", file);
  CHECK_THROWS_AS(FileStore(second, bytes, 4), TimeoutError);
  std::filesystem::rename(folder.path() / "other", file);
  CHECK_NOTHROW(FileStore(second, bytes, 4));
  constexpr uid_t kOther = 12345;
  if (chown(file.c_str(), kOther, kOther) != 0) {
    WARN("skipped: only root can give a file away");
    return;
  }
  CHECK_THROWS_AS(FileStore(second, bytes, 4), TimeoutError);
}

TEST_CASE("a rank whose first one does not come says where it looked", "[rendezvous]") {
  const TempDir folder;
  const Rendezvous late = {.rank = 1,
                           .size = 2,
                           .run = "5.0.0",
                           .file = folder.path() / "rendezvous",
                           .timeout_seconds = 0.2};
  char bytes[4];
  CHECK_THROWS_WITH(FileStore(late, bytes, 4), Catch::Contains("rank 0 has not written") &&
                                                   Catch::Contains("rendezvous.5.0.0") &&
                                                   !Catch::Contains("another run's"));
  write_file_atomically(folder.path() / "rendezvous.5.0.0", "something else");
  CHECK_THROWS_WITH(FileStore(late, bytes, 4), Catch::Contains("another run's"));
}

}  // namespace
}  // namespace fp8train::test
