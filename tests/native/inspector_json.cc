/* What inspector_json.cc of NVIDIA/nccl needs of the Inspector, and a log on standard input:
     dump US                              a dump at this time; first comes the one of its file
     comm HASH NAME RANK RANKS NODES      of which the next lines tell; - = no name
     coll FUNCTION SN BYTES BEGIN_US END_US
     p2p FUNCTION SN BYTES BEGIN_US END_US PEER
   It writes what one process logs into the file of the first argument; a second one: verbose. */
#include "inspector_json.h"
#include "inspector_ring.h"

#include <iostream>
#include <list>
#include <sstream>
#include <string>

static void quiet(ncclDebugLogLevel, unsigned long, const char*, int, const char*, ...) {}
ncclDebugLogger_t logFn = quiet;
static bool verbose;
static uint64_t now_us;

const char* get_git_version_info() { return ""; }
const char* inspectorErrorString(inspectorResult_t) { return "error"; }
inspectorResult_t inspectorLockRd(pthread_rwlock_t*) { return inspectorSuccess; }
inspectorResult_t inspectorLockWr(pthread_rwlock_t*) { return inspectorSuccess; }
inspectorResult_t inspectorUnlockRWLock(pthread_rwlock_t*) { return inspectorSuccess; }
uint64_t inspectorGetTime() { return now_us; }
bool inspectorIsDumpVerboseEnabled() { return verbose; }

#include FUNCTIONS

static std::list<std::string> names;

int main(int count, char** argv) {
  verbose = count > 2;
  jsonFileOutput* out;
  if (jsonInitFileOutput(&out, argv[1]) != jsonSuccess) return 1;
  inspectorCommInfoList list{};
  std::string line;
  auto write = [&] {
    if (list.comms) inspectorCommInfoListDump(out, &list);
    list = inspectorCommInfoList{};
  };
  while (std::getline(std::cin, line)) {
    std::istringstream in(line);
    std::string what, name;
    in >> what;
    if (what == "dump") {
      write();
      in >> now_us;
    } else if (what == "comm") {
      auto* comm = new inspectorCommInfo{};
      std::string hash;
      in >> hash >> name >> comm->rank >> comm->nranks >> comm->nnodes;
      snprintf(comm->commHashStr, sizeof comm->commHashStr, "%s", hash.c_str());
      names.push_back(name);
      comm->commName = name == "-" ? nullptr : names.back().c_str();
      inspectorRingInit(&comm->completedCollRing, 4096, sizeof(inspectorCompletedOpInfo));
      inspectorRingInit(&comm->completedP2pRing, 4096, sizeof(inspectorCompletedOpInfo));
      comm->next = list.comms;
      list.comms = comm;
      list.ncomms++;
    } else {
      inspectorCompletedOpInfo op{};
      uint64_t begin_us, end_us;
      in >> name >> op.sn >> op.msgSizeBytes >> begin_us >> end_us >> op.peer;
      op.func = ncclStringToFunc(name.c_str());
      op.isP2p = what == "p2p";
      op.execTimeUsecs = end_us - begin_us;
      op.timingSource = inspectorTimingSourceKernelGpu;
      op.algoBwGbs = op.busBwGbs = 1.0;
      op.evtTrk.nChannels = 1;
      op.evtTrk.evntTrace[NCCL_INSP_EVT_TRK_OP_START].ts = begin_us;
      op.evtTrk.evntTrace[NCCL_INSP_EVT_TRK_OP_STOP].ts = end_us;
      auto& kernel = op.evtTrk.kernelCh[0].evntTrace;
      kernel[NCCL_INSP_EVT_TRK_KERNEL_START].ts = begin_us;
      kernel[NCCL_INSP_EVT_TRK_KERNEL_STOP].ts = end_us;
      kernel[NCCL_INSP_EVT_TRK_KERNEL_RECORD].ts = begin_us;
      auto& ring = op.isP2p ? list.comms->completedP2pRing : list.comms->completedCollRing;
      (op.isP2p ? list.comms->dump_p2p : list.comms->dump_coll) = true;
      inspectorRingEnqueue(&ring, &op);
    }
  }
  write();
  jsonFinalizeFileOutput(out);
}
