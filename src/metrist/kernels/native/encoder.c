/* See encoder.h. The integers of a product are at most 127 * 63, so sums of pairs fit into 16 bits on x86. */
#include "encoder.h"

#include <stdlib.h>

#include "lanes.h"

#if !HAVE_LANES

int encoder_supported(void) { return 0; }

int apply_linear(const Linear *linear, const float *rows, int64_t count, int gelu, float *result) {
    (void)linear, (void)rows, (void)count, (void)gelu, (void)result;
    return -1;
}

int attend(const float *joined, int64_t length, int64_t heads, int64_t width, const float *turns, float *result) {
    (void)joined, (void)length, (void)heads, (void)width, (void)turns, (void)result;
    return -1;
}

void add_and_normalize(float *rows, const float *more, int64_t count, int64_t width, const float *weight,
                       const float *bias, float epsilon) {
    (void)rows, (void)more, (void)count, (void)width, (void)weight, (void)bias, (void)epsilon;
}

void gate_rows(const float *joined, int64_t count, int64_t width, float *result) {
    (void)joined, (void)count, (void)width, (void)result;
}

#else

/* ---- Rounded rows ---- */

/* Writes a block of numbers as integers from -127 to 127, signed bytes; returns the scale. */
static inline float round_block(const float *block, int64_t size, uint8_t *integers) {
    Lanes most = fill(0.0f);
    for (int64_t i = 0; i < size; i += 8) most = greater(most, magnitude(load(block + i)));
    float largest = greatest_lane(most);
    Lanes factor = fill(largest > 1e-30f ? 127.0f / largest : 0.0f);
    for (int64_t i = 0; i < size; i += 16) {
        store_rounded(integers + i, multiply(load(block + i), factor), multiply(load(block + i + 8), factor));
    }
    return largest / 127.0f;
}

static inline Lanes gelu_of(Lanes x) {
    /* x * sigmoid(2 x p(x * x)), where tanh(x p(x * x)) is erf(x / sqrt(2)): see numpy_inference/bert.py. */
    Lanes square = multiply(x, x), p = fill(1.81399552e-09f);
    square = less(square, fill(64.0f));
    p = fused(p, square, fill(-1.33786376e-07f));
    p = fused(p, square, fill(3.97412510e-06f));
    p = fused(p, square, fill(-5.52738142e-05f));
    p = fused(p, square, fill(-3.30251236e-05f));
    p = fused(p, square, fill(3.63341467e-02f));
    p = fused(p, square, fill(7.97884270e-01f));
    return times_sigmoid(x, multiply(add(x, x), p));
}

/* ---- Products ---- */

/* How `multiply_block` is to treat bytes: those of rows are signed unless they are UNSIGNED. Sums that are SMALL, below
 * 2**22, must be read by `small_as_floats`. */
enum { SIGNED = 0, UNSIGNED = 1, SMALL = 2 };

#if defined(__aarch64__)
/* Sums of so many products of 127 and 63 are small. */
enum { EXCESS = 0, MAX_SMALL_BLOCK = 512 };

/* What sums begin with, by whether they are small: a small integer that was added to the bits of SHIFT is also added to
 * this float, and subtracting is faster than converting. */
static const float STARTS[2][4] = {{0.0f}, {SHIFT, SHIFT, SHIFT, SHIFT}};

static inline Lanes small_as_floats(Whole a) {
    float32x4_t start = vdupq_n_f32(SHIFT);
    return (Lanes){vsubq_f32(vreinterpretq_f32_s32(a.low), start), vsubq_f32(vreinterpretq_f32_s32(a.high), start)};
}

/* The loops over blocks are in assembly, since compilers move loads to where they stop the units that multiply.
 * Registers: v0 to v3 are 16 bytes of each row, v4 to v7 weights, v16 to v31 sums, row by row for each four columns. */
