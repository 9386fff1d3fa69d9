// What `cells.cu` and `images.cu` ask of the machine, on GPUs of compute capability 9.0: products by groups of four
// warps out of shared memory (wgmma), weights brought by the copy engine (cp.async.bulk).

__device__ inline float as_float(unsigned word) { return __uint_as_float(word); }
__device__ inline unsigned as_word(float v) { return __float_as_uint(v); }
__device__ inline float square_root(float v) { return sqrtf(v); }
__device__ inline float exponential(float v) { return __expf(v); }
__device__ inline float shuffled(float v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }

__device__ inline int uniform(int v) { return __shfl_sync(0xffffffffu, v, 0); } // of a warp, as the compiler knows

// Has the compiler make again what it makes of v, instead of keeping it in registers from image to image.
__device__ inline void forget(int &v) { asm volatile("" : "+r"(v)); }

#if HALF
#define HALVES "f16"
#else
#define HALVES "bf16"
#endif

__device__ inline unsigned halves(float low, float high) {
  unsigned word;
  asm("cvt.rn." HALVES "x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

__device__ inline void lows_and_highs(unsigned word, float &low, float &high) {
#if HALF
  asm("{ .reg .f16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b; }"
      : "=f"(low), "=f"(high)
      : "r"(word));
#else
  low = as_float(word << 16), high = as_float(word & 0xffff0000u);
#endif
}

__device__ inline char *block_memory() {
  extern __shared__ __align__(128) char memory[];
  return memory;
}

__device__ inline void all_together() { __syncthreads(); }
__device__ inline void meet(int slot) { asm volatile("bar.sync %0, %1;" ::"r"(slot + 1), "n"(128) : "memory"); }

// From memory to shared memory; there once `copied` has returned.
__device__ inline void copy(float *to, const float *from) {
  unsigned at = (unsigned)__cvta_generic_to_shared(to);
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(from) : "memory");
}
__device__ inline void copied() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// What a thread wrote to shared memory may be read by products once the threads have met.
__device__ inline void hand_over() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- copies by the copy engine ----

typedef unsigned long long Arrival; // an mbarrier

struct Part {
  char *to;
  const char *from;
  int bytes;
};

__device__ inline unsigned shared(const void *at) { return (unsigned)__cvta_generic_to_shared(at); }

// Of a block's first thread; the others must meet it before they wait.
__device__ inline void begin_arrivals(Arrival *arrivals, int count) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < count; i++)
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared(arrivals + i)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
}

__device__ inline void expect(Arrival &arrival, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared(&arrival)), "r"(bytes) : "memory");
}

__device__ inline void bring_part(Arrival &arrival, const Part &part) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared(part.to)),
      "l"(part.from), "r"(part.bytes), "r"(shared(&arrival))
      : "memory");
}

// Begins to bring each part; `await` waits for it. Threads must meet in between.
template <int COUNT> __device__ void bring_each(Arrival *arrivals, const Part (&parts)[COUNT]) {
  begin_arrivals(arrivals, COUNT);
  if (threadIdx.x == 0) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
      expect(arrivals[i], parts[i].bytes);
      bring_part(arrivals[i], parts[i]);
    }
  }
}

// Two parts that arrive as one; of a single thread.
__device__ inline void bring_both(Arrival &arrival, Part a, Part b) {
  expect(arrival, a.bytes + b.bytes);
  bring_part(arrival, a);
  bring_part(arrival, b);
}

__device__ inline void await(Arrival &arrival, int round = 0) {
  unsigned done = 0;
  while (!done)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(shared(&arrival)), "r"(round)
                 : "memory");
}

// Begins to write what has been handed over to memory; once the same thread has waited, it may be overwritten.
__device__ inline void send_bytes(char *to, const char *from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared(from)), "r"(bytes)
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
__device__ inline void bytes_sent() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

// ---- products ----

// Keeps the compiler from moving reads and writes of the sums past a wait.
template <int COUNT> __device__ void hold(float (&d)[COUNT]) {
#pragma unroll
  for (int i = 0; i < COUNT; i++)
    asm volatile("" : "+f"(d[i])::"memory");
}

