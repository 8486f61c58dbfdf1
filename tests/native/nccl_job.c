/* A rank of a job that runs NVIDIA's own libnccl on a machine without a GPU:
 *   nccl_job LIBNCCL LIBNVML RANK RANKS FILE CALLS PAUSE_MS
 * The library's copy of the CUDA runtime is replaced, function by function, by what is below: memory
 * is the host's, and a kernel is a thread that keeps NCCL's proxies busy as a GPU would: it says that
 * each buffer is full, or has been read. All of NCCL that runs on the host is NVIDIA's: groups,
 * plans, proxies, sockets, profiler. No data is reduced.
 * SPLIT=1: ranks of one parity get a communicator of their own, which reduces after the first.
 * SEND_MB_S limits what this rank sends, RECV_MB_S what it receives: a slow NIC.
 * Layouts of kernel arguments: NCCL v2.27.7-1 to v2.30.7-1, src/include/device.h. Those of 2.31.2 and
 * 2.32.3 are in the debug information of the library. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { COMMUNICATORS = 8, STEPS = 8, CHANNELS = 64, CONNECTIONS = 2, EVENTS = 64, STEP_BYTES = 1 << 16 };

struct connection {
  char *buffers[3];
  void *handles[3];
  volatile uint64_t *tail, *head;
  int flags, shared, step_size;
  void **pointers;
  uint64_t *factors;
  ssize_t *fifo;
  uint64_t step, cleaned, device[4];
};
struct peer {
  struct connection send[CONNECTIONS], recv[CONNECTIONS];
};
struct channel {
  struct peer **peers;
  char other[360];
};
struct timers {
  volatile struct {
    uint64_t counter, time;
  } event[EVENTS];
};
struct communicator {
  int rank, ranks, node, nodes, sizes[3], chunk;
  char crosses;
  int nvlink;
  int *dense;
  volatile uint32_t *abort;
  struct channel *channels;
  int *local;
  struct timers *started, *completed;
};
struct arguments {
  struct communicator *communicator;
  uint64_t channels;
};

/* The device. */

static struct running {
  _Atomic(struct communicator *) all;
  atomic_ullong channels_used;
  _Atomic uint64_t launched_ns[CHANNELS];
} communicators[COMMUNICATORS];

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec;
}

/* Of an entry of a connection's fifo, in 8 bytes: mode and offset (from 2.31 on: a word each), size, data. */
static int fifo_words = 3, size_word = 1;

static void move(struct connection *send, struct connection *recv) {
  if (send->fifo && send->tail && send->head) {
    for (int i = 0; i < STEPS; i++) {
      volatile ssize_t *size = &send->fifo[i * fifo_words + size_word];
      if (*size == -1) *size = STEP_BYTES;
    }
    atomic_thread_fence(memory_order_seq_cst);
    *send->tail = *send->head + STEPS;
  }
  if (recv->tail && recv->head) *recv->head = *recv->tail;
}

static void tell(struct timers *timers, int channel, uint64_t counter) {
  for (int i = 0; i < EVENTS; i++) {
    timers[channel].event[i].time = now_ns();
    timers[channel].event[i].counter = counter;
  }
}

/* All kernels of a channel end 0.2 ms after the last one began. */
static void finish(struct running *one, int channel) {
  uint64_t begun = one->launched_ns[channel];
  if (!begun || now_ns() - begun < 200000) return;
  if (atomic_compare_exchange_strong(&one->launched_ns[channel], &begun, 0))
    tell(one->all->completed, channel, UINT64_MAX);
}

static void *device(void *given) {
  struct running *one = given;
  struct communicator *all = one->all;
  for (;; usleep(50))
    for (int channel = 0; channel < CHANNELS; channel++) {
      if (!(one->channels_used >> channel & 1)) continue;
      finish(one, channel);
      for (int rank = 0; rank < all->ranks; rank++) {
        struct peer *peer = all->channels[channel].peers[rank];
        for (int i = 0; peer && rank != all->rank && i < CONNECTIONS; i++)
          move(&peer->send[i], &peer->recv[i]);
      }
    }
  return NULL;
}