#define FOUR_ROWS(s0, s1, s2, s3, w, lane)                                                        \
    "sdot " s0 ".4s, " w ".16b, v0.4b[" lane "]\n sdot " s1 ".4s, " w ".16b, v1.4b[" lane "]\n"   \
    "sdot " s2 ".4s, " w ".16b, v2.4b[" lane "]\n sdot " s3 ".4s, " w ".16b, v3.4b[" lane "]\n"
#define FOUR_INPUTS(lane, o0, o1, o2, o3)                                                                     \
    "ldr q4, [%[w], #" o0 "]\n ldr q5, [%[w], #" o1 "]\n ldr q6, [%[w], #" o2 "]\n ldr q7, [%[w], #" o3 "]\n" \
    FOUR_ROWS("v16", "v17", "v18", "v19", "v4", lane) FOUR_ROWS("v20", "v21", "v22", "v23", "v5", lane)       \
    FOUR_ROWS("v24", "v25", "v26", "v27", "v6", lane) FOUR_ROWS("v28", "v29", "v30", "v31", "v7", lane)
/* Adds the products of a block; `label` begins the loop over 16 inputs, and `left` counts them down. */
#define MULTIPLY_BLOCK(label, left)                                                                             \
    label ":\n"                                                                                                 \
    "ldr q0, [%[r0]], #16\n ldr q1, [%[r1]], #16\n ldr q2, [%[r2]], #16\n ldr q3, [%[r3]], #16\n"               \
    FOUR_INPUTS("0", "0", "16", "32", "48") FOUR_INPUTS("1", "64", "80", "96", "112")                           \
    FOUR_INPUTS("2", "128", "144", "160", "176") FOUR_INPUTS("3", "192", "208", "224", "240")                   \
    "add %[w], %[w], #256\n subs " left ", " left ", #16\n b.ne " label "b\n"
#define FOR_FOUR_SUMS(DO, a, b, c, d, column, step) \
    DO(a, "0", "0+" column, step) DO(b, "1", "64+" column, step) DO(c, "2", "128+" column, step) DO(d, "3", "192+" column, step)
#define FOR_ALL_SUMS(DO)                                                                                             \
    FOR_FOUR_SUMS(DO, "16", "17", "18", "19", "0", "5") FOR_FOUR_SUMS(DO, "20", "21", "22", "23", "16", "6")         \
    FOR_FOUR_SUMS(DO, "24", "25", "26", "27", "32", "7") FOR_FOUR_SUMS(DO, "28", "29", "30", "31", "48", "10")
#define START_SUM(sum, row, at, step) "ldr q" sum ", [%[start]]\n"
#define FLOAT_SUM(sum, row, at, step) "fsub v" sum ".4s, v" sum ".4s, v8.4s\n"
#define SCALE_SUM(sum, row, at, step) "fmul v" sum ".4s, v" sum ".4s, v" step ".4s\n"
#define TOTAL_SUM(sum, row, at, step) \
    "ldr q11, [%[total], #" at "]\n fmla v11.4s, v" sum ".4s, v9.s[" row "]\n str q11, [%[total], #" at "]\n"
#define ALL_REGISTERS                                                                                            \
    "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v16", "v17", "v18", \
        "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31"

/* Sums over `size` numbers, a multiple of 16: sums[row] are the PANEL columns of a row. `weights` is
 * [size / 4][PANEL][4]. */
