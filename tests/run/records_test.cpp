// The files of a run that others read: metrics.jsonl, tensors.jsonl, env.json.

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <set>

#include "numeric/cpu_isa.h"
#include "program.h"

namespace fp8train::test {
namespace {

using nlohmann::json;

Words tiny_run(const std::string& name, int steps, const Words& more = {}) {
  Words words = {"device=cpu",
                 "model.preset=toy",
                 "data.train=text.txt",
                 "data.seq_length=32",
                 "precision.plan=te-delayed",
                 "training.micro_batch_size=1",
                 fmt::format("training.max_steps={}", steps),
                 "logging.interval=2",
                 "logging.tensor_interval=5",
                 "checkpoint.interval=6",
                 "output_dir=" + name,
                 "threads=1"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::vector<json> objects_in(const fs::path& path) {
  std::vector<json> objects;
  for (const std::string& line : lines_of(read_file(path))) {
    objects.push_back(json::parse(line));
  }
  return objects;
}

std::vector<long> steps_of(const std::vector<json>& lines) {
  std::vector<long> steps;
  for (const json& line : lines) {
    steps.push_back(line.at("step").get<long>());
  }
  return steps;
}

TEST_CASE("lines of metrics are short, and tensors have a file and an interval of their own") {
  const TextFolder folder;
  expect_code(0, folder.path(), tiny_run("run", 14, {"training.z_loss=1e-4"}));
  for (const std::string& line : lines_of(read_file(folder / "run/metrics.jsonl"))) {
    const json object = json::parse(line);
    if (!object.contains("loss")) {
      continue;
    }
    CHECK(line.size() < 750);
    CHECK_FALSE(object.contains("fp8"));
    for (const char* key : {"lr", "z_loss", "grad_norm", "tokens", "tokens_per_second",
                            "seconds_per_step", "tflops", "memory_bytes", "data_position", "time",
                            "fp8_snr_db", "fp8_saturated_percent", "fp8_underflow_percent"}) {
      CAPTURE(key);
      CHECK(object.contains(key));
    }
    // The predicted step has the products of the vocabulary's padding too.
    const auto light = object.at("speed_of_light").get<double>();
    CHECK(object.at("mfu").get<double>() > 0);
    CHECK(object.at("mfu").get<double>() <= 1.001 * light);
    CHECK(object.at("data_position") == object.at("step"));
    CHECK(object.at("tflops").get<double>() > 0);
    CHECK(object.at("time").get<std::string>().size() == 20);
  }
  const std::vector<json> tensors = objects_in(folder / "run/tensors.jsonl");
  CHECK(steps_of(tensors) == std::vector<long>{6, 10, 14});
  CHECK(tensors.front().at("fp8").size() > 10);
  CHECK(tensors.front().at("fp8").begin()->contains("amax"));
}

TEST_CASE("a resumed run has the tensors of the undisturbed one") {
  const TextFolder folder;
  expect_code(0, folder.path(), tiny_run("whole", 20));
  expect_code(0, folder.path(), tiny_run("parts", 20, {"checkpoint.save_final=false"}));
  // Back to step 12: what follows is written anew.
  for (const auto& entry : fs::directory_iterator(folder / "parts/checkpoints")) {
    if (entry.path().filename() == "step-000018") {
      fs::remove_all(entry.path());
    }
  }
  fs::remove(folder / "parts/summary.json");
  expect_code(0, folder.path(), tiny_run("parts", 20));
  CHECK(read_file(folder / "whole/tensors.jsonl") == read_file(folder / "parts/tensors.jsonl"));
  CHECK(steps_of(objects_in(folder / "parts/tensors.jsonl")) == std::vector<long>{6, 10, 16, 20});
}

TEST_CASE("no tensors where nothing is cast or none are wanted, no z-loss where there is none") {
  const TextFolder folder;
  expect_code(0, folder.path(), tiny_run("plain", 4, {"precision.plan=bf16"}));
  CHECK_FALSE(objects_in(folder / "plain/metrics.jsonl").front().contains("z_loss"));
  CHECK_FALSE(fs::exists(folder / "plain/tensors.jsonl"));
  expect_code(0, folder.path(), tiny_run("none", 4, {"logging.tensor_interval=0"}));
  CHECK_FALSE(fs::exists(folder / "none/tensors.jsonl"));
}

TEST_CASE("a run that left no checkpoint begins anew, and its metrics stay under another name") {
  const TextFolder folder;
  const Words words = tiny_run(
      "run", 4,
      {"checkpoint.interval=0", "checkpoint.save_final=false", "logging.tensor_interval=2"});
  CHECK(expect_code(0, folder.path(), words).err.empty());
  const std::string before = read_file(folder / "run/metrics.jsonl");
  for (const char* number : {"1", "2"}) {
    CAPTURE(number);
    const Outcome again = expect_code(0, folder.path(), words);
    CHECK_THAT(again.err, Catch::Contains("reached step 4 and left no checkpoint") &&
                              Catch::Contains("checkpoint.interval") &&
                              Catch::Contains(fmt::format("run/metrics.{}.jsonl", number)));
    CHECK(fs::exists(folder / fmt::format("run/tensors.{}.jsonl", number)));
    CHECK(steps_of(objects_in(folder / "run/metrics.jsonl")).back() == 4);
  }
  CHECK(read_file(folder / "run/metrics.1.jsonl") == before);
}

TEST_CASE("a finished run that is started again adds no event file") {
  const TextFolder folder;
  const Words words = tiny_run("run", 4, {"logging.tensorboard=true"});
  const auto files = [&] {
    return std::distance(fs::directory_iterator(folder / "run/tensorboard"), {});
  };
  expect_code(0, folder.path(), words);
  CHECK(files() == 1);
  CHECK_THAT(expect_code(0, folder.path(), words).out, Catch::Contains("nothing to do"));
  CHECK(files() == 1);
  expect_code(0, folder.path(), tiny_run("run", 6, {"logging.tensorboard=true"}));
  CHECK(files() == 2);
}

TEST_CASE("a run that another machine has is left alone, but for a later start of its Slurm job") {
  const TextFolder folder;
  expect_code(0, folder.path(), tiny_run("run", 4));
  const std::string holder = R"({"host":"elsewhere","pid":1,"slurm_job":"4711","started":1})";
  write_file(folder / "run/run.lock", holder);
  const std::string metrics = read_file(folder / "run/metrics.jsonl");
  const std::string config = read_file(folder / "run/config.resolved.yaml");
  const Outcome refused = expect_code(2, folder.path(), tiny_run("run", 6));
  CHECK_THAT(refused.err, Catch::Contains("run is in use by another run: process 1 on elsewhere "
                                          "(Slurm job 4711)") &&
                              Catch::Contains("remove") && Catch::Contains("run.lock"));
  // Before the tokens are looked at, and long before the dry run.
  CHECK_THAT(expect_code(2, folder.path(), tiny_run("run", 6, {"data.train=absent.txt"})).err,
             Catch::Contains("in use by another run"));
  CHECK(read_file(folder / "run/run.lock") == holder);
  CHECK(read_file(folder / "run/metrics.jsonl") == metrics);
  CHECK(read_file(folder / "run/config.resolved.yaml") == config);
  const Outcome later = Process(folder.path(), tiny_run("run", 6), {"SLURM_JOB_ID=4711"}).wait();
  CAPTURE(later.err);
  CHECK(later.code == 0);
  CHECK_THAT(later.err, Catch::Contains("elsewhere") && Catch::Contains("was taken over"));
  CHECK(last_logged_step(folder / "run") == 6);
}

TEST_CASE("a number of threads in the environment that is none is not taken") {
  const TextFolder folder;
  Words words = tiny_run("run", 2);
  words.back() = "threads=0";
  REQUIRE(Process(folder.path(), words, {"OMP_NUM_THREADS=-3"}).wait().code == 0);
  CHECK(json::parse(read_file(folder / "run/env.json")).at("threads") >= 1);
}

TEST_CASE("a data file may have a name that is not UTF-8") {
  const TextFolder folder;
  const std::string name = "odd\xFF.txt";
  fs::copy_file(folder / "text.txt", folder / name);
  REQUIRE(Process(folder.path(), tiny_run("run", 6, {"data.train=" + name})).wait().code == 0);
  const json data = json::parse(read_file(folder / "run/checkpoints/step-000006/state.json"));
  CHECK(data.at("data_files")[0].at("path").get<std::string>().find("odd") != std::string::npos);
  CHECK(Process(folder.path(), tiny_run("run", 8, {"data.train=" + name})).wait().code == 0);
  fs::copy_file(folder / "text.txt", folder / "b.txt");
  const Words two = tiny_run("run", 10, {"data.train=[" + name + ", b.txt]"});
  CHECK_THAT(Process(folder.path(), two).wait().err,
             Catch::Contains("b.txt was added") && !Catch::Contains("no longer"));
  CHECK(Process(folder.path(), {"data", "prepare", "--tokenizer", "byte", "--out", "ids", name})
            .wait()
            .code == 0);
}

TEST_CASE("env.json says where and with what a run was computed") {
  const TextFolder folder;
  const Words words = tiny_run("run", 2);
  REQUIRE(Process(folder.path(), words, {"SLURM_JOB_NAME=tiny"}).wait().code == 0);
  const json environment = json::parse(read_file(folder / "run/env.json"));
  CHECK(environment.at("date").get<std::string>().ends_with("Z"));
  CHECK_FALSE(environment.at("host").get<std::string>().empty());
  CHECK(environment.at("version").get<std::string>().find("\ncompiler: ") != std::string::npos);
  CHECK(environment.at("command").get<std::string>().find("max_steps=2") != std::string::npos);
  CHECK(environment.at("ranks") == 1);
  CHECK(environment.at("threads") == 1);
  CHECK(environment.at("processor").at("isa") == name_of(cpu_isa()));
  CHECK(environment.at("processor").at("usable_cores") >= 1);
  CHECK(environment.at("memory_bytes") > (1 << 20));
  CHECK(environment.at("slurm").at("name") == "tiny");
  size_t found = 0;
  for (const auto& [name, file] : environment.at("libraries").items()) {
    CHECK(fs::exists(file.get<std::string>()));
    found += name.starts_with("libdnnl.so") || name.starts_with("libc.so") ? 1 : 0;
  }
  CHECK(found == 2);
  expect_code(0, folder.path(), {"report", "run"});
  CHECK_THAT(read_file(folder / "report.html"),
             Catch::Contains("usable_cores") && Catch::Contains("\"tensors\":[\"layers.0."));
}

}  // namespace
}  // namespace fp8train::test
