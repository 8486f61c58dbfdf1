/* One step in n is recorded, once the period of the calls is known: docs/nccl.md. */
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
/* Counts a collective in; before its record is made. `n` is its number in its communicator, from 0. */
int sampling_call(uint32_t communicator, uint64_t n, struct queued queued, struct mark *mark);
/* Its record, behind that of the collective. */
void sampling_put(struct ring *ring, const struct mark *mark, uint32_t communicator, uint64_t handle);
/* Whether this step is left out. */
int sampling_skips(void);

/* On the helper's thread. */

/* What the control file asks for; 0: what the environment does. */
void sampling_ask(int every);
/* The communicator whose calls tell the steps, 0 for none yet; looks for the period of its calls. */
void sampling_learn(uint32_t leader);

#endif