template <int COUNT> __device__ void begin_products(float (&d)[COUNT]) {
  hold(d);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ inline void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int COUNT> __device__ void await_products(float (&d)[COUNT]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  hold(d);
}

struct Operand {
  unsigned long long word;
};

// An operand's 8x16-byte blocks, one behind another, 128 bytes a block, and `next` bytes to the next 16 of its depth.
__device__ inline Operand operand(const char *at, int next) {
  Operand made{(shared(at) & 0x3ffff) >> 4 | (unsigned long long)(next >> 4) << 16 |
               (unsigned long long)(128 >> 4) << 32};
  asm volatile("" : "+l"(made.word)); // else every product's operands are made ahead of all, and kept in registers
  return made;
}

// An operand whose depth are cells, of planes so far apart; for `multiply_cells`.
__device__ inline Operand operand_of_cells(const char *at, int plane) {
  Operand made{(shared(at) & 0x3ffff) >> 4 | (unsigned long long)(128 >> 4) << 16 |
               (unsigned long long)(plane >> 4) << 32};
  asm volatile("" : "+l"(made.word));
  return made;
}

// The same so many bytes further on.
__device__ inline Operand moved(Operand from, int bytes) { return {from.word + (bytes >> 4)}; }

#define NAMES8(a, b, c, d, e, f, g, h) "%" #a ",%" #b ",%" #c ",%" #d ",%" #e ",%" #f ",%" #g ",%" #h
#define SUMS8(i)                                                                                              \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define NAMES16 NAMES8(0, 1, 2, 3, 4, 5, 6, 7) "," NAMES8(8, 9, 10, 11, 12, 13, 14, 15)
#define NAMES32 NAMES16 "," NAMES8(16, 17, 18, 19, 20, 21, 22, 23) "," NAMES8(24, 25, 26, 27, 28, 29, 30, 31)
#define NAMES64                                                                                             \
  NAMES32 "," NAMES8(32, 33, 34, 35, 36, 37, 38, 39) "," NAMES8(40, 41, 42, 43, 44, 45, 46, 47) "," NAMES8( \
      48, 49, 50, 51, 52, 53, 54, 55) "," NAMES8(56, 57, 58, 59, 60, 61, 62, 63)
#define MULTIPLY(COLUMNS, NAMES, A, B, TURNED, ...)                                                                \
  asm volatile("{ .reg .pred p; setp.eq.u32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32." HALVES \
               "." HALVES " {" NAMES "}, %" #A ", %" #B ", p, 1, 1, " TURNED "; }"                                 \
               : __VA_ARGS__                                                                                       \
               : "l"(a.word), "l"(b.word))
#define MULTIPLY_BY_COLUMNS(TURNED)                                                                                   \
  if constexpr (COLUMNS == 16)                                                                                        \
    MULTIPLY(16, NAMES8(0, 1, 2, 3, 4, 5, 6, 7), 8, 9, TURNED, SUMS8(0));                                             \
  else if constexpr (COLUMNS == 32)                                                                                   \
    MULTIPLY(32, NAMES16, 16, 17, TURNED, SUMS8(0), SUMS8(8));                                                        \
  else if constexpr (COLUMNS == 64)                                                                                   \
    MULTIPLY(64, NAMES32, 32, 33, TURNED, SUMS8(0), SUMS8(8), SUMS8(16), SUMS8(24));                                  \
  else                                                                                                                \
    MULTIPLY(128, NAMES64, 64, 65, TURNED, SUMS8(0), SUMS8(8), SUMS8(16), SUMS8(24), SUMS8(32), SUMS8(40), SUMS8(48), \
             SUMS8(56))

// Adds to d (64,COLUMNS) the product of 64 rows and COLUMNS columns, both 32 bytes deep.
template <int COLUMNS> __device__ void multiply(float *d, Operand a, Operand b) { MULTIPLY_BY_COLUMNS("0, 0"); }

// The same of operands 16 cells deep.
template <int COLUMNS> __device__ void multiply_cells(float *d, Operand a, Operand b) { MULTIPLY_BY_COLUMNS("1, 1"); }