/* Of the communicator, which may be new: then its thread is started. */
static struct running *running_of(struct communicator *all) {
  pthread_t thread;
  for (int i = 0; i < COMMUNICATORS; i++) {
    struct communicator *none = NULL;
    if (communicators[i].all == all) return &communicators[i];
    if (!atomic_compare_exchange_strong(&communicators[i].all, &none, all)) continue;
    pthread_create(&thread, NULL, device, &communicators[i]);
    return &communicators[i];
  }
  exit(3);
}

static int launch(void *config, void *function, void **unused, void **more) {
  struct arguments *given = more[1];
  struct communicator *all = given->communicator;
  struct running *one = running_of(all);
  (void)config, (void)function, (void)unused;
  for (int channel = 0; channel < CHANNELS; channel++) {
    if (!(given->channels >> channel & 1)) continue;
    tell(all->completed, channel, 0);
    tell(all->started, channel, UINT64_MAX);
    one->launched_ns[channel] = now_ns();
  }
  one->channels_used |= given->channels;
  return 0;
}

/* A slow NIC: what passes NCCL's sockets keeps the next away. */

struct pace {
  const char *limit;
  _Atomic uint64_t free_ns;
};
static struct pace sent = {"SEND_MB_S", 0}, received = {"RECV_MB_S", 0};

static int must_wait(const struct pace *pace, size_t n) {
  return n >= 4096 && getenv(pace->limit) && now_ns() < pace->free_ns;
}

static void passed(struct pace *pace, ssize_t n) {
  const char *limit = getenv(pace->limit);
  if (limit && n >= 4096) pace->free_ns = now_ns() + (uint64_t)((double)n * 1e3 / atof(limit));
}

typedef ssize_t (*sender)(int, const void *, size_t, int);
typedef ssize_t (*receiver)(int, void *, size_t, int);

ssize_t send(int file, const void *data, size_t n, int flags) {
  if (must_wait(&sent, n)) return errno = EAGAIN, -1;
  ssize_t done = ((sender)dlsym(RTLD_NEXT, "send"))(file, data, n, flags);
  passed(&sent, done);
  return done;
}

ssize_t recv(int file, void *data, size_t n, int flags) {
  if (must_wait(&received, n)) return errno = EAGAIN, -1;
  ssize_t done = ((receiver)dlsym(RTLD_NEXT, "recv"))(file, data, n, flags);
  passed(&received, done);
  return done;
}

/* A host of its own for NCCL and for the plugin. */
int gethostname(char *name, size_t n) {
  return snprintf(name, n, "%s", getenv("HOST") ? getenv("HOST") : "host"), 0;
}

/* The CUDA runtime and driver, as far as NCCL asks; what is not here does nothing and succeeds. */

