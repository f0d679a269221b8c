/* The functions of encoder.h. This file is compiled once for each set of instructions: encoder.c and encoder_avx512.c
 * include it after lanes.h. The integers of a product are at most 127 * 63, so that sums of pairs fit into 16 bits. */

/* ---- Rounded rows ---- */

static inline float largest_magnitude(const float *numbers, int64_t size) {
    Wide most = wide_fill(0.0f);
    for (int64_t i = 0; i < size; i += 16) most = wide_greater(most, wide_magnitude(wide_load(numbers + i)));
    return greatest_lane(greater(first_half(most), second_half(most)));
}

/* Writes a block of numbers as integers from -127 to 127, signed bytes; returns the scale. */
static inline float round_block(const float *block, int64_t size, uint8_t *integers) {
    float largest = largest_magnitude(block, size);
    Wide factor = wide_fill(largest > 1e-30f ? 127.0f / largest : 0.0f);
    for (int64_t i = 0; i < size; i += 16) {
        wide_store_rounded(integers + i, wide_multiply(wide_load(block + i), factor));
    }
    return largest / 127.0f;
}

/* Twice the largest digit: what a first digit leaves is at most half of its unit. */
#define DIGIT_BASE 254.0f

/* Writes a block of numbers as 127 times the largest of them, in digits to the base of 254 from -127 to 127; returns the
 * scale of the second digits. */
static inline float round_block_finely(const float *block, int64_t size, uint8_t *first, uint8_t *second) {
    float largest = largest_magnitude(block, size);
    Wide factor = wide_fill(largest > 1e-30f ? 127.0f / largest : 0.0f), shift = wide_fill(SHIFT);
    for (int64_t i = 0; i < size; i += 16) {
        Wide x = wide_multiply(wide_load(block + i), factor);
        wide_store_rounded(first + i, x);
        x = wide_subtract(x, wide_subtract(wide_add(x, shift), shift));
        wide_store_rounded(second + i, wide_multiply(x, wide_fill(DIGIT_BASE)));
    }
    return largest / 127.0f / DIGIT_BASE;
}

static inline Wide gelu_of(Wide x) {
    /* x * sigmoid(2 x p(x * x)), where tanh(x p(x * x)) is erf(x / sqrt(2)): see kernels/reference/encoder.py. */
    Wide square = wide_multiply(x, x), p = wide_fill(1.81399552e-09f);
    square = wide_less(square, wide_fill(64.0f));
    p = wide_fused(p, square, wide_fill(-1.33786376e-07f));
    p = wide_fused(p, square, wide_fill(3.97412510e-06f));
    p = wide_fused(p, square, wide_fill(-5.52738142e-05f));
    p = wide_fused(p, square, wide_fill(-3.30251236e-05f));
    p = wide_fused(p, square, wide_fill(3.63341467e-02f));
    p = wide_fused(p, square, wide_fill(7.97884270e-01f));
    return times_sigmoid(x, wide_multiply(wide_add(x, x), p));
}

/* ---- Products ---- */

