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

/* Writes one row as 8-bit integers, and the scale of each block. On x86, 128 is added to each integer. */
static void round_row(const float *row, int64_t inputs, int64_t block, uint8_t *integers, float *scales) {
    for (int64_t start = 0; start < inputs; start += block) {
        Lanes most = fill(0.0f);
        for (int64_t i = start; i < start + block; i += 8) most = greater(most, magnitude(load(row + i)));
        float largest = greatest_lane(most);
        float inverse = largest > 1e-30f ? 127.0f / largest : 0.0f;
        scales[start / block] = largest / 127.0f;
        for (int64_t i = start; i < start + block; i += 16) {
            Lanes factor = fill(inverse);
            Whole low = nearest(multiply(load(row + i), factor)), high = nearest(multiply(load(row + i + 8), factor));
            store_bytes(integers + i, low, high);
        }
    }
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

/* Sums over one block: sums[row] are the PANEL columns of a row. */
static inline void multiply_block(const uint8_t *const *rows, const int8_t *weights, int64_t size,
                                  int32x4_t sums[TILE][4]) {
    for (int r = 0; r < TILE; r++) {
        for (int c = 0; c < 4; c++) sums[r][c] = vdupq_n_s32(0);
    }
    for (int64_t k = 0; k < size; k += 16, weights += 16 * PANEL) {
        int8x16_t a[TILE];
        for (int r = 0; r < TILE; r++) a[r] = vld1q_s8((const int8_t *)rows[r] + k);
#define STEP(lane)                                                              \
    for (int c = 0; c < 4; c++) {                                               \
        int8x16_t w = vld1q_s8(weights + (lane)*4 * PANEL + c * 16);            \
        for (int r = 0; r < TILE; r++) sums[r][c] = vdotq_laneq_s32(sums[r][c], w, a[r], lane); \
    }
        STEP(0) STEP(1) STEP(2) STEP(3)
#undef STEP
    }
}

static void multiply_tile(const Linear *linear, const uint8_t *const *rows, const float *const *scales, int64_t panel,
                          const int32_t *excess, float result[TILE][PANEL]) {
    (void)excess;
    int64_t blocks = linear->inputs / linear->block;
    const int8_t *weights = linear->weights + panel * linear->inputs * PANEL;
    const float *steps = linear->scales + panel * blocks * PANEL;
    float32x4_t total[TILE][4];
    for (int r = 0; r < TILE; r++) {
        for (int c = 0; c < 4; c++) total[r][c] = vdupq_n_f32(0.0f);
    }
    for (int64_t b = 0; b < blocks; b++) {
        int32x4_t sums[TILE][4];
        const uint8_t *at[TILE];
        for (int r = 0; r < TILE; r++) at[r] = rows[r] + b * linear->block;
        multiply_block(at, weights + b * linear->block * PANEL, linear->block, sums);
        for (int c = 0; c < 4; c++) {
            float32x4_t step = vld1q_f32(steps + b * PANEL + c * 4);
            for (int r = 0; r < TILE; r++) {
                float32x4_t scaled = vmulq_f32(vcvtq_f32_s32(sums[r][c]), step);
                total[r][c] = vfmaq_n_f32(total[r][c], scaled, scales[r][b]);
            }
        }
    }
    for (int r = 0; r < TILE; r++) {
        for (int c = 0; c < 4; c++) vst1q_f32(result[r] + c * 4, total[r][c]);
    }
}

#else
enum { EXCESS = 1 };

static inline __m256i four_bytes(const uint8_t *at) {
    int32_t four;
    memcpy(&four, at, 4);
    return _mm256_set1_epi32(four);
}

static void multiply_tile(const Linear *linear, const uint8_t *const *rows, const float *const *scales, int64_t panel,
                          const int32_t *excess, float result[TILE][PANEL]) {
    int64_t blocks = linear->inputs / linear->block;
    const int8_t *weights = linear->weights + panel * linear->inputs * PANEL;
    const float *steps = linear->scales + panel * blocks * PANEL;
    const __m256i ones = _mm256_set1_epi16(1);
    Lanes total[TILE][2];
    for (int r = 0; r < TILE; r++) total[r][0] = total[r][1] = fill(0.0f);
    for (int64_t b = 0; b < blocks; b++) {
        __m256i sums[TILE][2];
        for (int r = 0; r < TILE; r++) sums[r][0] = sums[r][1] = _mm256_setzero_si256();
        for (int64_t k = 0; k < linear->block; k += 4, weights += 4 * PANEL) {
            __m256i w0 = _mm256_loadu_si256((const __m256i *)weights);
            __m256i w1 = _mm256_loadu_si256((const __m256i *)(weights + 32));
            for (int r = 0; r < TILE; r++) {
                __m256i a = four_bytes(rows[r] + b * linear->block + k);
                sums[r][0] = _mm256_add_epi32(sums[r][0], _mm256_madd_epi16(_mm256_maddubs_epi16(a, w0), ones));
                sums[r][1] = _mm256_add_epi32(sums[r][1], _mm256_madd_epi16(_mm256_maddubs_epi16(a, w1), ones));
            }
        }
        for (int c = 0; c < 2; c++) {
            Lanes step = load(steps + b * PANEL + c * 8);
            __m256i more = _mm256_loadu_si256((const __m256i *)(excess + b * PANEL + c * 8));
            for (int r = 0; r < TILE; r++) {
                Lanes scaled = multiply(as_floats(_mm256_sub_epi32(sums[r][c], more)), step);
                total[r][c] = fused_by(scaled, scales[r][b], total[r][c]);
            }
        }
    }
    for (int r = 0; r < TILE; r++) store(result[r], total[r][0]), store(result[r] + 8, total[r][1]);
}

#endif

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
    for (int64_t row = 0; row < count; row++) {
        round_row(rows + row * linear->inputs, linear->inputs, linear->block, integers + row * linear->inputs,
                  scales + row * blocks);
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

/* scores[r][key] = queries[r] . keys[key] for TILE queries; `keys` is [padded / PANEL][width][PANEL]. */
static void compare_tile(const float *queries, const float *keys, int64_t width, int64_t padded, float *scores) {
    for (int64_t key = 0; key < padded; key += PANEL) {
        Lanes sums[TILE][2];
        for (int r = 0; r < TILE; r++) sums[r][0] = sums[r][1] = fill(0.0f);
        for (int64_t i = 0; i < width; i++, keys += PANEL) {
            Lanes k0 = load(keys), k1 = load(keys + 8);
            for (int r = 0; r < TILE; r++) {
                float q = queries[r * width + i];
                sums[r][0] = fused_by(k0, q, sums[r][0]);
                sums[r][1] = fused_by(k1, q, sums[r][1]);
            }
        }
        for (int r = 0; r < TILE; r++) {
            store(scores + r * padded + key, sums[r][0]);
            store(scores + r * padded + key + 8, sums[r][1]);
        }
    }
}

/* Turns scores into weights that are not yet divided by their sum, which is returned. The weights of padding, below
 * 1e-37, do not change the sum, and are not used. */
static float exponentiate(float *scores, int64_t length, int64_t padded) {
    Lanes most = fill(-INFINITY), sum = fill(0.0f);
    for (int64_t i = length; i < padded; i++) scores[i] = -INFINITY;
    for (int64_t i = 0; i < padded; i += 8) most = greater(most, load(scores + i));
    Lanes largest = fill(greatest_lane(most));
    for (int64_t i = 0; i < padded; i += 8) {
        Lanes weight = power_of_two(subtract(load(scores + i), largest));
        store(scores + i, weight);
        sum = add(sum, weight);
    }
    return sum_lanes(sum);
}

/* result[r] = weights[r] . values / sums[r] for the first `rows` of TILE queries; `values` is [length][width]. */
static void mix_tile(const float *weights, const float *values, const float *sums, int64_t length, int64_t padded,
                     int64_t width, int64_t rows, float *result, int64_t stride) {
    for (int64_t column = 0; column < width; column += 16) {
        Lanes mixed[TILE][2];
        for (int r = 0; r < TILE; r++) mixed[r][0] = mixed[r][1] = fill(0.0f);
        for (int64_t key = 0; key < length; key++) {
            Lanes v0 = load(values + key * width + column), v1 = load(values + key * width + column + 8);
            for (int r = 0; r < TILE; r++) {
                float weight = weights[r * padded + key];
                mixed[r][0] = fused_by(v0, weight, mixed[r][0]);
                mixed[r][1] = fused_by(v1, weight, mixed[r][1]);
            }
        }
        /* Every index into `mixed` is a constant, so that it stays in registers. */
        for (int r = 0; r < TILE; r++) {
            if (r >= rows) break;
            Lanes sum = fill(sums[r]);
            store(result + r * stride + column, divide(mixed[r][0], sum));
            store(result + r * stride + column + 8, divide(mixed[r][1], sum));
        }
    }
}

int attend(const float *joined, int64_t length, int64_t heads, int64_t width, const float *turns, float *result) {
    int64_t hidden = heads * width, padded = (length + PANEL - 1) / PANEL * PANEL;
    float *space = zeroed_room(padded * width * 2 + TILE * (padded + width) + width, sizeof(float));
    if (space == NULL) return -1;
    float *keys = space, *values = keys + padded * width, *scores = values + padded * width;
    float *queries = scores + TILE * padded, *one = queries + TILE * width;
    /* Scores are powers of two instead of e. */
    float factor = LOG2_E / sqrtf((float)width);
    for (int64_t head = 0; head < heads; head++) {
        for (int64_t token = 0; token < length; token++) {
            const float *row = joined + token * 3 * hidden + head * width;
            copy_turned(row + hidden, width, turns == NULL ? NULL : turns + token * width, 1.0f, one);
            float *to = keys + token / PANEL * PANEL * width + token % PANEL;
            for (int64_t i = 0; i < width; i++) to[i * PANEL] = one[i];
            memcpy(values + token * width, row + 2 * hidden, (size_t)width * sizeof(float));
        }
        for (int64_t first = 0; first < length; first += TILE) {
            int64_t rows = length - first < TILE ? length - first : TILE;
            float sums[TILE] = {0};
            for (int64_t r = 0; r < rows; r++) {
                const float *row = joined + (first + r) * 3 * hidden + head * width;
                copy_turned(row, width, turns == NULL ? NULL : turns + (first + r) * width, factor, queries + r * width);
            }
            compare_tile(queries, keys, width, padded, scores);
            for (int64_t r = 0; r < rows; r++) sums[r] = exponentiate(scores + r * padded, length, padded);
            mix_tile(scores, values, sums, length, padded, width, rows, result + first * hidden + head * width, hidden);
        }
    }
    free(space);
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
