/* The layers of a text encoder: products of integers of 8 bits with float32 between them.
 *
 * The same input gives the same bits on every processor that has these kernels: products of integers are exact, and
 * sums of floats have a fixed order and explicit fused multiply-adds. A row's result does not depend on other rows. */
#ifndef METRIST_ENCODER_H
#define METRIST_ENCODER_H

#include "kernels.h"

/* Columns of a matrix that are computed together, and rows. */
enum { PANEL = 16, TILE = 4 };

/* The widest head, and the longest text: sums in attention are below 2**22 and 2**31. */
enum { MAX_HEAD = 256, MAX_LENGTH = 1 << 17 };

typedef struct {
    const int8_t *weights;  /* [outputs / PANEL][inputs / 4][PANEL][4], each from -63 to 63 */
    const float *scales;    /* [outputs / PANEL][inputs / block][PANEL] */
    const float *bias;      /* [outputs], or NULL */
    const int8_t *second;   /* second digits of the weights, or NULL */
    int64_t inputs, outputs, block;
} Linear;

typedef struct {
    /* The most digits of `apply_linear`. */
    int digits;

    /* result = linear(rows), each row rounded to 8 bits in blocks, or with two digits to 16; followed by GELU if `gelu`. */
    int (*apply_linear)(const Linear *linear, const float *rows, int64_t count, int digits, int gelu, float *result);

    /* Self-attention of one text. `joined` is [length][3][heads][width]: queries, keys, values. `turns` is [length]
     * [width], cosines and sines of the rotary position of each half, or NULL. Each query, key and value is rounded to 8
     * bits with a scale of its own, and the weights of a query to integers, the largest 9279: with 8 bits, many small
     * weights beside a large one would be lost. */
    int (*attend)(const float *joined, int64_t length, int64_t heads, int64_t width, const float *turns, float *result);

    /* Attention of one head with two digits for every number, or NULL: scores are products of queries and keys plus the
     * bias. `counts` are numbers of queries and keys, and `strides` the distances of rows of queries, of keys and values,
     * and of the result. `bias` is that of the first query and the first key, and has one number per distance, or is NULL.
     * A head is 64 wide. */
    int (*attend_finely)(const float *queries, const float *keys, const float *values, const int64_t counts[2],
                         const int64_t strides[3], const float *bias, float *result);

    /* rows = normalize(rows + more) * weight + bias; `more` may be NULL. */
    void (*add_and_normalize)(float *rows, const float *more, int64_t count, int64_t width, const float *weight,
                              const float *bias, float epsilon);

    /* result = up * silu(gate), where a row of `joined` is up and gate, `width` numbers each. */
    void (*gate_rows)(const float *joined, int64_t count, int64_t width, float *result);

    /* result = gelu(gate) * up by tanh, where a row of `joined` is gate and up, `width` numbers each. */
    void (*gate_by_gelu)(const float *joined, int64_t count, int64_t width, float *result);

    /* rows = e**(rows - largest), with the largest number and the sum of the powers of each row. */
    void (*exponentiate_rows)(float *rows, int64_t count, int64_t width, float *largest, float *sums);
} EncoderFunctions;

/* NULL where the processor lacks the instructions: NEON with dot products or AVX2; AVX-512 with VNNI; AMX besides. */
const EncoderFunctions *lane_functions(void);
const EncoderFunctions *avx512_functions(void);
const EncoderFunctions *amx_functions(void);

PyObject *py_encoder_level(PyObject *self, PyObject *args);
PyObject *py_limit_encoder(PyObject *self, PyObject *limited);
PyObject *py_apply_linear(PyObject *self, PyObject *args);
PyObject *py_attend(PyObject *self, PyObject *args);
PyObject *py_attend_finely(PyObject *self, PyObject *args);
PyObject *py_add_and_normalize(PyObject *self, PyObject *args);
PyObject *py_gate_rows(PyObject *self, PyObject *args);
PyObject *py_gate_by_gelu(PyObject *self, PyObject *args);
PyObject *py_exponentiate_rows(PyObject *self, PyObject *args);

#endif