static int nothing(void) { return 0; }
static int one(int *n) { return *n = 1, 0; }
static int zero(int *n) { return *n = 0, 0; }
static int version(int *n) { return *n = 12080, 0; }
static int attribute(int *value, int which, int device) {
  enum { THREADS = 1, WARP = 10, PROCESSORS = 16, MAJOR = 75, SHARED = 97 };
  (void)device;
  *value = which == THREADS      ? 1024
           : which == WARP       ? 32
           : which == PROCESSORS ? 108
           : which == MAJOR      ? 8
           : which == SHARED     ? 166912
                                 : 0;
  return 0;
}
/* The least size that cudaDeviceProp has: 1,000 bytes in CUDA 13, 1,032 in CUDA 12. */
static int properties(void *all, int device) { return (void)device, memset(all, 0, 1000), 0; }
static int bus(char *text, int n, int device) {
  return (void)device, snprintf(text, (size_t)n, "0000:10:00.0"), 0;
}
static int allocate(void **p, size_t n) {
  *p = mmap(NULL, n ? n : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return *p == MAP_FAILED ? 2 : 0;
}
static int copy(void *to, const void *from, size_t n) { return memcpy(to, from, n), 0; }
static int set(void *to, int value, size_t n) { return memset(to, value, n), 0; }
static int handle(void **h) {
  static atomic_long n = 0x1000;
  return *h = (void *)atomic_fetch_add(&n, 1), 0;
}
static int capturing(void *stream, int *status) { return (void)stream, *status = 0, 0; }
static int kernel_attributes(void *all, const void *f) { return (void)f, memset(all, 0, 76), 0; }
static int same(void **to, void *from) { return *to = from, 0; }
static int call(void *stream, void (*f)(void *), void *data) { return (void)stream, f(data), 0; }
static int pointer(void *all, void *p) {
  struct {
    int type, device;
    void *there, *here;
  } *found = all;
  return found->type = 2, found->device = 0, found->there = found->here = p, 0;
}
static const char *text_of(int error) { return (void)error, "an error of the tests' device"; }
static int text_to(int error, const char **text) { return *text = text_of(error), 0; }
static int entry(const char *name, void **f, unsigned long long flags, int *status);
static int entry_of(const char *name, void **f, unsigned v, unsigned long long flags, int *status) {
  return (void)v, entry(name, f, flags, status);
}

static const struct {
  const char *name;
  void *function;
} functions[] = {
    {"cudaGetDeviceCount", one},
    {"cudaGetDevice", zero},
    {"cudaDriverGetVersion", version},
    {"cudaRuntimeGetVersion", version},
    {"cudaDeviceGetAttribute", attribute},
    {"cudaGetDeviceProperties", properties},
    {"cudaGetDeviceProperties_v2", properties},
    {"cudaDeviceGetPCIBusId", bus},
    {"cudaMalloc", allocate},
    {"cudaHostAlloc", allocate},
    {"cudaMallocHost", allocate},
    {"cudaMallocAsync", allocate},
    {"cudaMallocFromPoolAsync", allocate},
    {"cudaMemcpy", copy},
    {"cudaMemcpyAsync", copy},
    {"cudaMemset", set},
    {"cudaMemsetAsync", set},
    {"cudaStreamCreate", handle},
    {"cudaStreamCreateWithFlags", handle},
    {"cudaStreamCreateWithPriority", handle},
    {"cudaEventCreate", handle},
    {"cudaEventCreateWithFlags", handle},
    {"cudaMemPoolCreate", handle},
    {"cudaStreamGetCaptureInfo", capturing},
    {"cudaStreamGetCaptureInfo_v2", capturing},
    {"cudaStreamGetCaptureInfo_v3", capturing},
    {"cudaStreamIsCapturing", capturing},
    {"cudaFuncGetAttributes", kernel_attributes},
    {"cudaHostGetDevicePointer", same},
    {"cudaGetFuncBySymbol", same},
    {"cudaLaunchHostFunc", call},
    {"cudaPointerGetAttributes", pointer},
    {"cudaGetErrorString", text_of},
    {"cudaGetErrorName", text_of},
    {"cudaGetDriverEntryPoint", entry},
    {"cudaGetDriverEntryPointByVersion", entry_of},
    {"cuGetErrorString", text_to},
    {"cuGetErrorName", text_to},
    {"cuDeviceGet", zero},
    {"cuDeviceGetAttribute", attribute},
    {"cuCtxGetCurrent", handle},
    {"cuCtxGetDevice", zero},
    {"cuLaunchKernelEx", launch},
};

static void *find(const char *name) {
  size_t n = strlen(name);
  if (n > 5 && !strcmp(name + n - 5, "_ptsz")) n -= 5;
  for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
    if (strlen(functions[i].name) == n && !strncmp(functions[i].name, name, n))
      return functions[i].function;
  return (void *)nothing;
}

static int entry(const char *name, void **f, unsigned long long flags, int *status) {
  (void)flags;
  *f = find(name);
  return *status = 0, 0;
}

/* Puts a jump to ours at the begin of each cuda function of the library's own copy of the runtime,
 * found by the names in its file (x86-64). Returns how many. */
static int replace(const char *path, void *library) {
  struct link_map *map;
  struct stat is;
  int n = 0, number = open(path, O_RDONLY);
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) || number < 0 || fstat(number, &is)) return 0;
  const char *file = mmap(NULL, (size_t)is.st_size, PROT_READ, MAP_PRIVATE, number, 0);
  const Elf64_Ehdr *head = (const void *)file;
  const Elf64_Shdr *parts = (const void *)(file + head->e_shoff);
  for (int i = 0; i < head->e_shnum; i++) {
    if (parts[i].sh_type != SHT_SYMTAB) continue;
    const Elf64_Sym *symbols = (const void *)(file + parts[i].sh_offset);
    const char *names = file + parts[parts[i].sh_link].sh_offset;
    for (size_t k = 0; k < parts[i].sh_size / sizeof *symbols; k++) {
      const char *name = names + symbols[k].st_name;
      if (ELF64_ST_TYPE(symbols[k].st_info) != STT_FUNC || strncmp(name, "cuda", 4)) continue;
      if (name[4] < 'A' || name[4] > 'Z') continue;
      unsigned char *at = (unsigned char *)(map->l_addr + symbols[k].st_value);
      void *ours = find(name);
      if (mprotect((void *)((uintptr_t)at & ~4095UL), 8192, PROT_READ | PROT_WRITE | PROT_EXEC))
        return 0;
      memcpy(at, "\x49\xbb", 2); /* mov r11, ours; jmp r11 */
      memcpy(at + 2, &ours, 8);
      memcpy(at + 10, "\x41\xff\xe3", 3);
      n++;
    }
  }
  return n;
}

