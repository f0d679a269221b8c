/* What the kernels share: texts as token numbers, and the functions that module.c offers to Python.
 *
 * The functions below `Texts` run without the GIL: they touch no Python object, allocate with malloc, and return 0, or
 * -1 when memory is short. Every index they are given has been checked in module.c. */
#ifndef METRIST_KERNELS_H
#define METRIST_KERNELS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

typedef struct {
    const int32_t *ids;
    const int64_t *starts; /* text t is ids[starts[t]] up to ids[starts[t + 1]] */
    int64_t texts;
    int64_t size;          /* of ids */
    int32_t distinct;      /* one more than the greatest id */
} Texts;

typedef struct {
    const int32_t *at;
    int64_t length;
} Span;

static inline Span text_of(const Texts *texts, int64_t number) {
    int64_t start = texts->starts[number];
    return (Span){texts->ids + start, texts->starts[number + 1] - start};
}

/* The least power of two that is at least `size`. */
static inline uint64_t power_above(uint64_t size) {
    uint64_t power = 1;
    while (power < size) power <<= 1;
    return power;
}

/* malloc and friends for `count` things of `size` bytes; NULL also when the product overflows. */
void *room(int64_t count, size_t size);
void *zeroed_room(int64_t count, size_t size);
/* Grows *array (of *have things) to at least `need`. Keeps what is there. */
int make_room(void **array, int64_t *have, int64_t need, size_t size);

typedef struct {
    const int32_t *outputs;    /* one per pair */
    const int32_t *references; /* one per pair */
    const int64_t *starts;     /* pairs of group g are starts[g] up to starts[g + 1] */
    int64_t groups;
} Groups;

int count_matches(const Texts *texts, const Groups *groups, int max_order, int64_t *matches);
int measure_lcs(const Texts *texts, const int32_t *outputs, const int32_t *references, int64_t pairs, int64_t *lengths);
int count_union_hits(const Texts *lines, const int64_t *line_starts, const int32_t *outputs, const int32_t *references,
                     int64_t pairs, int64_t *hits);
int count_ter_edits(const Texts *texts, const int32_t *outputs, const int32_t *references, int64_t pairs, int64_t *edits);

/* These are called with the GIL, release it while they scan, and return a new reference: (ids, starts, words) as
 * (bytearray, bytearray, list). */
PyObject *scan_texts(PyObject *texts, PyObject *classes, Py_buffer *table, int lower);
PyObject *scan_texts_13a(PyObject *texts, PyObject *cleaned, PyObject *classes, Py_buffer *table);
PyObject *scan_texts_chrf(PyObject *texts, PyObject *classes, Py_buffer *table);
PyObject *read_characters(PyObject *texts);

/* With the GIL: the arrays as bytes; array r is from starts[r] up to starts[r + 1]. `columns` is a tuple of lists. */
PyObject *json_arrays(PyObject *columns, int64_t *starts, int64_t rows);

/* Constants of `join_columns` can be read so many bytes from their beginning. */
#define COPIED_AT_ONCE 32

/* A column of `join_columns`: in each row a constant, and then a number, or a text, or nothing. */
typedef struct {
    const char *before;
    int64_t before_size;
    const double *numbers;
    int is_short; /* whether whole numbers are written without their .0 */
    const char *texts;
    const int32_t *starts;
    int64_t size, longest; /* of all texts, and of one */
} Column;

/* With the GIL, which it releases while it joins: calls `write` with blocks of the rows. `powers` are for Numbers. */
int join_columns(const Column *columns, int64_t count, int64_t rows, const uint64_t *powers, PyObject *write);

#define POWERS_OF_TEN 617
#define FLOAT_ROOM 48
#define LONGEST_FLOAT 24
#define SMALL_NUMBERS 1000
#define KNOWN_NUMBERS_BITS 12

/* What put_float needs. */
typedef struct {
    /* Those of ten from 10^-292 on, 128 bits each, the upper half first: the uppermost bit is one, the last is rounded
     * up. */
    const uint64_t *powers;
    struct {
        char digits[3];
        uint8_t count;
    } small[SMALL_NUMBERS];
    /* Numbers that are not whole, the latest with its hash: scores repeat. */
    struct {
        uint64_t bits; /* 0: none */
        char text[LONGEST_FLOAT];
        int64_t size;
    } known[1 << KNOWN_NUMBERS_BITS];
} Numbers;

/* NULL where memory is short. For free. */
Numbers *make_numbers(const uint64_t *powers);
/* Writes a number as JSON, and returns where it ends; up to FLOAT_ROOM bytes are changed. */
char *put_float(char *at, double number, int is_short, Numbers *numbers);

#endif
