/* NCCL's functions as the shim takes their places, declared from the facts of their ABI: nccl.h of
 * NCCL 2.18.3 to 2.30.7 and of RCCL 2.21.5, which agree. docs/nccl.md says what was compared. */
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
    (send, recv, count, type, op, root, comm, stream), count, type, root)

#define TRANSFERS(X) \
  X(Send, "Send", \
    (const void *buffer, size_t count, int type, int peer, comm_t comm, stream_t stream), \
    (buffer, count, type, peer, comm, stream), count, type, peer) \
  X(Recv, "Recv", (void *buffer, size_t count, int type, int peer, comm_t comm, stream_t stream), \
    (buffer, count, type, peer, comm, stream), count, type, peer)

#endif