static inline void multiply_block(const uint8_t *const *rows, const int8_t *weights, int64_t size, int kind,
                                  Whole sums[TILE][2]) {
    const uint8_t *r0 = rows[0], *r1 = rows[1], *r2 = rows[2], *r3 = rows[3];
#define SUM(name, place) register int32x4_t name __asm__(place)
    SUM(a0, "v16"); SUM(b0, "v17"); SUM(c0, "v18"); SUM(d0, "v19");
    SUM(a1, "v20"); SUM(b1, "v21"); SUM(c1, "v22"); SUM(d1, "v23");
    SUM(a2, "v24"); SUM(b2, "v25"); SUM(c2, "v26"); SUM(d2, "v27");
    SUM(a3, "v28"); SUM(b3, "v29"); SUM(c3, "v30"); SUM(d3, "v31");
#undef SUM
    __asm__ volatile(
        FOR_ALL_SUMS(START_SUM)
        MULTIPLY_BLOCK("1", "%[size]")
        : "=w"(a0), "=w"(b0), "=w"(c0), "=w"(d0), "=w"(a1), "=w"(b1), "=w"(c1), "=w"(d1), "=w"(a2), "=w"(b2), "=w"(c2),
          "=w"(d2), "=w"(a3), "=w"(b3), "=w"(c3), "=w"(d3), [r0] "+r"(r0), [r1] "+r"(r1), [r2] "+r"(r2), [r3] "+r"(r3),
          [w] "+r"(weights), [size] "+r"(size)
        : [start] "r"(STARTS[(kind & SMALL) != 0])
        : "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7");
    sums[0][0] = (Whole){a0, a1}, sums[0][1] = (Whole){a2, a3}, sums[1][0] = (Whole){b0, b1};
    sums[1][1] = (Whole){b2, b3}, sums[2][0] = (Whole){c0, c1}, sums[2][1] = (Whole){c2, c3};
    sums[3][0] = (Whole){d0, d1}, sums[3][1] = (Whole){d2, d3};
}

/* What `multiply_tile` does for blocks whose sums are small. */
static inline void multiply_small_tile(const Linear *linear, const uint8_t *const *rows, const float *scales,
                                       int64_t panel, float total[TILE][PANEL]) {
    int64_t blocks = linear->inputs / linear->block, left;
    const uint8_t *r0 = rows[0], *r1 = rows[1], *r2 = rows[2], *r3 = rows[3];
    const int8_t *weights = linear->weights + panel * linear->inputs * PANEL;
    const float *steps = linear->scales + panel * blocks * PANEL;
    memset(total, 0, TILE * PANEL * sizeof(float));
    __asm__ volatile(
        "ldr q8, [%[start]]\n"
        FOR_ALL_SUMS(START_SUM)
        "2:\n mov %[left], %[size]\n"
        MULTIPLY_BLOCK("1", "%[left]")
        "ldr q9, [%[scales]], #16\n ldp q5, q6, [%[steps]]\n ldp q7, q10, [%[steps], #32]\n add %[steps], %[steps], #64\n"
        FOR_ALL_SUMS(FLOAT_SUM) FOR_ALL_SUMS(SCALE_SUM) FOR_ALL_SUMS(TOTAL_SUM) FOR_ALL_SUMS(START_SUM)
        "subs %[blocks], %[blocks], #1\n b.ne 2b\n"
        : [r0] "+r"(r0), [r1] "+r"(r1), [r2] "+r"(r2), [r3] "+r"(r3), [w] "+r"(weights), [steps] "+r"(steps),
          [scales] "+r"(scales), [blocks] "+r"(blocks), [left] "=&r"(left)
        : [start] "r"(STARTS[1]), [size] "r"(linear->block), [total] "r"(total)
        : ALL_REGISTERS);
}

static inline Whole minus(Whole a, const int32_t *b) {
    return (Whole){vsubq_s32(a.low, vld1q_s32(b)), vsubq_s32(a.high, vld1q_s32(b + 4))};
}

#else
enum { EXCESS = 1 };

static inline Lanes small_as_floats(Whole a) { return as_floats(a); }

static inline __m256i four_bytes(const uint8_t *at) {
    int32_t four;
    memcpy(&four, at, 4);
    return _mm256_set1_epi32(four);
}

/* Bytes of rows without a sign go up to 255 with weights up to 63, or up to 127 with any: sums of two products fit into
 * 16 bits. */
