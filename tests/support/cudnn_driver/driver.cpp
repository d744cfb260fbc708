// A libcuda.so.1 for machines without a GPU, for one purpose: cuDNN makes its plans for a GPU that
// is described to it, and asks the driver only to take the kernels that it has compiled. Taking
// them succeeds here, everything else fails as it does with the toolkit's stub.

extern "C" {

constexpr int kSuccess = 0;
constexpr int kStub = 34;
constexpr int kVersion = 13000;
constexpr int kRegisters = 128;

int cuDriverGetVersion(int* version) {
  *version = kVersion;
  return kSuccess;
}
int cuLibraryLoadData(void** library, const void* /*code*/) {
  static char loaded = 0;
  *library = &loaded;
  return kSuccess;
}
int cuLibraryUnload(void* /*library*/) {
  return kSuccess;
}
int cuLibraryGetKernel(void** kernel, void* library, const char* /*name*/) {
  *kernel = library;
  return kSuccess;
}
int cuKernelSetAttribute(int /*attribute*/, int /*value*/, void* /*kernel*/, int /*device*/) {
  return kSuccess;
}
int cuKernelGetAttribute(int* value, int /*attribute*/, void* /*kernel*/, int /*device*/) {
  *value = kRegisters;
  return kSuccess;
}

// What cuDNN looks up when it opens the driver.
#define FP8TRAIN_FAILS(name) \
  int name() {               \
    return kStub;            \
  }
FP8TRAIN_FAILS(cuCtxGetCurrent)
FP8TRAIN_FAILS(cuCtxGetDevice)
FP8TRAIN_FAILS(cuCtxGetLimit)
FP8TRAIN_FAILS(cuCtxPopCurrent)
FP8TRAIN_FAILS(cuCtxPopCurrent_v2)
FP8TRAIN_FAILS(cuCtxPushCurrent)
FP8TRAIN_FAILS(cuCtxPushCurrent_v2)
FP8TRAIN_FAILS(cuDeviceGet)
FP8TRAIN_FAILS(cuDeviceGetAttribute)
FP8TRAIN_FAILS(cuDeviceGetCount)
FP8TRAIN_FAILS(cuDevicePrimaryCtxRelease)
FP8TRAIN_FAILS(cuDevicePrimaryCtxReset)
FP8TRAIN_FAILS(cuDevicePrimaryCtxRetain)
FP8TRAIN_FAILS(cuFuncGetAttribute)
FP8TRAIN_FAILS(cuFuncSetAttribute)
FP8TRAIN_FAILS(cuGetErrorName)
FP8TRAIN_FAILS(cuGetErrorString)
FP8TRAIN_FAILS(cuInit)
FP8TRAIN_FAILS(cuLaunchCooperativeKernel)
FP8TRAIN_FAILS(cuLaunchKernel)
FP8TRAIN_FAILS(cuLaunchKernelEx)
FP8TRAIN_FAILS(cuLibraryLoadFromFile)
FP8TRAIN_FAILS(cuLinkAddData)
FP8TRAIN_FAILS(cuLinkAddData_v2)
FP8TRAIN_FAILS(cuLinkAddFile_v2)
FP8TRAIN_FAILS(cuLinkComplete)
FP8TRAIN_FAILS(cuLinkCreate)
FP8TRAIN_FAILS(cuLinkCreate_v2)
FP8TRAIN_FAILS(cuLinkDestroy)
FP8TRAIN_FAILS(cuMemcpyDtoH_v2)
FP8TRAIN_FAILS(cuModuleGetFunction)
FP8TRAIN_FAILS(cuModuleGetGlobal_v2)
FP8TRAIN_FAILS(cuModuleLoadData)
FP8TRAIN_FAILS(cuModuleLoadDataEx)
FP8TRAIN_FAILS(cuModuleLoadFatBinary)
FP8TRAIN_FAILS(cuModuleUnload)
FP8TRAIN_FAILS(cuOccupancyMaxActiveBlocksPerMultiprocessor)
FP8TRAIN_FAILS(cuOccupancyMaxPotentialClusterSize)
FP8TRAIN_FAILS(cuStreamGetCtx)
FP8TRAIN_FAILS(cuStreamSynchronize)
FP8TRAIN_FAILS(cuTensorMapEncodeTiled)

}  // extern "C"
