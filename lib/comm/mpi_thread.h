#pragma once
// The one thread of a process that calls MPI, for the life of the process: messages move while the
// rank computes (Open MPI 4 and MPICH make progress only inside of calls), MPI needs no locks
// (MPI_THREAD_FUNNELED is enough) and a collective that hangs leaves the rank able to say so.
// Collectives are messages between pairs of ranks, so that the ranks which are missing can be named
// and no count is limited to 2^31.

#include <mpi.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "comm/transfer.h"

namespace fp8train {

/// Throws CommError with MPI's words unless `code` is MPI_SUCCESS.
void check_mpi(int code, const char* what);

/// A collective under way. The thread of MPI owns all but what `mutex` guards.
class PendingRequest {
 public:
  /// `name`: outlives the object. `sequence` counts the collectives of `comm`.
  PendingRequest(MPI_Comm comm, const char* name, uint64_t sequence, Transfer transfer);

  const char* name() const { return name_; }

  // For any thread.
  /// True when it has ended. Throws CommError, which begins with `who`, when it has failed.
  bool is_over(const std::string& who);
  /// False when it has not ended after `seconds` in which the process could run.
  bool wait(double seconds, const std::string& who);
  /// When it ended, by trace_clock(); 0 before.
  double ended_at();

  // For the thread of MPI.
  void start_phase();
  /// True when the last phase has ended.
  bool progress();
  /// `failure`: why it failed; empty: it has not.
  void end(const std::string& failure);
  /// The ranks of `comm` that have not answered.
  std::set<int> unfinished_peers();
  /// Gives up what has not ended.
  void abandon();

 private:
  MPI_Comm comm_;
  const char* name_;
  int first_tag_;
  Transfer transfer_;
  size_t phase_ = 0;
  std::vector<MPI_Request> requests_;
  std::vector<int> peers_;  // of requests_

  std::mutex mutex_;
  std::condition_variable ended_;
  bool over_ = false;
  double ended_at_ = 0;
  std::string failure_;

  bool over_or_throw(const std::string& who) const;
};

class MpiThread {
 public:
  /// Calls MPI_Init_thread the first time. Never destroyed: a thread that does not come back from
  /// MPI may still use it when the process ends.
  static MpiThread& instance();

  /// Waits for MPI_Init, at most `seconds`. Throws what it throws, or TimeoutError.
  void await_start(double seconds);
  /// Runs `job` on the thread, and waits. What it throws comes here, TimeoutError where it takes
  /// longer than `seconds`: it must own what it uses.
  void run(const char* what, double seconds, std::function<void()> job);
  void start(const std::shared_ptr<PendingRequest>& request);
  /// Whom a collective waits for; empty where the thread does not answer.
  std::set<int> unfinished_peers(const std::shared_ptr<PendingRequest>& request);
  /// A collective whose buffers are going away.
  void abandon(const std::shared_ptr<PendingRequest>& request);
  /// Ends all ranks and, unless MPI does not come back, this process.
  void abort_all(int exit_code);

 private:
  MpiThread();
  void leave();
  template <typename Future>
  void await(const Future& result, const char* what, double seconds);
  void post(std::function<void()> job);
  void work(std::promise<void>& started);
  void take_jobs();
  void progress_all();
  void rest(bool progress);

  std::mutex mutex_;
  std::condition_variable woken_;
  std::deque<std::function<void()>> jobs_;
  std::atomic<bool> broken_ = false;
  // Of the thread alone.
  bool stop_ = false;
  int idle_rounds_ = 0;
  std::vector<std::shared_ptr<PendingRequest>> under_way_;
  std::shared_future<void> started_;
  std::future<void> over_;
};

}  // namespace fp8train
