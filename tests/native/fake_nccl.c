/* A libnccl.so.2 of the tests: the real names, and a count of the calls that reached it. */
#include <stdlib.h>

#include "shim/nccl_api.h"

struct fake {
  int rank, ranks;
};
static long calls, groups, depth;

long fake_calls(void) { return calls; }
long fake_groups(void) { return groups; }

#define CALL(name, func, parameters, arguments, count, type, root) \
  int nccl##name parameters { \
    calls++; \
    return comm && stream ? 0 : 4; \
  }
#define BOTH(X) \
  X(AllReduce, "", (const void *s, void *r, size_t n, int t, int o, comm_t comm, stream_t stream), , , , ) \
  X(ReduceScatter, "", (const void *s, void *r, size_t n, int t, int o, comm_t comm, stream_t stream), , , , ) \
  X(AllGather, "", (const void *s, void *r, size_t n, int t, comm_t comm, stream_t stream), , , , ) \
  X(Broadcast, "", (const void *s, void *r, size_t n, int t, int o, comm_t comm, stream_t stream), , , , ) \
  X(Reduce, "", (const void *s, void *r, size_t n, int t, int o, int i, comm_t comm, stream_t stream), , , , ) \
  X(Send, "", (const void *b, size_t n, int t, int p, comm_t comm, stream_t stream), , , , ) \
  X(Recv, "", (void *b, size_t n, int t, int p, comm_t comm, stream_t stream), , , , )
BOTH(CALL)

/* As in NCCL one function of the job may be made of another. */
int ncclBcast(void *b, size_t n, int t, int root, comm_t comm, stream_t stream) {
  return ncclBroadcast(b, b, n, t, root, comm, stream);
}

/* NCCL 2.28 and 2.31, and RCCL. */
#define ARGUMENTS const void *s, void *r, size_t n, int t
#define END comm_t comm, stream_t stream
CALL(AlltoAll, "", (ARGUMENTS, END), , , , )
CALL(Gather, "", (ARGUMENTS, int root, END), , , , )
CALL(Scatter, "", (ARGUMENTS, int root, END), , , , )
CALL(AllReduceConfig, "", (ARGUMENTS, int op, END, const void *config), , , , )
CALL(AllReduceWithBias, "", (ARGUMENTS, int op, END, const void *bias), , , , )
CALL(AlltoAllv, "", (const void *s, const size_t *n, const size_t *at, void *r, const size_t *m,
                     const size_t *to, int t, END), , , , )
/* RCCL's old name calls the new one. */
int ncclAllToAll(ARGUMENTS, END) { return ncclAlltoAll(s, r, n, t, comm, stream); }

int ncclGroupStart(void) { return depth++, 0; }
int ncclGroupEnd(void) {
  if (!--depth) groups++;
  return 0;
}

static comm_t make(int rank, int ranks) {
  struct fake *one = malloc(sizeof *one);
  one->rank = rank, one->ranks = ranks;
  return one;
}
int ncclCommInitRank(comm_t *comm, int ranks, unique_id id, int rank) {
  (void)id;
  return *comm = make(rank, ranks), 0;
}
int ncclCommInitRankConfig(comm_t *comm, int ranks, unique_id id, int rank, void *config) {
  (void)config;
  return ncclCommInitRank(comm, ranks, id, rank);
}
int ncclCommInitAll(comm_t *comms, int n, const int *devices) {
  (void)devices;
  for (int i = 0; i < n; i++) comms[i] = make(i, n);
  return 0;
}
int ncclCommSplit(comm_t comm, int color, int key, comm_t *made, void *config) {
  struct fake *one = comm;
  (void)color, (void)key, (void)config;
  return *made = make(one->rank / 2, one->ranks / 2), 7;
}
int ncclCommShrink(comm_t comm, int *excluded, int n, comm_t *made, void *config, int flags) {
  struct fake *one = comm;
  int rank = one->rank;
  (void)config, (void)flags;
  for (int i = 0; i < n; i++) rank -= excluded[i] < one->rank;
  return *made = make(rank, one->ranks - n), 0;
}
int ncclCommUserRank(comm_t comm, int *rank) { return *rank = ((struct fake *)comm)->rank, 0; }
int ncclCommCount(comm_t comm, int *ranks) { return *ranks = ((struct fake *)comm)->ranks, 0; }
int ncclCommDestroy(comm_t comm) { return free(comm), 0; }
int ncclCommAbort(comm_t comm) { return free(comm), 0; }
