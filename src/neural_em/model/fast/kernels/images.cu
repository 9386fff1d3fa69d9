// The convolutions of an encoder or a decoder, with their layer norms and non-linearities, of one image in one place:
// one or two teams of four warps keep it in shared memory from the first layer to the last, there and back.
//
// Images (4S,4S) have one channel, the middle layer C1 channels at (2S,2S), the small one C2 at (S,S), S <= 7. Every
// product has 64 rows, one for each of 8x8 cells. A cell of the middle layer holds 2x2 of its pixels, in the order of
// `part_row`: in the decoder the four phases of a small pixel, in the encoder the same shifted by the padding, which
// makes the strided convolution one of 2x2 cells. Operands lie in planes of 16 bytes a cell, [plane][cell], so that the
// cells beside are an address further on.
//
// Compiled behind `hopper.cu`, or in the tests behind an emulator, with S, E (bytes of a number: 2 for bfloat16, 4 for
// float), SLOTS (images of a block), TEAMS (of four warps, of an image), SHARED (bytes that a block has), the name of
// the kernel that is wanted, in capitals, and UP: whether the decoder's are with the up-convolution, whose weights in
// float are more than a block has, or begin behind it. Weights come packed by `images.py`.

constexpr int C1 = 32, C2 = 64, MIDDLE = 4 * S * S, SMALL = S * S, PIXELS = 16 * S * S;
#define EVERY_PART(cell, part) \
  EVERY(cell, 2)               \
    EVERY(part, Tile<PARTS>::HELD)                                          // of a thread's tile
#define EVERY(i, COUNT) _Pragma("unroll") for (int i = 0; i < (COUNT); i++) // written out, for registers

constexpr int THREADS = TEAMS * 128, WARPS = TEAMS * 4;
constexpr int STRIP = 16 / E;                     // numbers in 16 bytes
constexpr int BARE = 66 * 16, BORDERED = 74 * 16; // bytes of a plane of 8x8 cells; with one more row and column before
constexpr int STEP = 2 * STRIP;                   // depth of one tensor-core instruction
constexpr float EPSILON = 1e-12f;
constexpr int DEPTH_FIRST = 48, DEPTH_LAST = 64; // a cell's window of the image: 6 rows of 8, 7 rows of 8 and zeros

struct Thread {
  int slot, index, team, warp, lane, row, column, quarter; // its cells are (row, column) and (row + 1, column)
};

// What a thread holds of a product's 64 cells: OWN channels of HELD pixels of both of its cells. Teams share a cell's
// four pixels, or the channels of its one.
template <int PARTS> struct Tile {
  static constexpr int CHANNELS = PARTS == 4 ? C1 : C2, COLUMNS = PARTS * CHANNELS / TEAMS;
  static constexpr int HELD = PARTS == 4 ? 4 / TEAMS : 1, OWN = COLUMNS / HELD / 4;
  static __device__ int part(const Thread &me) { return PARTS == 4 ? me.team * HELD : 0; } // the first
  static __device__ int channel(const Thread &me) {
    return me.quarter * (CHANNELS / 4) + (PARTS == 4 ? 0 : me.team * OWN);
  }
  float d[2 * HELD * OWN];
  __device__ float &at(int part, int cell, int c) { return d[(part * OWN + c) / 2 * 4 + 2 * cell + c % 2]; }
  __device__ void clear() {
#pragma unroll
    for (float &each : d)
      each = 0;
  }
};

enum Layout { SHIFTED, PHASES, DOUBLED, SINGLE };

// The row and the column of a cell's part: (1,0), (0,0), (0,1), (1,1). Any offset's phases are neighbours in it.
__device__ constexpr int part_row(int part) { return part == 0 || part == 3; }
__device__ constexpr int part_column(int part) { return part / 2; }
__device__ constexpr int part_of(int row, int column) { return column ? 2 + row : 1 - row; }

// Which pixel of an image in memory a part of a thread's tile is, or -1.
template <Layout LAYOUT, int PARTS> __device__ int pixel(const Thread &me, int part, int cell) {
  part += Tile<PARTS>::part(me);
  int y = me.row + cell, x = me.column, a = part_row(part), b = part_column(part);
  if (LAYOUT == SHIFTED) {
    int i = 2 * y + a - 1, j = 2 * x + b - 1;
    return i >= 0 && j >= 0 && i < 2 * S && j < 2 * S ? i * 2 * S + j : -1;
  }
  if (y >= S || x >= S)
    return -1;
  if (LAYOUT == SINGLE)
    return y * S + x;
  return LAYOUT == PHASES ? (y * S + x) * 4 + 2 * a + b : (2 * y + a) * 2 * S + 2 * x + b;
}

// ---- numbers as they are stored ----

template <int COUNT> __device__ void unpack(const uint4 *strips, float *v) {
  EVERY(i, COUNT / STRIP) {
    unsigned words[4] = {strips[i].x, strips[i].y, strips[i].z, strips[i].w};
    EVERY(k, 4)
      if constexpr (E == 2) {
        v[i * STRIP + 2 * k] = as_float(words[k] << 16);
        v[i * STRIP + 2 * k + 1] = as_float(words[k] & 0xffff0000u);
      } else
        v[i * STRIP + k] = as_float(words[k]);
  }
}

