/* Products of integers with sixteen numbers at a time, the columns of a panel, by the instruction that multiplies bytes
 * without a sign by signed ones and adds them up. */

enum { EXCESS = 1 };

/* The rows of a buffer of rounded rows are a multiple of this: as many are multiplied together, with two panels, since an
 * addition takes several steps during which others can begin. */
enum { ROWS = 8, DIGITS = 2 };

/* The size of the blocks that AMX multiplies: as many bytes as a row of a tile has. */
enum { TILE_BYTES = 64, TILE_ROWS = 16 };

/* Whether the rows of a layer are multiplied by the instructions of AMX, in tiles of sixteen. */
static inline int in_tiles(const Linear *linear) { return METRIST_AMX && linear->block == TILE_BYTES; }

/* As many rows have their first digits in succession. */
static inline int64_t group_size(const Linear *linear) { return in_tiles(linear) ? TILE_ROWS : TILE; }

#define INLINE static inline __attribute__((always_inline))

/* Compilers copy every sum before they add to it, unless they are told so. */
INLINE __m512i add_products(__m512i sum, __m512i bytes, __m512i weights) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(bytes), "v"(weights));
    return sum;
}

/* Adds to sums[row][panel] the products of `size` bytes, a multiple of 16, of so many rows and panels, which are constants
 * where this is called. `stride` is the distance of panels. */
INLINE void multiply_block(const uint8_t *const *rows, const int count, const int8_t *weights, int64_t stride,
                           const int panels, int64_t size, __m512i sums[][2]) {
    for (int64_t k = 0; k < size; k += 16) {
#pragma GCC unroll 4
        for (int64_t i = k; i < k + 16; i += 4) {
            __m512i w[2];
#pragma GCC unroll 2
            for (int p = 0; p < panels; p++) w[p] = _mm512_loadu_si512(weights + p * stride + i * PANEL);
#pragma GCC unroll 8
            for (int r = 0; r < count; r++) {
                int32_t four;
                memcpy(&four, rows[r] + i, 4);
                __m512i bytes = _mm512_set1_epi32(four);
#pragma GCC unroll 2
                for (int p = 0; p < panels; p++) sums[r][p] = add_products(sums[r][p], bytes, w[p]);
            }
        }
    }
}

/* The sum of a block, of one digit or two. */
INLINE __m512 join_digits(__m512i first, __m512i second, const int digits) {
    __m512 sum = _mm512_cvtepi32_ps(first);
    return digits == 1 ? sum : _mm512_fmadd_ps(sum, _mm512_set1_ps(DIGIT_BASE), _mm512_cvtepi32_ps(second));
}

/* Rows of a result in so many panels, with what follows the product. */
INLINE void finish_rows(const Linear *linear, const __m512 total[][2], int64_t panel, const int panels, int64_t kept,
                        const int rows, int gelu, float *result) {
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
        if (r >= kept) break;
#pragma GCC unroll 2
        for (int p = 0; p < panels; p++) {
            Wide x = total[r][p];
            if (linear->bias != NULL) x = wide_add(x, wide_load(linear->bias + (panel + p) * PANEL));
            if (gelu) x = gelu_of(x);
            wide_store(result + r * linear->outputs + (panel + p) * PANEL, x);
        }
    }
}

/* result = `count` rows of digits times `panels` panels; `kept` rows of the result are written. All constants but `kept`
 * are known where this is called. */
