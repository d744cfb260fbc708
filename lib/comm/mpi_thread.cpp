#include "comm/mpi_thread.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/trace.h"
#include "comm/host_copy.h"
#include "comm/patient_wait.h"

namespace fp8train {
namespace {

constexpr size_t kLargestMessage = size_t{1} << 30;  // bytes; counts are int
constexpr int kTags = 32768;                         // every MPI has as many
constexpr int kPhases = 4;                           // tags of one collective
constexpr double kAnswerSeconds = 2;  // within which the thread answers, unless it hangs

}  // namespace

void check_mpi(int code, const char* what) {
  if (code == MPI_SUCCESS) {
    return;
  }
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw CommError(fmt::format("{}: {}", what, std::string(text, static_cast<size_t>(length))));
}

PendingRequest::PendingRequest(MPI_Comm comm, const char* name, uint64_t sequence,
                               Transfer transfer)
    : comm_(comm),
      name_(name),
      first_tag_(static_cast<int>(sequence * kPhases % kTags)),
      transfer_(std::move(transfer)) {}

bool PendingRequest::over_or_throw(const std::string& who) const {
  if (!failure_.empty()) {
    throw CommError(fmt::format("{}: {}: {}", who, name_, failure_));
  }
  return over_;
}

bool PendingRequest::is_over(const std::string& who) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return over_or_throw(who);
}

bool PendingRequest::wait(double seconds, const std::string& who) {
  std::unique_lock<std::mutex> lock(mutex_);
  return patient_wait(ended_, lock, seconds, [&] { return over_or_throw(who); });
}

double PendingRequest::ended_at() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return ended_at_;
}

void PendingRequest::start_phase() {
  requests_.clear();
  peers_.clear();
  const int tag = first_tag_ + static_cast<int>(phase_);
  for (const Message& message : transfer_.phases[phase_]) {
    for (size_t at = 0; at < message.bytes; at += kLargestMessage) {
      const int bytes = static_cast<int>(std::min(kLargestMessage, message.bytes - at));
      void* data = offset_bytes(message.data, at);
      MPI_Request& request = requests_.emplace_back(MPI_REQUEST_NULL);
      peers_.push_back(message.peer);
      const int code = message.sends
                           ? MPI_Isend(data, bytes, MPI_BYTE, message.peer, tag, comm_, &request)
                           : MPI_Irecv(data, bytes, MPI_BYTE, message.peer, tag, comm_, &request);
      check_mpi(code, "starting a message");
    }
  }
}

bool PendingRequest::progress() {
  while (true) {
    int all = 0;
    check_mpi(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &all,
                          MPI_STATUSES_IGNORE),
              name_);
    if (all == 0) {
      return false;
    }
    if (++phase_ == transfer_.phases.size()) {
      return true;
    }
    start_phase();
  }
}

void PendingRequest::end(const std::string& failure) {
  const std::lock_guard<std::mutex> lock(mutex_);
  over_ = true;
  ended_at_ = trace_clock();
  failure_ = failure;
  ended_.notify_all();
}

std::set<int> PendingRequest::unfinished_peers() {
  std::set<int> found;
  for (size_t i = 0; i < requests_.size(); ++i) {
    int ready = 1;
    if (requests_[i] != MPI_REQUEST_NULL) {
      MPI_Request_get_status(requests_[i], &ready, MPI_STATUS_IGNORE);
    }
    if (ready == 0) {
      found.insert(peers_[i]);
    }
  }
  return found;
}

void PendingRequest::abandon() {
  for (MPI_Request& request : requests_) {
    if (request != MPI_REQUEST_NULL) {
      MPI_Cancel(&request);
      MPI_Request_free(&request);
    }
  }
  requests_.clear();
}

MpiThread& MpiThread::instance() {
  static MpiThread* const thread = new MpiThread();
  static const struct AtExit {
    ~AtExit() { thread->leave(); }
  } at_exit;
  return *thread;
}

