// The comparison of data files with the hashes that a checkpoint has of them, for a run that is not
// started.

#include "train/checkpoint/data_record.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "support/files.h"
#include "support/temp_dir.h"

namespace fp8train::test {
namespace {

using Catch::Contains;

constexpr uint64_t kNoneAtOnce = 0;  // the thread hashes all files

/// A session whose data are these files, opened now.
Session session_on(const std::vector<std::filesystem::path>& files) {
  Session session;
  for (const std::filesystem::path& file : files) {
    session.settings.data.train.push_back({.path = file.string()});
  }
  session.tokenizer = make_tokenizer(session.settings.data);
  session.data =
      open_corpora(session.settings.data, *session.tokenizer, session.tokenizer->vocab_size());
  return session;
}

TEST_CASE("files that are hashed by the thread are waited for and compared") {
  const TempDir dir;
  const std::vector<std::filesystem::path> files = {dir / "a.txt", dir / "b.txt"};
  for (const std::filesystem::path& file : files) {
    write_file(file, std::string(5000, 'a'));
  }
  nlohmann::json noted;
  {
    Session saved = session_on(files);
    begin_data_record(saved, "");
    noted = saved.data_record->noted();
  }
  const auto compare = [&](Session& session) {
    begin_data_record(session, "", kNoneAtOnce);
    CHECK(session.data_record->compare(noted).changes.empty());  // nothing is known yet
    compare_all_data(session, [](uint64_t bytes_left) { CHECK(bytes_left > 0); });
    CHECK(session.data_record->bytes_to_compare() == 0);
  };
  Session same = session_on(files);
  compare(same);
  std::string text(5000, 'a');
  text.back() = 'b';
  write_file(files[1], text);
  Session changed = session_on(files);
  CHECK_THAT(message_of<CheckpointError>([&] { compare(changed); }),
             Contains("b.txt has other content of the same size. Put the file back"));
  Session accepted = session_on(files);
  accepted.settings.checkpoint.changed_data = OnChange::accept;
  compare(accepted);
  CHECK_FALSE(std::filesystem::exists(dir / "data_hashes.json"));
}

}  // namespace
}  // namespace fp8train::test