template <int COUNT> __device__ void pack(const float *v, uint4 *strips) {
  EVERY(i, COUNT / STRIP) {
    unsigned words[4];
    EVERY(k, 4)
      words[k] = E == 2 ? halves(v[i * STRIP + 2 * k], v[i * STRIP + 2 * k + 1]) : as_word(v[i * STRIP + k % STRIP]);
    strips[i] = uint4{words[0], words[1], words[2], words[3]};
  }
}

template <int COUNT> __device__ void write(char *to, const float *v) {
  uint4 out[COUNT / STRIP];
  pack<COUNT>(v, out);
  EVERY(i, COUNT / STRIP)
    *(uint4 *)(to + 16 * i) = out[i];
}

// Puts a thread's channels of a part of a cell into the planes.
template <int PARTS>
__device__ void put(const Thread &me, char *planes, int plane, int place, int part, const float *v) {
  constexpr int OWN = Tile<PARTS>::OWN;
  float factors[OWN];
  EVERY(c, OWN)
    factors[c] = factor(v[c]);
  uint4 out[OWN / STRIP];
  pack<OWN>(factors, out);
  EVERY(i, OWN / STRIP)
    *(uint4 *)(planes +
               (((Tile<PARTS>::part(me) + part) * Tile<PARTS>::CHANNELS + Tile<PARTS>::channel(me)) / STRIP + i) *
                   plane +
               place * 16) = out[i];
}

template <int COUNT> __device__ void read_floats(const float *from, float *v) {
#pragma unroll
  for (int i = 0; i < COUNT; i += 4) {
    float4 four = *(const float4 *)(from + i);
    v[i] = four.x, v[i + 1] = four.y, v[i + 2] = four.z, v[i + 3] = four.w;
  }
}

// ---- sums over an image ----

typedef float4 Few[2][WARPS]; // of each warp, for as many reductions

struct Scratch {
  Few few;
  float sums[WARPS][2 * C2]; // of each channel, times the normalised value and alone
  float last[WARPS][C2];     // of each channel's gradient
};

// The sum of what the warps have of a channel of a tile.
template <int PARTS, int COUNT> __device__ float over_warps(const float (&of)[WARPS][COUNT], int index) {
  int first = PARTS == 4 ? 0 : index % (C2 / 4) / Tile<PARTS>::OWN * 4; // of the team that has the channel
  float sum = 0;
  EVERY(w, PARTS == 4 ? WARPS : 4)
    sum += of[first + w][index];
  return sum;
}

__device__ float over_warp(float v) {
#pragma unroll
  for (int mask = 16; mask; mask /= 2)
    v += shuffled(v, mask);
  return v;
}

// Sums over a warp's columns of cells: each lane is left with an eighth of the channels, in order.
template <int COUNT, int MASK = 16> __device__ void fold(const Thread &me, float *v) {
  bool upper = me.lane & MASK;
  EVERY(i, COUNT / 2) {
    float other = shuffled(upper ? v[i] : v[i + COUNT / 2], MASK);
    v[i] = (upper ? v[i + COUNT / 2] : v[i]) + other;
  }
  if constexpr (MASK > 4)
    fold<COUNT / 2, MASK / 2>(me, v);
}

template <int PARTS> __device__ void folded(const Thread &me, float *v, float *to) {
  constexpr int COUNT = Tile<PARTS>::OWN;
  fold<COUNT>(me, v);
  EVERY(i, COUNT / 8)
    to[Tile<PARTS>::channel(me) + me.column * (COUNT / 8) + i] = v[i];
}

// ---- layer norm with scale, offset and non-linearity ----

enum Kind { ELU, RELU };

struct Affine {
  const float *bias, *scale, *offset; // in shared memory
};

