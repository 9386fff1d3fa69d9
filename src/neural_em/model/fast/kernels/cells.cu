// An image as four warps hold it: in planes of cells in shared memory, and in tiles, a product's sums in registers. What
// is done to it there, for the kernels of `images.cu`: norms, non-linearities, products, ways in and out of memory.
//
// Images (4S,4S) have one channel, the middle layer C1 channels at (2S,2S), the small one C2 at (S,S), S <= 7. Every
// product has 64 rows, one for each of 8x8 cells. A cell of the middle layer holds 2x2 of its pixels, in the order of
// `part_row`: in the decoder the four phases of a small pixel, in the encoder the same shifted by the padding, which
// makes the strided convolution one of 2x2 cells. Operands lie in planes of 16 bytes a cell, [plane][cell], so that the
// cells beside are an address further on.
//
// HALF: operands have the ten bits of TF32, in 16-bit floats of the IEEE. These have few exponents, so an operand comes
// times a power of two that brings its largest number to about 2^14: what is lost is below a 2^38th of that. A product
// is multiplied by what takes the powers back. Without it operands are bfloat16, or floats, as they are.

constexpr int C1 = 32, C2 = 64, MIDDLE = 4 * S * S, SMALL = S * S, PIXELS = 16 * S * S;
// a loop written out, for registers; and one over the parts of a thread's tile
#define EVERY(i, COUNT) _Pragma("unroll") for (int i = 0; i < (COUNT); i++)
#define EVERY_PART(cell, part) EVERY(cell, 2) EVERY(part, PARTS)

constexpr int THREADS = 128, WARPS = 4;
constexpr int STRIP = 16 / E, WIDE = 16 / W;      // numbers in 16 bytes, of an operand and in memory
constexpr int BARE = 66 * 16, BORDERED = 74 * 16; // bytes of a plane of 8x8 cells; with one more row and column before
constexpr int BORDER = 9;                         // cells before the first one in those: a row and one more
constexpr int STEP = 2 * STRIP;                   // depth of one tensor-core instruction
constexpr float EPSILON = 1e-12f;
constexpr int DEPTH_FIRST = 48, DEPTH_LAST = 64; // a cell's window of the image: 6 rows of 8, 7 rows of 8 and zeros

struct Thread {
  int slot, index, warp, lane, row, column, quarter; // its cells are (row, column) and (row + 1, column)
};

// What a thread holds of a product's 64 cells: OWN channels of all pixels of both of its cells.
template <int PARTS> struct Tile {
  static constexpr int CHANNELS = PARTS == 4 ? C1 : C2, OWN = CHANNELS / 4;
  static __device__ int channel(const Thread &me) { return me.quarter * OWN; }
  float d[2 * PARTS * OWN];
  __device__ float &at(int part, int cell, int c) { return d[(part * OWN + c) / 2 * 4 + 2 * cell + c % 2]; }
  __device__ void clear() {
#pragma unroll
    for (float &each : d)
      each = 0;
  }
  __device__ void multiply(float by) {
    if constexpr (HALF)
#pragma unroll
      for (float &each : d)
        each *= by;
  }
};

enum Layout { SHIFTED, PHASES, DOUBLED, SINGLE };

// The row and the column of a cell's part: (1,0), (0,0), (0,1), (1,1). Any offset's phases are neighbours in it.
__device__ constexpr int part_row(int part) { return part == 0 || part == 3; }
__device__ constexpr int part_column(int part) { return part / 2; }
__device__ constexpr int part_of(int row, int column) { return column ? 2 + row : 1 - row; }