/* One head of one text. */
typedef struct {
    int64_t length, width;
    int64_t padded;     /* the length as a multiple of PANEL */
    int8_t *keys;       /* [padded / PANEL][width / 4][PANEL][4] */
    float *key_scales;  /* [padded] */
    int32_t *key_excess; /* [padded], of a sum over the integers of a query plus 128: 128 times the sum of a key's */
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

#if METRIST_AVX512
#include "products_avx512.h"
#else
#include "products.h"
#endif

/* Rounds rows to one digit or two: `scales` is [count / TILE][blocks][TILE]. The second digits of a group of rows follow
 * their first ones. */
static void round_rows(const Linear *linear, const float *rows, int64_t count, int digits, uint8_t *integers, float *scales) {
    int64_t inputs = linear->inputs, size = linear->block, blocks = inputs / size, group = group_size(linear);
    for (int64_t row = 0; row < count; row++, rows += inputs) {
        float *to = scales + row / TILE * TILE * blocks + row % TILE;
        uint8_t *first = integers + (row / group * group * digits + row % group) * inputs, *second = first + group * inputs;
        for (int64_t b = 0; b < blocks; b++) {
            int64_t at = b * size;
            to[b * TILE] = digits == 1 ? round_block(rows + at, size, first + at)
                                       : round_block_finely(rows + at, size, first + at, second + at);
        }
        if (EXCESS && !in_tiles(linear)) {
            for (int64_t i = 0; i < inputs; i++) first[i] ^= 128;
            for (int64_t i = 0; digits == 2 && i < inputs; i++) second[i] ^= 128;
        }
    }
}

/* The bytes of rows that are multiplied with all panels before others: they stay in the first cache, with a panel. */
enum { ROW_BYTES = 24576 };

/* Where the first line of the cache within a room begins, which has 64 bytes more than are needed. */
static inline void *first_line(void *room) { return (char *)room + (64 - (uintptr_t)room % 64) % 64; }

static int apply_linear_here(const Linear *linear, const float *rows, int64_t count, int digits, int gelu, float *result) {
    int64_t inputs = linear->inputs, blocks = inputs / linear->block, panels = linear->outputs / PANEL;
    int64_t unit = in_tiles(linear) ? group_size(linear) : ROWS, most = ROW_BYTES / inputs / digits / unit * unit;
    most = most < unit ? unit : most;
    void *bytes = zeroed_room(most * digits * inputs + 64, 1);
    uint8_t *integers = bytes == NULL ? NULL : first_line(bytes);
    float *scales = zeroed_room(most * blocks, sizeof(float));
    int32_t *excess = room(EXCESS ? panels * blocks * PANEL : 0, sizeof(int32_t));
    if (integers == NULL || scales == NULL || excess == NULL) {
        free(bytes), free(scales), free(excess);
        return -1;
    }
    if (EXCESS && !in_tiles(linear)) {
        memset(integers, 128, (size_t)linear->block);
        sum_excess(linear, integers, excess);
    }
    for (int64_t start = 0; start < count; start += most) {
        int64_t here = count - start < most ? count - start : most;
        round_rows(linear, rows + start * inputs, here, digits, integers, scales);
        multiply_rows(linear, integers, scales, here, excess, digits, gelu, result + start * linear->outputs);
    }
    free(bytes), free(scales), free(excess);
    return 0;
}

/* ---- Attention ---- */

/* Copies one head's vector, turned by its position if `turns` is there, and multiplied by `factor`. */
static void copy_turned(const float *from, int64_t width, const float *turns, float factor, float *to) {
    int64_t half = width / 2;
    if (turns == NULL) {
        for (int64_t i = 0; i < width; i += 16) wide_store(to + i, wide_multiply(wide_load(from + i), wide_fill(factor)));
        return;
    }
    for (int64_t i = 0; i < half; i += 8) {
        Lanes a = load(from + i), b = load(from + half + i), cosine = load(turns + i), sine = load(turns + half + i);
        store(to + i, multiply(subtract(multiply(a, cosine), multiply(b, sine)), fill(factor)));
        store(to + half + i, multiply(add(multiply(b, cosine), multiply(a, sine)), fill(factor)));
    }
}

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
        /* For now, how large this value is. */
        head->inverses[token] = largest_magnitude(row + token * stride, width);
        largest = head->inverses[token] > largest ? head->inverses[token] : largest;
    }
    head->value_scale = largest / 127.0f;
    for (int64_t first = 0; first < head->length; first += 4) {
        memset(rounded, 0, (size_t)(4 * width));
        for (int64_t token = first; token < first + 4 && token < head->length; token++) {
            int n = 0;
            while (n + 1 < SCALES && RELATIVE[n + 1] * largest >= head->inverses[token]) n++;
            head->logarithms[token] = -0.25f * (float)n, head->inverses[token] = 1.0f / RELATIVE[n];
            Wide factor = wide_fill(largest > 1e-30f ? 127.0f / largest * head->inverses[token] : 0.0f);
            for (int64_t i = 0; i < width; i += 16) {
                Wide values = wide_multiply(wide_load(row + token * stride + i), factor);
                wide_store_rounded(rounded + (token - first) * width + i, values);
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

/* 2**x * 9279 for x from -16 to 0, plus 2**23: the lowest bits are the nearest integer. The relative error of the power
 * is below 1e-4. */
static inline Wide weigh(Wide x) {
    Wide shifted = wide_add(x, wide_fill(SHIFT + 9.0f));
    x = wide_subtract(x, wide_subtract(shifted, wide_fill(SHIFT + 9.0f)));
    /* A polynomial of the third degree by its roots, divided by its first coefficient, which is 2**9 / 9279. */
    Wide one = wide_add(x, wide_fill(2.33833915f)), other = wide_add(x, wide_fill(1.02952341f));
    other = wide_fused(other, other, wide_fill(6.69085663f));
    return wide_add(wide_scale_by_shifted(wide_multiply(one, other), shifted), wide_fill(8388608.0f));
}

/* Turns scores into weights, the largest of which is 9279. */
static void weigh_tile(const Head *head, Tile *tile, int64_t rows) {
    Wide least = wide_fill(-16.0f), zero = wide_fill(8388608.0f);
    for (int64_t r = 0; r < rows; r++) {
        const float *scores = tile->scores + r * head->padded;
        uint8_t *lower = tile->lower + r * head->padded, *upper = tile->upper + r * head->padded;
        Wide largest = wide_fill(tile->largest[r]), sum = wide_fill(0.0f);
        for (int64_t i = 0; i < head->padded; i += 16) {
            Wide weights = weigh(wide_greater(wide_subtract(wide_load(scores + i), largest), least));
            wide_store_digits(lower + i, upper + i, weights);
            sum = wide_fused(wide_subtract(weights, zero), wide_load(head->inverses + i), sum);
        }
        tile->sums[r] = sum_lanes(add(first_half(sum), second_half(sum)));
    }
}

static int attend_here(const float *joined, int64_t length, int64_t heads, int64_t width, const float *turns, float *result) {
    int64_t hidden = heads * width, padded = (length + PANEL - 1) / PANEL * PANEL;
    Head head = {.length = length, .width = width, .padded = padded};
    Tile tile;
    float *floats = zeroed_room(padded * (TILE + 4) + width, sizeof(float));
    uint8_t *bytes = zeroed_room(padded * (width + TILE) * 2 + (TILE + 4) * width, 1);
    if (floats == NULL || bytes == NULL) {
        free(floats), free(bytes);
        return -1;
    }
    head.key_scales = floats, head.logarithms = floats + padded, head.inverses = head.logarithms + padded;
    head.key_excess = (int32_t *)(head.inverses + padded), tile.scores = head.inverses + 2 * padded;
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
        sum_key_excess(&head);
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

static void add_and_normalize_here(float *rows, const float *more, int64_t count, int64_t width, const float *weight,
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

static inline Wide gated(const float *up, const float *gate) {
    return wide_multiply(wide_load(up), times_sigmoid(wide_load(gate), wide_load(gate)));
}

static void gate_rows_here(const float *joined, int64_t count, int64_t width, float *result) {
    for (int64_t row = 0; row < count; row++, joined += 2 * width, result += width) {
        int64_t i = 0;
        for (; i + 16 <= width; i += 16) wide_store(result + i, gated(joined + i, joined + width + i));
        if (i < width) {
            float up[16] = {0.0f}, gate[16] = {0.0f}, both[16];
            memcpy(up, joined + i, 8 * sizeof(float)), memcpy(gate, joined + width + i, 8 * sizeof(float));
            wide_store(both, gated(up, gate));
            memcpy(result + i, both, 8 * sizeof(float));
        }
    }
}

/* ---- Layers in float32 ---- */

static void gate_by_gelu_here(const float *joined, int64_t count, int64_t width, float *result) {
    for (int64_t row = 0; row < count; row++, joined += 2 * width, result += width) {
        for (int64_t i = 0; i < width; i += 16) {
            Wide x = wide_load(joined + i), cubic = wide_multiply(wide_multiply(x, x), wide_fill(0.044715f));
            /* x * sigmoid(2 y) is x * (1 + tanh(y)) / 2; the factor is 2 * sqrt(2 / pi). */
            Wide y = wide_multiply(wide_fused(cubic, x, x), wide_fill(1.59576912f));
            wide_store(result + i, wide_multiply(times_sigmoid(x, y), wide_load(joined + width + i)));
        }
    }
}

/* The last numbers of a row, fewer than sixteen; the others change neither a maximum nor a sum. */
static inline Wide load_last(const float *numbers, int64_t count) {
    float padded[16];
    for (int i = 0; i < 16; i++) padded[i] = i < count ? numbers[i] : -INFINITY;
    return wide_load(padded);
}

static inline Wide exponential(Wide x, Wide largest) {
    return power_of_two(wide_multiply(wide_subtract(x, largest), wide_fill(LOG2_E)));
}

enum { PART = 512 };

static void exponentiate_rows_here(float *rows, int64_t count, int64_t width, float *largest, float *sums) {
    int64_t whole = width / 16 * 16, rest = width - whole;
    for (int64_t row = 0; row < count; row++, rows += width) {
        Wide most = load_last(rows + whole, rest), sum = wide_fill(0.0f);
        for (int64_t i = 0; i < whole; i += 16) most = wide_greater(most, wide_load(rows + i));
        largest[row] = greatest_lane(greater(first_half(most), second_half(most)));
        most = wide_fill(largest[row]);
        /* Sums of parts: the sum of a long row one by one would be rounded too often. */
        for (int64_t part = 0; part < whole; part += PART) {
            Wide own = wide_fill(0.0f);
            for (int64_t i = part; i < whole && i < part + PART; i += 16) {
                Wide power = exponential(wide_load(rows + i), most);
                wide_store(rows + i, power);
                own = wide_add(own, power);
            }
            sum = wide_add(sum, own);
        }
        if (rest) {
            float last[16];
            Wide power = exponential(load_last(rows + whole, rest), most);
            wide_store(last, power);
            memcpy(rows + whole, last, (size_t)rest * sizeof(float));
            sum = wide_add(sum, power);
        }
        sums[row] = sum_lanes(add(first_half(sum), second_half(sum)));
    }
}

#if METRIST_AMX
#include "attention_amx.h"
#else
#define attend_finely_here NULL
#endif

/* The functions of encoder.h, by the instructions for which this file was compiled. */
static const EncoderFunctions FUNCTIONS = {DIGITS,         apply_linear_here, attend_here,           attend_finely_here,
                                           add_and_normalize_here, gate_rows_here, gate_by_gelu_here, exponentiate_rows_here};

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
