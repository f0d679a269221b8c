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
        Whole low = nearest(multiply(load(block + i), factor)), high = nearest(multiply(load(block + i + 8), factor));
        store_bytes(integers + i, low, high);
    }
    return largest / 127.0f;
}

static Lanes gelu_of(Lanes x) {
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

#if defined(__aarch64__)
enum { EXCESS = 0 };

/* Sums over `size` numbers: sums[row] are the PANEL columns of a row. `weights` is [size / 4][PANEL][4]. Whether the
 * bytes of rows have a sign matters on x86 alone. */
static inline void multiply_block(const uint8_t *const *rows, const int8_t *weights, int64_t size, int are_signed,
                                  Whole sums[TILE][2]) {
    (void)are_signed;
    for (int r = 0; r < TILE; r++) {
        for (int c = 0; c < 2; c++) sums[r][c] = (Whole){vdupq_n_s32(0), vdupq_n_s32(0)};
    }
    for (int64_t k = 0; k < size; k += 16, weights += 16 * PANEL) {
        int8x16_t a[TILE];
        for (int r = 0; r < TILE; r++) a[r] = vld1q_s8((const int8_t *)rows[r] + k);
#define STEP(lane)                                                                              \
    for (int c = 0; c < 2; c++) {                                                               \
        int8x16_t w0 = vld1q_s8(weights + (lane)*4 * PANEL + c * 32);                           \
        int8x16_t w1 = vld1q_s8(weights + (lane)*4 * PANEL + c * 32 + 16);                      \
        for (int r = 0; r < TILE; r++) {                                                        \
            sums[r][c].low = vdotq_laneq_s32(sums[r][c].low, w0, a[r], lane);                   \
            sums[r][c].high = vdotq_laneq_s32(sums[r][c].high, w1, a[r], lane);                 \
        }                                                                                       \
    }
        STEP(0) STEP(1) STEP(2) STEP(3)
#undef STEP
    }
}

static inline Whole minus(Whole a, const int32_t *b) {
    return (Whole){vsubq_s32(a.low, vld1q_s32(b)), vsubq_s32(a.high, vld1q_s32(b + 4))};
}

#else
enum { EXCESS = 1 };

static inline __m256i four_bytes(const uint8_t *at) {
    int32_t four;
    memcpy(&four, at, 4);
    return _mm256_set1_epi32(four);
}

/* Bytes of rows without a sign go up to 255 with weights up to 63, or up to 127 with any: sums of two products fit into
 * 16 bits. */
static inline void multiply_block(const uint8_t *const *rows, const int8_t *weights, int64_t size, int are_signed,
                                  Whole sums[TILE][2]) {
    const __m256i ones = _mm256_set1_epi16(1);
    for (int r = 0; r < TILE; r++) sums[r][0] = sums[r][1] = _mm256_setzero_si256();
    for (int64_t k = 0; k < size; k += 4, weights += 4 * PANEL) {
        for (int c = 0; c < 2; c++) {
            __m256i w = _mm256_loadu_si256((const __m256i *)(weights + 32 * c));
            for (int r = 0; r < TILE; r++) {
                __m256i a = four_bytes(rows[r] + k);
                __m256i pairs = are_signed ? _mm256_maddubs_epi16(_mm256_abs_epi8(a), _mm256_sign_epi8(w, a))
                                           : _mm256_maddubs_epi16(a, w);
                sums[r][c] = _mm256_add_epi32(sums[r][c], _mm256_madd_epi16(pairs, ones));
            }
        }
    }
}

static inline Whole minus(Whole a, const int32_t *b) {
    return _mm256_sub_epi32(a, _mm256_loadu_si256((const __m256i *)b));
}

#endif

static void multiply_tile(const Linear *linear, const uint8_t *const *rows, const float *const *scales, int64_t panel,
                          const int32_t *excess, float result[TILE][PANEL]) {
    int64_t blocks = linear->inputs / linear->block;
    const int8_t *weights = linear->weights + panel * linear->inputs * PANEL;
    const float *steps = linear->scales + panel * blocks * PANEL;
    Lanes total[TILE][2];
    for (int r = 0; r < TILE; r++) total[r][0] = total[r][1] = fill(0.0f);
    for (int64_t b = 0; b < blocks; b++) {
        Whole sums[TILE][2];
        const uint8_t *at[TILE];
        for (int r = 0; r < TILE; r++) at[r] = rows[r] + b * linear->block;
        multiply_block(at, weights + b * linear->block * PANEL, linear->block, !EXCESS, sums);
        for (int c = 0; c < 2; c++) {
            Lanes step = load(steps + b * PANEL + c * 8);
            for (int r = 0; r < TILE; r++) {
                if (EXCESS) sums[r][c] = minus(sums[r][c], excess + b * PANEL + c * 8);
                total[r][c] = fused_by(multiply(as_floats(sums[r][c]), step), scales[r][b], total[r][c]);
            }
        }
    }
    for (int r = 0; r < TILE; r++) store(result[r], total[r][0]), store(result[r] + 8, total[r][1]);
}

/* How much too large the sums of each block are on x86, where 128 is added to the integers of rows. */
static void sum_excess(const Linear *linear, int64_t panel, int32_t *excess) {
    const int8_t *weights = linear->weights + panel * linear->inputs * PANEL;
    for (int64_t b = 0; b < linear->inputs / linear->block; b++, excess += PANEL) {
        memset(excess, 0, PANEL * sizeof(int32_t));
        for (int64_t k = 0; k < linear->block / 4; k++, weights += 4 * PANEL) {
            for (int i = 0; i < 4 * PANEL; i++) excess[i / 4] += 128 * weights[i];
        }
    }
}

int apply_linear(const Linear *linear, const float *rows, int64_t count, int gelu, float *result) {
    int64_t blocks = linear->inputs / linear->block, padded = (count + TILE - 1) / TILE * TILE;
    uint8_t *integers = zeroed_room(padded * linear->inputs, 1);
    float *scales = zeroed_room(padded * blocks, sizeof(float));
    int32_t *excess = zeroed_room(blocks * PANEL, sizeof(int32_t));
    if (integers == NULL || scales == NULL || excess == NULL) {
        free(integers), free(scales), free(excess);
        return -1;
    }
    for (int64_t b = 0; b < count * blocks; b++) {
        scales[b] = round_block(rows + b * linear->block, linear->block, integers + b * linear->block);
    }
    if (EXCESS) {
        for (int64_t i = 0; i < count * linear->inputs; i++) integers[i] ^= 128;
    }
    for (int64_t panel = 0; panel < linear->outputs / PANEL; panel++) {
        if (EXCESS) sum_excess(linear, panel, excess);
        for (int64_t first = 0; first < count; first += TILE) {
            const uint8_t *at[TILE];
            const float *steps[TILE];
            float tile[TILE][PANEL];
            for (int r = 0; r < TILE; r++) {
                at[r] = integers + (first + r) * linear->inputs;
                steps[r] = scales + (first + r) * blocks;
            }
            multiply_tile(linear, at, steps, panel, excess, tile);
            for (int64_t r = 0; r < TILE && first + r < count; r++) {
                float *out = result + (first + r) * linear->outputs + panel * PANEL;
                for (int c = 0; c < PANEL; c += 8) {
                    Lanes x = load(tile[r] + c);
                    if (linear->bias != NULL) x = add(x, load(linear->bias + panel * PANEL + c));
                    store(out + c, gelu ? gelu_of(x) : x);
                }
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
                Whole low = nearest(multiply(load(from), factor)), high = nearest(multiply(load(from + 8), factor));
                store_bytes(rounded + (token - first) * width + i, low, high);
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
        multiply_block(at, head->keys + key * head->width, head->width, 1, sums);
        for (int c = 0; c < 2; c++) {
            Lanes scales = load(head->key_scales + key + 8 * c), logarithms = load(head->logarithms + key + 8 * c);
            for (int r = 0; r < TILE; r++) {
                Lanes scores = fused_by(multiply(as_floats_small(sums[r][c]), scales), tile->scales[r], logarithms);
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
    Lanes magic = fill(12582912.0f + 9.0f), shifted = add(x, magic);
    x = subtract(x, subtract(shifted, magic));
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
        multiply_block(lower, values, head->padded, 0, low);
        multiply_block(upper, values, head->padded, 0, high);
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

void gate_rows(const float *joined, int64_t count, int64_t width, float *result) {
    for (int64_t row = 0; row < count; row++, joined += 2 * width, result += width) {
        for (int64_t i = 0; i < width; i += 8) {
            Lanes up = load(joined + i), gate = load(joined + width + i);
            store(result + i, multiply(up, times_sigmoid(gate, gate)));
        }
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