// Of a product: keeps it, adds the bias, and leaves the result in the tile, zero where there is no pixel.
template <Kind KIND, Layout LAYOUT, int PARTS>
__device__ void activate(const Thread &me, Tile<PARTS> &tile, Few &few, int which, Affine affine, char *kept,
                         float *statistics) {
  constexpr int OWN = Tile<PARTS>::OWN, CHANNELS = Tile<PARTS>::CHANNELS;
  int channel = Tile<PARTS>::channel(me);
  constexpr int COUNT = (PARTS == 4 ? MIDDLE : SMALL) * CHANNELS;
  float add[OWN], count = 0, sum = 0, squares = 0;
  read_floats<OWN>(affine.bias + channel, add);
  EVERY_PART(cell, part)
    if (int p = pixel<LAYOUT, PARTS>(me, part, cell); p >= 0) {
      float v[OWN], some = 0;
      EVERY(c, OWN)
        v[c] = tile.at(part, cell, c);
      uint4 strips[OWN / STRIP];
      pack<OWN>(v, strips);
      if (kept)
        EVERY(i, OWN / STRIP)
          *(uint4 *)(kept + (p * CHANNELS + channel) * E + 16 * i) = strips[i];
      unpack<OWN>(strips, v); // rounded: on the way back it is the same side of zero
      EVERY(c, OWN)
        some += v[c] += add[c], tile.at(part, cell, c) = v[c];
      count += OWN, sum += some;
    }
  count = over_warp(count), sum = over_warp(sum);
  float mean = count ? sum / count : 0; // of the warp, and so are the squares: no large sums that cancel out
  EVERY_PART(cell, part)
    if (pixel<LAYOUT, PARTS>(me, part, cell) >= 0) {
      float some = 0;
      EVERY(c, OWN)
        some += (tile.at(part, cell, c) - mean) * (tile.at(part, cell, c) - mean);
      squares += some;
    }
  squares = over_warp(squares);
  if (me.lane == 0)
    few[which][me.team * 4 + me.warp] = float4{count, mean, squares, 0};
  meet(me.slot);
  mean = squares = 0;
  EVERY(w, WARPS)
    mean += few[which][w].x * few[which][w].y / COUNT;
  EVERY(w, WARPS) {
    float4 warp = few[which][w];
    squares += warp.z + warp.x * (warp.y - mean) * (warp.y - mean);
  }
  float deviation = 1 / square_root(squares / COUNT + EPSILON), scale[OWN];
  if (statistics && me.index == 0)
    statistics[0] = mean, statistics[1] = deviation;
  read_floats<OWN>(affine.scale + channel, scale);
  read_floats<OWN>(affine.offset + channel, add);
  EVERY(c, OWN)
    scale[c] *= deviation, add[c] -= mean * scale[c];
  EVERY_PART(cell, part) {
    bool inside = pixel<LAYOUT, PARTS>(me, part, cell) >= 0;
    EVERY(c, OWN) {
      float z = tile.at(part, cell, c) * scale[c] + add[c];
      z = z > 0 ? z : KIND == ELU ? exponential(z) - 1 : z < 0 ? 0 : z; // not a number stays that
      tile.at(part, cell, c) = inside ? z : 0;
    }
  }
}

// The same back: the tile has the result's gradient and is left with the product's. Parts of the parameters' gradients
// go to `parts` (3,CHANNELS): scale and offset now, the bias by `add_bias`.
template <Kind KIND, Layout LAYOUT, int PARTS>
__device__ void activate_back(const Thread &me, Tile<PARTS> &tile, Scratch &scratch, int which, Affine affine,
                              const uint4 *kept, float mean, float deviation, float *parts) {
  constexpr int OWN = Tile<PARTS>::OWN, CHANNELS = Tile<PARTS>::CHANNELS, STRIPS = OWN / STRIP;
  constexpr int COUNT = (PARTS == 4 ? MIDDLE : SMALL) * CHANNELS;
  int channel = Tile<PARTS>::channel(me), warp = me.team * 4 + me.warp;
  float add[OWN], scale[OWN], sums[2 * OWN] = {}, a = 0, b = 0; // normalised is kept * deviation + add
  read_floats<OWN>(affine.bias + channel, add);
  read_floats<OWN>(affine.scale + channel, scale);
  EVERY(c, OWN)
    add[c] = (add[c] - mean) * deviation;
  {
    float offset[OWN];
    read_floats<OWN>(affine.offset + channel, offset);
    EVERY_PART(cell, part)
      if (pixel<LAYOUT, PARTS>(me, part, cell) >= 0) {
        float v[OWN];
        unpack<OWN>(kept + (cell * Tile<PARTS>::HELD + part) * STRIPS, v);
        EVERY(c, OWN) {
          float h = v[c] * deviation + add[c], z = h * scale[c] + offset[c], g = tile.at(part, cell, c);
          g = z > 0 ? g : KIND == ELU ? g * exponential(z) : 0;
          tile.at(part, cell, c) = g;
          sums[c] += g * h, sums[OWN + c] += g;
        }
      }
  }
  EVERY(c, OWN)
    a += sums[OWN + c] * scale[c], b += sums[c] * scale[c];
  folded<PARTS>(me, sums, scratch.sums[warp]);
  folded<PARTS>(me, sums + OWN, scratch.sums[warp] + CHANNELS);
  a = over_warp(a), b = over_warp(b);
  if (me.lane == 0)
    scratch.few[which][warp] = float4{a, b, 0, 0};
  meet(me.slot);
  a = b = 0;
  EVERY(w, WARPS)
    a += scratch.few[which][w].x / COUNT, b += scratch.few[which][w].y / COUNT;
  if (me.index < 2 * CHANNELS)
    parts[me.index] = over_warps<PARTS>(scratch.sums, me.index);
  // (g * scale - a - normalised * b) * deviation
  float along = -b * deviation * deviation, own[OWN] = {};
  EVERY(c, OWN)
    scale[c] *= deviation, add[c] = -(a + add[c] * b) * deviation;
  EVERY_PART(cell, part) {
    bool inside = pixel<LAYOUT, PARTS>(me, part, cell) >= 0;
    float v[OWN];
    unpack<OWN>(kept + (cell * Tile<PARTS>::HELD + part) * STRIPS, v);
    EVERY(c, OWN) {
      float g = tile.at(part, cell, c) * scale[c] + (v[c] * along + add[c]);
      tile.at(part, cell, c) = g = inside ? g : 0;
      own[c] += g;
    }
  }
  folded<PARTS>(me, own, scratch.last[warp]);
}

