// What the machine says in the wizard's dialogue: offers, doubts, and Slurm's names in a job
// script.

#include <algorithm>
#include <catch2/catch.hpp>
#include <sstream>

#include "config/load_support.h"
#include "support/files.h"
#include "support/temp_dir.h"
#include "wizard/job_script.h"
#include "wizard/wizard.h"

namespace fp8train {
namespace {

using Catch::Contains;

struct Dialogue {
  WizardResult result;
  std::string screen;
};

/// The first replies, then Enter everywhere.
Dialogue dialogue(const std::string& replies, const WizardHooks& hooks) {
  std::istringstream keyboard(replies + std::string(60, '\n'));
  std::ostringstream screen;
  Dialogue done;
  done.result = ask_settings(keyboard, screen, hooks, {}, "run.yaml");
  done.screen = screen.str();
  return done;
}

constexpr const char* kHardware =
    "\ngpu\n1\n1\n\ntoy\n";  // held back, device, nodes, ranks, GPU, model

TEST_CASE("a model's folder brings its tokenizer and its longest sequence") {
  const test::TempDir folder;
  test::write_file(folder / "config.json", "{\"model_type\": \"gpt2\", \"n_positions\": 256}");
  test::write_file(folder / "tokenizer.json", "{}");
  const std::string from = folder.path().string();
  const Dialogue done = dialogue("a.txt\n\ncpu\n1\n1\n\n-\n" + from + "\n", {});
  CHECK_THAT(done.screen,
             Contains("Tokenizer [" + from + "]") && Contains("Sequence length [256]"));
}

TEST_CASE("gpu means cuda") {
  const Dialogue done = dialogue(std::string("a.txt\n") + kHardware, {});
  CHECK(done.result.settings.device == DeviceChoice::cuda);
}

TEST_CASE("a doubtful answer is asked again, and Enter keeps it") {
  WizardHooks hooks;
  hooks.doubt = [](const std::string& key, const Settings& settings) {
    const bool doubtful = key == "data.train" && settings.data.train.front().path != "right.txt";
    return doubtful ? std::string("there is no such file") : std::string();
  };
  const Dialogue entered = dialogue(std::string("wrong.txt\n\n") + kHardware, hooks);
  CHECK(entered.result.settings.data.train.front().path == "wrong.txt");
  CHECK_THAT(entered.screen, Contains("  there is no such file; Enter keeps it\n"));
  const Dialogue other = dialogue(std::string("wrong.txt\nright.txt\n") + kHardware, hooks);
  CHECK(other.result.settings.data.train.front().path == "right.txt");
  const Dialogue twice = dialogue(std::string("wrong.txt\nworse.txt\n\n") + kHardware, hooks);
  CHECK(twice.result.settings.data.train.front().path == "worse.txt");
}

TEST_CASE("a job script and Slurm's names are asked for where the machine offers one") {
  for (const char* offered : {"true", "false"}) {
    WizardHooks hooks;
    hooks.offer = [&](const std::string& key, const Settings&) {
      return key == "job.slurm" ? std::string(offered) : std::string();
    };
    const Dialogue done = dialogue(std::string("a.txt\n") + kHardware, hooks);
    const bool slurm = std::string(offered) == "true";
    CHECK(done.result.settings.job.slurm == slurm);
    CHECK((done.screen.find("Partition") != std::string::npos) == slurm);
    CHECK((done.screen.find("Account") != std::string::npos) == slurm);
    CHECK((done.screen.find("Time limit") != std::string::npos) == slurm);
  }
}

TEST_CASE("options that the templates have are no further options") {
  size_t options = 0;
  for (const JobTemplate& one : job_templates()) {
    std::istringstream lines(one.text);
    for (std::string line; std::getline(lines, line);) {
      const size_t at = line.find("SBATCH --");
      if (!line.starts_with("#") || at == std::string::npos || at > 2) {
        continue;
      }
      const std::string option = line.substr(at + 7);
      CAPTURE(option);
      ++options;
      CHECK_THAT(test::error_of(test::kBase, {"job.sbatch_extra=['" + option + "']"}),
                 Contains("the job script has --"));
    }
  }
  CHECK(options > 30);
  CHECK_THAT(test::error_of(test::kBase, {"job.sbatch_extra=--qos=high --nodes=3"}),
             Contains("the job script has --nodes already: set job.nodes"));
  CHECK(test::load_text(test::kBase, {"job.modules=gcc/12  openmpi"}).job.modules ==
        std::vector<std::string>{"gcc/12", "openmpi"});
  const auto given =
      test::load_text(test::kBase, {"job.sbatch_extra=['#SBATCH --qos=high', --nice]"});
  CHECK(given.job.sbatch_extra == std::vector<std::string>{"--qos=high", "--nice"});
}

TEST_CASE("partition and account are in the job script where they are given") {
  Settings settings;
  const auto lines = [&] { return job_script(settings, "run.yaml", false).text; };
  CHECK_THAT(lines(), !Contains("--partition=") && !Contains("--account="));
  settings.job.partition = "gpu-long";
  settings.job.account = "proj42";
  for (const bool requeue : {false, true}) {
    settings.job.requeue = requeue;
    CHECK_THAT(lines(), Contains("\n#SBATCH --partition=gpu-long\n#SBATCH --account=proj42\n"));
  }
}

}  // namespace
}  // namespace fp8train