static inline void multiply_block(const uint8_t *const *rows, const int8_t *weights, int64_t size, int kind,
                                  Whole sums[TILE][2]) {
    const __m256i ones = _mm256_set1_epi16(1);
    for (int r = 0; r < TILE; r++) sums[r][0] = sums[r][1] = _mm256_setzero_si256();
    for (int64_t k = 0; k < size; k += 4, weights += 4 * PANEL) {
        for (int c = 0; c < 2; c++) {
            __m256i w = _mm256_loadu_si256((const __m256i *)(weights + 32 * c));
            for (int r = 0; r < TILE; r++) {
                __m256i a = four_bytes(rows[r] + k);
                __m256i pairs = kind & UNSIGNED ? _mm256_maddubs_epi16(a, w)
                                                : _mm256_maddubs_epi16(_mm256_abs_epi8(a), _mm256_sign_epi8(w, a));
                sums[r][c] = _mm256_add_epi32(sums[r][c], _mm256_madd_epi16(pairs, ones));
            }
        }
    }
}

static inline Whole minus(Whole a, const int32_t *b) {
    return _mm256_sub_epi32(a, _mm256_loadu_si256((const __m256i *)b));
}

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

/* How much too large the sums of each block are on x86, where 128 is added to the integers of rows: [outputs / PANEL]
 * [blocks][PANEL]. */
static void sum_excess(const Linear *linear, int32_t *excess) {
    const int8_t *weights = linear->weights;
    for (int64_t b = 0; b < linear->outputs / PANEL * (linear->inputs / linear->block); b++, excess += PANEL) {
        memset(excess, 0, PANEL * sizeof(int32_t));
        for (int64_t k = 0; k < linear->block / 4; k++, weights += 4 * PANEL) {
            for (int i = 0; i < 4 * PANEL; i++) excess[i / 4] += 128 * weights[i];
        }
    }
}

/* Rounds rows: `scales` is [count / TILE][blocks][TILE]. */
static void round_rows(const Linear *linear, const float *rows, int64_t count, uint8_t *integers, float *scales) {
    int64_t blocks = linear->inputs / linear->block;
    for (int64_t row = 0; row < count; row++) {
        float *to = scales + row / TILE * TILE * blocks + row % TILE;
        for (int64_t b = 0; b < blocks; b++) {
            int64_t at = row * linear->inputs + b * linear->block;
            to[b * TILE] = round_block(rows + at, linear->block, integers + at);
        }
    }
    if (EXCESS) {
        for (int64_t i = 0; i < count * linear->inputs; i++) integers[i] ^= 128;
    }
}

/* What follows the product of TILE rows with a panel. */
static inline void finish_tile(const Linear *linear, float tile[TILE][PANEL], int64_t rows, int64_t panel, int gelu,
                               float *result) {
    for (int64_t r = 0; r < rows; r++) {
        float *out = result + r * linear->outputs + panel * PANEL;
        Lanes x = load(tile[r]), y = load(tile[r] + 8);
        if (linear->bias != NULL) {
            x = add(x, load(linear->bias + panel * PANEL)), y = add(y, load(linear->bias + panel * PANEL + 8));
        }
        /* Both at once: each takes many steps that wait for each other. */
        if (gelu) x = gelu_of(x), y = gelu_of(y);
        store(out, x), store(out + 8, y);
    }
}

/* The bytes of rows that are multiplied with all panels before others: they stay in the first cache, with a panel. */
enum { ROW_BYTES = 24576 };