// What `activate_back` left for the bias's gradient, once all warps have met.
template <int PARTS> __device__ void add_bias(const Thread &me, const Scratch &scratch, float *parts) {
  if (me.index < Tile<PARTS>::CHANNELS)
    parts[2 * Tile<PARTS>::CHANNELS + me.index] = over_warps<PARTS>(scratch.last, me.index);
}

// ---- between memory and tiles ----

// Fetches what belongs to a thread's tile; zeros where there is no pixel.
template <Layout LAYOUT, int PARTS> __device__ void fetch(const Thread &me, const char *from, uint4 *strips) {
  constexpr int STRIPS = Tile<PARTS>::OWN / STRIP;
  from += Tile<PARTS>::channel(me) * E;
  EVERY_PART(cell, part) {
    int p = pixel<LAYOUT, PARTS>(me, part, cell);
    EVERY(i, STRIPS)
      strips[(cell * Tile<PARTS>::HELD + part) * STRIPS + i] =
          p < 0 ? uint4{} : *(const uint4 *)(from + p * Tile<PARTS>::CHANNELS * E + 16 * i);
  }
}

// Makes a tile of what was fetched.
template <int PARTS> __device__ void fill(Tile<PARTS> &tile, const uint4 *strips) {
  constexpr int OWN = Tile<PARTS>::OWN;
  EVERY_PART(cell, part) {
    float v[OWN];
    unpack<OWN>(strips + (cell * Tile<PARTS>::HELD + part) * (OWN / STRIP), v);
    EVERY(c, OWN)
      tile.at(part, cell, c) = v[c];
  }
}

// Writes a tile to memory, if there is any, and into planes, if there are any, with `place` cells before the first.
template <Layout LAYOUT, int PARTS>
__device__ void leave(const Thread &me, Tile<PARTS> &tile, char *memory, char *planes, int plane, int place) {
  constexpr int OWN = Tile<PARTS>::OWN;
  EVERY_PART(cell, part) {
    float v[OWN];
    EVERY(c, OWN)
      v[c] = tile.at(part, cell, c);
    if (planes)
      put<PARTS>(me, planes, plane, (me.row + cell) * 8 + me.column + place, part, v);
    int p = pixel<LAYOUT, PARTS>(me, part, cell);
    if (memory && p >= 0)
      write<OWN>(memory + (p * Tile<PARTS>::CHANNELS + Tile<PARTS>::channel(me)) * E, v);
  }
}

constexpr int BORDER = 9; // cells before the first one in bordered planes: a row and one more

// Zeros in front of bordered planes; whatever is put there brings those behind a row and below.
template <int COUNT> __device__ void clear_border(const Thread &me, char *planes) {
  for (int i = me.index; i < COUNT * BORDER; i += THREADS)
    *(uint4 *)(planes + i / BORDER * BORDERED + i % BORDER * 16) = uint4{};
}

// The windows of 8 columns from 4x - BEFORE on and ROWS rows from 4y - ABOVE on, of all cells, by runs of WIDE numbers.
template <int DEPTH, int ROWS, int ABOVE, int BEFORE, int WIDE>
__device__ void windows(const Thread &me, const float *image, char *planes) {
  constexpr int ITEMS = DEPTH / WIDE * 64, EACH = ITEMS / THREADS, RUNS = 8 / WIDE;
  float v[EACH][WIDE];
  EVERY(k, EACH) {
    int item = k * THREADS + me.index, cell = item % 64, run = item / 64, row = run / RUNS;
    int i = cell / 8 * 4 - ABOVE + row, j = cell % 8 * 4 - BEFORE + run % RUNS * WIDE;
    bool inside = row < ROWS && i >= 0 && i < 4 * S && j >= 0 && j < 4 * S;
    const float *from = image + i * 4 * S + j;
    if (WIDE == 4) {
      float4 four = inside ? *(const float4 *)from : float4{};
      v[k][0] = four.x, v[k][1] = four.y, v[k][WIDE - 2] = four.z, v[k][WIDE - 1] = four.w;
    } else {
      float2 two = inside ? *(const float2 *)from : float2{};
      v[k][0] = two.x, v[k][1] = two.y;
    }
  }
  EVERY(k, EACH) {
    int item = k * THREADS + me.index, cell = item % 64, depth = item / 64 * WIDE;
    char *to = planes + depth / STRIP * BARE + cell * 16 + depth % STRIP * E;
#pragma unroll
    for (int i = 0; i < WIDE; i += 4 / E)
      *(unsigned *)(to + i * E) = E == 2 ? halves(v[k][i], v[k][i + 1]) : as_word(factor(v[k][i]));
  }
}

// Writes an image from the product whose 16 columns are 4x4 pixels: of a thread, one row of each of its cells.
__device__ void write_image(const Thread &me, const float *d, float *image, float bias) {
  EVERY(cell, 2) {
    int y = me.row + cell, x = me.column;
    if (y < S && x < S)
      *(float4 *)(image + (4 * y + me.quarter) * 4 * S + 4 * x) =
          float4{d[2 * cell] + bias, d[2 * cell + 1] + bias, d[4 + 2 * cell] + bias, d[4 + 2 * cell + 1] + bias};
  }
}

// ---- products ----

template <int COUNT> __device__ void finish_products(float (&d)[COUNT]) {
  commit_products();
  await_products(d);
}

