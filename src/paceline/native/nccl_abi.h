/* The profiler interface of NCCL, versions 4 to 7, declared from the facts of its ABI.
 * Facts and their files: docs/nccl.md. The fields used here lie at the same offsets in all four. */
#ifndef PACELINE_NCCL_ABI_H
#define PACELINE_NCCL_ABI_H

#include <stddef.h>
#include <stdint.h>

/* Bits of the type of an event; a bit's number is the code in a record. */
enum { EV_GROUP, EV_COLL, EV_P2P, EV_PROXY_OP, EV_PROXY_STEP, EV_PROXY_CTRL, EV_KERNEL, EV_NET };
enum { EV_CE_COLL = 12, EV_LAST = 14 };

/* States whose argument (size_t or uint64_t) is recorded; the others have none. */
enum { STATE_SEND_WAIT = 9, STATE_RECV_FLUSH_WAIT = 11, STATE_KERNEL_STOP = 22 };
/* Repeated at each poll of the proxy until the peer is ready. */
enum { STATE_SEND_PEER_WAIT = 20 };

/* An event of a network plugin; its identifier names the layout and the version. */
#define NET_IB 0x10001
#define NET_SOCKET 0x20001
enum { NET_QP = 1, NET_SOCK = 1 };
struct net_ib {
  uint8_t type;
  int device __attribute__((aligned(8)));
  uint64_t work;
  int opcode, qp;
  size_t length;
};
struct net_socket {
  uint8_t type;
  int file __attribute__((aligned(8)));
  int op;
  size_t length;
};
_Static_assert(offsetof(struct net_ib, device) == 8 && offsetof(struct net_ib, length) == 32, "ABI");
_Static_assert(offsetof(struct net_socket, op) == 12 && offsetof(struct net_socket, length) == 16,
               "ABI");

struct coll {
  uint64_t seq;
  const char *func;
  const void *send;
  void *recv;
  size_t count;
  int root;
  const char *datatype;
  uint8_t channels, warps; /* these and the fields below are absent in copy-engine collectives */
  const char *algo, *proto;
};
struct p2p {
  const char *func;
  void *buffer;
  const char *datatype;
  size_t count;
  int peer;
  uint8_t channels;
};
struct proxy_op {
  int pid;
  uint8_t channel;
  int peer, steps, chunk, is_send;
};
struct kernel {
  uint8_t channel;
  uint64_t timer;
};
struct net {
  int64_t id;
  const void *data;
};

/* Version 4 stores the type in one byte, later versions in eight. */
struct descriptor {
  union {
    uint8_t type8;
    uint64_t type64;
  };
  void *parent;
  int rank;
  union {
    struct coll coll;
    struct p2p p2p;
    struct proxy_op proxy_op;
    struct kernel kernel;
    int step;
    struct net net;
  };
};
_Static_assert(offsetof(struct descriptor, parent) == 8, "ABI");
_Static_assert(offsetof(struct descriptor, coll) == 24, "ABI");
_Static_assert(offsetof(struct coll, datatype) == 48, "ABI");
_Static_assert(offsetof(struct coll, algo) == 64, "ABI");
_Static_assert(offsetof(struct kernel, timer) == 8, "ABI");

typedef void (*logger)(int level, unsigned long flags, const char *file, int line,
                       const char *format, ...);

/* All functions return 0 on success. Version 5 changed the order of init's arguments. */
struct profiler_v4 {
  const char *name;
  int (*init)(void **context, int *mask, const char *name, uint64_t hash, int nodes, int ranks,
              int rank, logger log);
  int (*start)(void *context, void **handle, struct descriptor *event);
  int (*stop)(void *handle);
  int (*state)(void *handle, int state, uint64_t *args);
  int (*finalize)(void *context);
};
struct profiler_v5 {
  const char *name;
  int (*init)(void **context, uint64_t id, int *mask, const char *name, int nodes, int ranks,
              int rank, logger log);
  int (*start)(void *context, void **handle, struct descriptor *event);
  int (*stop)(void *handle);
  int (*state)(void *handle, int state, uint64_t *args);
  int (*finalize)(void *context);
};

#endif
