/* Eight floats at a time, with the same rounding on ARM and x86: every operation is one IEEE operation per number. */
#ifndef METRIST_LANES_H
#define METRIST_LANES_H

#include <math.h>
#include <stdint.h>
#include <string.h>

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
/* To the nearest integer, halves to the even one. */
static inline Whole nearest(Lanes a) { return (Whole){vcvtnq_s32_f32(a.low), vcvtnq_s32_f32(a.high)}; }
static inline Lanes as_floats(Whole a) { return (Lanes){vcvtq_f32_s32(a.low), vcvtq_f32_s32(a.high)}; }
/* a * 2**power */
static inline Lanes scale_by_power(Lanes a, Whole power) {
    int32x4_t low = vshlq_n_s32(vaddq_s32(power.low, vdupq_n_s32(127)), 23);
    int32x4_t high = vshlq_n_s32(vaddq_s32(power.high, vdupq_n_s32(127)), 23);
    return (Lanes){vmulq_f32(a.low, vreinterpretq_f32_s32(low)), vmulq_f32(a.high, vreinterpretq_f32_s32(high))};
}
static inline void store_whole(int32_t *at, Whole a) { vst1q_s32(at, a.low), vst1q_s32(at + 4, a.high); }

#elif defined(__x86_64__) && defined(__GNUC__)
#define HAVE_LANES 1
#include <immintrin.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
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
static inline Whole nearest(Lanes a) { return _mm256_cvtps_epi32(a); }
static inline Lanes as_floats(Whole a) { return _mm256_cvtepi32_ps(a); }
static inline Lanes scale_by_power(Lanes a, Whole power) {
    __m256i bits = _mm256_slli_epi32(_mm256_add_epi32(power, _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(a, _mm256_castsi256_ps(bits));
}
static inline void store_whole(int32_t *at, Whole a) { _mm256_storeu_si256((__m256i *)at, a); }
#endif

#if HAVE_LANES

static inline float sum_lanes(Lanes a) {
    float x[8];
    store(x, a);
    return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
}

static inline float greatest_lane(Lanes a) {
    float x[8], most;
    store(x, a);
    most = x[0];
    for (int i = 1; i < 8; i++) most = x[i] > most ? x[i] : most;
    return most;
}

/* e**x for x from -87 to 88; beyond, the value at the end. Relative error below 2e-7. */
static inline Lanes exponential(Lanes x) {
    x = less(greater(x, fill(-87.0f)), fill(88.0f));
    Whole power = nearest(multiply(x, fill(1.44269504088896341f)));
    Lanes n = as_floats(power);
    x = fused(n, fill(-0.693359375f), x);
    x = fused(n, fill(2.12194440e-4f), x);
    Lanes y = fill(1.9875691500e-4f);
    y = fused(y, x, fill(1.3981999507e-3f));
    y = fused(y, x, fill(8.3334519073e-3f));
    y = fused(y, x, fill(4.1665795894e-2f));
    y = fused(y, x, fill(1.6666665459e-1f));
    y = fused(y, x, fill(5.0000001201e-1f));
    y = add(fused(y, multiply(x, x), x), fill(1.0f));
    return scale_by_power(y, power);
}

#endif
#endif