// Which pixel of an image in memory a part of a thread's tile is, or -1.
template <Layout LAYOUT, int PARTS> __device__ int pixel(const Thread &me, int part, int cell) {
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

// Numbers in memory.
template <int COUNT> __device__ void unpack(const uint4 *strips, float *v) {
  EVERY(i, COUNT / WIDE) {
    unsigned words[4] = {strips[i].x, strips[i].y, strips[i].z, strips[i].w};
    EVERY(k, 4)
      if constexpr (W == 2)
        lows_and_highs(words[k], v[i * WIDE + 2 * k], v[i * WIDE + 2 * k + 1]);
      else
        v[i * WIDE + k] = as_float(words[k]);
  }
}

// Numbers of SIZE bytes.
template <int COUNT, int SIZE> __device__ void pack(const float *v, uint4 *strips) {
  EVERY(i, COUNT * SIZE / 16) {
    unsigned words[4];
    EVERY(k, 4)
      if constexpr (SIZE == 2)
        words[k] = halves(v[i * 8 + 2 * k], v[i * 8 + 2 * k + 1]);
      else
        words[k] = as_word(v[i * 4 + k]);
    strips[i] = uint4{words[0], words[1], words[2], words[3]};
  }
}

template <int COUNT> __device__ void write(char *to, const float *v) {
  uint4 out[COUNT / WIDE];
  pack<COUNT, W>(v, out);
  EVERY(i, COUNT / WIDE)
    *(uint4 *)(to + 16 * i) = out[i];
}

// Puts a thread's channels of a part of a cell into the planes.
template <int PARTS>
__device__ void put(const Thread &me, char *planes, int plane, int place, int part, const float *v) {
  constexpr int OWN = Tile<PARTS>::OWN;
  uint4 out[OWN / STRIP];
  pack<OWN, E>(v, out);
  EVERY(i, OWN / STRIP)
    *(uint4 *)(planes + ((part * Tile<PARTS>::CHANNELS + Tile<PARTS>::channel(me)) / STRIP + i) * plane + place * 16) =
        out[i];
}

template <int COUNT> __device__ void read_floats(const float *from, float *v) {
#pragma unroll
  for (int i = 0; i < COUNT; i += 4) {
    float4 four = *(const float4 *)(from + i);
    v[i] = four.x, v[i + 1] = four.y, v[i + 2] = four.z, v[i + 3] = four.w;
  }
}

// ---- sums over an image ----

typedef float4 Few[3][WARPS]; // of each warp, for as many reductions

struct Scratch {
  Few few;
  float sums[WARPS][2 * C2]; // of each channel, times the normalised value and alone
  float last[WARPS][C2];     // of each channel's gradient
};

// The sum of what the warps have of a channel.
template <int COUNT> __device__ float over_warps(const float (&of)[WARPS][COUNT], int index) {
  float sum = 0;
  EVERY(w, WARPS)
    sum += of[w][index];
  return sum;
}

__device__ float over_warp(float v) {
#pragma unroll
  for (int mask = 16; mask; mask /= 2)
    v += shuffled(v, mask);
  return v;
}

__device__ float larger(float a, float b) { return a > b ? a : b; }
__device__ float size(float v) { return v < 0 ? -v : v; }

template <int FROM = 16> __device__ float largest_of_warp(float v) {
#pragma unroll
  for (int mask = FROM; mask; mask /= 2)
    v = larger(v, shuffled(v, mask));
  return v;
}

// ---- powers of two ----

struct Power { // what an operand is multiplied by, and what takes it back
  float up, down;
};

// Of an operand whose numbers are no larger. Below 2^-60 it is that for 2^-60.
__device__ Power power(float largest) {
  if (!HALF)
    return {1, 1};
  int exponent = as_word(largest) >> 23 & 255;
  exponent = exponent < 67 ? 67 : exponent;
  return {as_float((267 - exponent) << 23), as_float((exponent - 13) << 23)};
}

// Of an operand of which each thread has a part.
__device__ Power power_of_all(const Thread &me, float4 (&few)[WARPS], float largest) {
  if (!HALF)
    return {1, 1};
  largest = largest_of_warp(largest);
  if (me.lane == 0)
    few[me.warp].x = largest;
  meet(me.slot);
  EVERY(w, WARPS)
    largest = larger(largest, few[w].x);
  return power(largest);
}

// What a packed weight's products are multiplied by.
__device__ float weight_power(const float *powers, int which) { return HALF ? powers[which] : 1; }

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

// Of what a norm with these makes: none of COUNT normalised numbers is larger than the root of COUNT.
template <int PARTS> __device__ Power power_of_norm(const Thread &me, Affine affine) {
  constexpr int COUNT = (PARTS == 4 ? MIDDLE : SMALL) * Tile<PARTS>::CHANNELS;
  float scale[Tile<PARTS>::OWN], offset[Tile<PARTS>::OWN], largest = 0;
  read_floats<Tile<PARTS>::OWN>(affine.scale + Tile<PARTS>::channel(me), scale);
  read_floats<Tile<PARTS>::OWN>(affine.offset + Tile<PARTS>::channel(me), offset);
  EVERY(c, Tile<PARTS>::OWN)
    largest = larger(largest, square_root(COUNT) * size(scale[c]) + size(offset[c]));
  return power(HALF ? largest_of_warp<2>(largest) : largest);
}

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
      uint4 strips[OWN / WIDE];
      pack<OWN, W>(v, strips);
      if (kept)
        EVERY(i, OWN / WIDE)
          *(uint4 *)(kept + (p * CHANNELS + channel) * W + 16 * i) = strips[i];
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
    few[which][me.warp] = float4{count, mean, squares, 0};
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
// go to `parts` (3,CHANNELS): scale and offset now, the bias by `add_bias`. Gives the power for what is left.
template <Kind KIND, Layout LAYOUT, int PARTS>
__device__ Power activate_back(const Thread &me, Tile<PARTS> &tile, Scratch &scratch, int which, Affine affine,
                               const uint4 *kept, float mean, float deviation, float *parts) {
  constexpr int OWN = Tile<PARTS>::OWN, CHANNELS = Tile<PARTS>::CHANNELS, STRIPS = OWN / WIDE;
  constexpr int COUNT = (PARTS == 4 ? MIDDLE : SMALL) * CHANNELS;
  int channel = Tile<PARTS>::channel(me);
  float add[OWN], scale[OWN], sums[2 * OWN] = {}, a = 0, b = 0, most = 0; // normalised is kept * deviation + add
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
        unpack<OWN>(kept + (cell * PARTS + part) * STRIPS, v);
        EVERY(c, OWN) {
          float h = v[c] * deviation + add[c], z = h * scale[c] + offset[c], g = tile.at(part, cell, c);
          g = z > 0 ? g : KIND == ELU ? g * exponential(z) : 0;
          tile.at(part, cell, c) = g;
          sums[c] += g * h, sums[OWN + c] += g;
          if (HALF)
            most = larger(most, size(g * scale[c]));
        }
      }
  }
  EVERY(c, OWN)
    a += sums[OWN + c] * scale[c], b += sums[c] * scale[c];
  folded<PARTS>(me, sums, scratch.sums[me.warp]);
  folded<PARTS>(me, sums + OWN, scratch.sums[me.warp] + CHANNELS);
  a = over_warp(a), b = over_warp(b);
  if (HALF)
    most = largest_of_warp(most);
  if (me.lane == 0)
    scratch.few[which][me.warp] = float4{a, b, most, 0};
  meet(me.slot);
  a = b = 0;
  EVERY(w, WARPS) {
    float4 warp = scratch.few[which][w];
    a += warp.x / COUNT, b += warp.y / COUNT, most = larger(most, warp.z);
  }
  most = (most + size(a) + square_root(COUNT) * size(b)) * deviation; // no normalised number is larger than the root
  if (me.index < 2 * CHANNELS)
    parts[me.index] = over_warps(scratch.sums, me.index);
  // (g * scale - a - normalised * b) * deviation
  float along = -b * deviation * deviation, own[OWN] = {};
  EVERY(c, OWN)
    scale[c] *= deviation, add[c] = -(a + add[c] * b) * deviation;
  EVERY_PART(cell, part) {
    bool inside = pixel<LAYOUT, PARTS>(me, part, cell) >= 0;
    float v[OWN];
    unpack<OWN>(kept + (cell * PARTS + part) * STRIPS, v);
    EVERY(c, OWN) {
      float g = tile.at(part, cell, c) * scale[c] + (v[c] * along + add[c]);
      tile.at(part, cell, c) = g = inside ? g : 0;
      own[c] += g;
    }
  }
  folded<PARTS>(me, own, scratch.last[me.warp]);
  return power(most);
}

