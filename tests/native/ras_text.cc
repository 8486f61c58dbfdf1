// What NCCL's src/ras/client_support.cc needs to print a status of processes that are not there.
//
// Its functions, from "rasClientRunInit" on, stand in the file RAS_CLIENT. The job is read from
// standard input, the argument is text (default), verbose or json; NCCL_MINOR and NCCL_PATCH are given:
//   peer <node> <pid> <gpu> <here 0|1> <dead 0|1>                 one process for each GPU
//   comm <hash> <size>                                            then its ranks
//   rank <rank> <peer> <init> <async> <finalize> <abort> <5 counts>
//   missing <rank> <peer>
#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#define NCCL_MAJOR 2
#define NCCL_SUFFIX ""
#define CUDA_MAJOR 13
#define CUDA_MINOR 0
#define NCCL_NUM_FUNCTIONS 5
#define NCCL_MAX_LOCAL_RANKS 64
#define ROUNDUP(x, y) ((((x) + (y) - 1) / (y)) * (y))
#define COMPILER_CLZ(x) __builtin_clz(x)
#define COMPILER_POPCOUNT32(x) __builtin_popcount(x)
#define COMPILER_POPCOUNT64(x) __builtin_popcountll(x)
#define CLOCK_UNITS_PER_SEC 1000000000
#define TRACE(...)
#define INFO(...)
#define NCCLCHECKGOTO(call, ret, label) \
  do { \
    ret = (call); \
    if (ret != ncclSuccess) goto label; \
  } while (0)

typedef enum {
  ncclSuccess, ncclUnhandledCudaError, ncclSystemError, ncclInternalError, ncclInvalidArgument,
  ncclInvalidUsage, ncclRemoteError, ncclInProgress, ncclNumResults
} ncclResult_t;
typedef int ncclPid_t;
union ncclSocketAddress { struct sockaddr sa; struct sockaddr_in sin; struct sockaddr_in6 sin6; };
typedef enum { RAS_OUTPUT_TEXT, RAS_OUTPUT_JSON } rasOutputFormat;
typedef enum { RAS_COLL_CONNS, RAS_COLL_COMMS } rasCollectiveType;
typedef enum { RAS_CLIENT_CONNS, RAS_CLIENT_FINISHED } rasClientStatus;
struct rasPeerInfo { union ncclSocketAddress addr; ncclPid_t pid; uint64_t cudaDevs, nvmlDevs; };
struct rasCommId { uint64_t commHash, hostHash, pidHash; };
struct rasCollective {
  int64_t startTime; int nFwdSent, nFwdRecv, nLegTimeouts;
  union ncclSocketAddress* peers; int nPeers; char* data; int nData;
};
struct rasCollRequest { rasCollectiveType type; int64_t timeout; };
struct rasClient {
  rasClientStatus status; int verbose; int64_t timeout; rasOutputFormat outputFormat;
  struct rasCollective* coll;
};
struct rasCollComms {
  int nComms;
  struct comm {
    struct rasCommId commId; int commNRanks, nRanks, nMissingRanks;
    struct rank {
      int commRank, peerIdx; uint64_t collOpCounts[NCCL_NUM_FUNCTIONS];
      struct {
        ncclResult_t initState : 4; ncclResult_t asyncError : 4;
        bool finalizeCalled : 1; bool destroyFlag : 1; bool abortFlag : 1;
      } status;
      char cudaDev, nvmlDev;
    } ranks[0];
  } comms[0];
};
struct rasCollCommsMissingRank {
  int commRank; union ncclSocketAddress addr; char cudaDev, nvmlDev;
};

static const char* ncclFuncStr[] = {"Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"};
typedef int ncclFunc_t;
static const char* ncclFuncToString(ncclFunc_t func) { return ncclFuncStr[func]; }
static struct rasPeerInfo* rasPeers;
static union ncclSocketAddress* rasDeadPeers;
static int nRasPeers, nRasDeadPeers;
static char rasLine[256];

