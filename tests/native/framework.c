/* A framework that is linked with NCCL and does not know of the shim. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shim/nccl_api.h"

#define DECLARE(name, func, parameters, arguments, count, type, root) int nccl##name parameters;
COLLECTIVES(DECLARE)
TRANSFERS(DECLARE)
int ncclGroupStart(void);
int ncclGroupEnd(void);
int ncclCommInitRank(comm_t *comm, int ranks, unique_id id, int rank);
int ncclCommSplit(comm_t comm, int color, int key, comm_t *made, void *config);
int ncclCommShrink(comm_t comm, int *excluded, int n, comm_t *made, void *config, int flags);
int ncclCommDestroy(comm_t comm);
int ncclCommAbort(comm_t comm);
long fake_calls(void);
long fake_groups(void);

static volatile sig_atomic_t over;
static void end_early(int signal) { (void)signal, over = 1; }

static void must(int wrong) {
  if (wrong && wrong != NCCL_IN_PROGRESS) fprintf(stderr, "NCCL: %d\n", wrong), exit(1);
}

/* What NCCL 2.28 and later and RCCL have. */
static void newer(comm_t comm, stream_t stream, float *data) {
  size_t sizes[8] = {1, 2, 3, 4}, places[8] = {0};
  must(ncclAlltoAll(data, data, 8, 7, comm, stream));
  must(ncclAllToAll(data, data, 8, 7, comm, stream));
  must(ncclGather(data, data, 4, 7, 1, comm, stream));
  must(ncclScatter(data, data, 4, 7, 1, comm, stream));
  must(ncclAllReduceWithBias(data, data, 2, 7, 0, comm, stream, data));
  must(ncclAllReduceConfig(data, data, 2, 7, 0, comm, stream, NULL));
  must(ncclAlltoAllv(data, sizes, places, data, sizes, places, 7, comm, stream));
}

/* `steps` steps, or until SIGTERM where it is 0. */
void train(int rank, int ranks, int steps) {
  unique_id id;
  comm_t world, half;
  stream_t stream = &id;
  char number[16];
  float data[64] = {0};
  snprintf(number, sizeof number, "%d", rank);
  setenv("RANK", number, 1);
  signal(SIGTERM, end_early);
  memset(&id, 7, sizeof id);
  must(ncclCommInitRank(&world, ranks, id, rank));
  must(ncclCommSplit(world, rank % 2, rank, &half, NULL));
  int last = ranks - 1;
  comm_t rest = NULL;
  if (getenv("NEWER") && rank < last) must(ncclCommShrink(world, &last, 1, &rest, NULL, 0));
  for (int step = 0; (steps ? step < steps : 1) && !over; step++) {
    must(ncclAllGather(data, data, 16, 7, half, stream));
    must(ncclGroupStart());
    must(ncclReduceScatter(data, data, 32, 9, 0, world, stream));
    must(ncclGroupStart());
    must(ncclSend(data, 8, 7, (rank + 1) % ranks, world, stream));
    must(ncclRecv(data, 8, 7, (rank + ranks - 1) % ranks, world, stream));
    must(ncclGroupEnd());
    must(ncclAllReduce(data, data, 64, 6, 0, half, stream));
    must(ncclGroupEnd());
    must(ncclBcast(data, 4, 4, 0, world, stream));
    must(ncclBroadcast(data, data, 4, 4, 0, world, stream));
    must(ncclReduce(data, data, 4, 8, 0, 1, world, stream));
    if (getenv("NEWER")) newer(world, stream, data);
    if (rest) must(ncclAllReduce(data, data, 3, 7, 0, rest, stream));
    usleep(2000);
  }
  printf("rank %d: %ld calls, %ld groups\n", rank, fake_calls(), fake_groups());
  fflush(stdout);
  must(ncclCommAbort(half));
  must(ncclCommDestroy(world));
}
