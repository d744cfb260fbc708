// What a run changes on the disk is recorded (support/file_trace) and played back up to each
// record; then the power fails. What was not flushed is gone, at its worst in one of two ways. A
// checkpoint that was reported as saved is there, and the run goes on from it to the same bits.

#include <fmt/format.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "io/checkpoint/checkpoint.h"
#include "program.h"
#include "share.h"

namespace fp8train::test {
namespace {

struct Record {
  std::string name;
  size_t offset = 0;
  size_t count = 0;
  fs::path path;
  std::string bytes;
};

std::vector<Record> records_in(const fs::path& trace) {
  std::istringstream file(read_file(trace));
  std::vector<Record> records;
  for (Record record; file >> record.name >> record.offset >> record.count;) {
    std::string path;
    file.ignore(1);
    std::getline(file, path);
    record.path = path;
    record.bytes.resize(record.count);
    file.read(record.bytes.data(), static_cast<std::streamsize>(record.count));
    records.push_back(record);
  }
  return records;
}

using Files = std::map<std::string, std::string>;  // by path

/// A folder on a disk that forgets what is not flushed: bytes of files, names in folders.
class Disk {
 public:
  explicit Disk(fs::path folder) : folder_(std::move(folder)) {}

  void apply(const Record& record) {
    const auto& [name, offset, count, path, bytes] = record;
    if (name == "rename") {
      Names& names = parent(bytes).names;
      names[fs::path(bytes).filename()] = parent(path).names.at(path.filename());
      parent(path).names.erase(path.filename());
    } else if (name == "remove") {
      parent(path).names.erase(path.filename());
    } else if (name == "create" || name == "mkdir") {
      auto& node = parent(path).names[path.filename()];
      if (node == nullptr) node = std::make_shared<Node>();
      node->bytes.clear();
      node->is_folder = name == "mkdir";
    } else if (Node* const node = find(path)) {  // not one that has no name any more
      if (name == "write") {
        node->bytes.resize(std::max(node->bytes.size(), offset + count));
        node->bytes.replace(offset, count, bytes);
      } else if (name == "truncate") {
        node->bytes.resize(offset);
      } else {
        node->flushed_bytes = node->bytes;
        node->flushed_names = node->names;
      }
    }
  }

  /// The files after a loss of power. `has_names`: names reached the disk that were not flushed.
  Files after_loss(bool has_names) const {
    Files files;
    add(root_, "", has_names, files);
    return files;
  }

 private:
  struct Node;
  using Names = std::map<std::string, std::shared_ptr<Node>>;
  struct Node {
    bool is_folder = false;
    std::string bytes, flushed_bytes;
    Names names, flushed_names;
  };

  Node* find(const fs::path& path) {
    Node* node = &root_;
    for (const fs::path& name : path.lexically_relative(folder_)) {
      if (name == ".") continue;
      const auto found = node->names.find(name);
      if (found == node->names.end()) return nullptr;
      node = found->second.get();
    }
    return node;
  }
  Node& parent(const fs::path& path) { return *find(path.parent_path()); }

  static void add(const Node& node, const std::string& path, bool has_names, Files& files) {
    for (const auto& [name, child] : has_names ? node.names : node.flushed_names) {
      if (child->is_folder) {
        files[path + name + "/"];
        add(*child, path + name + "/", has_names, files);
      } else {
        files[path + name] = child->flushed_bytes;
      }
    }
  }

  fs::path folder_;
  Node root_;
};

void write_files(const fs::path& folder, const Files& files) {
  fs::create_directories(folder);
  for (const auto& [name, bytes] : files) {
    if (name.ends_with('/')) {
      fs::create_directories(folder / name);
    } else {
      write_file(folder / name, bytes);
    }
  }
}

/// The step that a line of metrics reports as saved, or 0.
int64_t saved_step(const Record& record) {
  if (record.name != "write" || record.path.filename() != "metrics.jsonl") return 0;
  const auto line = nlohmann::json::parse(record.bytes, nullptr, false);
  return line.is_object() && line.value("saved", false) ? line.at("step").get<int64_t>() : 0;
}

const Words kCommand = {"model.preset=toy",
                        "data.train=[{path: ../text.txt}]",
                        "data.seq_length=16",
                        "training.max_steps=6",
                        "training.micro_batch_size=1",
                        "sample.interval=0",
                        "logging.interval=1",
                        "checkpoint.interval=2",
                        "checkpoint.keep_last=2",
                        "threads=1",
                        "precision.plan=te-delayed",
                        "output_dir=run"};

void check_resumed(const TextFolder& folder, const fs::path& whole) {
  const Outcome resumed = run_program(folder / "after", kCommand);
  INFO(resumed.out << resumed.err);
  REQUIRE(resumed.code == 0);
  for (const char* name : {"model.safetensors", "state.json"}) {
    CHECK(same_bytes(whole / name, folder / "after/run/checkpoints/step-000006" / name));
  }
}

}  // namespace

TEST_CASE("after a loss of power every checkpoint that was reported is there and goes on") {
  const TextFolder folder(small_text(4000));
  const fs::path run = folder / "here/run";
  fs::create_directories(run);
  Process traced(
      folder / "here", kCommand,
      {fmt::format("LD_PRELOAD={}", FP8TRAIN_FILE_TRACE), "FP8TRAIN_TRACE_FOLDER=" + run.string(),
       "FP8TRAIN_TRACE=" + (folder / "trace").string()});
  REQUIRE(traced.wait().code == 0);
  const std::vector<Record> records = records_in(folder / "trace");
  REQUIRE(records.size() > 100);
  const Share share = Share::of_environment(24);
  Disk disk(run);
  std::map<bool, Files> last;
  int64_t reported = 0;
  size_t states = 0;
  size_t resumed = 0;
  for (const Record& record : records) {
    disk.apply(record);
    const int64_t saved = saved_step(record);
    reported = std::max(reported, saved);
    if (saved == 0 && (record.name == "write" || record.name == "truncate")) continue;
    for (const bool has_names : {false, true}) {
      Files files = disk.after_loss(has_names);
      if (saved == 0 && files == last[has_names]) continue;
      last[has_names] = std::move(files);
      fs::remove_all(folder / "after");
      write_files(folder / "after/run", last[has_names]);
      INFO(record.name << " " << record.path << ", reported " << reported
                       << (has_names ? ", names of files reach the disk first" : ""));
      std::vector<std::string> skipped;
      const auto newest = newest_valid(folder / "after/run/checkpoints", skipped);
      CHECK((newest ? newest->step : 0) >= reported);
      if (share.has(states++)) {
        check_resumed(folder, run / "checkpoints/step-000006");
        ++resumed;
      }
    }
  }
  CHECK(reported == 6);
  fmt::print("{} records; {} states after a loss of power, of which {} were gone on from\n",
             records.size(), states, resumed);
}

}  // namespace fp8train::test
