// What `cells.cu` and `images.cu` ask of the machine, on a CPU: the threads of a block as fibers that take turns where
// they meet. E = 4 makes every product in float; 2 rounds to bfloat16 or, with HALF, to the 16-bit floats of the IEEE,
// as a GPU does.

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

constexpr int SHARED = 1 << 20;
#define __device__
#define __global__
#define __launch_bounds__(...)

struct uint4 {
  unsigned x, y, z, w;
};
struct float4 {
  float x, y, z, w;
};
struct float2 {
  float x, y;
};
struct Index {
  int x;
};

static Index threadIdx, blockIdx, gridDim;
static char *memory;

// ---- fibers ----

struct Fiber {
  ucontext_t context;
  std::vector<char> stack;
  bool done;
};
static std::vector<Fiber> fibers;
static ucontext_t scheduler;
static int running, arrived[64], rounds[64];
static float given[1024];

static void yield() {
  swapcontext(&fibers[running].context, &scheduler);
  threadIdx.x = running;
}

static void rendezvous(int which, int count) { // the meeting ends when so many have come
  int round = rounds[which];
  if (++arrived[which] == count)
    arrived[which] = 0, rounds[which]++;
  while (rounds[which] == round)
    yield();
}

static void meet(int slot) { rendezvous(slot + 1, 128); }
static void all_together() { rendezvous(0, SLOTS * 128); }

static float shuffled(float v, int mask) {
  int t = threadIdx.x, warp = 16 + t / 32;
  given[t] = v;
  rendezvous(warp, 32);
  float other = given[t ^ mask];
  rendezvous(warp, 32);
  return other;
}

static int uniform(int v) { return v; }
static void forget(int &) {}
static char *block_memory() { return memory; }
static void hand_over() {}
static void copy(float *to, const float *from) { *to = *from; }
static void copied() {}

// ---- numbers ----

template <class To, class From> static To as(From from) {
  To to;
  static_assert(sizeof to == sizeof from);
  memcpy(&to, &from, sizeof to);
  return to;
}
static float as_float(unsigned word) { return as<float>(word); }
static unsigned as_word(float v) { return as<unsigned>(v); }
static float square_root(float v) { return std::sqrt(v); }
static float exponential(float v) { return std::exp(v); }
#if HALF
static unsigned half(float v) {
  unsigned sign = as_word(v) >> 16 & 0x8000;
  v = std::fabs(v);
  if (!(v < 65520)) // is rounded to what is larger than all; or not a number
    return sign | (v > 0 ? 0x7c00 : 0x7e00);
  int exponent = std::max(v ? std::ilogb(v) : -14, -14);
  unsigned units = (unsigned)std::nearbyint(std::ldexp(v, 10 - exponent)); // to the even one
  return sign | (((unsigned)(exponent + 14) << 10) + units);
}
static float of_half(unsigned word) {
  int exponent = word >> 10 & 31, units = word & 1023;
  float v = exponent == 31 ? (units ? NAN : INFINITY)
                           : std::ldexp(units + (exponent ? 1024.0f : 0), std::max(exponent, 1) - 25);
  return word & 0x8000 ? -v : v;
}
#else
static unsigned half(float v) {
  unsigned word = as_word(v);
  return (word + 0x7fff + (word >> 16 & 1)) >> 16;
}
static float of_half(unsigned word) { return as_float(word << 16); }
#endif
static unsigned halves(float low, float high) { return half(low) | half(high) << 16; }
static void lows_and_highs(unsigned word, float &low, float &high) {
  low = of_half(word & 0xffff), high = of_half(word >> 16);
}

// ---- copies, at once ----

typedef uint64_t Arrival;
struct Part {
  char *to;
  const char *from;
  int bytes;
};
static void bring_part(const Part &part) { memcpy(part.to, part.from, part.bytes); }
static void begin_arrivals(Arrival *, int) {}
template <int COUNT> static void bring_each(Arrival *, const Part (&parts)[COUNT]) {
  if (threadIdx.x == 0)
    for (const Part &part : parts)
      bring_part(part);
}
static void bring_both(Arrival &, Part a, Part b) { bring_part(a), bring_part(b); }
static void await(Arrival &, int = 0) {}
static void send_bytes(char *to, const char *from, int bytes) { memcpy(to, from, bytes); }
static void bytes_sent() {}

// ---- products: rows and columns as a GPU hands them to its threads ----