// Adds to d (64,COLUMNS/SHARES) the product of 64 cells and DEPTH rows of packed weights, both so many bytes further
// on.
template <int COLUMNS, int DEPTH, int SHARES = 1>
__device__ void add_product(float *d, Operand a, int a_further, int plane, Operand b, int b_further) {
  EVERY(k, DEPTH / STEP)
    multiply<COLUMNS / SHARES>(d, moved(a, a_further + 2 * k * plane), moved(b, b_further + k * STEP * COLUMNS * E));
}

// A team's share of the columns of packed weights.
template <int COLUMNS> __device__ Operand share(const Thread &me, const char *weight) {
  return operand(weight + me.team * (COLUMNS / TEAMS * 16), COLUMNS * 16);
}

// The 2x2 cells from each cell on.
template <int COLUMNS, int SHARES> __device__ void add_strided(float *d, const char *cells, Operand weight) {
  Operand a = operand(cells, BARE);
  EVERY(tap, 4)
    add_product<COLUMNS, 4 * C1, SHARES>(d, a, (tap / 2 * 8 + tap % 2) * 16, BARE, weight, tap * 4 * C1 * COLUMNS * E);
}

// ---- memory of a block ----

__device__ constexpr int whole(int bytes) { return (bytes + 127) / 128 * 128; }

template <int BYTES> __device__ char *carve(char *&next) {
  char *here = next;
  next += whole(BYTES);
  return here;
}

// Where a slot's memory begins, behind the weights and so much else.
template <int WEIGHTS, int SLOT> __device__ char *slot_memory(const Thread &me, char *next) {
  static_assert(WEIGHTS + 2048 + SLOTS * SLOT <= SHARED, "more than a block's shared memory");
  return next + me.slot * SLOT;
}

constexpr int WEIGHT_FIRST = DEPTH_FIRST * 4 * C1 * E, WEIGHT_STRIDED = 16 * C1 * C2 * E;
constexpr int WEIGHT_IMAGE = 16 * C1 * 16 * E, WEIGHT_LAST = DEPTH_LAST * 4 * C1 * E, WEIGHT_UP = 25 * C1 * C2 * E,
              ROW_UP = 5 * C1 * C2 * E;
constexpr int CELLS = 4 * C1 / STRIP * BARE + 128, PHASE_CELLS = 4 * C1 / STRIP * BORDERED + 128;
constexpr int SMALL_CELLS = C2 / STRIP * BORDERED + 128;

__device__ Thread this_thread() {
  int t = threadIdx.x, index = t % THREADS, lane = t % 32, warp = uniform(index / 32 % 4);
  int team = TEAMS == 1 ? 0 : uniform(index / 128);
  return {uniform(t / THREADS), index, team, warp, lane, 2 * warp, lane / 4, lane % 4};
}

// Three vectors of a layer next to each other in shared memory.
template <int CHANNELS> __device__ Affine bring(float *to, const float *bias, const float *scale, const float *offset) {
  for (int i = threadIdx.x; i < CHANNELS; i += SLOTS * THREADS)
    copy(to + i, bias + i), copy(to + CHANNELS + i, scale + i), copy(to + 2 * CHANNELS + i, offset + i);
  return {to, to + CHANNELS, to + 2 * CHANNELS};
}

// The images of a block's slot, one after another.
#define EACH_IMAGE for (long n = blockIdx.x * SLOTS + me.slot; n < N; n += gridDim.x * SLOTS)

// An image's threads meet, the first time all of the block: then the parameters lie in shared memory.
__device__ void gather(const Thread &me, bool &begun) {
  if (begun)
    meet(me.slot);
  else {
    copied();
    all_together();
  }
  begun = true;
}

#ifdef ENCODER_THERE

