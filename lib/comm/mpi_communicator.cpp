// Ranks as processes of MPI, for host memory.
//
// One thread of ours makes all calls of MPI: messages move while the rank computes (Open MPI 4 and
// MPICH make progress only inside of calls), MPI needs no locks (MPI_THREAD_FUNNELED is enough) and
// a collective that hangs leaves the rank able to say so. Collectives are messages between pairs of
// ranks, so that the ranks which are missing can be named and no count is limited to 2^31.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <limits>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "base/trace.h"
#include "comm/backends.h"
#include "comm/host_copy.h"
#include "comm/message_transport.h"
#include "comm/patient_wait.h"

namespace fp8train {
namespace {

constexpr size_t kLargestMessage = size_t{1} << 30;  // bytes; counts are int
constexpr int kTags = 32768;                         // every MPI has as many
constexpr int kPhases = 4;                           // tags of one collective

std::string mpi_words(int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  return {text, static_cast<size_t>(length)};
}

void check_mpi(int code, const char* what) {
  if (code != MPI_SUCCESS) {
    throw CommError(fmt::format("{}: {}", what, mpi_words(code)));
  }
}

/// A collective under way. The thread of MPI owns all but what `mutex` guards.
struct Journey {
  MPI_Comm comm = MPI_COMM_NULL;
  const char* name = "";
  int rank = 0;
  int first_tag = 0;
  Transfer transfer;

  size_t phase = 0;
  std::vector<MPI_Request> requests;
  std::vector<int> peers;  ///< of requests

  std::mutex mutex;
  std::condition_variable ended;
  bool over = false;
  double ended_at = 0;  ///< of trace_clock()
  std::string failure;

  void start_phase() {
    requests.clear();
    peers.clear();
    const int tag = first_tag + static_cast<int>(phase);
    for (const Message& message : transfer.phases[phase]) {
      for (size_t at = 0; at < message.bytes; at += kLargestMessage) {
        const int bytes = static_cast<int>(std::min(kLargestMessage, message.bytes - at));
        void* data = offset_bytes(message.data, at);
        MPI_Request& request = requests.emplace_back(MPI_REQUEST_NULL);
        peers.push_back(message.peer);
        const int code = message.sends
                             ? MPI_Isend(data, bytes, MPI_BYTE, message.peer, tag, comm, &request)
                             : MPI_Irecv(data, bytes, MPI_BYTE, message.peer, tag, comm, &request);
        check_mpi(code, "starting a message");
      }
    }
  }

  /// True when the last phase has ended.
  bool advance() {
    while (true) {
      int all = 0;
      check_mpi(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &all,
                            MPI_STATUSES_IGNORE),
                name);
      if (all == 0) {
        return false;
      }
      if (++phase == transfer.phases.size()) {
        return true;
      }
      start_phase();
    }
  }

  void end(const std::string& why) {
    const std::lock_guard<std::mutex> lock(mutex);
    over = true;
    ended_at = trace_clock();
    failure = why;
    ended.notify_all();
  }

  /// On the thread of MPI.
  std::set<int> unfinished_peers() {
    std::set<int> found;
    for (size_t i = 0; i < requests.size(); ++i) {
      int ready = 1;
      if (requests[i] != MPI_REQUEST_NULL) {
        MPI_Request_get_status(requests[i], &ready, MPI_STATUS_IGNORE);
      }
      if (ready == 0) {
        found.insert(peers[i]);
      }
    }
    return found;
  }

  /// On the thread of MPI: gives up what has not ended.
  void abandon() {
    for (MPI_Request& request : requests) {
      if (request != MPI_REQUEST_NULL) {
        MPI_Cancel(&request);
        MPI_Request_free(&request);
      }
    }
    requests.clear();
  }
};

/// MPI and the thread that calls it, for the life of the process. Never destroyed: a thread that
/// does not come back from MPI may still use it when the process ends.
class MpiThread {
 public:
  static MpiThread& instance() {
    static MpiThread* const thread = new MpiThread();
    static const struct AtExit {
      ~AtExit() { thread->leave(); }
    } at_exit;
    return *thread;
  }

  /// Waits for MPI_Init, at most `seconds`. Throws what it throws, or TimeoutError.
  void await_start(double seconds) {
    await(started_, "starting MPI", seconds);
    started_.get();
  }

  /// Runs `job` on the thread, and waits. What it throws comes here, TimeoutError where it takes
  /// longer than `seconds`: it must own what it uses.
  void run(const char* what, double seconds, std::function<void()> job) {
    auto task = std::make_shared<std::packaged_task<void()>>(std::move(job));
    std::future<void> result = task->get_future();
    post([task] { (*task)(); });
    await(result, what, seconds);
    result.get();
  }

