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