int apply_linear(const Linear *linear, const float *rows, int64_t count, int gelu, float *result) {
    int64_t inputs = linear->inputs, blocks = inputs / linear->block, panels = linear->outputs / PANEL;
    int64_t most = ROW_BYTES / inputs / TILE * TILE < TILE ? TILE : ROW_BYTES / inputs / TILE * TILE;
    uint8_t *integers = zeroed_room(most * inputs, 1);
    float *scales = zeroed_room(most * blocks, sizeof(float));
    int32_t *excess = room(EXCESS ? panels * blocks * PANEL : 0, sizeof(int32_t));
    if (integers == NULL || scales == NULL || excess == NULL) {
        free(integers), free(scales), free(excess);
        return -1;
    }
    if (EXCESS) sum_excess(linear, excess);
    for (int64_t start = 0; start < count; start += most) {
        int64_t here = count - start < most ? count - start : most;
        round_rows(linear, rows + start * inputs, here, integers, scales);
        for (int64_t panel = 0; panel < panels; panel++) {
            for (int64_t first = 0; first < here; first += TILE) {
                const uint8_t *at[TILE];
                float tile[TILE][PANEL];
                for (int r = 0; r < TILE; r++) at[r] = integers + (first + r) * inputs;
                multiply_tile(linear, at, scales + first * blocks, panel, excess, tile);
                finish_tile(linear, tile, here - first < TILE ? here - first : TILE, panel, gelu,
                            result + (start + first) * linear->outputs);
            }
        }
    }
    free(integers), free(scales), free(excess);
    return 0;
}

/* ---- Attention ---- */

/* Copies one head's vector, turned by its position if `turns` is there, and multiplied by `factor`. */
static void copy_turned(const float *from, int64_t width, const float *turns, float factor, float *to) {
    int64_t half = width / 2;
    if (turns == NULL) {
        for (int64_t i = 0; i < width; i += 8) store(to + i, multiply(load(from + i), fill(factor)));
        return;
    }
    for (int64_t i = 0; i < half; i += 8) {
        Lanes a = load(from + i), b = load(from + half + i), cosine = load(turns + i), sine = load(turns + half + i);
        store(to + i, multiply(subtract(multiply(a, cosine), multiply(b, sine)), fill(factor)));
        store(to + half + i, multiply(add(multiply(b, cosine), multiply(a, sine)), fill(factor)));
    }
}

/* One head of one text. */
typedef struct {
    int64_t length, width;
    int64_t padded;     /* the length as a multiple of PANEL */
    int8_t *keys;       /* [padded / PANEL][width / 4][PANEL][4] */
    float *key_scales;  /* [padded] */
    int8_t *values;     /* [width / PANEL][padded / 4][PANEL][4] */
    float value_scale;  /* of the token whose value is largest */
    float *logarithms;  /* [padded], to the base of 2, of the scales of other tokens relative to it */
    float *inverses;    /* [padded], of the relative scales */
} Head;

/* TILE queries: integers, scales, and their scores and weights for all keys. */
typedef struct {
    uint8_t *queries; /* [TILE][width] */
    float scales[TILE];
    float *scores;          /* [TILE][padded] */
    float largest[TILE];    /* of the scores */
    uint8_t *lower, *upper; /* [TILE][padded], weights as digits to the base of 128 */
    float sums[TILE];       /* of the weights, of tokens with the largest scale */
} Tile;

static void pack_key(Head *head, int64_t token, const uint8_t *integers, float scale) {
    int8_t *to = head->keys + token / PANEL * PANEL * head->width + token % PANEL * 4;
    for (int64_t i = 0; i < head->width; i += 4, to += 4 * PANEL) memcpy(to, integers + i, 4);
    head->key_scales[token] = scale;
}

/* Relative scales of values: 2**(-n / 4). A fixed list has the same logarithms everywhere. */
enum { SCALES = 17 };
static const float RELATIVE[SCALES] = {
    1.0f,           0.840896415f,   0.707106781f,   0.594603558f,   0.5f,          0.420448208f,
    0.353553391f,   0.297301779f,   0.25f,          0.210224104f,   0.176776695f,  0.148650889f,
    0.125f,         0.105112052f,   0.0883883476f,  0.0743254447f,  0.0625f,
};

/* `row` is the value of the first token. A token's scale is a factor of its weights, since sums go over tokens: that is
 * why it must not be much smaller than others. */