MpiThread::MpiThread() {
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
void MpiThread::leave() {
  post([this] { stop_ = true; });
  if (broken_) {
    over_.wait_for(std::chrono::duration<double>(kAnswerSeconds));
  } else {
    over_.wait();
  }
}

template <typename Future>
void MpiThread::await(const Future& result, const char* what, double seconds) {
  constexpr double kSlice = 1;
  RunningTime waited(2 * kSlice);
  while (true) {
    const double left = seconds - waited.seconds();
    const std::chrono::duration<double> slice(std::clamp(left, 0.0, kSlice));
    if (result.wait_for(slice) == std::future_status::ready) {
      return;
    }
    if (left <= 0) {
      broken_ = true;
      throw TimeoutError(fmt::format("{} did not end in {} s: is another rank missing, or stopped?",
                                     what, seconds));
    }
  }
}

void MpiThread::await_start(double seconds) {
  await(started_, "starting MPI", seconds);
  started_.get();
}

void MpiThread::run(const char* what, double seconds, std::function<void()> job) {
  auto task = std::make_shared<std::packaged_task<void()>>(std::move(job));
  std::future<void> result = task->get_future();
  post([task] { (*task)(); });
  await(result, what, seconds);
  result.get();
}

void MpiThread::start(const std::shared_ptr<PendingRequest>& request) {
  post([this, request] {
    try {
      request->start_phase();
      under_way_.push_back(request);
    } catch (const CommError& error) {
      request->end(error.what());
    }
  });
}

std::set<int> MpiThread::unfinished_peers(const std::shared_ptr<PendingRequest>& request) {
  auto answer = std::make_shared<std::promise<std::set<int>>>();
  std::future<std::set<int>> result = answer->get_future();
  post([answer, request] { answer->set_value(request->unfinished_peers()); });
  const std::chrono::duration<double> limit(kAnswerSeconds);
  const bool answered = result.wait_for(limit) == std::future_status::ready;
  return answered ? result.get() : std::set<int>{};
}

void MpiThread::abandon(const std::shared_ptr<PendingRequest>& request) {
  broken_ = true;
  run("giving up messages", kAnswerSeconds, [this, request] {
    request->abandon();
    std::erase(under_way_, request);
  });
}

void MpiThread::abort_all(int exit_code) {
  broken_ = true;
  run("MPI_Abort", kAnswerSeconds, [exit_code] { MPI_Abort(MPI_COMM_WORLD, exit_code); });
}

void MpiThread::post(std::function<void()> job) {
  const std::lock_guard<std::mutex> lock(mutex_);
  jobs_.push_back(std::move(job));
  woken_.notify_one();
}

void MpiThread::work(std::promise<void>& started) {
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
    progress_all();
  }
  if (!broken_) {  // else other ranks may be gone, and MPI_Finalize would wait for them
    MPI_Finalize();
  }
}

/// Sleeps while there is nothing to do at all.
void MpiThread::take_jobs() {
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

void MpiThread::progress_all() {
  const size_t before = under_way_.size();
  std::erase_if(under_way_, [](const std::shared_ptr<PendingRequest>& request) {
    try {
      if (!request->progress()) {
        return false;
      }
      request->end("");
    } catch (const CommError& error) {
      request->end(error.what());
    }
    return true;
  });
  rest(under_way_.size() != before);
}

/// Cores may be fewer than ranks and their threads: whoever waits must not occupy one. A nap rather
/// than sched_yield, which on a busy core comes back after the others' whole time slices.
void MpiThread::rest(bool progress) {
  constexpr int kTries = 300;
  constexpr auto kNap = std::chrono::microseconds(20);
  idle_rounds_ = progress ? 0 : idle_rounds_;
  if (!under_way_.empty() && idle_rounds_ >= kTries) {
    std::this_thread::sleep_for(kNap);
  }
}

}  // namespace fp8train