INLINE void multiply_tile(const Linear *linear, const uint8_t *integers, const float *scales, int64_t panel,
                          const int panels, const int32_t *excess, int64_t kept, const int count, const int digits,
                          int gelu, float *result) {
    int64_t blocks = linear->inputs / linear->block, stride = linear->inputs * PANEL;
    const int8_t *weights = linear->weights + panel * stride;
    const float *steps = linear->scales + panel * blocks * PANEL;
    const uint8_t *rows[ROWS];
    __m512 total[ROWS][2];
#pragma GCC unroll 8
    for (int r = 0; r < count; r++) {
        rows[r] = integers + r * linear->inputs;
#pragma GCC unroll 2
        for (int p = 0; p < panels; p++) total[r][p] = _mm512_setzero_ps();
    }
    excess += panel * blocks * PANEL;
    for (int64_t b = 0; b < blocks; b++, steps += PANEL, excess += PANEL) {
        __m512i sums[ROWS][2];
#pragma GCC unroll 2
        for (int p = 0; p < panels; p++) {
            __m512i start = _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_loadu_si512(excess + p * blocks * PANEL));
#pragma GCC unroll 8
            for (int r = 0; r < count; r++) sums[r][p] = start;
        }
        multiply_block(rows, count, weights + b * linear->block * PANEL, stride, panels, linear->block, sums);
#pragma GCC unroll 8
        for (int r = 0; r < count; r++) rows[r] += linear->block;
#pragma GCC unroll 8
        for (int r = 0; r < count / digits; r++) {
            __m512 scale = _mm512_set1_ps(scales[r / TILE * TILE * blocks + b * TILE + r % TILE]);
#pragma GCC unroll 2
            for (int p = 0; p < panels; p++) {
                __m512 step = _mm512_loadu_ps(steps + p * blocks * PANEL);
                __m512 scaled = _mm512_mul_ps(join_digits(sums[r][p], sums[count - count / digits + r][p], digits), step);
                total[r][p] = _mm512_fmadd_ps(scaled, scale, total[r][p]);
            }
        }
    }
    finish_rows(linear, total, panel, panels, kept, count / digits, gelu, result);
}

/* How much too large the sums of each block are, since 128 is added to the integers of rows: [outputs / PANEL][blocks]
 * [PANEL]. `row` is a block of 128. */
static void sum_excess(const Linear *linear, const uint8_t *row, int32_t *excess) {
    int64_t blocks = linear->outputs / PANEL * (linear->inputs / linear->block);
    for (int64_t b = 0; b < blocks; b++, excess += PANEL) {
        __m512i sums[1][2] = {{_mm512_setzero_si512()}};
        multiply_block(&row, 1, linear->weights + b * linear->block * PANEL, 0, 1, linear->block, sums);
        _mm512_storeu_si512(excess, sums[0][0]);
    }
}

INLINE void multiply_with_panels(const Linear *linear, const uint8_t *integers, const float *scales, int64_t count,
                                 int64_t panel, const int panels, const int32_t *excess, int digits, int gelu,
                                 float *result) {
    int64_t blocks = linear->inputs / linear->block, first = 0;
    for (; digits == 2 && first < count; first += TILE) {
        multiply_tile(linear, integers + 2 * first * linear->inputs, scales + first * blocks, panel, panels, excess,
                      count - first, 2 * TILE, 2, gelu, result + first * linear->outputs);
    }
    for (; count - first > TILE; first += ROWS) {
        multiply_tile(linear, integers + first * linear->inputs, scales + first * blocks, panel, panels, excess,
                      count - first, ROWS, 1, gelu, result + first * linear->outputs);
    }
    if (first < count) {
        multiply_tile(linear, integers + first * linear->inputs, scales + first * blocks, panel, panels, excess,
                      count - first, TILE, 1, gelu, result + first * linear->outputs);
    }
}

