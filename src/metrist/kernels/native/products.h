/* Products of integers with eight numbers at a time: TILE rows and the columns of one panel. */

/* How `multiply_block` is to treat bytes: those of rows are signed unless they are UNSIGNED. Sums that are SMALL, below
 * 2**22, must be read by `small_as_floats`. */
enum { SIGNED = 0, UNSIGNED = 1, SMALL = 2 };

#if defined(__aarch64__)
#include "products_neon.h"
#else
#include "products_avx2.h"
#endif

/* result[row] = the PANEL columns of a row. `scales` is [blocks][TILE], of the rows. */
static inline void multiply_tile(const Linear *linear, const uint8_t *const *rows, const float *scales, int64_t panel,
                                 const int32_t *excess, float result[TILE][PANEL]) {
#if defined(__aarch64__)
    if (linear->block <= MAX_SMALL_BLOCK) {
        multiply_small_tile(linear, rows, scales, panel, result);
        return;
    }
#endif
    int64_t blocks = linear->inputs / linear->block;
    const int8_t *weights = linear->weights + panel * linear->inputs * PANEL;
    const float *steps = linear->scales + panel * blocks * PANEL;
    memset(result, 0, TILE * PANEL * sizeof(float));
    for (int64_t b = 0; b < blocks; b++, scales += TILE, steps += PANEL) {
        Whole sums[TILE][2];
        const uint8_t *at[TILE];
        for (int r = 0; r < TILE; r++) at[r] = rows[r] + b * linear->block;
        multiply_block(at, weights + b * linear->block * PANEL, linear->block, EXCESS ? UNSIGNED : SIGNED, sums);
        for (int c = 0; c < 2; c++) {
            Lanes step = load(steps + c * 8);
            for (int r = 0; r < TILE; r++) {
                if (EXCESS) sums[r][c] = minus(sums[r][c], excess + (panel * blocks + b) * PANEL + c * 8);
                Lanes scaled = multiply(as_floats(sums[r][c]), step);
                store(result[r] + c * 8, fused_by(scaled, scales[r], load(result[r] + c * 8)));
            }
        }
    }
}

/* What follows the product of TILE rows with a panel. */
static inline void finish_tile(const Linear *linear, float tile[TILE][PANEL], int64_t rows, int64_t panel, int gelu,
                               float *result) {
    for (int64_t r = 0; r < rows; r++) {
        float *out = result + r * linear->outputs + panel * PANEL;
        Wide x = wide_load(tile[r]);
        if (linear->bias != NULL) x = wide_add(x, wide_load(linear->bias + panel * PANEL));
        if (gelu) x = gelu_of(x);
        wide_store(out, x);
    }
}

/* The rows of a buffer of rounded rows are a multiple of this. More digits would be slower than products of floats. */
enum { ROWS = TILE, DIGITS = 1 };

static inline int in_tiles(const Linear *linear) { return (void)linear, 0; }
static inline int64_t group_size(const Linear *linear) { return (void)linear, ROWS; }

/* How much too large the sums of each block are if 128 is added to the integers of rows: [outputs / PANEL][blocks]
 * [PANEL]. `row` is a block of 128. */
static void sum_excess(const Linear *linear, const uint8_t *row, int32_t *excess) {
    const uint8_t *rows[TILE] = {row, row, row, row};
    int64_t blocks = linear->outputs / PANEL * (linear->inputs / linear->block);
    for (int64_t b = 0; b < blocks; b++, excess += PANEL) {
        Whole sums[TILE][2];
        multiply_block(rows, linear->weights + b * linear->block * PANEL, linear->block, UNSIGNED, sums);
        memcpy(excess, sums[0], PANEL * sizeof(int32_t));
    }
}

/* result = rows times all panels, with what follows the product. `integers` are rounded rows, `scales` as in
 * `round_rows`. */
static void multiply_rows(const Linear *linear, const uint8_t *integers, const float *scales, int64_t count,
                          const int32_t *excess, int digits, int gelu, float *result) {
    (void)digits;
    for (int64_t panel = 0; panel < linear->outputs / PANEL; panel++) {
        for (int64_t first = 0; first < count; first += TILE) {
            const uint8_t *at[TILE];
            float tile[TILE][PANEL];
            for (int r = 0; r < TILE; r++) at[r] = integers + (first + r) * linear->inputs;
            multiply_tile(linear, at, scales + first * (linear->inputs / linear->block), panel, excess, tile);
            finish_tile(linear, tile, count - first < TILE ? count - first : TILE, panel, gelu,
                        result + first * linear->outputs);
        }
    }
}

/* Queries keep their sign here. */
static void sum_key_excess(Head *head) { (void)head; }

/* The score of a key includes the logarithm of its value's relative scale. */
static void compare_tile(const Head *head, Tile *tile) {
    const uint8_t *at[TILE];
    Lanes most[TILE];
    for (int r = 0; r < TILE; r++) at[r] = tile->queries + r * head->width, most[r] = fill(-INFINITY);
    for (int64_t key = 0; key < head->padded; key += PANEL) {
        Whole sums[TILE][2];
        multiply_block(at, head->keys + key * head->width, head->width, SIGNED | SMALL, sums);
        for (int c = 0; c < 2; c++) {
            Lanes scales = load(head->key_scales + key + 8 * c), logarithms = load(head->logarithms + key + 8 * c);
            for (int r = 0; r < TILE; r++) {
                Lanes scores = fused_by(multiply(small_as_floats(sums[r][c]), scales), tile->scales[r], logarithms);
                store(tile->scores + r * head->padded + key + 8 * c, scores);
                most[r] = greater(most[r], scores);
            }
        }
    }
    for (int r = 0; r < TILE; r++) tile->largest[r] = greatest_lane(most[r]);
}

static void mix_tile(const Head *head, const Tile *tile, int64_t rows, float *result, int64_t stride) {
    const uint8_t *lower[TILE], *upper[TILE];
    for (int r = 0; r < TILE; r++) {
        lower[r] = tile->lower + r * head->padded, upper[r] = tile->upper + r * head->padded;
    }
    for (int64_t column = 0; column < head->width; column += PANEL) {
        Whole low[TILE][2], high[TILE][2];
        const int8_t *values = head->values + column * head->padded;
        multiply_block(lower, values, head->padded, UNSIGNED, low);
        multiply_block(upper, values, head->padded, UNSIGNED, high);
        /* Every index into `low` is a constant, so that it stays in registers. */
        for (int r = 0; r < TILE; r++) {
            if (r >= rows) break;
            for (int c = 0; c < 2; c++) {
                Lanes x = fused_by(as_floats(high[r][c]), 128.0f, as_floats(low[r][c]));
                store(result + r * stride + column + 8 * c, multiply(x, fill(head->value_scale / tile->sums[r])));
            }
        }
    }
}