// Image (4S,4S) to features (S,S,C2). Without gradients z1 and what follows it but a2 are null.
extern "C" __global__ void __launch_bounds__(SLOTS *THREADS, 1)
    encoder_there(const float *x, const char *first, const char *strided, const float *bias1, const float *scale1,
                  const float *offset1, const float *bias2, const float *scale2, const float *offset2, char *a2,
                  char *z1, char *a1, char *z2, float *statistics1, float *statistics2, int N) {
  Thread me = this_thread();
  char *next = block_memory();
  char *w1 = carve<WEIGHT_FIRST>(next), *w2 = carve<WEIGHT_STRIDED>(next);
  Arrival *arrivals = (Arrival *)carve<2 * sizeof(Arrival)>(next);
  float *parameters = (float *)carve<3 * (C1 + C2) * 4>(next);
  bring_weights(arrivals, {{w1, first, WEIGHT_FIRST}, {w2, strided, WEIGHT_STRIDED}});
  Affine affine1 = bring<C1>(parameters, bias1, scale1, offset1);
  Affine affine2 = bring<C2>(parameters + 3 * C1, bias2, scale2, offset2);
  constexpr int SLOT = whole(CELLS) + whole(sizeof(Few));
  static_assert(DEPTH_FIRST / STRIP * BARE <= CELLS, "no room for windows");
  next = slot_memory<WEIGHT_FIRST + WEIGHT_STRIDED, SLOT>(me, next);
  char *cells = carve<CELLS>(next), *seen = cells; // all threads meet between the use of one and of the other
  Few &few = *(Few *)carve<sizeof(Few)>(next);
  bool begun = false;
  EACH_IMAGE {
    forget(me.index), forget(me.row), forget(me.column), forget(me.quarter);
    windows<DEPTH_FIRST, 6, 3, 4, 4>(me, x + n * PIXELS, seen);
    hand_over();
    gather(me, begun);
    Tile<4> middle;
    middle.clear();
    await(arrivals[0]);
    begin_products(middle.d);
    add_product<4 * C1, DEPTH_FIRST, TEAMS>(middle.d, operand(seen, BARE), 0, BARE, share<4 * C1>(me, w1), 0);
    finish_products(middle.d);
    activate<ELU, SHIFTED>(me, middle, few, 0, affine1, z1 ? z1 + n * MIDDLE * C1 * E : nullptr,
                           statistics1 ? statistics1 + 2 * n : nullptr);
    leave<SHIFTED>(me, middle, a1 ? a1 + n * MIDDLE * C1 * E : nullptr, cells, BARE, 0);
    hand_over();
    meet(me.slot);
    Tile<1> small;
    small.clear();
    await(arrivals[1]);
    begin_products(small.d);
    add_strided<C2, TEAMS>(small.d, cells, share<C2>(me, w2));
    finish_products(small.d);
    activate<ELU, SINGLE>(me, small, few, 1, affine2, z2 ? z2 + n * SMALL * C2 * E : nullptr,
                          statistics2 ? statistics2 + 2 * n : nullptr);
    leave<SINGLE>(me, small, a2 + n * SMALL * C2 * E, nullptr, 0, 0);
  }
  if (!begun)
    gather(me, begun);
}

#endif
#ifdef ENCODER_BACK

// From the gradient of a2 to those of the products, of the parameters, image by image, and of the image, if wanted.
extern "C" __global__ void __launch_bounds__(SLOTS *THREADS, 1)
    encoder_back(const char *g, const char *z1, const char *z2, const float *statistics1, const float *statistics2,
                 const char *strided, const char *image, const float *bias1, const float *scale1, const float *offset1,
                 const float *bias2, const float *scale2, const float *offset2, char *dz1, char *dz2, float *parts1,
                 float *parts2, float *gx, int N) {
  Thread me = this_thread();
  char *next = block_memory();
  char *w2 = carve<WEIGHT_STRIDED>(next), *w1 = carve<WEIGHT_IMAGE>(next);
  Arrival *arrivals = (Arrival *)carve<2 * sizeof(Arrival)>(next);
  float *parameters = (float *)carve<3 * (C1 + C2) * 4>(next);
  bring_weights(arrivals, {{w2, strided, WEIGHT_STRIDED}, {w1, image, WEIGHT_IMAGE}});
  Affine affine1 = bring<C1>(parameters, bias1, scale1, offset1);
  Affine affine2 = bring<C2>(parameters + 3 * C1, bias2, scale2, offset2);
  constexpr int SLOT = whole(SMALL_CELLS) + whole(CELLS) + whole(sizeof(Scratch));
  next = slot_memory<WEIGHT_STRIDED + WEIGHT_IMAGE, SLOT>(me, next);
  char *small_cells = carve<SMALL_CELLS>(next), *cells = carve<CELLS>(next);
  Scratch &scratch = *(Scratch *)carve<sizeof(Scratch)>(next);
  clear_border<C2 / STRIP>(me, small_cells);
  bool begun = false;
  EACH_IMAGE {
    forget(me.index), forget(me.row), forget(me.column), forget(me.quarter);
    Tile<1> small;
    uint4 kept2[sizeof small.d / STRIP / 4], gradient[sizeof small.d / STRIP / 4], kept1[sizeof(Tile<4>) / STRIP / 4];
    fetch<SINGLE, 1>(me, g + n * SMALL * C2 * E, gradient);
    fetch<SINGLE, 1>(me, z2 + n * SMALL * C2 * E, kept2);
    float mean2 = statistics2[2 * n], deviation2 = statistics2[2 * n + 1];
    float mean1 = statistics1[2 * n], deviation1 = statistics1[2 * n + 1];
    gather(me, begun);
    fill(small, gradient);
    activate_back<ELU, SINGLE>(me, small, scratch, 0, affine2, kept2, mean2, deviation2, parts2 + n * 3 * C2);
    leave<SINGLE>(me, small, dz2 + n * SMALL * C2 * E, small_cells, BORDERED, BORDER);
    hand_over();
    meet(me.slot);
    Tile<4> middle;
    middle.clear();
    await(arrivals[0]);
    begin_products(middle.d);
    Operand from = operand(small_cells, BORDERED), weight = share<4 * C1>(me, w2);
    EVERY(tap, 4)
      add_product<4 * C1, C2, TEAMS>(middle.d, from, (BORDER - tap / 2 * 8 - tap % 2) * 16, BORDERED, weight,
                                     tap * C2 * 4 * C1 * E);
    commit_products();
    fetch<SHIFTED, 4>(me, z1 + n * MIDDLE * C1 * E, kept1);
    add_bias<1>(me, scratch, parts2 + n * 3 * C2);
    await_products(middle.d);
    activate_back<ELU, SHIFTED>(me, middle, scratch, 1, affine1, kept1, mean1, deviation1, parts1 + n * 3 * C1);
    leave<SHIFTED>(me, middle, dz1 + n * MIDDLE * C1 * E, gx ? cells : nullptr, BARE, 0);
    hand_over();
    meet(me.slot);
    if (gx && me.team == 0) {
      float d[8] = {};
      await(arrivals[1]);
      begin_products(d);
      add_strided<16, 1>(d, cells, operand(w1, 16 * 16));
      finish_products(d);
      write_image(me, d, gx + n * PIXELS, 0);
    }
    add_bias<4>(me, scratch, parts1 + n * 3 * C1);
  }
  if (!begun)
    gather(me, begun);
  await(arrivals[1]); // else the block might end before they are there
}