static void pack_values(Head *head, const float *row, int64_t stride, uint8_t *rounded) {
    int64_t width = head->width;
    float largest = 0.0f;
    for (int64_t token = 0; token < head->length; token++) {
        Lanes most = fill(0.0f);
        for (int64_t i = 0; i < width; i += 8) most = greater(most, magnitude(load(row + token * stride + i)));
        /* For now, how large this value is. */
        head->inverses[token] = greatest_lane(most);
        largest = head->inverses[token] > largest ? head->inverses[token] : largest;
    }
    head->value_scale = largest / 127.0f;
    for (int64_t first = 0; first < head->length; first += 4) {
        memset(rounded, 0, (size_t)(4 * width));
        for (int64_t token = first; token < first + 4 && token < head->length; token++) {
            int n = 0;
            while (n + 1 < SCALES && RELATIVE[n + 1] * largest >= head->inverses[token]) n++;
            head->logarithms[token] = -0.25f * (float)n, head->inverses[token] = 1.0f / RELATIVE[n];
            Lanes factor = fill(largest > 1e-30f ? 127.0f / largest * head->inverses[token] : 0.0f);
            for (int64_t i = 0; i < width; i += 16) {
                const float *from = row + token * stride + i;
                store_rounded(rounded + (token - first) * width + i, multiply(load(from), factor),
                              multiply(load(from + 8), factor));
            }
        }
        for (int64_t column = 0; column < width; column += PANEL) {
            int8_t *to = head->values + column * head->padded + first * PANEL;
            for (int i = 0; i < PANEL; i++) {
                for (int j = 0; j < 4; j++) to[4 * i + j] = (int8_t)rounded[j * width + column + i];
            }
        }
    }
    /* What is beyond the text has no weight. */
    for (int64_t token = head->length; token < head->padded; token++) head->logarithms[token] = -INFINITY;
}

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

/* 2**x * 9279 for x from -16 to 0, plus 2**23: the lowest bits are the nearest integer. The relative error of the power
 * is below 1e-4. */
static inline Lanes weigh(Lanes x) {
    Lanes shifted = add(x, fill(SHIFT + 9.0f));
    x = subtract(x, subtract(shifted, fill(SHIFT + 9.0f)));
    /* A polynomial of the third degree by its roots, divided by its first coefficient, which is 2**9 / 9279. */
    Lanes one = add(x, fill(2.33833915f)), other = add(x, fill(1.02952341f));
    other = fused(other, other, fill(6.69085663f));
    return add(scale_by_shifted(multiply(one, other), shifted), fill(8388608.0f));
}