// What `activate_back` left for the bias's gradient, once all warps have met.
template <int PARTS> __device__ void add_bias(const Thread &me, const Scratch &scratch, float *parts) {
  if (me.index < Tile<PARTS>::CHANNELS)
    parts[2 * Tile<PARTS>::CHANNELS + me.index] = over_warps(scratch.last, me.index);
}

// ---- between memory and tiles ----

// Fetches what belongs to a thread's tile; zeros where there is no pixel.
template <Layout LAYOUT, int PARTS> __device__ void fetch(const Thread &me, const char *from, uint4 *strips) {
  constexpr int STRIPS = Tile<PARTS>::OWN / WIDE;
  from += Tile<PARTS>::channel(me) * W;
  EVERY_PART(cell, part) {
    int p = pixel<LAYOUT, PARTS>(me, part, cell);
    EVERY(i, STRIPS)
      strips[(cell * PARTS + part) * STRIPS + i] =
          p < 0 ? uint4{} : *(const uint4 *)(from + p * Tile<PARTS>::CHANNELS * W + 16 * i);
  }
}

// Makes a tile of what was fetched.
template <int PARTS> __device__ void fill(Tile<PARTS> &tile, const uint4 *strips) {
  constexpr int OWN = Tile<PARTS>::OWN;
  EVERY_PART(cell, part) {
    float v[OWN];
    unpack<OWN>(strips + (cell * PARTS + part) * (OWN / WIDE), v);
    EVERY(c, OWN)
      tile.at(part, cell, c) = v[c];
  }
}

