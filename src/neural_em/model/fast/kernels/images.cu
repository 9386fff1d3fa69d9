// The convolutions of an encoder or a decoder, with their layer norms and non-linearities, of one image in one place:
// four warps keep it in shared memory from the first layer to the last, there and back. Behind them, their weights'
// gradients over all images.
//
// Images (4S,4S) have one channel, the middle layer C1 channels at (2S,2S), the small one C2 at (S,S), S <= 7. Every
// product has 64 rows, one for each of 8x8 cells. A cell of the middle layer holds 2x2 of its pixels, in the order of
// `part_row`: in the decoder the four phases of a small pixel, in the encoder the same shifted by the padding, which
// makes the strided convolution one of 2x2 cells. Operands lie in planes of 16 bytes a cell, [plane][cell], so that the
// cells beside are an address further on.
//
// Compiled behind `hopper.cu`, or in the tests behind an emulator, with S, E (bytes of an operand's number: 2, or 4 for
// the emulator's floats), W (bytes of a number in memory), HALF, SLOTS (images of a block), SHARED (bytes that a block
// has) and the name of the kernel that is wanted, in capitals. Weights come packed by `images.py`.
//
// HALF: operands have the ten bits of TF32, in 16-bit floats of the IEEE. These have few exponents, so an operand comes
// times a power of two that brings its largest number to about 2^14: what is lost is below a 2^38th of that. A product
// is multiplied by what takes the powers back. Without it operands are bfloat16, or floats, as they are.

constexpr int C1 = 32, C2 = 64, MIDDLE = 4 * S * S, SMALL = S * S, PIXELS = 16 * S * S;
#define EVERY_PART(cell, part) \
  EVERY(cell, 2)               \
    EVERY(part, PARTS)                                                      // of a thread's tile
#define EVERY(i, COUNT) _Pragma("unroll") for (int i = 0; i < (COUNT); i++) // written out, for registers

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

#ifdef ENCODER_THERE

// Image (4S,4S) to features (S,S,C2). Without gradients z1 and what follows it are null.
extern "C" __global__ void __launch_bounds__(SLOTS *THREADS, 1)
    encoder_there(const float *x, const char *first, const char *strided, const float *powers, const float *bias1,
                  const float *scale1, const float *offset1, const float *bias2, const float *scale2,
                  const float *offset2, char *a2, char *z1, char *a1, char *z2, float *statistics1, float *statistics2,
                  int N) {
  Thread me = this_thread();
  char *next = block_memory();
  char *w1 = carve<WEIGHT_FIRST>(next), *w2 = carve<WEIGHT_STRIDED>(next);
  Arrival *arrivals = (Arrival *)carve<2 * sizeof(Arrival)>(next);
  float *parameters = (float *)carve<3 * (C1 + C2) * 4>(next);
  bring_each(arrivals, {{w1, first, WEIGHT_FIRST}, {w2, strided, WEIGHT_STRIDED}});
  Affine affine1 = bring<C1>(parameters, bias1, scale1, offset1);
  Affine affine2 = bring<C2>(parameters + 3 * C1, bias2, scale2, offset2);
  constexpr int SLOT = whole(CELLS + MORE) + whole(sizeof(Few));
  static_assert(DEPTH_FIRST / STRIP * BARE <= CELLS, "no room for windows");
  next = slot_memory<WEIGHT_FIRST + WEIGHT_STRIDED, SLOT>(me, next);
  char *cells = carve<CELLS + MORE>(next), *seen = cells; // all threads meet between the use of one and of the other
  Few &few = *(Few *)carve<sizeof(Few)>(next);
  clear<CELLS / BARE, BARE, 64, 2>(me, cells);
  float power1 = weight_power(powers, 0), power2 = weight_power(powers, 1);
  bool begun = false;
  EACH_IMAGE {
    forget(me.index), forget(me.row), forget(me.column), forget(me.quarter);
    Power image = windows<DEPTH_FIRST, 6, 3, 4, 4>(me, x + n * PIXELS, seen, few[2]);
    hand_over();
    gather(me, begun);
    Tile<4> middle;
    middle.clear();
    await(arrivals[0]);
    begin_products(middle.d);
    add_product<4 * C1, DEPTH_FIRST>(middle.d, operand(seen, BARE), 0, BARE, operand(w1, 4 * C1 * 16), 0);
    finish_products(middle.d);
    middle.multiply(image.down * power1);
    activate<ELU, SHIFTED>(me, middle, few, 0, affine1, z1 ? z1 + n * MIDDLE * C1 * W : nullptr,
                           statistics1 ? statistics1 + 2 * n : nullptr);
    Power between = power_of_norm<4>(me, affine1);
    leave<SHIFTED>(me, middle, nullptr, cells, BARE, 0, between.up);
    hand_over();
    meet(me.slot);
    if (a1)
      send<CELLS>(me, a1, n, cells, between);
    Tile<1> small;
    small.clear();
    await(arrivals[1]);
    begin_products(small.d);
    add_strided<C2>(small.d, cells, w2);
    finish_products(small.d);
    small.multiply(between.down * power2);
    sent(me);
    activate<ELU, SINGLE>(me, small, few, 1, affine2, z2 ? z2 + n * SMALL * C2 * W : nullptr,
                          statistics2 ? statistics2 + 2 * n : nullptr);
    leave<SINGLE>(me, small, a2 + n * SMALL * C2 * W);
  }
  if (!begun)
    gather(me, begun);
}