#endif

// Where a pixel of the middle layer lies for its product with packed weights: phase and offset of each of five.
__device__ constexpr int phase_of(int reach) { return reach > 2; }
__device__ constexpr int offset_of(int reach) { return reach > 2 ? reach - 3 : reach - 1; }

#ifdef DECODER_THERE

// Features (S,S,C2), or the up-convolution's product of them, to an image (4S,4S). Without gradients z, a and
// statistics are null; z is also if it is what is given.
extern "C" __global__ void __launch_bounds__(SLOTS *THREADS, 1)
    decoder_there(const char *features, const char *up, const char *last, const float *bias, const float *scale,
                  const float *offset, const float *last_bias, float *eta, char *z, char *a, float *statistics, int N) {
  Thread me = this_thread();
  char *next = block_memory();
  char *w_last = carve<WEIGHT_IMAGE>(next), *w_up = carve<UP * WEIGHT_UP>(next);
  Arrival *arrivals = (Arrival *)carve<4 * sizeof(Arrival)>(next);
  float *parameters = (float *)carve<3 * C1 * 4>(next);
  Part to_image_part{w_last, last, WEIGHT_IMAGE};
  if constexpr (UP)
    bring_weights(arrivals, {{w_up, up, ROW_UP},
                             {w_up + ROW_UP, up + ROW_UP, 2 * ROW_UP},
                             {w_up + 3 * ROW_UP, up + 3 * ROW_UP, 2 * ROW_UP},
                             to_image_part});
  else
    bring_weights(arrivals, {to_image_part});
  Affine affine = bring<C1>(parameters, bias, scale, offset);
  constexpr int SLOT = UP * whole(SMALL_CELLS) + whole(PHASE_CELLS) + whole(sizeof(Few));
  static_assert(TEAMS == 1, "not for teams");
  next = slot_memory<UP * WEIGHT_UP + WEIGHT_IMAGE, SLOT>(me, next);
  char *small_cells = carve<UP * SMALL_CELLS>(next), *cells = carve<PHASE_CELLS>(next);
  Few &few = *(Few *)carve<sizeof(Few)>(next);
  clear_border<4 * C1 / STRIP>(me, cells);
  float brightness = last_bias[0];
  bool begun = false;
  EACH_IMAGE {
    forget(me.index), forget(me.row), forget(me.column), forget(me.quarter);
    Tile<4> middle;
    if constexpr (UP) {
      constexpr int WIDE = C2 / STRIP, ITEMS = (WIDE * 74 + THREADS - 1) / THREADS;
      uint4 seen[ITEMS];
      EVERY(k, ITEMS) {
        int item = k * THREADS + me.index, i = item / WIDE / 8 - 1, j = item / WIDE % 8 - 1;
        bool inside = i >= 0 && i < S && j >= 0 && j < S;
        seen[k] = inside ? *(const uint4 *)(features + (n * SMALL + i * S + j) * C2 * E + item % WIDE * 16) : uint4{};
      }
      EVERY(k, ITEMS) {
        int item = k * THREADS + me.index;
        if (item < WIDE * 74)
          *(uint4 *)(small_cells + item % WIDE * BORDERED + item / WIDE * 16) = seen[k];
      }
      hand_over();
      gather(me, begun);
      middle.clear();
      // phases of a column are neighbours in the tile: one product; the row above has a single one, in sums of its own
      float left[C1 / 2] = {}, right[C1 / 2] = {};
      Operand from = operand(small_cells, BORDERED), one = operand(w_up, C1 * 16), two = operand(w_up, 2 * C1 * 16);
      EVERY(k, 15) {
        int y = k / 5 - 1, x = offset_of(k % 5), column = phase_of(k % 5), place = (BORDER + 8 * y + x) * 16;
        if (k % 5 == 0) {
          await(arrivals[y + 1]);
          begin_products(middle.d);
          begin_products(left);
          begin_products(right);
        }
        if (y < 0)
          add_product<C1, C2>(column ? right : left, from, place, BORDERED, one, k * C1 * C2 * E);
        else
          add_product<2 * C1, C2>(middle.d + column * C1, from, place, BORDERED, two, (2 * k - 5) * C1 * C2 * E);
        if (k % 5 == 4)
          finish_products(middle.d);
      }
      hold(left);
      hold(right);
      EVERY(i, C1 / 2)
        middle.d[C1 / 2 + i] += left[i], middle.d[C1 + i] += right[i];
    } else {
      uint4 product[sizeof(Tile<4>) / STRIP / 4];
      fetch<PHASES, 4>(me, features + n * MIDDLE * C1 * E, product);
      gather(me, begun);
      fill(middle, product);
    }
    activate<RELU, PHASES>(me, middle, few, 0, affine, z ? z + n * MIDDLE * C1 * E : nullptr,
                           statistics ? statistics + 2 * n : nullptr);
    leave<DOUBLED>(me, middle, a ? a + n * MIDDLE * C1 * E : nullptr, cells, BORDERED, BORDER);
    hand_over();
    meet(me.slot);
    float d[8] = {};
    await(arrivals[UP * 3]);
    begin_products(d);
    Operand middle_cells = operand(cells, BORDERED), to_image = operand(w_last, 16 * 16);
    EVERY(k, 16) { // rows and columns 2y - 1 .. 2y + 2 of the middle layer
      int i = (k / 4 + 1) / 2, j = (k % 4 + 1) / 2, part = part_of((k / 4 + 1) % 2, (k % 4 + 1) % 2);
      add_product<16, C1>(d, middle_cells, part * (C1 / STRIP) * BORDERED + (BORDER + (i - 1) * 8 + j - 1) * 16,
                          BORDERED, to_image, k * C1 * 16 * E);
    }
    finish_products(d);
    write_image(me, d, eta + n * PIXELS, brightness);
  }
  if (!begun)
    gather(me, begun);
}

