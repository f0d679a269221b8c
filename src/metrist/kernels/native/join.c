/* Lines of text from columns: texts and numbers, each with a constant before it.
 *
 * They are passed on in blocks that stay in the second cache, where whoever takes them finds them. Short texts are
 * copied with what follows them, 16 or 32 bytes at once, where so much can be read. */
#include "kernels.h"
#include <string.h>

#define BLOCK (1 << 18)

static inline char *put_text(char *at, const char *text, int64_t size, int64_t readable) {
    if (size <= 16 && readable >= 16) memcpy(at, text, 16);
    else if (size <= COPIED_AT_ONCE && readable >= COPIED_AT_ONCE) memcpy(at, text, COPIED_AT_ONCE);
    else memcpy(at, text, (size_t)size);
    return at + size;
}

/* As many rows as a block holds, from *row on. */
static char *put_rows(const Column *columns, int64_t count, int64_t *row, int64_t rows, Numbers *numbers, char *begin) {
    char *at = begin;
    for (; *row < rows && at - begin < BLOCK; (*row)++) {
        for (const Column *column = columns; column < columns + count; column++) {
            at = put_text(at, column->before, column->before_size, COPIED_AT_ONCE);
            if (column->numbers) {
                at = put_float(at, column->numbers[*row], column->is_short, numbers);
            } else if (column->starts) {
                int64_t start = column->starts[*row], size = column->starts[*row + 1] - start;
                at = put_text(at, column->texts + start, size, column->size - start);
            }
        }
    }
    return at;
}

static int pass_on(PyObject *write, char *begin, char *end) {
    PyObject *block = PyMemoryView_FromMemory(begin, end - begin, PyBUF_READ);
    if (block == NULL) return -1;
    PyObject *answer = PyObject_CallOneArg(write, block);
    /* The memory is used again: nobody may keep it. */
    PyObject *released = answer == NULL ? NULL : PyObject_CallMethod(block, "release", NULL);
    int failed = released == NULL ? -1 : 0;
    Py_XDECREF(answer), Py_XDECREF(released), Py_DECREF(block);
    return failed;
}

int join_columns(const Column *columns, int64_t count, int64_t rows, const uint64_t *powers, PyObject *write) {
    int64_t longest = FLOAT_ROOM, row = 0;
    for (int64_t c = 0; c < count; c++) longest += columns[c].before_size + FLOAT_ROOM + columns[c].longest;
    char *begin = room(BLOCK + longest, 1);
    Numbers *numbers = make_numbers(powers);
    int failed = begin == NULL || numbers == NULL ? -1 : 0;
    if (failed) PyErr_NoMemory();
    while (row < rows && !failed) {
        char *end;
        Py_BEGIN_ALLOW_THREADS
        end = put_rows(columns, count, &row, rows, numbers, begin);
        Py_END_ALLOW_THREADS
        failed = pass_on(write, begin, end);
    }
    free(begin), free(numbers);
    return failed;
}
