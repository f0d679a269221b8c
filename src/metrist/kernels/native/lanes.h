/* Eight or sixteen floats at a time, with the same rounding on ARM and x86: every operation is one IEEE operation per
 * number. METRIST_AVX512, defined before this file is included, allows the instructions of AVX-512 with VNNI, and METRIST_AMX
 * those of AMX with integers besides. */
#ifndef METRIST_LANES_H
#define METRIST_LANES_H

#ifndef METRIST_AMX
#define METRIST_AMX 0
#endif

#include <math.h>
#include <stdint.h>
#include <string.h>

/* Adding this, 1.5 * 2**23, rounds a float to an integer, halves to the even one, which is then its lowest bits. */
#define SHIFT 12582912.0f

#if defined(__aarch64__) && defined(__GNUC__)
#define HAVE_LANES 1
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("dotprod"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("arch=armv8.2-a+dotprod")
#endif
#include <arm_neon.h>

typedef struct {
    float32x4_t low, high;
} Lanes;

typedef struct {
    int32x4_t low, high;
} Whole;

static inline Lanes load(const float *at) { return (Lanes){vld1q_f32(at), vld1q_f32(at + 4)}; }
static inline void store(float *at, Lanes a) { vst1q_f32(at, a.low), vst1q_f32(at + 4, a.high); }
static inline Lanes fill(float x) { return (Lanes){vdupq_n_f32(x), vdupq_n_f32(x)}; }
static inline Lanes add(Lanes a, Lanes b) { return (Lanes){vaddq_f32(a.low, b.low), vaddq_f32(a.high, b.high)}; }
static inline Lanes subtract(Lanes a, Lanes b) { return (Lanes){vsubq_f32(a.low, b.low), vsubq_f32(a.high, b.high)}; }
static inline Lanes multiply(Lanes a, Lanes b) { return (Lanes){vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high)}; }
static inline Lanes divide(Lanes a, Lanes b) { return (Lanes){vdivq_f32(a.low, b.low), vdivq_f32(a.high, b.high)}; }
static inline Lanes greater(Lanes a, Lanes b) { return (Lanes){vmaxq_f32(a.low, b.low), vmaxq_f32(a.high, b.high)}; }
static inline Lanes less(Lanes a, Lanes b) { return (Lanes){vminq_f32(a.low, b.low), vminq_f32(a.high, b.high)}; }
static inline Lanes magnitude(Lanes a) { return (Lanes){vabsq_f32(a.low), vabsq_f32(a.high)}; }
/* a * b + c, rounded once */
static inline Lanes fused(Lanes a, Lanes b, Lanes c) {
    return (Lanes){vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high)};
}
static inline Lanes fused_by(Lanes a, float b, Lanes c) {
    return (Lanes){vfmaq_n_f32(c.low, a.low, b), vfmaq_n_f32(c.high, a.high, b)};
}
static inline Lanes as_floats(Whole a) { return (Lanes){vcvtq_f32_s32(a.low), vcvtq_f32_s32(a.high)}; }
/* a * 2**n for an integer n, where `shifted` is SHIFT + n, if a and the result are normal */
static inline Lanes scale_by_shifted(Lanes a, Lanes shifted) {
    int32x4_t low = vshlq_n_s32(vreinterpretq_s32_f32(shifted.low), 23);
    int32x4_t high = vshlq_n_s32(vreinterpretq_s32_f32(shifted.high), 23);
    low = vaddq_s32(vreinterpretq_s32_f32(a.low), low), high = vaddq_s32(vreinterpretq_s32_f32(a.high), high);
    return (Lanes){vreinterpretq_f32_s32(low), vreinterpretq_f32_s32(high)};
}
/* The nearest integers, halves to the even one, of numbers from -128 to 127, as signed bytes. */
static inline void store_rounded(uint8_t *at, Lanes a, Lanes b) {
    float32x4_t shift = vdupq_n_f32(SHIFT);
    uint16x8_t first = vuzp1q_u16(vreinterpretq_u16_f32(vaddq_f32(a.low, shift)),
                                  vreinterpretq_u16_f32(vaddq_f32(a.high, shift)));
    uint16x8_t second = vuzp1q_u16(vreinterpretq_u16_f32(vaddq_f32(b.low, shift)),
                                   vreinterpretq_u16_f32(vaddq_f32(b.high, shift)));
    vst1q_u8(at, vuzp1q_u8(vreinterpretq_u8_u16(first), vreinterpretq_u8_u16(second)));
}
/* Of numbers from 2**23 on, the lowest 7 bits and the 7 bits above them. */
static inline void store_digits(uint8_t *lower, uint8_t *upper, Lanes a, Lanes b) {
    uint16x8_t first = vuzp1q_u16(vreinterpretq_u16_f32(a.low), vreinterpretq_u16_f32(a.high));
    uint16x8_t second = vuzp1q_u16(vreinterpretq_u16_f32(b.low), vreinterpretq_u16_f32(b.high));
    uint8x16_t bytes = vuzp1q_u8(vreinterpretq_u8_u16(first), vreinterpretq_u8_u16(second));
    vst1q_u8(lower, vandq_u8(bytes, vdupq_n_u8(127)));
    vst1q_u8(upper, vshrn_high_n_u16(vshrn_n_u16(first, 7), second, 7));
}
static inline float greatest_lane(Lanes a) { return vmaxvq_f32(vmaxq_f32(a.low, a.high)); }

