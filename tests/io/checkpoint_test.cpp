#include "io/checkpoint/checkpoint.h"

#include <sys/stat.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <random>
#include <thread>

#include "base/error.h"
#include "io/checkpoint/checkpoint_retention.h"
#include "small_checkpoint.h"
#include "support/save_checkpoint.h"

namespace fp8train {
namespace {

using Catch::Contains;
using test::message_of;
namespace fs = std::filesystem;
using test::flip_bit;
using test::names_in;
using test::save;
using test::steps_in;

TEST_CASE("a checkpoint is saved, found, verified and read back") {
  const test::TempDir dir;
  const fs::path path = save(dir / "checkpoints", 12);
  CHECK(path.filename() == "step-000012");
  CHECK(names_in(dir / "checkpoints") == std::vector<std::string>{"latest", "step-000012"});
  CHECK(names_in(path) ==
        std::vector<std::string>{"MANIFEST.json", "model.safetensors", "state.json"});
  const CheckpointManifest manifest = verify_checkpoint(path);
  CHECK(manifest.step == 12);
  CHECK(manifest.run_id == "run-1");
  CHECK(manifest.files.size() == 2);
  CHECK(read_checkpoint_text(path, "state.json") == "{\"step\":12}\n");
  const SafetensorsFile file(path / "model.safetensors");
  CHECK(file.read_f32(*file.find("w"))[299] == 311.0F);
  CHECK(test::read_file(dir / "checkpoints/latest") == "step-000012\n");
  CHECK_THROWS_AS(read_checkpoint_text(path, "none.json"), CheckpointError);
  flip_bit(path / "state.json", 3, 0);
  CHECK_THAT(message_of<CheckpointError>([&] { read_checkpoint_text(path, "state.json"); }),
             Contains("state.json: damaged: expected XXH3-128"));
  CHECK(find_checkpoints(dir / "nowhere").empty());
}

TEST_CASE("any flipped bit is found, wherever it is") {
  const test::TempDir dir;
  const fs::path path = save(dir.path(), 3);
  const std::vector<std::string> names = names_in(path);
  std::mt19937 random(7);
  for (int i = 0; i < 200; ++i) {
    const std::string& name = names[static_cast<size_t>(i) % names.size()];
    const uint64_t byte = random() % fs::file_size(path / name);
    const int bit = static_cast<int>(random() % 8);
    flip_bit(path / name, byte, bit);
    INFO(name << " byte " << byte << " bit " << bit);
    const std::string message = message_of<CheckpointError>([&] { verify_checkpoint(path); });
    REQUIRE_THAT(message, Contains(name));
    flip_bit(path / name, byte, bit);
    REQUIRE_NOTHROW(verify_checkpoint(path));
  }
}

TEST_CASE("torn, longer, missing and exchanged files are found and named with numbers") {
  const test::TempDir dir;
  const fs::path path = save(dir / "a", 3);
  for (const std::string& name : names_in(path)) {
    const std::string good = test::read_file(path / name);
    for (const size_t size : {good.size() - 1, good.size() / 2, size_t{0}}) {
      test::write_file(path / name, good.substr(0, size));
      CHECK_THAT(message_of<CheckpointError>([&] { verify_checkpoint(path); }), Contains(name));
    }
    test::write_file(path / name, good + " ");
    CHECK_THAT(message_of<CheckpointError>([&] { verify_checkpoint(path); }), Contains(name));
    fs::remove(path / name);
    CHECK_THAT(message_of<CheckpointError>([&] { verify_checkpoint(path); }), Contains(name));
    test::write_file(path / name, good);
    REQUIRE_NOTHROW(verify_checkpoint(path));
  }
  const fs::path other = save(dir / "b", 4);
  fs::copy_file(other / "state.json", path / "state.json", fs::copy_options::overwrite_existing);
  CHECK_THAT(message_of<CheckpointError>([&] { verify_checkpoint(path); }),
             Contains("expected XXH3-128") && Contains("found"));
  CHECK_NOTHROW(verify_checkpoint(path, Verify::sizes));
  fs::resize_file(path / "state.json", 5);
  CHECK_THAT(message_of<CheckpointError>([&] { verify_checkpoint(path, Verify::sizes); }),
             Contains("expected 11 bytes, found 5"));
  fs::rename(other, dir / "a/step-000009");
  CHECK_THAT(message_of<CheckpointError>([&] { verify_checkpoint(dir / "a/step-000009"); }),
             Contains("step 4"));
}

TEST_CASE("loading takes the newest that verifies, says what it skipped and deletes nothing") {
  const test::TempDir dir;
  for (const int64_t step : {10, 20, 30, 1000000}) {
    save(dir.path(), step);
  }
  CHECK(steps_in(dir.path()) == std::vector<int64_t>{1000000, 30, 20, 10});
  flip_bit(dir / "step-1000000" / "model.safetensors", 200, 1);
  fs::remove(dir / "step-000030" / "MANIFEST.json");
  fs::create_directory(dir / "step-000040.partial");
  fs::create_directory(dir / "step-40");
  test::write_file(dir / "step-000050", "a file");
  test::write_file(dir / "latest", "step-999999\n");
  const auto before = names_in(dir.path());
  std::vector<std::string> skipped;
  const auto folder = newest_valid(dir.path(), skipped);
  REQUIRE(folder.has_value());
  CHECK(folder->step == 20);
  REQUIRE(skipped.size() == 2);
  CHECK_THAT(skipped[0], Contains("step-1000000") && Contains("model.safetensors"));
  CHECK_THAT(skipped[1], Contains("step-000030") && Contains("MANIFEST.json"));
  CHECK(names_in(dir.path()) == before);
  CHECK_FALSE(newest_valid(dir / "nowhere", skipped).has_value());
}

TEST_CASE("of many checkpoints that do not verify the first five are named") {
  const test::TempDir dir;
  save(dir.path(), 1);
  for (int64_t step = 2; step <= 100; ++step) {
    fs::create_directory(dir / ("step-000" + std::to_string(1000 + step).substr(1)));
  }
  std::vector<std::string> skipped;
  const auto folder = newest_valid(dir.path(), skipped);
  REQUIRE(folder.has_value());
  CHECK(folder->step == 1);
  REQUIRE(skipped.size() == 6);
  CHECK_THAT(skipped[4], Contains("step-000096"));
  CHECK(skipped[5] == "and 94 more checkpoints");
}

TEST_CASE("saving a step again replaces it, and success clears the remains of interrupted saves") {
  const test::TempDir dir;
  save(dir.path(), 7, "first");
  flip_bit(dir / "step-000007" / "model.safetensors", 100, 0);
  fs::create_directory(dir / "step-000005.partial");
  test::write_file(dir / "step-000005.partial/model.safetensors", "torn");
  fs::create_directory(dir / "notes.partial");
  fs::create_directories(dir / "step-000005.12.partial/left");  // could not be removed once
  fs::create_directory(dir / "step-000005.x.partial");
  save(dir.path(), 7, "second");
  CHECK(verify_checkpoint(dir / "step-000007").run_id == "second");
  CHECK(names_in(dir.path()) == std::vector<std::string>{"latest", "notes.partial",
                                                         "step-000005.x.partial", "step-000007"});
}

TEST_CASE("a folder that cannot be listed is not an empty one") {
  const test::TempDir dir;
  test::write_file(dir / "file", "x");
  fs::create_symlink("loop", dir / "loop");
  std::vector<std::string> skipped;
  for (const char* name : {"file", "loop"}) {
    CHECK_THAT(message_of<DeviceError>([&] { find_checkpoints(dir / name); }),
               Contains("cannot list") && Contains(name));
    CHECK_THROWS_AS(newest_valid(dir / name, skipped), DeviceError);
    CHECK_THROWS_AS(CheckpointRetention(dir / name, {.keep_last = 1}).apply(), DeviceError);
  }
  CHECK(find_checkpoints(dir / "nowhere").empty());
}

TEST_CASE("a checkpoint that an interrupted save had set aside is found and gets its name back") {
  const test::TempDir dir;
  save(dir.path(), 7, "first");
  fs::rename(dir / "step-000007", dir / "step-000007.replaced");
  std::vector<std::string> skipped;
  const auto folder = newest_valid(dir.path(), skipped);
  REQUIRE(folder.has_value());
  CHECK(folder->step == 7);
  CHECK(verify_checkpoint(folder->path).run_id == "first");
  save(dir.path(), 9);
  CHECK(names_in(dir.path()) == std::vector<std::string>{"latest", "step-000007", "step-000009"});
  fs::rename(dir / "step-000007", dir / "step-000007.replaced");
  save(dir.path(), 7, "second");
  CHECK(verify_checkpoint(dir / "step-000007").run_id == "second");
  CHECK(names_in(dir.path()) == std::vector<std::string>{"latest", "step-000007", "step-000009"});
}

TEST_CASE("a step that is saved again has a complete checkpoint at every moment") {
  const test::TempDir dir;
  save(dir.path(), 7);
  std::atomic<bool> done = false;
  int64_t missing = 0;
  std::thread reader([&] {
    while (!done) {
      missing += is_checkpoint(dir / "step-000007") ? 0 : 1;
    }
  });
  for (int i = 0; i < 100; ++i) {
    save(dir.path(), 7);
  }
  done = true;
  reader.join();
  CHECK(missing == 0);
}

TEST_CASE("a FIFO in the place of the manifest is refused and waits for nobody") {
  const test::TempDir dir;
  save(dir.path(), 3);
  fs::remove(dir / "step-000003/MANIFEST.json");
  REQUIRE(mkfifo((dir / "step-000003/MANIFEST.json").c_str(), 0600) == 0);
  CHECK_THAT(message_of<CheckpointError>([&] { verify_checkpoint(dir / "step-000003"); }),
             Contains("not a regular file"));
}

TEST_CASE("a failed save leaves no trace and no damage") {
  const test::TempDir dir;
  save(dir.path(), 1);
  CheckpointContents bad;
  bad.files = {{"ok.json", {}, "{}"}, {"../escape", {}, "{}"}};
  CHECK_THROWS_AS(save_checkpoint(dir.path(), 2, bad), CheckpointError);
  bad.files = {{"MANIFEST.json", {}, "{}"}};
  CHECK_THROWS_AS(save_checkpoint(dir.path(), 2, bad), CheckpointError);
  bad.files = {{"a", {}, "1"}, {"a", {}, "2"}};
  CHECK_THROWS_AS(save_checkpoint(dir.path(), 2, bad), CheckpointError);
  CHECK(names_in(dir.path()) == std::vector<std::string>{"latest", "step-000001"});
  CHECK_NOTHROW(verify_checkpoint(dir / "step-000001"));
  test::write_file(dir / "blocked", "a file where a folder should be");
  CheckpointContents good;
  good.files = {{"a", {}, "1"}};
  CHECK_THROWS_AS(save_checkpoint(dir / "blocked", 2, good), DeviceError);
}

TEST_CASE("what cannot be read back is not published and the older checkpoint stays") {
  const test::TempDir dir;
  save(dir.path(), 1);
  const fs::path partial = begin_checkpoint(dir.path(), 2);
  const std::vector<FileRecord> records = {write_checkpoint_file(partial, {"a.json", {}, "one"}),
                                           write_checkpoint_file(partial, {"b.json", {}, "two"})};
  CHECK_NOTHROW(read_back(partial, records[1]));
  flip_bit(partial / "b.json", 1, 3);
  CHECK_THAT(message_of<CheckpointError>([&] { read_back(partial, records[1]); }),
             Contains("cannot be read back") && Contains("b.json") && Contains("damaged"));
  CHECK_THROWS_AS(commit_checkpoint(dir.path(), 2, "r", records), CheckpointError);
  test::write_file(partial / "b.json", "tw");  // also where only sizes are looked at
  CHECK_THAT(message_of<CheckpointError>(
                 [&] { commit_checkpoint(dir.path(), 2, "r", records, Verify::sizes); }),
             Contains("b.json") && Contains("expected 3 bytes, found 2"));
  CHECK(steps_in(dir.path()) == std::vector<int64_t>{1});
  discard_partial(dir.path(), 2);
  CHECK(names_in(dir.path()) == std::vector<std::string>{"latest", "step-000001"});
}

TEST_CASE("several writers put their files into one checkpoint") {
  const test::TempDir dir;
  const fs::path partial = begin_checkpoint(dir.path(), 8);
  std::vector<FileRecord> records;
  for (int rank = 0; rank < 3; ++rank) {
    const float value = static_cast<float>(rank);
    records.push_back(write_checkpoint_file(
        partial,
        {std::string("rank-").append(std::to_string(rank)), {{"w", DType::f32, {1}, &value}}, {}}));
    CHECK(find_checkpoints(dir.path()).empty());
  }
  const fs::path path = commit_checkpoint(dir.path(), 8, "r", records);
  CHECK(verify_checkpoint(path).files.size() == 3);
}

TEST_CASE("manifests of another version or another program are refused with the versions") {
  CheckpointManifest manifest{5, "r", {{"a", 1, std::string(32, '0')}}};
  const std::string good = detail::manifest_text(manifest);
  CHECK(detail::parse_manifest(good, "m").files[0].name == "a");
  std::string newer = good;
  newer.replace(newer.find("\"version\": 1"), 12, "\"version\": 2");
  const auto refusal = [](const std::string& text) {
    return message_of<CheckpointError>([&] { detail::parse_manifest(text, "m"); });
  };
  CHECK_THAT(refusal(newer), Contains("version 2; this program reads version 1"));
  CHECK_THAT(refusal("{}"), Contains("not a checkpoint manifest"));
  CHECK_THAT(refusal(""), Contains("not JSON"));
  manifest.files[0].name = "../a";
  CHECK_THAT(refusal(detail::manifest_text(manifest)), Contains("plain file name"));
}

}  // namespace
}  // namespace fp8train
