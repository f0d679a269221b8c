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