struct Operand {
  const char *at;
  int next;
};
static Operand operand(const char *at, int next) { return {at, next}; }
static Operand moved(Operand from, int bytes) { return {from.at + bytes, from.next}; }

static Operand operand_of_cells(const char *at, int plane) { return {at, plane}; }

static float number(const char *at) { return E == 2 ? of_half(*(const uint16_t *)at) : *(const float *)at; }
static float by_depth(Operand from, int row, int k) { // of row 0.., of 32 bytes of depth
  return number(from.at + k * E / 16 * from.next + row * 16 + k * E % 16);
}
static float by_cells(Operand from, int row, int k) { // of 32 / E cells
  return number(from.at + row * E / 16 * from.next + k * 16 + row * E % 16);
}

template <int COLUMNS, class Number> static void multiplied(float *d, Operand a, Operand b, Number number) {
  int t = threadIdx.x % 128, warp = t / 32, row = t % 32 / 4, quarter = t % 4;
  for (int cell = 0; cell < 2; cell++) {
    float left[32 / E];
    for (int k = 0; k < 32 / E; k++)
      left[k] = number(a, 16 * warp + 8 * cell + row, k);
    for (int j = 0; j < COLUMNS / 8; j++)
      for (int e = 0; e < 2; e++)
        for (int k = 0; k < 32 / E; k++)
          d[4 * j + 2 * cell + e] += left[k] * number(b, 8 * j + 2 * quarter + e, k);
  }
}
template <int COLUMNS> static void multiply(float *d, Operand a, Operand b) { multiplied<COLUMNS>(d, a, b, by_depth); }
template <int COLUMNS> static void multiply_cells(float *d, Operand a, Operand b) {
  multiplied<COLUMNS>(d, a, b, by_cells);
}
template <int COUNT> static void hold(float (&)[COUNT]) {}
template <int COUNT> static void begin_products(float (&)[COUNT]) {}
static void commit_products() {}
template <int COUNT> static void await_products(float (&)[COUNT]) {}

#define ENCODER_THERE
#define ENCODER_BACK
#define DECODER_THERE
#define DECODER_BACK
#if SLOTS == 2
#define ENCODER_WEIGHTS
#define DECODER_WEIGHTS
#endif
#include "cells.cu"
#include "images.cu"

static std::function<void()> work;
static void enter() {
  work();
  fibers[running].done = true;
  swapcontext(&fibers[running].context, &scheduler);
}

// Runs a kernel; shared memory is nonsense at first, so that what was not written shows.
static void launch(int blocks, std::function<void()> kernel) {
  std::vector<char> shared(SHARED + 128);
  memory = (char *)(((uintptr_t)shared.data() + 127) / 128 * 128);
  work = kernel;
  gridDim.x = blocks;
  for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
    memset(shared.data(), 0xff, shared.size());
    fibers.clear();
    fibers.resize(SLOTS * 128);
    for (Fiber &fiber : fibers) {
      fiber.stack.resize(1 << 17);
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack.data();
      fiber.context.uc_stack.ss_size = fiber.stack.size();
      fiber.context.uc_link = &scheduler;
      makecontext(&fiber.context, enter, 0);
    }
    for (bool left = true; left;) {
      left = false;
      for (running = 0; running < SLOTS * 128; running++)
        if (!fibers[running].done) {
          threadIdx.x = running;
          swapcontext(&scheduler, &fibers[running].context);
          left = true;
        }
    }
  }
}

template <class... Types, size_t... I>
static void call(int blocks, void (*kernel)(Types...), void **given, std::index_sequence<I...>) {
  launch(blocks, [=] { kernel(*(Types *)given[I]...); });
}
template <class... Types> static void call(int blocks, void (*kernel)(Types...), void **given) {
  call(blocks, kernel, given, std::index_sequence_for<Types...>());
}

// Arguments as addresses of values, as for a GPU's driver.
extern "C" void run(const char *name, int blocks, void **given) {
#define IF_NAMED(kernel)      \
  if (!strcmp(name, #kernel)) \
    return call(blocks, kernel, given);
  IF_NAMED(encoder_there)
  IF_NAMED(encoder_back)
  IF_NAMED(decoder_there)
  IF_NAMED(decoder_back)
#if SLOTS == 2
  IF_NAMED(encoder_weights)
  IF_NAMED(decoder_weights)
#endif
  abort();
}
