// A management library and a driver with two GPUs, for tests of GpuMonitor. The calling thread
// computes on the second one, which reports no temperature.

#include <cstring>

namespace {

struct Gpu {
  const char* bus_id;
  unsigned milliwatts, clock;
  unsigned long long reasons;
};
Gpu gpus[] = {{"0000:17:00.0", 76500, 345, 0x1}, {"0000:65:00.0", 698000, 1755, 0x4 | 0x20 | 0x40}};
int users = 0;

}  // namespace

extern "C" {
int fake_users() {
  return users;
}
int nvmlInit_v2() {
  return ++users, 0;
}
int nvmlShutdown() {
  return --users, 0;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  return *count = 2, 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Gpu** gpu) {
  return *gpu = &gpus[index], 0;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, Gpu** gpu) {
  for (Gpu& one : gpus) {
    if (std::strcmp(one.bus_id, bus_id) == 0) {
      return *gpu = &one, 0;
    }
  }
  return 6;  // NVML_ERROR_NOT_FOUND
}
int nvmlDeviceGetName(Gpu*, char* name, unsigned length) {
  return std::strncpy(name, "NVIDIA Fake", length), 0;
}
int nvmlDeviceGetPowerUsage(Gpu* gpu, unsigned* value) {
  return *value = gpu->milliwatts, 0;
}
int nvmlDeviceGetClockInfo(Gpu* gpu, int kind, unsigned* value) {
  return *value = kind == 1 ? gpu->clock : 1, 0;
}
int nvmlDeviceGetTemperature(Gpu* gpu, int sensor, unsigned* value) {
  *value = sensor == 0 ? 31 : 1;
  return gpu == gpus ? 0 : 3;  // NVML_ERROR_NOT_SUPPORTED
}
int nvmlDeviceGetCurrentClocksThrottleReasons(Gpu* gpu, unsigned long long* reasons) {
  return *reasons = gpu->reasons, 0;
}
int cuCtxGetDevice(int* device) {
  return *device = 1, 0;
}
int cuDeviceGetPCIBusId(char* bus_id, int length, int device) {
  return std::strncpy(bus_id, gpus[device].bus_id, static_cast<unsigned>(length)), 0;
}
}