#elif defined(__x86_64__) && defined(__GNUC__)
#define HAVE_LANES 1
#include <immintrin.h>
#if defined(__clang__) && METRIST_AMX
#pragma clang attribute push(__attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,amx-tile,amx-int8"))), apply_to = function)
#elif defined(__clang__) && METRIST_AVX512
#pragma clang attribute push(__attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni"))), apply_to = function)
#elif defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#elif METRIST_AVX512
#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")
#if METRIST_AMX
#pragma GCC target("amx-tile,amx-int8")
#endif
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif

typedef __m256 Lanes;
typedef __m256i Whole;

static inline Lanes load(const float *at) { return _mm256_loadu_ps(at); }
static inline void store(float *at, Lanes a) { _mm256_storeu_ps(at, a); }
static inline Lanes fill(float x) { return _mm256_set1_ps(x); }
static inline Lanes add(Lanes a, Lanes b) { return _mm256_add_ps(a, b); }
static inline Lanes subtract(Lanes a, Lanes b) { return _mm256_sub_ps(a, b); }
static inline Lanes multiply(Lanes a, Lanes b) { return _mm256_mul_ps(a, b); }
static inline Lanes divide(Lanes a, Lanes b) { return _mm256_div_ps(a, b); }
static inline Lanes greater(Lanes a, Lanes b) { return _mm256_max_ps(a, b); }
static inline Lanes less(Lanes a, Lanes b) { return _mm256_min_ps(a, b); }
static inline Lanes magnitude(Lanes a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
static inline Lanes fused(Lanes a, Lanes b, Lanes c) { return _mm256_fmadd_ps(a, b, c); }
static inline Lanes fused_by(Lanes a, float b, Lanes c) { return _mm256_fmadd_ps(a, _mm256_set1_ps(b), c); }
static inline Lanes as_floats(Whole a) { return _mm256_cvtepi32_ps(a); }
static inline Lanes scale_by_shifted(Lanes a, Lanes shifted) {
    __m256i power = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), power));
}
static inline void store_rounded(uint8_t *at, Lanes a, Lanes b) {
    __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(a), _mm256_cvtps_epi32(b));
    words = _mm256_permute4x64_epi64(words, 0xD8);
    __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128((__m128i *)at, bytes);
}
static inline void store_digits(uint8_t *lower, uint8_t *upper, Lanes a, Lanes b) {
    __m256i both = _mm256_set1_epi32(0x3FFF), first = _mm256_and_si256(_mm256_castps_si256(a), both);
    __m256i words = _mm256_packus_epi32(first, _mm256_and_si256(_mm256_castps_si256(b), both));
    words = _mm256_permute4x64_epi64(words, 0xD8);
    __m256i low = _mm256_and_si256(words, _mm256_set1_epi16(127)), high = _mm256_srli_epi16(words, 7);
    __m256i bytes = _mm256_permute4x64_epi64(_mm256_packus_epi16(low, high), 0xD8);
    _mm_storeu_si128((__m128i *)lower, _mm256_castsi256_si128(bytes));
    _mm_storeu_si128((__m128i *)upper, _mm256_extracti128_si256(bytes, 1));
}
static inline float greatest_lane(Lanes a) {
    __m128 most = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    most = _mm_max_ps(most, _mm_movehl_ps(most, most));
    return _mm_cvtss_f32(_mm_max_ss(most, _mm_shuffle_ps(most, most, 1)));
}
#endif

#if HAVE_LANES

static inline float sum_lanes(Lanes a) {
    float x[8];
    store(x, a);
    return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
}

/* ---- Sixteen floats ---- */

#if METRIST_AVX512

typedef __m512 Wide;

