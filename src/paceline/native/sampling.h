/* Records one step in n once the period of the calls is known: docs/nccl.md. */
#ifndef PACELINE_SAMPLING_H
#define PACELINE_SAMPLING_H

#include <stdint.h>

#include "pause.h"
#include "ring.h"

/* On NCCL's threads. */

/* A mark in the files: a step begins with the collective whose handle it has; or from that one on,
 * at `place` in a step, all is recorded again: every = 0. */
struct mark {
  uint64_t step, place;
  int calls, every;
};
enum { NO_MARK, STEP_BEGINS, STEPS_END };
/* Counts a collective before its record is made; `n` is its number in the communicator, from 0. */
int sampling_call(uint32_t communicator, uint64_t n, struct queued queued, struct mark *mark);
/* Writes the mark after the collective's record. */
void sampling_put(struct ring *ring, const struct mark *mark, uint32_t communicator, uint64_t handle);
/* Whether sampling leaves this step out. */
int sampling_skips(void);

/* On the helper's thread. */

/* Sets n from the control file; 0: from the environment. */
void sampling_ask(int every);
/* Searches the period of the leader's calls; returns that communicator, 0 while none is chosen. */
void sampling_learn(uint32_t leader);

#endif