#endif
#ifdef ENCODER_BACK

// From the gradient of a2 to those of the products, of the parameters, image by image, and of the image, if wanted.
extern "C" __global__ void __launch_bounds__(SLOTS *THREADS, 1)
    encoder_back(const char *g, const char *strided, const char *image, const float *powers, const char *z1,
                 const char *z2, const float *statistics1, const float *statistics2, const float *bias1,
                 const float *scale1, const float *offset1, const float *bias2, const float *scale2,
                 const float *offset2, char *dz1, char *dz2, float *parts1, float *parts2, float *gx, int N) {
  Thread me = this_thread();
  char *next = block_memory();
  char *w2 = carve<WEIGHT_STRIDED>(next), *w1 = carve<WEIGHT_IMAGE>(next);
  Arrival *arrivals = (Arrival *)carve<2 * sizeof(Arrival)>(next);
  float *parameters = (float *)carve<3 * (C1 + C2) * 4>(next);
  bring_each(arrivals, {{w2, strided, WEIGHT_STRIDED}, {w1, image, WEIGHT_IMAGE}});
  Affine affine1 = bring<C1>(parameters, bias1, scale1, offset1);
  Affine affine2 = bring<C2>(parameters + 3 * C1, bias2, scale2, offset2);
  constexpr int SLOT = whole(SMALL_CELLS + MORE) + whole(CELLS + MORE) + whole(sizeof(Scratch));
  next = slot_memory<WEIGHT_STRIDED + WEIGHT_IMAGE, SLOT>(me, next);
  char *small_cells = carve<SMALL_CELLS + MORE>(next), *cells = carve<CELLS + MORE>(next);
  Scratch &scratch = *(Scratch *)carve<sizeof(Scratch)>(next);
  clear_border<SMALL_CELLS>(me, small_cells);
  float power1 = weight_power(powers, 0), power2 = weight_power(powers, 1);
  bool begun = false;
  EACH_IMAGE {
    forget(me.index), forget(me.row), forget(me.column), forget(me.quarter);
    Tile<1> small;
    uint4 kept2[sizeof small.d / 4 / WIDE], gradient[sizeof small.d / 4 / WIDE], kept1[sizeof(Tile<4>) / 4 / WIDE];
    fetch<SINGLE, 1>(me, g + n * SMALL * C2 * W, gradient);
    fetch<SINGLE, 1>(me, z2 + n * SMALL * C2 * W, kept2);
    float mean2 = statistics2[2 * n], deviation2 = statistics2[2 * n + 1];
    float mean1 = statistics1[2 * n], deviation1 = statistics1[2 * n + 1];
    gather(me, begun);
    fill(small, gradient);
    Power outer =
        activate_back<ELU, SINGLE>(me, small, scratch, 0, affine2, kept2, mean2, deviation2, parts2 + n * 3 * C2);
    leave<SINGLE>(me, small, nullptr, small_cells, BORDERED, BORDER, outer.up);
    hand_over();
    meet(me.slot);
    send<SMALL_CELLS>(me, dz2, n, small_cells, outer);
    Tile<4> middle;
    middle.clear();
    await(arrivals[0]);
    begin_products(middle.d);
    Operand from = operand(small_cells, BORDERED), weight = operand(w2, 4 * C1 * 16);
    EVERY(tap, 4)
      add_product<4 * C1, C2>(middle.d, from, (BORDER - tap / 2 * 8 - tap % 2) * 16, BORDERED, weight,
                              tap * C2 * 4 * C1 * E);
    commit_products();
    fetch<SHIFTED, 4>(me, z1 + n * MIDDLE * C1 * W, kept1);
    add_bias<1>(me, scratch, parts2 + n * 3 * C2);
    await_products(middle.d);
    middle.multiply(outer.down * power2);
    sent(me);
    Power inner =
        activate_back<ELU, SHIFTED>(me, middle, scratch, 1, affine1, kept1, mean1, deviation1, parts1 + n * 3 * C1);
    leave<SHIFTED>(me, middle, dz1 + n * MIDDLE * C1 * W, gx ? cells : nullptr, BARE, 0, inner.up);
    hand_over();
    meet(me.slot);
    if (gx) {
      float d[8] = {};
      await(arrivals[1]);
      begin_products(d);
      add_strided<16>(d, cells, w1);
      finish_products(d);
      write_image(me, d, gx + n * PIXELS, inner.down * power1, 0);
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

// Features (S,S,C2) to an image (4S,4S). Without gradients what follows eta is null.
extern "C" __global__ void __launch_bounds__(SLOTS *THREADS, 1)
    decoder_there(const char *features, const char *up, const char *last, const float *powers, const float *bias,
                  const float *scale, const float *offset, const float *last_bias, float *eta, char *seen, char *z,
                  char *a, float *statistics, int N) {
  Thread me = this_thread();
  char *next = block_memory();
  char *w_last = carve<WEIGHT_IMAGE>(next), *w_up = carve<WEIGHT_UP>(next);
  Arrival *arrivals = (Arrival *)carve<4 * sizeof(Arrival)>(next);
  float *parameters = (float *)carve<3 * C1 * 4>(next);
  bring_each(arrivals, {{w_up, up, ROW_UP},
                        {w_up + ROW_UP, up + ROW_UP, 2 * ROW_UP},
                        {w_up + 3 * ROW_UP, up + 3 * ROW_UP, 2 * ROW_UP},
                        {w_last, last, WEIGHT_IMAGE}});
  Affine affine = bring<C1>(parameters, bias, scale, offset);
  constexpr int SLOT = whole(SMALL_CELLS + MORE) + whole(PHASES_CELLS + MORE) + whole(sizeof(Few));
  next = slot_memory<WEIGHT_UP + WEIGHT_IMAGE, SLOT>(me, next);
  char *small_cells = carve<SMALL_CELLS + MORE>(next), *cells = carve<PHASES_CELLS + MORE>(next);
  Few &few = *(Few *)carve<sizeof(Few)>(next);
  clear_border<PHASES_CELLS>(me, cells);
  float power_up = weight_power(powers, 0), power_last = weight_power(powers, 1), brightness = last_bias[0];
  bool begun = false;
  EACH_IMAGE {
    forget(me.index), forget(me.row), forget(me.column), forget(me.quarter);
    constexpr int PLANES = C2 / STRIP, ITEMS = (PLANES * 74 + THREADS - 1) / THREADS;
    float read[ITEMS][STRIP], largest = 0;
    EVERY(k, ITEMS) {
      int item = k * THREADS + me.index, i = item / PLANES / 8 - 1, j = item / PLANES % 8 - 1;
      bool inside = i >= 0 && i < S && j >= 0 && j < S;
      const char *from = features + ((n * SMALL + i * S + j) * C2 + item % PLANES * STRIP) * W;
      uint4 strips[STRIP / WIDE];
      EVERY(l, STRIP / WIDE)
        strips[l] = inside ? *(const uint4 *)(from + 16 * l) : uint4{};
      unpack<STRIP>(strips, read[k]);
      if (HALF)
        EVERY(c, STRIP)
          largest = larger(largest, size(read[k][c]));
    }
    Power given = power_of_all(me, few[2], largest);
    EVERY(k, ITEMS) {
      int item = k * THREADS + me.index;
      EVERY(c, STRIP)
        read[k][c] *= given.up;
      uint4 strip;
      pack<STRIP, E>(read[k], &strip);
      if (item < PLANES * 74)
        *(uint4 *)(small_cells + item % PLANES * BORDERED + item / PLANES * 16) = strip;
    }
    hand_over();
    gather(me, begun);
    if (seen)
      send<SMALL_CELLS>(me, seen, n, small_cells, given);
    Tile<4> middle;
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
    middle.multiply(given.down * power_up);
    sent(me);
    activate<RELU, PHASES>(me, middle, few, 0, affine, z ? z + n * MIDDLE * C1 * W : nullptr,
                           statistics ? statistics + 2 * n : nullptr);
    Power between = power_of_norm<4>(me, affine);
    leave<DOUBLED>(me, middle, a ? a + n * MIDDLE * C1 * W : nullptr, cells, BORDERED, BORDER, between.up);
    hand_over();
    meet(me.slot);
    float d[8] = {};
    await(arrivals[3]);
    begin_products(d);
    Operand middle_cells = operand(cells, BORDERED), to_image = operand(w_last, 16 * 16);
    EVERY(k, 16) { // rows and columns 2y - 1 .. 2y + 2 of the middle layer
      int i = (k / 4 + 1) / 2, j = (k % 4 + 1) / 2, part = part_of((k / 4 + 1) % 2, (k % 4 + 1) % 2);
      add_product<16, C1>(d, middle_cells, part * (C1 / STRIP) * BORDERED + (BORDER + (i - 1) * 8 + j - 1) * 16,
                          BORDERED, to_image, k * C1 * 16 * E);
    }
    finish_products(d);
    write_image(me, d, eta + n * PIXELS, between.down * power_last, brightness);
  }
  if (!begun)
    gather(me, begun);
}

#endif
#ifdef DECODER_BACK

// From the gradient of the image to those of the up-convolution's product, of its parameters and of the features.
extern "C" __global__ void __launch_bounds__(SLOTS *THREADS, 1)
    decoder_back(const float *g, const char *last, const char *up, const float *powers, const char *z,
                 const float *statistics, const float *bias, const float *scale, const float *offset, char *dz,
                 float *parts, char *g_features, int N) {
  Thread me = this_thread();
  char *next = block_memory();
  char *w_last = carve<WEIGHT_LAST>(next), *w_up = carve<WEIGHT_UP>(next);
  Arrival *arrivals = (Arrival *)carve<2 * sizeof(Arrival)>(next);
  float *parameters = (float *)carve<3 * C1 * 4>(next);
  bring_each(arrivals, {{w_last, last, WEIGHT_LAST}, {w_up, up, WEIGHT_UP}});
  Affine affine = bring<C1>(parameters, bias, scale, offset);
  constexpr int WINDOWS = DEPTH_LAST / STRIP * BARE;
  constexpr int SLOT = whole(WINDOWS) + whole(PHASES_CELLS + MORE) + whole(sizeof(Scratch));
  next = slot_memory<WEIGHT_LAST + WEIGHT_UP, SLOT>(me, next);
  char *seen = carve<WINDOWS>(next), *cells = carve<PHASES_CELLS + MORE>(next);
  Scratch &scratch = *(Scratch *)carve<sizeof(Scratch)>(next);
  clear_border<PHASES_CELLS>(me, cells);
  float power_up = weight_power(powers, 0), power_last = weight_power(powers, 1);
  bool begun = false;
  EACH_IMAGE {
    forget(me.index), forget(me.row), forget(me.column), forget(me.quarter);
    uint4 kept[sizeof(Tile<4>) / 4 / WIDE];
    fetch<PHASES, 4>(me, z + n * MIDDLE * C1 * W, kept);
    float mean = statistics[2 * n], deviation = statistics[2 * n + 1];
    Power image = windows<DEPTH_LAST, 7, 2, 2, 2>(me, g + n * PIXELS, seen, scratch.few[2]);
    hand_over();
    gather(me, begun);
    Tile<4> middle;
    middle.clear();
    await(arrivals[0]);
    begin_products(middle.d);
    add_product<4 * C1, DEPTH_LAST>(middle.d, operand(seen, BARE), 0, BARE, operand(w_last, 4 * C1 * 16), 0);
    finish_products(middle.d);
    middle.multiply(image.down * power_last);
    Power inner =
        activate_back<RELU, PHASES>(me, middle, scratch, 0, affine, kept, mean, deviation, parts + n * 3 * C1);
    leave<PHASES>(me, middle, nullptr, cells, BORDERED, BORDER, inner.up);
    hand_over();
    meet(me.slot);
    send<PHASES_CELLS>(me, dz, n, cells, inner);
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
    small.multiply(inner.down * power_up);
    sent(me);
    leave<SINGLE>(me, small, g_features + n * SMALL * C2 * W);
  }
  if (!begun)
    gather(me, begun);
}

#endif

// ---- gradients of weights, over all images ----

// Runs `add(small, other)` on the planes of one image after another, which the copy engine brings ahead. The small
// ones have been multiplied by the image's factor.
template <int OTHER, class Add>
__device__ void over_images(const Thread &me, const char *smalls, const char *others, const float *factors, int N,
                            Add add) {
  constexpr int SECOND = whole(SMALL_CELLS + MORE), STAGE = SECOND + whole(OTHER + MORE), STAGES = 6;
  static_assert(STAGES * STAGE + 128 <= SHARED, "more than a block's shared memory");
  char *next = block_memory();
  Arrival *arrivals = (Arrival *)carve<STAGES * sizeof(Arrival)>(next);
  auto fetch_image = [&](int i) {
    long n = blockIdx.x + (long)i * gridDim.x;
    char *to = next + i % STAGES * STAGE;
    if (threadIdx.x == 0 && n < N)
      bring_both(arrivals[i % STAGES], {to, smalls + n * row<SMALL_CELLS>(), SMALL_CELLS},
                 {to + SECOND, others + n * row<OTHER>(), OTHER});
  };
  for (int i = threadIdx.x; i < STAGES * MORE / 4; i += SLOTS * THREADS) { // what products read behind the planes
    char *stage = next + i / (MORE / 4) * STAGE + i % (MORE / 4) * 4;
    *(float *)(stage + SMALL_CELLS) = *(float *)(stage + SECOND + OTHER) = 0;
  }
  hand_over();
  begin_arrivals(arrivals, STAGES);
  for (int i = 0; i < STAGES; i++)
    fetch_image(i);
  all_together();
  float factor = HALF && blockIdx.x < N ? factors[blockIdx.x] : 1; // fetched ahead as well
  for (int i = 0; blockIdx.x + (long)i * gridDim.x < N; i++) {
    char *small = next + i % STAGES * STAGE;
    await(arrivals[i % STAGES], i / STAGES % 2);
    if constexpr (HALF) {
      for (int k = threadIdx.x; k < SMALL_CELLS / 16; k += SLOTS * THREADS) {
        uint4 &strip = *(uint4 *)(small + k * 16);
        unsigned words[4] = {strip.x, strip.y, strip.z, strip.w};
        EVERY(l, 4) {
          float low, high;
          lows_and_highs(words[l], low, high);
          words[l] = halves(low * factor, high * factor);
        }
        strip = uint4{words[0], words[1], words[2], words[3]};
      }
      long following = blockIdx.x + (i + 1l) * gridDim.x;
      factor = following < N ? factors[following] : 1;
      hand_over();
      all_together();
    }
    add(small, small + SECOND);
    all_together();
    fetch_image(i + STAGES);
  }
}

// Adds the sum over 64 cells of the outer products of a cell's rows and of its columns.
template <int COLUMNS> __device__ void add_over_cells(float *d, Operand rows, Operand columns) {
  EVERY(k, 64 / STEP)
    multiply_cells<COLUMNS>(d, moved(rows, k * STEP * 16), moved(columns, k * STEP * 16));
}

// Writes sums (64,COLUMNS).
template <int COLUMNS> __device__ float *write_sums(const Thread &me, const float *d, float *to) {
  EVERY(j, COLUMNS / 8)
    EVERY(cell, 2)
      *(float2 *)(to + (16 * me.warp + me.lane / 4 + 8 * cell) * COLUMNS + 8 * j + 2 * me.quarter) =
          float2{d[4 * j + 2 * cell], d[4 * j + 2 * cell + 1]};
  return to + 64 * COLUMNS;
}

#ifdef ENCODER_WEIGHTS

// Sums (4,C2,4*C1) of the taps of the strided convolution, of each block, two of them of each slot.
extern "C" __global__ void __launch_bounds__(SLOTS *THREADS, 1)
    encoder_weights(const char *dz2, const char *a1, const float *factors, float *sums, int N) {
  static_assert(SLOTS == 2, "two slots share the taps");
  Thread me = this_thread();
  float d[2][2 * C1] = {};
  over_images<CELLS>(me, dz2, a1, factors, N, [&](const char *small, const char *cells) {
    Operand rows = operand_of_cells(small + BORDER * 16, BORDERED), columns = operand_of_cells(cells, BARE);
    EVERY(tap, 2)
      begin_products(d[tap]);
    EVERY(tap, 2)
      add_over_cells<4 * C1>(d[tap], rows, moved(columns, (me.slot * 8 + tap) * 16));
    commit_products();
    EVERY(tap, 2)
      await_products(d[tap]);
  });
  sums += (blockIdx.x * 2 + me.slot) * 2l * C2 * 4 * C1;
  EVERY(tap, 2)
    sums = write_sums<4 * C1>(me, d[tap], sums);
}

#endif
#ifdef DECODER_WEIGHTS

// Sums over what the up-convolution's phases read at an offset, by slot: of all phases at (slot,0) and (slot,1); of two
// at (-1,0) and (-1,1), or at (0,-1) and (1,-1); of one at (-1,-1), both slots the same.
extern "C" __global__ void __launch_bounds__(SLOTS *THREADS, 1)
    decoder_weights(const char *seen, const char *dz, const float *factors, float *sums, int N) {
  static_assert(SLOTS == 2, "two slots share the offsets");
  Thread me = this_thread();
  constexpr int PART = C1 / STRIP * BORDERED;
  float four[2][2 * C1] = {}, two[2][C1] = {}, one[C1 / 2] = {};
  over_images<PHASES_CELLS>(me, seen, dz, factors, N, [&](const char *small, const char *cells) {
    Operand rows = operand_of_cells(small, BORDERED), columns = operand_of_cells(cells + BORDER * 16, BORDERED);
    int step = me.slot ? 8 : 1, from = me.slot ? 8 : 1; // cells
    EVERY(k, 2) {
      begin_products(four[k]);
      begin_products(two[k]);
    }
    begin_products(one);
    EVERY(k, 2) {
      add_over_cells<4 * C1>(four[k], moved(rows, (BORDER + me.slot * 8 + k) * 16), columns);
      add_over_cells<2 * C1>(two[k], moved(rows, (from + k * step) * 16), moved(columns, me.slot ? 0 : PART));
    }
    add_over_cells<C1>(one, rows, moved(columns, PART));
    commit_products();
    EVERY(k, 2) {
      await_products(four[k]);
      await_products(two[k]);
    }
    await_products(one);
  });
  sums += (blockIdx.x * 2 + me.slot) * 13l * C2 * C1;
  EVERY(k, 2)
    sums = write_sums<4 * C1>(me, four[k], sums);
  EVERY(k, 2)
    sums = write_sums<2 * C1>(me, two[k], sums);
  write_sums<C1>(me, one, sums);
}

#endif