static inline Wide wide_load(const float *at) { return _mm512_loadu_ps(at); }
static inline void wide_store(float *at, Wide a) { _mm512_storeu_ps(at, a); }
static inline Wide wide_fill(float x) { return _mm512_set1_ps(x); }
static inline Wide wide_add(Wide a, Wide b) { return _mm512_add_ps(a, b); }
static inline Wide wide_subtract(Wide a, Wide b) { return _mm512_sub_ps(a, b); }
static inline Wide wide_multiply(Wide a, Wide b) { return _mm512_mul_ps(a, b); }
static inline Wide wide_divide(Wide a, Wide b) { return _mm512_div_ps(a, b); }
static inline Wide wide_greater(Wide a, Wide b) { return _mm512_max_ps(a, b); }
static inline Wide wide_less(Wide a, Wide b) { return _mm512_min_ps(a, b); }
static inline Wide wide_fused(Wide a, Wide b, Wide c) { return _mm512_fmadd_ps(a, b, c); }
static inline Wide wide_magnitude(Wide a) { return _mm512_abs_ps(a); }
static inline Wide wide_scale_by_shifted(Wide a, Wide shifted) {
    __m512i power = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), power));
}
static inline void wide_store_rounded(uint8_t *at, Wide a) {
    _mm_storeu_si128((__m128i *)at, _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(a)));
}
static inline void wide_store_digits(uint8_t *lower, uint8_t *upper, Wide a) {
    __m512i bits = _mm512_castps_si512(a), last = _mm512_set1_epi32(127);
    _mm_storeu_si128((__m128i *)lower, _mm512_cvtepi32_epi8(_mm512_and_si512(bits, last)));
    _mm_storeu_si128((__m128i *)upper, _mm512_cvtepi32_epi8(_mm512_and_si512(_mm512_srli_epi32(bits, 7), last)));
}
static inline Lanes first_half(Wide a) { return _mm512_castps512_ps256(a); }
static inline Lanes second_half(Wide a) { return _mm512_extractf32x8_ps(a, 1); }

#else

typedef struct {
    Lanes first, second;
} Wide;

static inline Wide wide_load(const float *at) { return (Wide){load(at), load(at + 8)}; }
static inline void wide_store(float *at, Wide a) { store(at, a.first), store(at + 8, a.second); }
static inline Wide wide_fill(float x) { return (Wide){fill(x), fill(x)}; }
static inline Wide wide_add(Wide a, Wide b) { return (Wide){add(a.first, b.first), add(a.second, b.second)}; }
static inline Wide wide_subtract(Wide a, Wide b) {
    return (Wide){subtract(a.first, b.first), subtract(a.second, b.second)};
}
static inline Wide wide_multiply(Wide a, Wide b) {
    return (Wide){multiply(a.first, b.first), multiply(a.second, b.second)};
}
static inline Wide wide_divide(Wide a, Wide b) { return (Wide){divide(a.first, b.first), divide(a.second, b.second)}; }
static inline Wide wide_greater(Wide a, Wide b) {
    return (Wide){greater(a.first, b.first), greater(a.second, b.second)};
}
static inline Wide wide_less(Wide a, Wide b) { return (Wide){less(a.first, b.first), less(a.second, b.second)}; }
static inline Wide wide_fused(Wide a, Wide b, Wide c) {
    return (Wide){fused(a.first, b.first, c.first), fused(a.second, b.second, c.second)};
}
static inline Wide wide_magnitude(Wide a) { return (Wide){magnitude(a.first), magnitude(a.second)}; }
static inline Wide wide_scale_by_shifted(Wide a, Wide shifted) {
    return (Wide){scale_by_shifted(a.first, shifted.first), scale_by_shifted(a.second, shifted.second)};
}
static inline void wide_store_rounded(uint8_t *at, Wide a) { store_rounded(at, a.first, a.second); }
static inline void wide_store_digits(uint8_t *lower, uint8_t *upper, Wide a) {
    store_digits(lower, upper, a.first, a.second);
}
static inline Lanes first_half(Wide a) { return a.first; }
static inline Lanes second_half(Wide a) { return a.second; }

#endif

#define LOG2_E 1.44269504088896341f

/* 2**x for x up to 126; below -126, the value there. Relative error below 2e-7. */
static inline Wide power_of_two(Wide x) {
    x = wide_greater(x, wide_fill(-126.0f));
    Wide shifted = wide_add(x, wide_fill(SHIFT));
    x = wide_subtract(x, wide_subtract(shifted, wide_fill(SHIFT)));
    Wide y = wide_fill(1.326472423e-3f);
    y = wide_fused(y, x, wide_fill(9.671513245e-3f));
    y = wide_fused(y, x, wide_fill(5.550733757e-2f));
    y = wide_fused(y, x, wide_fill(2.402224207e-1f));
    y = wide_fused(y, x, wide_fill(6.931469776e-1f));
    y = wide_fused(y, x, wide_fill(1.0f));
    return wide_scale_by_shifted(y, shifted);
}

/* x / (1 + e**-y) */
static inline Wide times_sigmoid(Wide x, Wide y) {
    Wide power = wide_less(wide_multiply(y, wide_fill(-LOG2_E)), wide_fill(126.0f));
    return wide_divide(x, wide_add(wide_fill(1.0f), power_of_two(power)));
}

#endif
#endif
