#pragma once
// The ranks of a communicator of the fake NCCL, and what they have started. Everything here is
// guarded by the fake's one mutex. Ranks of one process share a clique; where each is a process,
// each has its own, with what the others have posted on the board.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "nccl.h"
#include "nccl_board.h"
#include "submit.h"

namespace fp8train::shim {

/// The operation of one rank. A collective has one part, a group many.
struct NcclPart {
  bool sends = false;
  int peer = 0;
  const void* from = nullptr;
  void* to = nullptr;  ///< null for a rank of another process
  size_t bytes = 0;
  uint64_t number = 0;  ///< in a group: among those from its sender to its receiver
  bool done = false;    ///< likewise
};
struct NcclStart {
  std::string name;  ///< all_gather, broadcast, group
  int root = 0;
  std::vector<NcclPart> parts;
  std::vector<std::shared_ptr<LateWork>> before;  ///< ahead of it in the rank's stream
  bool is_asked = false;  ///< whether it is over; ranks that wait for each other ask in circles
  /// Of a rank of another process: whether `arrived` has what its parts send.
  bool is_remote = false, has_arrived = false;
  std::string arrived;
  bool is_posted = false;  ///< of this process: what its parts send

  bool is_ready() const;
};

/// The rule that two ends of a message break.
std::string mismatched_ends(int from, size_t sent, int to, size_t taken);

/// One collective of all ranks, as far as they have started it.
struct NcclOperation {
  std::vector<std::unique_ptr<NcclStart>> starts;
  bool done = false;
  bool is_asked = false;

  bool all_started() const;
};

class NcclClique {
 public:
  /// `board`: null where all ranks are of this process.
  explicit NcclClique(int ranks, std::unique_ptr<NcclBoard> board = nullptr)
      : devices_(static_cast<size_t>(ranks), -1), board_(std::move(board)) {}

  int size() const { return static_cast<int>(devices_.size()); }
  void enter(int rank, int device);
  void finalize(int rank);
  void abort(int rank);
  /// The rank asks for nothing more.
  void leave(int rank);

  /// What ranks of other processes have posted meanwhile. It changes what the next four say.
  void refresh();
  bool complete() const { return joined_ == size(); }
  bool finalized() const { return static_cast<int>(finalized_.size()) == size(); }
  ncclResult_t error() const { return error_; }  ///< found in the background
  const std::string& why() const { return why_; }

  void fail(ncclResult_t result, const std::string& reason);
  /// Empty, or the rule that the ranks' parts break.
  std::string start(uint64_t sequence, int rank, std::unique_ptr<NcclStart> start);
  /// Does the operation if all have started it and what is before it is over; `rank` asks.
  bool try_operation(uint64_t sequence, int rank);
  /// The same for a group, which the ranks at the other ends of its parts start as well.
  std::string start_group(int rank, const std::shared_ptr<NcclStart>& start);
  bool try_group(NcclStart& start, int rank);

  /// The rank has come to the split of this number.
  void arrive(int number, int rank, int color, int key);
  /// Once all have come: the clique of this color, and the rank's in it. Null before.
  std::pair<std::shared_ptr<NcclClique>, int> split(int number, int rank);

 private:
  struct Split {
    std::map<int, std::pair<int, int>> come;  ///< color and key by rank
    std::map<int, std::shared_ptr<NcclClique>> made;
  };

  /// A part with one end, or both.
  struct Letter {
    std::shared_ptr<NcclStart> sender, receiver;
    NcclPart* sent = nullptr;
    NcclPart* taken = nullptr;
  };
  /// Sender, receiver and number.
  using LetterKey = std::tuple<int, int, uint64_t>;
  static LetterKey key_of(int rank, const NcclPart& part);
  bool try_part(const NcclPart& part, int rank);
  bool post_part(const NcclStart& start, const NcclPart& part, int rank);

  void note_device(int rank, int device);
  std::string join(uint64_t sequence, int rank, std::unique_ptr<NcclStart> start);
  void exchange_notes(uint64_t sequence, int rank);
  void tidy(uint64_t sequence, int rank) const;

  std::vector<int> devices_;  ///< of the ranks that have joined; -1: not yet
  std::unique_ptr<NcclBoard> board_;
  int joined_ = 0;
  std::set<int> finalized_, aborted_;
  std::map<uint64_t, NcclOperation> operations_;
  std::map<LetterKey, Letter> letters_;
  std::map<std::tuple<int, int, bool>, uint64_t> part_numbers_;  ///< by rank, peer and `sends`
  ncclResult_t error_ = ncclSuccess;
  std::string why_;
  std::map<int, Split> splits_;  ///< by number
};

}  // namespace fp8train::shim