/* The job. */

#define CHECK(what) \
  do { \
    if (!(what)) fprintf(stderr, "line %d: %s\n", __LINE__, #what), exit(1); \
  } while (0)

struct id {
  char bytes[128];
};

static struct id share(void *library, const char *path, int rank) {
  struct id id;
  char part[4000];
  snprintf(part, sizeof part, "%s.part", path);
  if (rank == 0) {
    CHECK(!((int (*)(struct id *))dlsym(library, "ncclGetUniqueId"))(&id));
    FILE *file = fopen(part, "wb");
    CHECK(file && fwrite(&id, sizeof id, 1, file) == 1 && !fclose(file) && !rename(part, path));
    return id;
  }
  for (int i = 0; access(path, R_OK) && i < 30000; i++) usleep(1000);
  FILE *file = fopen(path, "rb");
  CHECK(file && fread(&id, sizeof id, 1, file) == 1 && !fclose(file));
  return id;
}

int main(int argc, char **argv) {
  CHECK(argc == 8 && dlopen(argv[2], RTLD_NOW | RTLD_GLOBAL));
  int rank = atoi(argv[3]), ranks = atoi(argv[4]), calls = atoi(argv[6]), pause = atoi(argv[7]);
  void *library = dlopen(argv[1], RTLD_NOW), *all = NULL, *data, *stream = (void *)1;
  CHECK(library && replace(argv[1], library) > 100);
  int number = 0;
  CHECK(!((int (*)(int *))dlsym(library, "ncclGetVersion"))(&number));
  if (number >= 23100) fifo_words = 4, size_word = 2;
  int (*init)(void **, int, struct id, int) = dlsym(library, "ncclCommInitRank");
  int (*reduce)(void *, void *, size_t, int, int, void *, void *) = dlsym(library, "ncclAllReduce");
  int (*send_to)(void *, size_t, int, int, void *, void *) = dlsym(library, "ncclSend");
  int (*recv_from)(void *, size_t, int, int, void *, void *) = dlsym(library, "ncclRecv");
  int (*group)(void) = dlsym(library, "ncclGroupStart"), (*end)(void) = dlsym(library, "ncclGroupEnd");
  CHECK(!init(&all, ranks, share(library, argv[5], rank), rank));
  CHECK(!allocate(&data, 1 << 22));
  int (*split)(void *, int, int, void **, void *) = dlsym(library, "ncclCommSplit");
  void *part = NULL;
  if (getenv("SPLIT")) CHECK(!split(all, rank % 2, rank, &part, NULL) && part);
  for (int n = 0; n < calls; n++) {
    CHECK(!reduce(data, data, 1 << 18, 7, 0, all, stream));
    if (part) CHECK(!reduce(data, data, 1 << 16, 7, 0, part, stream));
    usleep((unsigned)pause * 1000);
    if (!getenv("ALL_TO_ALL")) continue;
    CHECK(!group());
    for (int peer = 0; peer < ranks; peer++)
      if (peer != rank)
        CHECK(!send_to(data, 1 << 18, 7, peer, all, stream) &&
              !recv_from(data, 1 << 18, 7, peer, all, stream));
    CHECK(!end());
    usleep((unsigned)pause * 1000);
  }
  usleep(1000000);
  int (*destroy)(void *) = dlsym(library, "ncclCommDestroy");
  if (part) CHECK(!destroy(part));
  CHECK(!destroy(all));
  printf("rank %d made %d calls\n", rank, calls);
  return 0;
}
