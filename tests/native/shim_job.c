/* shim_job FRAMEWORK|linked RANKS STEPS: each rank a process. FRAMEWORK is opened as Python opens
 * its modules, for itself alone; "linked" takes what the program is linked with. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef LINKED
void train(int rank, int ranks, int steps);
#else
static void (*train)(int rank, int ranks, int steps);
#endif

int main(int argc, char **argv) {
  int ranks = argc > 3 ? atoi(argv[2]) : 0, failed = 0, status;
#ifndef LINKED
  void *lib = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (!lib) return fprintf(stderr, "%s\n", dlerror()), 1;
  train = (void (*)(int, int, int))dlsym(lib, "train");
#endif
  signal(SIGTERM, SIG_IGN);
  for (int rank = 0; rank < ranks; rank++)
    if (!fork()) {
      prctl(PR_SET_PDEATHSIG, SIGTERM);
      train(rank, ranks, atoi(argv[3]));
      exit(0);
    }
  for (int rank = 0; rank < ranks; rank++) wait(&status), failed |= status;
  return !!failed;
}