  void start(const std::shared_ptr<Journey>& journey) {
    post([this, journey] {
      try {
        journey->start_phase();
        under_way_.push_back(journey);
      } catch (const CommError& error) {
        journey->end(error.what());
      }
    });
  }

  /// Whom a collective waits for; empty where the thread does not answer.
  std::set<int> unfinished_peers(const std::shared_ptr<Journey>& journey) {
    auto answer = std::make_shared<std::promise<std::set<int>>>();
    std::future<std::set<int>> result = answer->get_future();
    post([answer, journey] { answer->set_value(journey->unfinished_peers()); });
    const bool answered = result.wait_for(std::chrono::seconds(2)) == std::future_status::ready;
    return answered ? result.get() : std::set<int>{};
  }

  /// A collective whose buffers are going away.
  void abandon(const std::shared_ptr<Journey>& journey) {
    broken_ = true;
    run("giving up messages", kAnswerSeconds, [this, journey] {
      journey->abandon();
      std::erase(under_way_, journey);
    });
  }

  /// Ends all ranks and, unless MPI does not come back, this process.
  void abort_all(int exit_code) {
    broken_ = true;
    run("MPI_Abort", kAnswerSeconds, [exit_code] { MPI_Abort(MPI_COMM_WORLD, exit_code); });
  }

 private:
  static constexpr double kAnswerSeconds = 2;  // within which the thread answers, unless it hangs

  MpiThread() {
    std::promise<void> started;
    std::promise<void> over;
    started_ = started.get_future().share();
    over_ = over.get_future();
    std::thread([this, begin = std::move(started), end = std::move(over)]() mutable {
      work(begin);
      end.set_value();
    }).detach();
  }

  /// At the end of the process. Ranks that have not ended are waited for, unless they may be gone.
  void leave() {
    post([this] { stop_ = true; });
    if (broken_) {
      over_.wait_for(std::chrono::duration<double>(kAnswerSeconds));
    } else {
      over_.wait();
    }
  }

  template <typename Future>
  void await(const Future& result, const char* what, double seconds) {
    constexpr double kLongest = 1e9;
    const std::chrono::duration<double> limit(std::min(seconds, kLongest));
    if (result.wait_for(limit) != std::future_status::ready) {
      broken_ = true;
      throw TimeoutError(fmt::format("{} did not end in {} s: is another rank missing, or stopped?",
                                     what, seconds));
    }
  }

  void post(std::function<void()> job) {
    const std::lock_guard<std::mutex> lock(mutex_);
    jobs_.push_back(std::move(job));
    woken_.notify_one();
  }

  void work(std::promise<void>& started) {
    try {
      int provided = 0;
      check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init");
      if (provided < MPI_THREAD_FUNNELED) {
        throw CommError("this MPI allows no threads at all (MPI_THREAD_SINGLE); use another one");
      }
      MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    } catch (...) {
      started.set_exception(std::current_exception());
      return;
    }
    started.set_value();
    while (!stop_) {
      take_jobs();
      advance();
    }
    if (!broken_) {  // else other ranks may be gone, and MPI_Finalize would wait for them
      MPI_Finalize();
    }
  }

  /// Sleeps while there is nothing to do at all.
  void take_jobs() {
    std::deque<std::function<void()>> jobs;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      if (under_way_.empty()) {
        woken_.wait(lock, [this] { return !jobs_.empty(); });
      }
      jobs.swap(jobs_);
    }
    idle_rounds_ = jobs.empty() ? idle_rounds_ + 1 : 0;
    for (const auto& job : jobs) {
      job();
    }
  }

  void advance() {
    const size_t before = under_way_.size();
    std::erase_if(under_way_, [](const std::shared_ptr<Journey>& journey) {
      try {
        if (!journey->advance()) {
          return false;
        }
        journey->end("");
      } catch (const CommError& error) {
        journey->end(error.what());
      }
      return true;
    });
    rest(under_way_.size() != before);
  }

  /// Cores may be fewer than ranks and their threads: whoever waits must not keep one. A nap rather
  /// than sched_yield, which on a busy core comes back after the others' whole time slices.
  void rest(bool progress) {
    constexpr int kTries = 300;
    constexpr auto kNap = std::chrono::microseconds(20);
    idle_rounds_ = progress ? 0 : idle_rounds_;
    if (!under_way_.empty() && idle_rounds_ >= kTries) {
      std::this_thread::sleep_for(kNap);
    }
  }

  std::mutex mutex_;
  std::condition_variable woken_;
  std::deque<std::function<void()>> jobs_;
  std::atomic<bool> broken_ = false;
  // Of the thread alone.
  bool stop_ = false;
  int idle_rounds_ = 0;
  std::vector<std::shared_ptr<Journey>> under_way_;
  std::shared_future<void> started_;
  std::future<void> over_;
};