// Writes a tile to memory, if there is any, and into planes, if there are any, times a power of two, with `place` cells
// before the first.
template <Layout LAYOUT, int PARTS>
__device__ void leave(const Thread &me, Tile<PARTS> &tile, char *memory, char *planes = nullptr, int plane = 0,
                      int place = 0, float power = 1) {
  constexpr int OWN = Tile<PARTS>::OWN;
  EVERY_PART(cell, part) {
    float v[OWN];
    EVERY(c, OWN)
      v[c] = tile.at(part, cell, c);
    int p = pixel<LAYOUT, PARTS>(me, part, cell);
    if (memory && p >= 0)
      write<OWN>(memory + (p * Tile<PARTS>::CHANNELS + Tile<PARTS>::channel(me)) * W, v);
    if (HALF)
      EVERY(c, OWN)
        v[c] *= power;
    if (planes)
      put<PARTS>(me, planes, plane, (me.row + cell) * 8 + me.column + place, part, v);
  }
}

// Zeros in some cells of each of COUNT planes.
template <int COUNT, int PLANE, int FIRST, int CELLS> __device__ void clear(const Thread &me, char *planes) {
  for (int i = me.index; i < COUNT * CELLS; i += THREADS)
    *(uint4 *)(planes + i / CELLS * PLANE + (FIRST + i % CELLS) * 16) = uint4{};
}

// Zeros before and behind the cells of bordered planes; whatever is put there brings those behind a row and below.
template <int BYTES> __device__ void clear_border(const Thread &me, char *planes) {
  clear<BYTES / BORDERED, BORDERED, 0, BORDER>(me, planes);
  clear<BYTES / BORDERED, BORDERED, BORDER + 64, 1>(me, planes);
}

// Bytes of an image's planes in memory, and what takes their power back behind them.
template <int BYTES> __device__ constexpr int row() { return BYTES + 16; }

// Begins to write an image's planes to memory; they may be overwritten once `sent` has returned to its caller's first
// thread and all have met.
template <int BYTES> __device__ void send(const Thread &me, char *rows, long n, const char *planes, Power power) {
  if (me.index == 0) {
    char *to = rows + n * row<BYTES>();
    send_bytes(to, planes, BYTES);
    *(float *)(to + BYTES) = power.down;
  }
}

__device__ void sent(const Thread &me) {
  if (me.index == 0)
    bytes_sent();
}

