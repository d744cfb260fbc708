#include "device/gpu_monitor.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <utility>

namespace fp8train {
namespace {

// NVML API Reference (r580). All functions return 0 for success.
constexpr int kClockOfMultiprocessors = 1;  // NVML_CLOCK_SM
constexpr int kTemperatureOfChip = 0;       // NVML_TEMPERATURE_GPU
using Nullary = int (*)();
using GetCount = int (*)(unsigned* count);
using GetByIndex = int (*)(unsigned index, void** gpu);
using GetByBusId = int (*)(const char* bus_id, void** gpu);
using GetName = int (*)(void* gpu, char* name, unsigned length);
using GetValue = int (*)(void* gpu, unsigned* value);
using GetValueOf = int (*)(void* gpu, int kind, unsigned* value);
using GetReasons = int (*)(void* gpu, unsigned long long* reasons);
// CUDA Driver API (cuda.h).
using GetCurrentDevice = int (*)(int* device);
using GetBusId = int (*)(char* bus_id, int length, int device);

/// nvmlClocksThrottleReason...
constexpr std::pair<unsigned long long, const char*> kReasons[] = {
    {0x04, "power"},       {0x20, "heat"},     {0x40, "heat"},
    {0x80, "power brake"}, {0x08, "hardware"}, {0x10, "sync boost"}};

/// Calls a function that was found, with an argument for its result.
template <typename Function, typename Result, typename... Arguments>
bool call(void* function, Result* result, Arguments... arguments) {
  return function != nullptr && reinterpret_cast<Function>(function)(arguments..., result) == 0;
}

}  // namespace

std::string GpuState::text() const {
  std::string text = name;
  const auto add = [&](const std::optional<double>& value, const char* unit) {
    text += value ? fmt::format(", {:.0f} {}", *value, unit) : "";
  };
  add(watts, "W");
  add(clock_mhz, "MHz");
  add(celsius, "°C");
  for (const std::string& reason : throttled_by) {
    text += (&reason == &throttled_by.front() ? ", slowed down by " : " and ") + reason;
  }
  return text;
}

GpuMonitor::GpuMonitor(const char* management, const char* driver)
    : management_(dlopen(management, RTLD_NOW | RTLD_LOCAL)),
      driver_(dlopen(driver, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD)) {
  void* const begin = find("nvmlInit_v2");
  if (begin == nullptr || reinterpret_cast<Nullary>(begin)() != 0) {
    management_ = nullptr;  // stays open, as other libraries of NVIDIA's do
  }
}

GpuMonitor::~GpuMonitor() {
  if (void* const end = find("nvmlShutdown"); end != nullptr) {
    reinterpret_cast<Nullary>(end)();
  }
}

void* GpuMonitor::find(const char* name) const {
  return management_ == nullptr ? nullptr : dlsym(management_, name);
}

GpuState GpuMonitor::state_of(void* gpu) const {
  GpuState state;
  std::array<char, 96> name = {};
  if (void* const get_name = find("nvmlDeviceGetName");
      get_name != nullptr &&
      reinterpret_cast<GetName>(get_name)(gpu, name.data(), name.size()) == 0) {
    state.name = name.data();
  }
  unsigned value = 0;
  if (call<GetValue>(find("nvmlDeviceGetPowerUsage"), &value, gpu)) {
    state.watts = value / 1000.0;
  }
  if (call<GetValueOf>(find("nvmlDeviceGetClockInfo"), &value, gpu, kClockOfMultiprocessors)) {
    state.clock_mhz = value;
  }
  if (call<GetValueOf>(find("nvmlDeviceGetTemperature"), &value, gpu, kTemperatureOfChip)) {
    state.celsius = value;
  }
  unsigned long long reasons = 0;
  call<GetReasons>(find("nvmlDeviceGetCurrentClocksThrottleReasons"), &reasons, gpu);
  for (const auto& [bit, reason] : kReasons) {
    if ((reasons & bit) != 0 &&
        (state.throttled_by.empty() || state.throttled_by.back() != reason)) {
      state.throttled_by.emplace_back(reason);
    }
  }
  return state;
}

std::vector<GpuState> GpuMonitor::all() const {
  std::vector<GpuState> states;
  unsigned count = 0;
  call<GetCount>(find("nvmlDeviceGetCount_v2"), &count);
  for (unsigned index = 0; index < count; ++index) {
    void* gpu = nullptr;
    if (call<GetByIndex>(find("nvmlDeviceGetHandleByIndex_v2"), &gpu, index)) {
      states.push_back(state_of(gpu));
    }
  }
  return states;
}

std::optional<GpuState> GpuMonitor::current() const {
  if (driver_ == nullptr) {
    return std::nullopt;
  }
  int device = 0;
  std::array<char, 32> bus_id = {};
  void* const get_bus_id = dlsym(driver_, "cuDeviceGetPCIBusId");
  void* gpu = nullptr;
  const bool found =
      call<GetCurrentDevice>(dlsym(driver_, "cuCtxGetDevice"), &device) && get_bus_id != nullptr &&
      reinterpret_cast<GetBusId>(get_bus_id)(bus_id.data(), bus_id.size(), device) == 0 &&
      call<GetByBusId>(find("nvmlDeviceGetHandleByPciBusId_v2"), &gpu,
                       static_cast<const char*>(bus_id.data()));
  return found ? std::optional(state_of(gpu)) : std::nullopt;
}

}  // namespace fp8train