#endif
#ifdef DECODER_BACK

// From the gradient of the image to those of the up-convolution's product, of its parameters and of the features.
extern "C" __global__ void __launch_bounds__(SLOTS *THREADS, 1)
    decoder_back(const float *g, const char *z, const float *statistics, const char *last, const char *up,
                 const float *bias, const float *scale, const float *offset, char *dz, float *parts, char *g_features,
                 int N) {
  Thread me = this_thread();
  char *next = block_memory();
  char *w_last = carve<WEIGHT_LAST>(next), *w_up = carve<UP * WEIGHT_UP>(next);
  Arrival *arrivals = (Arrival *)carve<2 * sizeof(Arrival)>(next);
  float *parameters = (float *)carve<3 * C1 * 4>(next);
  Part from_image_part{w_last, last, WEIGHT_LAST};
  if constexpr (UP)
    bring_weights(arrivals, {from_image_part, {w_up, up, WEIGHT_UP}});
  else
    bring_weights(arrivals, {from_image_part});
  Affine affine = bring<C1>(parameters, bias, scale, offset);
  constexpr int WINDOWS = DEPTH_LAST / STRIP * BARE;
  constexpr int SLOT = whole(WINDOWS) + UP * whole(PHASE_CELLS) + whole(sizeof(Scratch));
  static_assert(TEAMS == 1, "not for teams");
  next = slot_memory<WEIGHT_LAST + UP * WEIGHT_UP, SLOT>(me, next);
  char *seen = carve<WINDOWS>(next), *cells = carve<UP * PHASE_CELLS>(next);
  Scratch &scratch = *(Scratch *)carve<sizeof(Scratch)>(next);
  if constexpr (UP)
    clear_border<4 * C1 / STRIP>(me, cells);
  bool begun = false;
  EACH_IMAGE {
    forget(me.index), forget(me.row), forget(me.column), forget(me.quarter);
    uint4 kept[sizeof(Tile<4>) / STRIP / 4];
    fetch<PHASES, 4>(me, z + n * MIDDLE * C1 * E, kept);
    float mean = statistics[2 * n], deviation = statistics[2 * n + 1];
    windows<DEPTH_LAST, 7, 2, 2, 2>(me, g + n * PIXELS, seen);
    hand_over();
    gather(me, begun);
    Tile<4> middle;
    middle.clear();
    await(arrivals[0]);
    begin_products(middle.d);
    add_product<4 * C1, DEPTH_LAST>(middle.d, operand(seen, BARE), 0, BARE, operand(w_last, 4 * C1 * 16), 0);
    finish_products(middle.d);
    activate_back<RELU, PHASES>(me, middle, scratch, 0, affine, kept, mean, deviation, parts + n * 3 * C1);
    leave<PHASES>(me, middle, dz + n * MIDDLE * C1 * E, UP ? cells : nullptr, BORDERED, BORDER);
    hand_over();
    meet(me.slot);
    if constexpr (UP) {
      Tile<1> small;
      small.clear();
      await(arrivals[1]);
      begin_products(small.d);
      Operand from = operand(cells, BORDERED), weight = operand(w_up, C2 * 16);
      EVERY(k, 25) {
        int part = part_of(phase_of(k / 5), phase_of(k % 5)), back = 8 * offset_of(k / 5) + offset_of(k % 5);
        add_product<C2, C1>(small.d, from, part * (C1 / STRIP) * BORDERED + (BORDER - back) * 16, BORDERED, weight,
                            k * C1 * C2 * E);
      }
      commit_products();
      add_bias<4>(me, scratch, parts + n * 3 * C1);
      await_products(small.d);
      leave<SINGLE>(me, small, g_features + n * SMALL * C2 * E, nullptr, 0, 0);
    } else
      add_bias<4>(me, scratch, parts + n * 3 * C1);
  }
  if (!begun)
    gather(me, begun);
}

#endif
