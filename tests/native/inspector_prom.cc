/* What inspector_prom.cc of NVIDIA/nccl needs of the Inspector, and a job on standard input:
     gpu NODE UUID ID                     a GPU, of whose communicators the next lines tell
     comm NAME RANKS NODES                - = no name
     call FUNCTION BYTES US GB/S ALGO PROTO
     send FUNCTION BYTES US GB/S
   It writes the files of all GPUs into the folder of the first argument. */
#include "inspector_prom.h"

#include <inttypes.h>
#include <iostream>
#include <list>
#include <sstream>
#include <string>

extern ncclFunc_t ncclStringToFunc(const char* str);

static std::string node;

extern "C" int gethostname(char* name, size_t size) noexcept {
  snprintf(name, size, "%s", node.c_str());
  return 0;
}

static void quiet(ncclDebugLogLevel, unsigned long, const char*, int, const char*, ...) {}
ncclDebugLogger_t logFn = quiet;
struct inspectorState g_state;

const char* inspectorErrorString(inspectorResult_t) { return "error"; }
inspectorResult_t inspectorLockRd(pthread_rwlock_t*) { return inspectorSuccess; }
inspectorResult_t inspectorLockWr(pthread_rwlock_t*) { return inspectorSuccess; }
inspectorResult_t inspectorUnlockRWLock(pthread_rwlock_t*) { return inspectorSuccess; }
uint64_t inspectorGetTime() { return 1; }

inspectorDumpThread::inspectorDumpThread(const char*, int64_t) : jfo(nullptr) {}
inspectorDumpThread::~inspectorDumpThread() {}
FILE* inspectorDumpThread::getOrCreateFileHandle(const char*, const char* name, uint64_t) {
  return fopen(name, "a");
}

#include FUNCTIONS

static std::list<std::string> names;
static const char* kept(const std::string& text) {
  names.push_back(text);
  return names.back().c_str();
}

int main(int, char** argv) {
  inspectorDumpThread thread("", 0);
  inspectorCommInfoList list{};
  std::string line, uuid;
  int id = 0;
  auto write = [&] {
    if (list.comms) inspectorPromCommInfoListDump(&list, argv[1], &thread);
    list = inspectorCommInfoList{};
  };
  while (std::getline(std::cin, line)) {
    std::istringstream in(line);
    std::string what, name, algo, proto;
    in >> what;
    if (what == "gpu") {
      write();
      in >> node >> uuid >> id;
    } else if (what == "comm") {
      auto* comm = new inspectorCommInfo{};
      in >> name >> comm->nranks >> comm->nnodes;
      comm->commName = name == "-" ? nullptr : kept(name);
      comm->cudaDeviceId = id;
      snprintf(comm->deviceUuidStr, sizeof comm->deviceUuidStr, "%s", uuid.c_str());
      inspectorRingInit(&comm->completedCollRing, 1024, sizeof(inspectorCompletedOpInfo));
      inspectorRingInit(&comm->completedP2pRing, 1024, sizeof(inspectorCompletedOpInfo));
      comm->next = list.comms;
      list.comms = comm;
      list.ncomms++;
    } else {
      inspectorCompletedOpInfo op{};
      in >> name >> op.msgSizeBytes >> op.execTimeUsecs >> op.busBwGbs >> algo >> proto;
      op.func = ncclStringToFunc(name.c_str());
      op.isP2p = what == "send";
      op.algoBwGbs = op.busBwGbs;
      op.algo = kept(algo);
      op.proto = kept(proto);
      auto& ring = op.isP2p ? list.comms->completedP2pRing : list.comms->completedCollRing;
      (op.isP2p ? list.comms->dump_p2p : list.comms->dump_coll) = true;
      inspectorRingEnqueue(&ring, &op);
    }
  }
  write();
}
