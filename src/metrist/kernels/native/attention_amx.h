/* Attention with two digits for every number: keys and values are the weights of linear layers. */

enum { HEAD_WIDTH = TILE_BYTES };

/* Queries whose scores are computed before others: they stay in the second cache. */
enum { QUERIES = 64 };

static void pack_keys_finely(const float *keys, int64_t stride, int64_t length, int8_t *first, int8_t *second, float *scales) {
    uint8_t digits[2][HEAD_WIDTH];
    for (int64_t key = 0; key < length; key++) {
        scales[key] = round_block_finely(keys + key * stride, HEAD_WIDTH, digits[0], digits[1]) * DIGIT_BASE;
        int64_t at = key / PANEL * PANEL * HEAD_WIDTH + key % PANEL * 4;
        for (int i = 0; i < HEAD_WIDTH; i += 4, at += 4 * PANEL) {
            memcpy(first + at, digits[0] + i, 4);
            memcpy(second + at, digits[1] + i, 4);
        }
    }
}

/* A column of values has a scale for each block of tokens. */
static void pack_values_finely(const float *values, int64_t stride, int64_t length, int64_t padded, int8_t *first,
                               int8_t *second, float *scales) {
    __m512 shift = _mm512_set1_ps(SHIFT), base = _mm512_set1_ps(DIGIT_BASE);
    for (int column = 0; column < HEAD_WIDTH; column += PANEL, values += PANEL) {
        for (int64_t block = 0; block < padded; block += TILE_BYTES, scales += PANEL) {
            __m512 largest = _mm512_setzero_ps();
            for (int64_t t = block; t < block + TILE_BYTES && t < length; t++) {
                largest = _mm512_max_ps(largest, _mm512_abs_ps(_mm512_loadu_ps(values + t * stride)));
            }
            __mmask16 counts = _mm512_cmp_ps_mask(largest, _mm512_set1_ps(1e-30f), _CMP_GT_OQ);
            __m512 factor = _mm512_maskz_div_ps(counts, _mm512_set1_ps(127.0f), largest);
            _mm512_storeu_ps(scales, _mm512_div_ps(largest, _mm512_set1_ps(127.0f)));
            for (int64_t four = block; four < block + TILE_BYTES; four += 4, first += 4 * PANEL, second += 4 * PANEL) {
                __m512i high = _mm512_setzero_si512(), low = high, last = _mm512_set1_epi32(255);
                for (int64_t t = four + 3; t >= four; t--) {
                    __m512 x = t < length ? _mm512_mul_ps(_mm512_loadu_ps(values + t * stride), factor) : _mm512_setzero_ps();
                    __m512 rest = _mm512_sub_ps(x, _mm512_sub_ps(_mm512_add_ps(x, shift), shift));
                    __m512i a = _mm512_cvtps_epi32(x), b = _mm512_cvtps_epi32(_mm512_mul_ps(rest, base));
                    high = _mm512_or_si512(_mm512_slli_epi32(high, 8), _mm512_and_si512(a, last));
                    low = _mm512_or_si512(_mm512_slli_epi32(low, 8), _mm512_and_si512(b, last));
                }
                _mm512_storeu_si512(first, high);
                _mm512_storeu_si512(second, low);
            }
        }
    }
}

static int attend_finely_here(const float *queries, const float *keys, const float *values, const int64_t counts[2],
                              const int64_t strides[3], const float *bias, float *result) {
    int64_t count = counts[0], length = counts[1], padded = (length + TILE_BYTES - 1) / TILE_BYTES * TILE_BYTES;
    void *bytes = zeroed_room(padded * HEAD_WIDTH * 4 + 64, 1);
    int8_t *digits = bytes == NULL ? NULL : first_line(bytes);
    float *floats = zeroed_room(padded * (2 + QUERIES) + 2 * QUERIES * HEAD_WIDTH, sizeof(float));
    int failed = digits == NULL || floats == NULL;
    if (!failed) {
        int64_t size = padded * HEAD_WIDTH;
        float *key_scales = floats, *value_scales = floats + padded, *own = floats + 2 * padded;
        float *mixed = own + QUERIES * HEAD_WIDTH, *scores = mixed + QUERIES * HEAD_WIDTH;
        Linear compare = {digits, key_scales, NULL, digits + size, HEAD_WIDTH, padded, TILE_BYTES};
        Linear mix = {digits + 2 * size, value_scales, NULL, digits + 3 * size, padded, HEAD_WIDTH, TILE_BYTES};
        pack_keys_finely(keys, strides[1], length, digits, digits + size, key_scales);
        pack_values_finely(values, strides[1], length, padded, digits + 2 * size, digits + 3 * size, value_scales);
        for (int64_t start = 0; start < count && !failed; start += QUERIES) {
            int64_t here = count - start < QUERIES ? count - start : QUERIES;
            float sums[QUERIES], largest;
            for (int64_t r = 0; r < here; r++) {
                memcpy(own + r * HEAD_WIDTH, queries + (start + r) * strides[0], HEAD_WIDTH * sizeof(float));
            }
            failed = apply_linear_here(&compare, own, here, 2, 0, scores);
            for (int64_t r = 0; r < here && !failed; r++) {
                float *row = scores + r * padded;
                const float *added = bias == NULL ? NULL : bias - start - r;
                for (int64_t i = 0; bias != NULL && i < length; i++) row[i] += added[i];
                exponentiate_rows_here(row, 1, length, &largest, sums + r);
                memset(row + length, 0, (size_t)(padded - length) * sizeof(float));
            }
            failed = failed || apply_linear_here(&mix, scores, here, 2, 0, mixed);
            for (int64_t r = 0; r < here && !failed; r++) {
                for (int i = 0; i < HEAD_WIDTH; i++) result[(start + r) * strides[2] + i] = mixed[r * HEAD_WIDTH + i] / sums[r];
            }
        }
    }
    free(bytes), free(floats);
    return failed;
}
