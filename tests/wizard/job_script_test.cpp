#include "wizard/job_script.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/text.h"

namespace fp8train {
namespace {

using Catch::Contains;

std::multiset<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::multiset<std::string> lines;
  for (std::string line; std::getline(stream, line);) {
    lines.insert(line);
  }
  return lines;
}

std::string content_of(const std::string& path) {
  std::ifstream file(std::string(FP8TRAIN_SOURCE_DIR) + "/" + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

Settings on(int64_t nodes, int64_t ranks_per_node, bool requeue) {
  Settings settings;
  settings.job.nodes = nodes;
  settings.job.ranks_per_node = ranks_per_node;
  settings.job.requeue = requeue;
  settings.job.cpus_per_rank = 13;
  settings.job.time_limit_seconds = 36 * 3600 + 90;
  return settings;
}

/// Lines of `text` that `other` does not have.
std::vector<std::string> only_in(const std::string& text, const std::string& other) {
  const auto a = lines_of(text);
  const auto b = lines_of(other);
  std::vector<std::string> result;
  std::set_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(result));
  return result;
}

TEST_CASE("the templates in the program are the files") {
  CHECK(job_templates().size() == 4);
  for (const JobTemplate& one : job_templates()) {
    CHECK(content_of("slurm/" + std::string(one.name) + ".sbatch") == one.text);
  }
}

TEST_CASE("a job script is its template with the numbers of the run") {
  struct Case {
    Settings settings;
    const char* source = "";
    size_t changed = 0;  ///< lines: usage, 4 or fewer options, config, where it comes from
  };
  const Case cases[] = {{on(1, 4, false), "slurm/single_node.sbatch", 6},
                        {on(3, 4, false), "slurm/multi_node_ddp.sbatch", 7},
                        {on(3, 4, true), "slurm/requeue.sbatch", 7}};
  for (const auto& [settings, source, changed] : cases) {
    CAPTURE(source);
    const JobScript script = job_script(settings, "run.yaml", false);
    CHECK(script.source == source);
    const std::vector<std::string> own = only_in(script.text, content_of(source));
    CHECK(own.size() == changed);
    const auto has = [&](const std::string& line) {
      return std::find(own.begin(), own.end(), line) != own.end();
    };
    CHECK((settings.job.nodes == 1 || has("#SBATCH --nodes=3")));
    CHECK(has("#SBATCH --cpus-per-task=13"));
    CHECK(has("#SBATCH --time=1-12:02:00"));
    CHECK(has("config=run.yaml"));
    CHECK(has("#   sbatch run.sbatch [key=value ...]"));
    CHECK_THAT(script.text, Contains("--ntasks-per-node=4"));
    CHECK_THAT(script.text, Contains("fp8train \"$config\" \"$@\"\n"));
    CHECK(script.text.find("\nshift\n") == std::string::npos);
    CHECK(script.text.find("\n#SBATCH --gpus-per-node") == std::string::npos);
  }
}

TEST_CASE("ranks per node of a job that may lose a node are given to srun alone") {
  const std::string text = job_script(on(3, 4, true), "run.yaml", false).text;
  CHECK(text.find("#SBATCH --ntasks-per-node") == std::string::npos);
  CHECK_THAT(text, Contains("srun --mpi=pmix --kill-on-bad-exit=1 --ntasks-per-node=4 "));
  CHECK_THAT(text, Contains("#SBATCH --signal=USR1@300\n") && Contains("if [ $code = 75 ]; then"));
}

TEST_CASE("a rank with a GPU gets one") {
  for (const Settings& settings : {on(1, 8, false), on(2, 8, false), on(2, 8, true)}) {
    const std::string text = job_script(settings, "run.yaml", true).text;
    CHECK_THAT(text, Contains("\n#SBATCH --gpus-per-node=8\n#SBATCH --gpu-bind=none\n"));
    CHECK(text.find("##SBATCH") == std::string::npos);
  }
}

TEST_CASE("what a site needs in addition is in the script") {
  for (const bool requeue : {false, true}) {
    Settings settings = on(2, 4, requeue);
    const std::string plain = job_script(settings, "run.yaml", true).text;
    settings.job.modules = {"gcc/12", "openmpi"};
    settings.job.container = "my image.sif";
    settings.job.sbatch_extra = {"--qos=high", "--comment=a b"};
    const std::string text = job_script(settings, "run.yaml", true).text;
    CHECK(only_in(text, plain).size() == 5);
    CHECK_THAT(text, Contains("\n#SBATCH --gpu-bind=none\n#SBATCH --qos=high\n"
                              "#SBATCH --comment=a b\n\nmodule load gcc/12 openmpi\n"
                              "export OMPI_MCA_btl_vader_single_copy_mechanism=none\nset -u\n"));
    CHECK_THAT(text, Contains(" apptainer exec --nv --bind \"$PWD\" --pwd \"$PWD\" 'my image.sif' "
                              "fp8train \"$config\" \"$@\"\n"));
    CHECK(job_script(settings, "run.yaml", false).text.find("--nv") == std::string::npos);
  }
}

TEST_CASE("names of files are words of the shell") {
  CHECK(shell_word("runs/a-b_1.yaml") == "runs/a-b_1.yaml");
  CHECK(shell_word("it's $HOME.yaml") == "'it'\\''s $HOME.yaml'");
  CHECK(shell_word("") == "''");
  CHECK(shell_word("~/x") == "'~/x'");
  CHECK_THAT(job_script(on(1, 1, false), "my run.yaml", false).text,
             Contains("\nconfig='my run.yaml'\n") && Contains("#   sbatch 'my run.sbatch' "));
  CHECK(job_script_path("a.b/run.yaml") == "a.b/run.sbatch");
  CHECK(job_script_path("run") == "run.sbatch");
}

TEST_CASE("a path with a line break does not become a line of the script") {
  CHECK_THROWS_AS(job_script(on(1, 1, false), "x\ntouch PLANTED\n#.yaml", false), ConfigError);
  Settings settings = on(1, 1, false);
  settings.job.account = "a\ntouch PLANTED";  // which no configuration can have
  CHECK_THROWS_AS(job_script(settings, "run.yaml", false), InternalError);
  settings.job.account = "lab_1.a,b+c-d@h100";
  CHECK_THAT(job_script(settings, "run.yaml", false).text,
             Contains("\n#SBATCH --account=lab_1.a,b+c-d@h100\n"));
}

TEST_CASE("Slurm's form of a time") {
  CHECK(slurm_time(24 * 3600) == "24:00:00");
  CHECK(slurm_time(48 * 3600) == "2-00:00:00");
  CHECK(slurm_time(3 * 3600 + 50 * 60) == "03:50:00");
  CHECK(slurm_time(1) == "00:01:00");
}

}  // namespace
}  // namespace fp8train