// The windows of 8 columns from 4x - BEFORE on and ROWS rows from 4y - ABOVE on, of all cells, by runs of RUN numbers.
template <int DEPTH, int ROWS, int ABOVE, int BEFORE, int RUN>
__device__ Power windows(const Thread &me, const float *image, char *planes, float4 (&few)[WARPS]) {
  constexpr int ITEMS = DEPTH / RUN * 64, EACH = ITEMS / THREADS, RUNS = 8 / RUN;
  float v[EACH][RUN], largest = 0;
  EVERY(k, EACH) {
    int item = k * THREADS + me.index, cell = item % 64, run = item / 64, row = run / RUNS;
    int i = cell / 8 * 4 - ABOVE + row, j = cell % 8 * 4 - BEFORE + run % RUNS * RUN;
    bool inside = row < ROWS && i >= 0 && i < 4 * S && j >= 0 && j < 4 * S;
    const float *from = image + i * 4 * S + j;
    if (RUN == 4) {
      float4 four = inside ? *(const float4 *)from : float4{};
      v[k][0] = four.x, v[k][1] = four.y, v[k][RUN - 2] = four.z, v[k][RUN - 1] = four.w;
    } else {
      float2 two = inside ? *(const float2 *)from : float2{};
      v[k][0] = two.x, v[k][1] = two.y;
    }
  }
  if (HALF)
    EVERY(k, EACH * RUN)
      largest = larger(largest, size(v[k / RUN][k % RUN]));
  Power power = power_of_all(me, few, largest);
  EVERY(k, EACH) {
    int item = k * THREADS + me.index, cell = item % 64, depth = item / 64 * RUN;
    char *to = planes + depth / STRIP * BARE + cell * 16 + depth % STRIP * E;
#pragma unroll
    for (int i = 0; i < RUN; i += 4 / E)
      if constexpr (E == 2)
        *(unsigned *)(to + i * E) = halves(v[k][i] * power.up, v[k][i + 1] * power.up);
      else
        *(float *)(to + i * E) = v[k][i];
  }
  return power;
}

// Writes an image from the product whose 16 columns are 4x4 pixels: of a thread, one row of each of its cells.
__device__ void write_image(const Thread &me, const float *d, float *image, float by, float bias) {
  EVERY(cell, 2) {
    int y = me.row + cell, x = me.column;
    if (y < S && x < S)
      *(float4 *)(image + (4 * y + me.quarter) * 4 * S + 4 * x) =
          float4{d[2 * cell] * by + bias, d[2 * cell + 1] * by + bias, d[4 + 2 * cell] * by + bias,
                 d[4 + 2 * cell + 1] * by + bias};
  }
}

// ---- products ----

template <int COUNT> __device__ void finish_products(float (&d)[COUNT]) {
  commit_products();
  await_products(d);
}

// Adds to d (64,COLUMNS) the product of 64 cells and DEPTH rows of packed weights, both so many bytes further on.
template <int COLUMNS, int DEPTH>
__device__ void add_product(float *d, Operand a, int a_further, int plane, Operand b, int b_further) {
  EVERY(k, DEPTH / STEP)
    multiply<COLUMNS>(d, moved(a, a_further + 2 * k * plane), moved(b, b_further + k * STEP * COLUMNS * E));
}

// The 2x2 cells from each cell on.
template <int COLUMNS> __device__ void add_strided(float *d, const char *cells, const char *weight) {
  Operand a = operand(cells, BARE), b = operand(weight, COLUMNS * 16);
  EVERY(tap, 4)
    add_product<COLUMNS, 4 * C1>(d, a, (tap / 2 * 8 + tap % 2) * 16, BARE, b, tap * 4 * C1 * COLUMNS * E);
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
// Bytes of planes: the middle layer's, with and without a border, and the small one's. Products read some more.
constexpr int CELLS = 4 * C1 / STRIP * BARE, PHASES_CELLS = 4 * C1 / STRIP * BORDERED,
              SMALL_CELLS = C2 / STRIP * BORDERED;
constexpr int MORE = 128;

__device__ Thread this_thread() {
  int t = threadIdx.x, index = t % THREADS, lane = t % 32, warp = uniform(index / 32);
  return {uniform(t / THREADS), index, warp, lane, 2 * warp, lane / 4, lane % 4};
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

