// The convolutions of an encoder or a decoder, with their layer norms and non-linearities, of one image in one place:
// four warps keep it in shared memory from the first layer to the last, there and back. Behind them, their weights'
// gradients over all images.
//
// Compiled behind `hopper.cu`, or in the tests behind an emulator, and `cells.cu`, with S, E (bytes of an operand's
// number: 2, or 4 for the emulator's floats), W (bytes of a number in memory), HALF, SLOTS (images of a block), SHARED
// (bytes that a block has) and the name of the kernel that is wanted, in capitals. Weights come packed by `images.py`.

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