/* Turns scores into weights, the largest of which is 9279. */
static void weigh_tile(const Head *head, Tile *tile, int64_t rows) {
    Lanes least = fill(-16.0f);
    for (int64_t r = 0; r < rows; r++) {
        const float *scores = tile->scores + r * head->padded;
        uint8_t *lower = tile->lower + r * head->padded, *upper = tile->upper + r * head->padded;
        Lanes largest = fill(tile->largest[r]), zero = fill(8388608.0f), sum = fill(0.0f), more = fill(0.0f);
        for (int64_t i = 0; i < head->padded; i += 16) {
            Lanes a = greater(subtract(load(scores + i), largest), least);
            Lanes b = greater(subtract(load(scores + i + 8), largest), least);
            a = weigh(a), b = weigh(b);
            store_digits(lower + i, upper + i, a, b);
            sum = fused(subtract(a, zero), load(head->inverses + i), sum);
            more = fused(subtract(b, zero), load(head->inverses + i + 8), more);
        }
        tile->sums[r] = sum_lanes(add(sum, more));
    }
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

int attend(const float *joined, int64_t length, int64_t heads, int64_t width, const float *turns, float *result) {
    int64_t hidden = heads * width, padded = (length + PANEL - 1) / PANEL * PANEL;
    Head head = {.length = length, .width = width, .padded = padded};
    Tile tile;
    float *floats = zeroed_room(padded * (TILE + 3) + width, sizeof(float));
    uint8_t *bytes = zeroed_room(padded * (width + TILE) * 2 + (TILE + 4) * width, 1);
    if (floats == NULL || bytes == NULL) {
        free(floats), free(bytes);
        return -1;
    }
    head.key_scales = floats, head.logarithms = floats + padded, head.inverses = head.logarithms + padded;
    tile.scores = head.inverses + padded;
    float *one = tile.scores + TILE * padded;
    head.keys = (int8_t *)bytes, head.values = head.keys + padded * width;
    tile.lower = bytes + 2 * padded * width, tile.upper = tile.lower + TILE * padded;
    tile.queries = tile.upper + TILE * padded;
    uint8_t *rounded = tile.queries + TILE * width;
    /* Scores are powers of two instead of e. */
    float factor = LOG2_E / sqrtf((float)width);
    for (int64_t h = 0; h < heads; h++) {
        for (int64_t token = 0; token < length; token++) {
            copy_turned(joined + token * 3 * hidden + hidden + h * width, width,
                        turns == NULL ? NULL : turns + token * width, 1.0f, one);
            float scale = round_block(one, width, rounded);
            pack_key(&head, token, rounded, scale);
        }
        pack_values(&head, joined + 2 * hidden + h * width, 3 * hidden, rounded);
        for (int64_t first = 0; first < length; first += TILE) {
            int64_t rows = length - first < TILE ? length - first : TILE;
            for (int64_t r = 0; r < rows; r++) {
                copy_turned(joined + (first + r) * 3 * hidden + h * width, width,
                            turns == NULL ? NULL : turns + (first + r) * width, factor, one);
                tile.scales[r] = round_block(one, width, tile.queries + r * width);
            }
            compare_tile(&head, &tile);
            weigh_tile(&head, &tile, rows);
            mix_tile(&head, &tile, rows, result + first * hidden + h * width, hidden);
        }
    }
    free(floats), free(bytes);
    return 0;
}

/* ---- Between the products ---- */

void add_and_normalize(float *rows, const float *more, int64_t count, int64_t width, const float *weight,
                       const float *bias, float epsilon) {
    for (int64_t row = 0; row < count; row++, rows += width) {
        Lanes sum = fill(0.0f), squares = fill(0.0f);
        for (int64_t i = 0; i < width; i += 8) {
            Lanes x = load(rows + i);
            if (more != NULL) x = add(x, load(more + row * width + i));
            store(rows + i, x);
            sum = add(sum, x);
        }
        Lanes mean = fill(sum_lanes(sum) / (float)width);
        for (int64_t i = 0; i < width; i += 8) {
            Lanes x = subtract(load(rows + i), mean);
            store(rows + i, x);
            squares = fused(x, x, squares);
        }
        Lanes factor = fill(1.0f / sqrtf(sum_lanes(squares) / (float)width + epsilon));
        for (int64_t i = 0; i < width; i += 8) {
            store(rows + i, fused(multiply(load(rows + i), factor), load(weight + i), load(bias + i)));
        }
    }
}

static inline Lanes gated(const float *up, const float *gate) {
    return multiply(load(up), times_sigmoid(load(gate), load(gate)));
}

void gate_rows(const float *joined, int64_t count, int64_t width, float *result) {
    for (int64_t row = 0; row < count; row++, joined += 2 * width, result += width) {
        int64_t i = 0;
        for (; i + 16 <= width; i += 16) {
            Lanes one = gated(joined + i, joined + width + i), other = gated(joined + i + 8, joined + width + i + 8);
            store(result + i, one), store(result + i + 8, other);
        }
        if (i < width) store(result + i, gated(joined + i, joined + width + i));
    }
}

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#if defined(__x86_64__)

int encoder_supported(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

#elif defined(__linux__)
#include <sys/auxv.h>

/* HWCAP_ASIMDDP: the processor multiplies 8-bit integers (Linux names the bit in <asm/hwcap.h>). */
int encoder_supported(void) { return (getauxval(AT_HWCAP) >> 20 & 1) != 0; }

#else

/* Every Apple processor of this architecture has the instructions. */
int encoder_supported(void) {
#if defined(__APPLE__)
    return 1;
#else
    return 0;
#endif
}

#endif
#endif
