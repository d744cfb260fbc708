#include "support/faults.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <new>
#include <regex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "train/run.h"

namespace fp8train::test {
namespace {

constexpr std::array<const char*, 9> kKinds = {"stop", "hang", "kill", "exit", "throw",
                                               "oom",  "slow", "nan",  "flip"};

Fault injected;
bool has_happened = false;
float value_before = 0;

/// By mpirun, or by Slurm.
int rank_of_this_process() {
  for (const char* const name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK"}) {
    if (const char* const text = std::getenv(name)) {
      return std::atoi(text);
    }
  }
  return 0;
}

void announce(int64_t step) {
  fmt::print(stderr, "fault: {} on rank {} in step {}\n",
             kKinds[static_cast<size_t>(injected.kind)], injected.rank, step);
  std::fflush(stderr);
}

void happen() {
  switch (injected.kind) {
    case Fault::Kind::stop:
      raise(SIGSTOP);
      return;
    case Fault::Kind::hang:
      while (true) {
        std::this_thread::sleep_for(std::chrono::seconds(1));
      }
    case Fault::Kind::kill:
      raise(SIGKILL);
      return;
    case Fault::Kind::exit:
      _exit(1);
    case Fault::Kind::throw_:
      throw std::runtime_error("injected");
    case Fault::Kind::oom:
      throw std::bad_alloc();
    default:
      return;
  }
}

void on_section(Section section, int64_t step) {
  const bool of_values =
      injected.kind == Fault::Kind::nan || injected.kind == Fault::Kind::flip;  // see on_step()
  if (of_values || section != injected.section || rank_of_this_process() != injected.rank) {
    return;
  }
  if (injected.kind == Fault::Kind::slow) {
    if (step >= injected.step) {
      std::this_thread::sleep_for(std::chrono::milliseconds(injected.milliseconds));
    }
  } else if (step == injected.step && !has_happened) {
    has_happened = true;
    announce(step);
    happen();
  }
}

const Parameter& find_parameter(Engine& engine, const std::string& name) {
  for (const auto& parameter : engine.model().parameters().all()) {
    if (parameter->name == name) {
      return *parameter;
    }
  }
  throw std::invalid_argument("no parameter " + name);
}

/// A gain of a norm, which is read as it is.
float& first_gain(Engine& engine) {
  for (const auto& parameter : engine.model().parameters().all()) {
    if (parameter->init == Init::ones && !parameter->value.empty()) {
      return *static_cast<float*>(parameter->value.data);
    }
  }
  throw std::invalid_argument("nan: no norm has fp32 values here");
}

void on_step(Engine& engine, int rank, int64_t step, bool ends) {
  if (rank != injected.rank || step != injected.step) {
    return;
  }
  if (injected.kind == Fault::Kind::nan) {
    float& gain = first_gain(engine);
    if (!ends) {
      announce(step);
      value_before = gain;
    }
    gain = ends ? value_before : std::numeric_limits<float>::quiet_NaN();
  } else if (injected.kind == Fault::Kind::flip && ends && !has_happened) {
    has_happened = true;
    announce(step);
    const View codes = find_parameter(engine, injected.parameter).updated.value.codes;
    static_cast<uint8_t*>(codes.data)[0] ^= 1;
  }
}

Section section_of(const std::string& name) {
  for (size_t i = 0; i < kSections; ++i) {
    if (name == name_of(static_cast<Section>(i))) {
      return static_cast<Section>(i);
    }
  }
  throw std::invalid_argument("no section " + name);
}

}  // namespace

Fault parse_fault(const std::string& text) {
  static const std::regex kForm("([a-z]+)@([0-9]+):([0-9]+)(?::([^/]+)(?:/([0-9]+))?)?");
  std::smatch parts;
  if (!std::regex_match(text, parts, kForm)) {
    throw std::invalid_argument("'" + text + "' is not KIND@RANK:STEP[:ARGUMENT]");
  }
  Fault fault = {.rank = std::stoi(parts[2]), .step = std::stoll(parts[3])};
  size_t kind = 0;
  while (kind < kKinds.size() && parts[1] != kKinds[kind]) {
    ++kind;
  }
  if (kind == kKinds.size()) {
    throw std::invalid_argument("no fault " + parts[1].str());
  }
  fault.kind = static_cast<Fault::Kind>(kind);
  if (fault.kind == Fault::Kind::flip) {
    fault.parameter = parts[4];
  } else if (parts[4].matched) {
    fault.section = section_of(parts[4]);
  }
  if (parts[5].matched) {
    fault.milliseconds = std::stoll(parts[5]);
  }
  return fault;
}

void inject(const Fault& fault) {
  injected = fault;
  FlightRecorder::set_observer(on_section);
  set_step_observer(on_step);
}

}  // namespace fp8train::test
