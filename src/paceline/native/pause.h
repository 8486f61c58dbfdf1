/* All ranks stop after the same collective, wait, and continue: docs/pause.md. */
#ifndef PACELINE_PAUSE_H
#define PACELINE_PAUSE_H

#include <stdatomic.h>
#include <stdint.h>

#include "writer.h"

/* A collective as the requester compares it between ranks; its texts are never freed. */
struct queued {
  const char *func, *datatype;
  uint64_t count, seq;
};

/* On NCCL's threads. */
/* Returns the number of the collective in its communicator, from 0; UINT64_MAX: uncounted. */
uint64_t pause_count(uint32_t communicator, struct queued queued);
/* A group is queued. Takes no lock and makes no system call unless a pause is requested. */
void pause_point(void);

/* In init and finalize. `even`: the counts of all ranks agree even when graphs replay. */
void pause_begin(const char *folder, const char *host, int64_t begun_ns);
void pause_end(void);
void pause_opened(const struct communicator *given, int even);
void pause_closed(uint32_t number);
/* In the child of a fork. */
void pause_forked(void);

#endif