template <typename T> ncclResult_t ncclCalloc(T** p, size_t n) {
  *p = static_cast<T*>(calloc(n + 1, sizeof(T)));
  return ncclSuccess;
}
template <typename T> ncclResult_t ncclRealloc(T** p, size_t, size_t n) {
  *p = static_cast<T*>(realloc(*p, n * sizeof(T)));
  return ncclSuccess;
}
static int64_t clockNano() { return 0; }
static int ncclSocketsCompare(const void* a, const void* b) {
  return memcmp(a, b, sizeof(union ncclSocketAddress));
}
static bool ncclSocketsSameNode(const union ncclSocketAddress* a, const union ncclSocketAddress* b) {
  return a->sin.sin_addr.s_addr == b->sin.sin_addr.s_addr;
}
static int rasPeerFind(const union ncclSocketAddress* addr) {
  for (int i = 0; i < nRasPeers; i++)
    if (!ncclSocketsCompare(addr, &rasPeers[i].addr)) return i;
  return -1;
}
static bool rasPeerIsDead(const union ncclSocketAddress* addr) {
  for (int i = 0; i < nRasDeadPeers; i++)
    if (!ncclSocketsCompare(addr, rasDeadPeers + i)) return true;
  return false;
}
static void rasCollFree(struct rasCollective*) {}
static void cudaRuntimeGetVersion(int* version) { *version = 13000; }
static void cudaDriverGetVersion(int* version) { *version = 13000; }
static void rasCollReqInit(struct rasCollRequest*) {}
static ncclResult_t rasNetSendCollReq(struct rasCollRequest*, bool* done, struct rasCollective**) {
  *done = true;
  return ncclSuccess;
}
static ncclResult_t rasClientAllocMsg(char** msg, size_t n) { return ncclCalloc(msg, n); }
static void rasClientEnqueueMsg(struct rasClient*, char* msg, size_t n) { fwrite(msg, 1, n, stdout); }
const char* rasGpuDevsToString(uint64_t cudaDevs, uint64_t nvmlDevs, char* buf, size_t size);

#include RAS_CLIENT

struct Peer { rasPeerInfo info; bool here, dead; };

int main(int argc, char** argv) {
  std::vector<Peer> peers;
  std::string data(sizeof(int), '\0'), line;
  std::vector<union ncclSocketAddress> here, dead;
  std::vector<int> index;  // of a peer among those that are here
  size_t comm_at = 0;
  int n_comms = 0;
  // A communicator follows its four fields of numbers, which have to lie where a long may.
  data.resize(offsetof(rasCollComms, comms));
  auto comm = [&] { return reinterpret_cast<rasCollComms::comm*>(&data[comm_at]); };
  while (std::getline(std::cin, line)) {
    std::istringstream in(line);
    std::string what;
    in >> what;
    if (what == "peer") {
      Peer peer = {};
      std::string node;
      int gpu;
      in >> node >> peer.info.pid >> gpu >> peer.here >> peer.dead;
      peer.info.addr.sin.sin_family = AF_INET;
      peer.info.addr.sin.sin_port = htons(1000 + peers.size());
      inet_pton(AF_INET, node.c_str(), &peer.info.addr.sin.sin_addr);
      peer.info.cudaDevs = peer.info.nvmlDevs = 1ull << gpu;
      index.push_back(here.size());
      peers.push_back(peer);
      if (peer.here) here.push_back(peer.info.addr);
      if (peer.dead) dead.push_back(peer.info.addr);
    } else if (what == "comm") {
      comm_at = data.size();
      data.resize(comm_at + sizeof(rasCollComms::comm));
      in >> std::hex >> comm()->commId.commHash >> std::dec >> comm()->commNRanks;
      n_comms++;
    } else if (what == "rank") {
      rasCollComms::comm::rank rank = {};
      int peer, init, async, finalize, abort;
      in >> rank.commRank >> peer >> init >> async >> finalize >> abort;
      for (uint64_t& n : rank.collOpCounts) in >> n;
      rank.peerIdx = index[peer];
      rank.status.initState = static_cast<ncclResult_t>(init);
      rank.status.asyncError = static_cast<ncclResult_t>(async);
      rank.status.finalizeCalled = finalize;
      rank.status.abortFlag = abort;
      rank.cudaDev = rank.nvmlDev = __builtin_ctzll(peers[peer].info.cudaDevs);
      data.append(reinterpret_cast<char*>(&rank), sizeof(rank));
      comm()->nRanks++;
    } else if (what == "missing") {
      rasCollCommsMissingRank rank = {};
      int peer;
      in >> rank.commRank >> peer;
      rank.addr = peers[peer].info.addr;
      rank.cudaDev = rank.nvmlDev = __builtin_ctzll(peers[peer].info.cudaDevs);
      data.append(reinterpret_cast<char*>(&rank), sizeof(rank));
      comm()->nMissingRanks++;
    }
  }
  std::vector<rasPeerInfo> infos;
  for (Peer& peer : peers) infos.push_back(peer.info);
  rasPeers = infos.data();
  nRasPeers = infos.size();
  rasDeadPeers = dead.data();
  nRasDeadPeers = dead.size();
  reinterpret_cast<rasCollComms*>(&data[0])->nComms = n_comms;
  rasCollective coll = {};
  coll.peers = here.data();
  coll.nPeers = here.size();
  coll.nLegTimeouts = peers.size() - here.size() - dead.size();
  coll.data = &data[0];
  rasClient client = {};
  client.verbose = argc > 1 && !strcmp(argv[1], "verbose");
  client.outputFormat = argc > 1 && !strcmp(argv[1], "json") ? RAS_OUTPUT_JSON : RAS_OUTPUT_TEXT;
  if (rasClientRunInit(&client) != ncclSuccess) return 1;
  client.coll = &coll;
  return rasClientRunComms(&client);
}
