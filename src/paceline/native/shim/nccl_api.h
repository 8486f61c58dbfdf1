/* NCCL's functions that the shim replaces, declared from the facts of their ABI: nccl.h of
 * NCCL 2.18.3 to 2.32.3 and of RCCL, which agree. docs/nccl.md lists the comparisons. */
#ifndef PACELINE_NCCL_API_H
#define PACELINE_NCCL_API_H

#include <stddef.h>

typedef void *comm_t;
typedef void *stream_t; /* of CUDA or HIP */
typedef struct {
  char internal[128];
} unique_id;

enum { NCCL_SUCCESS = 0, NCCL_INTERNAL_ERROR = 3, NCCL_IN_PROGRESS = 7, SPLIT_NOCOLOR = -1 };

/* X(name, name in records, parameters, arguments, count, datatype, root) */
#define COLLECTIVES(X) \
  X(AllReduce, "AllReduce", \
    (const void *send, void *recv, size_t count, int type, int op, comm_t comm, stream_t stream), \
    (send, recv, count, type, op, comm, stream), count, type, -1) \
  X(ReduceScatter, "ReduceScatter", \
    (const void *send, void *recv, size_t count, int type, int op, comm_t comm, stream_t stream), \
    (send, recv, count, type, op, comm, stream), count, type, -1) \
  X(AllGather, "AllGather", \
    (const void *send, void *recv, size_t count, int type, comm_t comm, stream_t stream), \
    (send, recv, count, type, comm, stream), count, type, -1) \
  X(Broadcast, "Broadcast", \
    (const void *send, void *recv, size_t count, int type, int root, comm_t comm, stream_t stream), \
    (send, recv, count, type, root, comm, stream), count, type, root) \
  X(Bcast, "Broadcast", \
    (void *buffer, size_t count, int type, int root, comm_t comm, stream_t stream), \
    (buffer, count, type, root, comm, stream), count, type, root) \
  X(Reduce, "Reduce", \
    (const void *send, void *recv, size_t count, int type, int op, int root, comm_t comm, \
     stream_t stream), \
    (send, recv, count, type, op, root, comm, stream), count, type, root) \
  ROOTLESS(X, AlltoAll, "AlltoAll") /* NCCL 2.28 and later, RCCL */ \
  ROOTLESS(X, AllToAll, "AlltoAll") /* RCCL */ \
  ROOTED(X, Gather, "Gather") \
  ROOTED(X, Scatter, "Scatter") \
  X(AllReduceWithBias, "AllReduce", /* RCCL */ \
    (const void *send, void *recv, size_t count, int type, int op, comm_t comm, stream_t stream, \
     const void *bias), \
    (send, recv, count, type, op, comm, stream, bias), count, type, -1) \
  VECTOR(X, AlltoAllv) \
  VECTOR(X, AllToAllv) \
  CONFIGURED(X)

#define ROOTLESS(X, name, func) \
  X(name, func, (const void *send, void *recv, size_t count, int type, comm_t comm, stream_t stream), \
    (send, recv, count, type, comm, stream), count, type, -1)
#define ROOTED(X, name, func) \
  X(name, func, \
    (const void *send, void *recv, size_t count, int type, int root, comm_t comm, stream_t stream), \
    (send, recv, count, type, root, comm, stream), count, type, root)
/* RCCL: sizes differ between ranks; none is recorded, as a pause compares them. */
#define VECTOR(X, name) \
  X(name, "AlltoAllv", \
    (const void *send, const size_t *sends, const size_t *from, void *recv, const size_t *recvs, \
     const size_t *to, int type, comm_t comm, stream_t stream), \
    (send, sends, from, recv, recvs, to, type, comm, stream), 0, type, -1)

/* NCCL 2.31 and later: the same with settings of this call as last argument. */
#define CONFIGURED(X) \
  REDUCED(X, AllReduce) \
  REDUCED(X, ReduceScatter) \
  CONFIGURED_ROOTLESS(X, AllGather) \
  CONFIGURED_ROOTLESS(X, AlltoAll) \
  CONFIGURED_ROOTED(X, Broadcast) \
  CONFIGURED_ROOTED(X, Gather) \
  CONFIGURED_ROOTED(X, Scatter) \
  X(ReduceConfig, "Reduce", \
    (const void *send, void *recv, size_t count, int type, int op, int root, comm_t comm, \
     stream_t stream, const void *config), \
    (send, recv, count, type, op, root, comm, stream, config), count, type, root)
#define REDUCED(X, name) \
  X(name##Config, #name, \
    (const void *send, void *recv, size_t count, int type, int op, comm_t comm, stream_t stream, \
     const void *config), \
    (send, recv, count, type, op, comm, stream, config), count, type, -1)
#define CONFIGURED_ROOTLESS(X, name) \
  X(name##Config, #name, \
    (const void *send, void *recv, size_t count, int type, comm_t comm, stream_t stream, \
     const void *config), \
    (send, recv, count, type, comm, stream, config), count, type, -1)
#define CONFIGURED_ROOTED(X, name) \
  X(name##Config, #name, \
    (const void *send, void *recv, size_t count, int type, int root, comm_t comm, stream_t stream, \
     const void *config), \
    (send, recv, count, type, root, comm, stream, config), count, type, root)

#define TRANSFERS(X) \
  X(Send, "Send", \
    (const void *buffer, size_t count, int type, int peer, comm_t comm, stream_t stream), \
    (buffer, count, type, peer, comm, stream), count, type, peer) \
  X(Recv, "Recv", (void *buffer, size_t count, int type, int peer, comm_t comm, stream_t stream), \
    (buffer, count, type, peer, comm, stream), count, type, peer)

#endif
