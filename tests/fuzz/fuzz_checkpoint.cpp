// The input changes one file of a run's checkpoint, or replaces it, and the manifest vouches for
// what comes of it: state.json, the optimizer's shards, scales, weights. The run loads it or
// refuses it as a checkpoint; what it has loaded it saves, and that is loaded to the same bytes. A
// checkpoint that was not changed is saved as it was.

#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>

#include "../support/small_llama.h"
#include "base/error.h"
#include "comm/backends/backends.h"
#include "data/tokenizer.h"
#include "engine/dry_run.h"
#include "io/checkpoint/checkpoint.h"
#include "plain_message.h"
#include "scratch_file.h"
#include "support/save_checkpoint.h"
#include "train/checkpoint/checkpoint_saver.h"
#include "train/checkpoint/training_state.h"

namespace {

using namespace fp8train;
namespace fs = std::filesystem;

void check(bool holds) {
  if (!holds) {
    std::abort();
  }
}

using Files = std::map<std::string, std::string>;

Files files_of(const fs::path& checkpoint) {
  Files files;
  for (const FileRecord& record : verify_checkpoint(checkpoint).files) {
    files[record.name] = read_scratch((checkpoint / record.name).string());
  }
  return files;
}

/// A run of two ranks' files would be read by the same code: one rank has all parts.
class Run {
 public:
  Run() : comm_(make_self_communicator()), device_(make_device(DeviceKind::cpu)) {
    session_.tokenizer = make_byte_tokenizer();
    session_.engine = test::small_llama("te-delayed");
    engine_ = std::make_unique<Engine>(*device_, session_.engine);
    engine_->reserve(dry_run_step(session_.engine, DeviceTraits{}).plan);
    engine_->model().initialize(3);
    engine_->weights_changed();
    engine_->step([] { return test::random_batch(1); }, 0, 1e-3, false);
    TrainingState state = {.step = 1, .sample_position = 2, .tokens = 32, .loss = 3.5};
    state.spikes = {.losses = {3.5, 3.25}, .high_steps = 1, .first_high = 1};
    state.rollbacks = {{.from_step = 4, .to_step = 1, .end_sample = 2, .kind = "loss_spike"}};
    save("first", state);
    valid_ = files_of(root("first") / "step-000001");
    run_id_ = verify_checkpoint(root("first") / "step-000001").run_id;
  }

  const Files& valid() const { return valid_; }
  const std::string& run_id() const { return run_id_; }

  void save(const std::string& name, const TrainingState& state) {
    fs::remove_all(root(name));
    StateCopy copy;
    copy_training_state(*engine_, session_, state, *comm_, copy);
    const fs::path partial = begin_checkpoint(root(name), copy.step);
    commit_checkpoint(root(name), copy.step, copy.run_id, write_state(partial, copy));
  }
  ResumedRun resume(const fs::path& checkpoint) {
    return load_checkpoint(checkpoint, *engine_, session_, *comm_);
  }
  static fs::path root(const std::string& name) {
    return fs::path(scratch_path() + "-checkpoint") / name;
  }

 private:
  std::unique_ptr<Communicator> comm_;
  std::unique_ptr<Device> device_;
  Session session_;
  std::unique_ptr<Engine> engine_;
  Files valid_;
  std::string run_id_;
};

/// Bytes 2, 3: position; byte 4: new value; and so on.
void change(std::string& text, const uint8_t* data, size_t size) {
  for (size_t i = 0; i + 2 < size && !text.empty(); i += 3) {
    text[(data[i] + 256U * data[i + 1]) % text.size()] = static_cast<char>(data[i + 2]);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) {
    return 0;
  }
  static Run run;
  Files files = run.valid();
  const char* const names[] = {"state.json",          "state.json",        "optimizer.safetensors",
                               "scaling.safetensors", "model.safetensors", "config.json"};
  std::string& file = files[names[data[0] % 6]];
  if (data[1] % 2 == 0) {
    change(file, data + 2, size - 2);
  } else {
    file.assign(reinterpret_cast<const char*>(data) + 2, size - 2);
  }
  CheckpointContents contents = {.run_id = run.run_id(), .files = {}};
  for (const auto& [name, bytes] : files) {
    contents.files.push_back({name, {}, bytes});
  }
  const fs::path changed = save_checkpoint(Run::root("changed"), 1, contents);
  try {
    check_content(changed);
    is_scheduled(changed);
    const ResumedRun resumed = run.resume(changed);
    if (resumed.state.step < 0) {
      std::abort();
    }
    run.save("again", resumed.state);
    const CheckpointFolder saved = find_checkpoints(Run::root("again")).front();
    const Files once = files_of(saved.path);
    check(files != run.valid() || once == files);
    run.save("twice", run.resume(saved.path).state);
    check(files_of(find_checkpoints(Run::root("twice")).front().path) == once);
  } catch (const CheckpointError& error) {
    require_plain(error);
  }
  return 0;
}