class MpiWork final : public PendingWork {
 public:
  MpiWork(std::shared_ptr<Journey> journey, double timeout)
      : journey_(std::move(journey)), timeout_(timeout) {}

  ~MpiWork() override {
    bool over = false;
    {
      const std::lock_guard<std::mutex> lock(journey_->mutex);
      over = journey_->over;
    }
    if (!over) {
      try {
        MpiThread::instance().abandon(journey_);
      } catch (...) {  // a destructor must not throw, and the run is ending anyway
        static_cast<void>(0);
      }
    }
  }
  MpiWork(const MpiWork&) = delete;
  MpiWork& operator=(const MpiWork&) = delete;

  bool done() override {
    const std::lock_guard<std::mutex> lock(journey_->mutex);
    return over();
  }

  void wait() override {
    std::unique_lock<std::mutex> lock(journey_->mutex);
    if (patient_wait(journey_->ended, lock, timeout_, [this] { return over(); })) {
      return;
    }
    lock.unlock();
    const std::set<int> peers = MpiThread::instance().unfinished_peers(journey_);
    throw TimeoutError(
        fmt::format("rank {}: {} did not end in {} s; ranks that have not answered: {}",
                    journey_->rank, journey_->name, timeout_,
                    peers.empty() ? "unknown" : fmt::format("{}", fmt::join(peers, ", "))));
  }

  double ended() override {
    const std::lock_guard<std::mutex> lock(journey_->mutex);
    return journey_->ended_at;
  }

 private:
  bool over() {
    if (!journey_->failure.empty()) {
      throw CommError(
          fmt::format("rank {}: {}: {}", journey_->rank, journey_->name, journey_->failure));
    }
    return journey_->over;
  }

  std::shared_ptr<Journey> journey_;
  double timeout_;
};

class MpiTransport final : public MessageTransport {
 public:
  MpiTransport(MPI_Comm comm, int rank) : comm_(comm), rank_(rank) {}

  Work start(const char* name, uint64_t sequence, Transfer transfer, double timeout) override {
    auto journey = std::make_shared<Journey>();
    journey->comm = comm_;
    journey->name = name;
    journey->rank = rank_;
    journey->first_tag = static_cast<int>(sequence * kPhases % kTags);
    journey->transfer = std::move(transfer);
    MpiThread::instance().start(journey);
    return Work(std::make_unique<MpiWork>(journey, timeout));
  }

  std::unique_ptr<MessageTransport> split(int color, int rank, double timeout) override {
    const char* const what = "splitting a communicator";
    const auto made = std::make_shared<MPI_Comm>(MPI_COMM_NULL);
    MpiThread::instance().run(what, timeout, [comm = comm_, color, rank, made, what] {
      check_mpi(MPI_Comm_split(comm, color, rank, made.get()), what);
    });
    return std::make_unique<MpiTransport>(*made, rank);
  }

  void fail(int exit_code) override { MpiThread::instance().abort_all(exit_code); }
  const char* kind() const override { return "mpi"; }

 private:
  MPI_Comm comm_;  ///< lives as long as MPI
  int rank_;
};

/// On the thread of MPI: which node each rank is on.
Topology find_topology(int size) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm node = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node),
            "finding the ranks of a node");
  int leader = rank;
  check_mpi(MPI_Bcast(&leader, 1, MPI_INT, 0, node), "finding the ranks of a node");
  std::vector<int> leaders(static_cast<size_t>(size));
  check_mpi(MPI_Allgather(&leader, 1, MPI_INT, leaders.data(), 1, MPI_INT, MPI_COMM_WORLD),
            "finding the ranks of a node");
  MPI_Comm_free(&node);
  return Topology::of_places(leaders);
}

}  // namespace

bool has_mpi() {
  return true;
}

std::unique_ptr<Communicator> make_mpi_communicator(double start_seconds) {
  struct World {
    int rank = 0;
    Topology topology;
    MPI_Comm comm = MPI_COMM_NULL;
  };
  MpiThread::instance().await_start(start_seconds);
  const auto world = std::make_shared<World>();
  MpiThread::instance().run("finding the other ranks", start_seconds, [world] {
    int size = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_rank(MPI_COMM_WORLD, &world->rank);
    world->topology = find_topology(size);
    check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &world->comm),
              "duplicating the communicator of all ranks");
  });
  return make_message_communicator(std::make_unique<MpiTransport>(world->comm, world->rank),
                                   std::move(world->topology), world->rank);
}

}  // namespace fp8train