#if METRIST_AMX
/* The rows of a result that AMX computes at once, in one panel. */
INLINE void multiply_group(const Linear *linear, const uint8_t *integers, const float *scales, int64_t panel, int64_t kept,
                           const int digits, int gelu, float *result) {
    int64_t inputs = linear->inputs, blocks = inputs / TILE_BYTES;
    const int8_t *weights = linear->weights + panel * inputs * PANEL;
    const float *steps = linear->scales + panel * blocks * PANEL;
    /* Two of each, so that a block is multiplied while the one before it is added. */
    int32_t first[2][TILE_ROWS * PANEL] __attribute__((aligned(64))), second[2][TILE_ROWS * PANEL] __attribute__((aligned(64)));
    __m512 total[TILE_ROWS][2];
#pragma GCC unroll 16
    for (int r = 0; r < TILE_ROWS; r++) total[r][0] = _mm512_setzero_ps();
    for (int64_t b = 0; b <= blocks; b++) {
        if (b < blocks) {
            _tile_loadd(2, weights + b * TILE_BYTES * PANEL, 4 * PANEL);
            _tile_loadd(3, integers + b * TILE_BYTES, inputs);
            _tile_zero(0);
            _tile_dpbssd(0, 3, 2);
            _tile_stored(0, first[b % 2], 4 * PANEL);
            if (digits == 2) {
                _tile_loadd(4, integers + TILE_ROWS * inputs + b * TILE_BYTES, inputs);
                _tile_zero(1);
                _tile_dpbssd(1, 4, 2);
                if (linear->second != NULL) {
                    _tile_loadd(2, linear->second + panel * inputs * PANEL + b * TILE_BYTES * PANEL, 4 * PANEL);
                    _tile_dpbssd(1, 3, 2);
                }
                _tile_stored(1, second[b % 2], 4 * PANEL);
            }
        }
        if (b == 0) continue;
        const int32_t *sums = first[(b - 1) % 2], *more = second[(b - 1) % 2];
        const float *own = scales + (b - 1) * TILE;
        __m512 step = _mm512_loadu_ps(steps + (b - 1) * PANEL);
#pragma GCC unroll 16
        for (int r = 0; r < TILE_ROWS; r++) {
            __m512i high = _mm512_load_si512(sums + r * PANEL), low = high;
            if (digits == 2) low = _mm512_load_si512(more + r * PANEL);
            __m512 scale = _mm512_set1_ps(own[r / TILE * TILE * blocks + r % TILE]);
            total[r][0] = _mm512_fmadd_ps(_mm512_mul_ps(join_digits(high, low, digits), step), scale, total[r][0]);
        }
    }
    finish_rows(linear, total, panel, 1, kept, TILE_ROWS, gelu, result);
}

/* Five tiles of sixteen rows of 64 bytes. */
static const struct {
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} TILES = {1, 0, {0}, {64, 64, 64, 64, 64}, {16, 16, 16, 16, 16}};

static void multiply_tiles(const Linear *linear, const uint8_t *integers, const float *scales, int64_t count, int digits,
                           int gelu, float *result) {
    int64_t inputs = linear->inputs, blocks = inputs / TILE_BYTES;
    _tile_loadconfig(&TILES);
    for (int64_t panel = 0; panel < linear->outputs / PANEL; panel++) {
        for (int64_t row = 0; row < count; row += TILE_ROWS) {
            const uint8_t *group = integers + row * digits * inputs;
            const float *steps = scales + row * blocks;
            float *to = result + row * linear->outputs;
            if (digits == 1) multiply_group(linear, group, steps, panel, count - row, 1, gelu, to);
            if (digits == 2) multiply_group(linear, group, steps, panel, count - row, 2, gelu, to);
        }
    }
    _tile_release();
}
#endif

/* result = rows times all panels, with what follows the product. `integers` are rounded rows, `scales` as in
 * `round_rows`. */
static void multiply_rows(const Linear *linear, const uint8_t *integers, const float *scales, int64_t count,
                          const int32_t *excess, int digits, int gelu, float *result) {
    int64_t panels = linear->outputs / PANEL, panel = 0;
#if METRIST_AMX
    if (in_tiles(linear)) {
        multiply_tiles(linear, integers, scales, count, digits, gelu, result);
        return;
    }
#endif
    for (; panel + 2 <= panels; panel += 2) {
        multiply_with_panels(linear, integers, scales, count, panel, 2, excess, digits, gelu, result);
    }
    if (panel < panels) multiply_with_panels(linear, integers, scales, count, panel, 1, excess, digits, gelu, result);
}

/* ---- Attention ---- */

static void sum_key_excess(Head *head) {
    uint8_t most[MAX_HEAD];
    const uint8_t *row = most;
    memset(most, 128, sizeof most);
    for (int64_t key = 0; key < head->padded; key += PANEL) {
        __m512i sums[1][2] = {{_mm512_setzero_si512()}};
        multiply_block(&row, 1, head->keys + key * head->width, 0, 1, head->width, sums);
        _mm512_storeu_si512(head->key_excess + key, sums[0][0]);
    }
}

