/* As much of NVIDIA's management library as NCCL needs to believe in one GPU. */
#include <stddef.h>

enum { NOT_SUPPORTED = 3, P2P_UNKNOWN = 5 };

int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { return *n = 1, 0; }
int nvmlDeviceGetHandleByPciBusId(const char *bus, void **device) {
  return (void)bus, *device = (void *)1, 0;
}
int nvmlDeviceGetHandleByIndex(unsigned i, void **device) { return (void)i, *device = (void *)1, 0; }
int nvmlDeviceGetIndex(void *device, unsigned *i) { return (void)device, *i = 0, 0; }
const char *nvmlErrorString(int error) { return (void)error, "an error of the tests' device"; }
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
  return (void)device, *major = 8, *minor = 0, 0;
}
int nvmlDeviceGetP2PStatus(void *one, void *other, int which, int *status) {
  return (void)one, (void)other, (void)which, *status = P2P_UNKNOWN, 0;
}
int nvmlDeviceGetNvLinkState(void) { return NOT_SUPPORTED; }
int nvmlDeviceGetNvLinkRemotePciInfo(void) { return NOT_SUPPORTED; }
int nvmlDeviceGetNvLinkCapability(void) { return NOT_SUPPORTED; }
int nvmlDeviceGetFieldValues(void) { return NOT_SUPPORTED; }
