/* All ranks stop after the same collective, stand, and go on: docs/pause.md. */
#ifndef PACELINE_PAUSE_H
#define PACELINE_PAUSE_H

#include <stdatomic.h>
#include <stdint.h>

#include "writer.h"

/* A collective as the asker compares it between ranks; texts that never go away. */
struct queued {
  const char *func, *datatype;
  uint64_t count, seq;
};

/* On NCCL's threads. */
/* Returns the number of the collective in its communicator, from 0; UINT64_MAX: not counted. */
uint64_t pause_count(uint32_t communicator, struct queued queued);
/* All of a group is queued. No lock and no system call while no pause is asked. */
void pause_point(void);

/* In init and finalize. `even`: counts of all ranks agree, whatever graphs replay. */
void pause_begin(const char *folder, const char *host, int64_t begun_ns);
void pause_end(void);
void pause_opened(const struct communicator *given, int even);
void pause_closed(uint32_t number);
/* In a child of fork. */
void pause_forked(void);

#endif