/* Scores of TILE queries and of keys in so many panels, a constant where this is called. */
INLINE void compare_panels(const Head *head, const Tile *tile, const uint8_t *const *queries, int64_t key,
                           const int panels, __m512 most[TILE]) {
    __m512i sums[TILE][2];
#pragma GCC unroll 2
    for (int p = 0; p < panels; p++) {
        __m512i excess = _mm512_loadu_si512(head->key_excess + key + p * PANEL);
#pragma GCC unroll 4
        for (int r = 0; r < TILE; r++) sums[r][p] = _mm512_sub_epi32(_mm512_setzero_si512(), excess);
    }
    multiply_block(queries, TILE, head->keys + key * head->width, PANEL * head->width, panels, head->width, sums);
#pragma GCC unroll 2
    for (int p = 0; p < panels; p++) {
        __m512 scales = _mm512_loadu_ps(head->key_scales + key + p * PANEL);
        __m512 logarithms = _mm512_loadu_ps(head->logarithms + key + p * PANEL);
#pragma GCC unroll 4
        for (int r = 0; r < TILE; r++) {
            __m512 scores = _mm512_mul_ps(_mm512_cvtepi32_ps(sums[r][p]), scales);
            scores = _mm512_fmadd_ps(scores, _mm512_set1_ps(tile->scales[r]), logarithms);
            _mm512_storeu_ps(tile->scores + r * head->padded + key + p * PANEL, scores);
            most[r] = _mm512_max_ps(most[r], scores);
        }
    }
}

/* The score of a key includes the logarithm of its value's relative scale. */
static void compare_tile(const Head *head, Tile *tile) {
    uint8_t raised[TILE * MAX_HEAD];
    const uint8_t *queries[TILE];
    __m512 most[TILE];
    int64_t key = 0;
    for (int64_t i = 0; i < TILE * head->width; i++) raised[i] = tile->queries[i] ^ 128;
    for (int r = 0; r < TILE; r++) queries[r] = raised + r * head->width, most[r] = _mm512_set1_ps(-INFINITY);
    for (; key + 2 * PANEL <= head->padded; key += 2 * PANEL) compare_panels(head, tile, queries, key, 2, most);
    if (key < head->padded) compare_panels(head, tile, queries, key, 1, most);
    for (int r = 0; r < TILE; r++) tile->largest[r] = _mm512_reduce_max_ps(most[r]);
}

/* Columns of the result of TILE queries: the values of all tokens, weighed. */
INLINE void mix_panels(const Head *head, const Tile *tile, const uint8_t *const *digits, int64_t rows, int64_t column,
                       const int panels, float *result, int64_t stride) {
    __m512i sums[2 * TILE][2];
#pragma GCC unroll 8
    for (int r = 0; r < 2 * TILE; r++) sums[r][0] = sums[r][1] = _mm512_setzero_si512();
    multiply_block(digits, 2 * TILE, head->values + column * head->padded, PANEL * head->padded, panels, head->padded,
                   sums);
#pragma GCC unroll 4
    for (int r = 0; r < TILE; r++) {
        if (r >= rows) break;
        __m512 scale = _mm512_set1_ps(head->value_scale / tile->sums[r]);
#pragma GCC unroll 2
        for (int p = 0; p < panels; p++) {
            __m512 low = _mm512_cvtepi32_ps(sums[r][p]), high = _mm512_cvtepi32_ps(sums[TILE + r][p]);
            __m512 x = _mm512_fmadd_ps(high, _mm512_set1_ps(128.0f), low);
            _mm512_storeu_ps(result + r * stride + column + p * PANEL, _mm512_mul_ps(x, scale));
        }
    }
}

static void mix_tile(const Head *head, const Tile *tile, int64_t rows, float *result, int64_t stride) {
    const uint8_t *digits[2 * TILE];
    int64_t column = 0;
    for (int r = 0; r < TILE; r++) {
        digits[r] = tile->lower + r * head->padded, digits[TILE + r] = tile->upper + r * head->padded;
    }
    for (; column + 2 * PANEL <= head->width; column += 2 * PANEL) {
        mix_panels(head, tile, digits, rows, column, 2, result, stride);
    }
    if (column < head->width) mix_panels(head, tile, digits, rows, column, 1, result, stride);
}
