/* Lines of text from columns: constants, texts, and whole numbers in decimal digits. */
#include "kernels.h"
#include <string.h>

#define MOST_DIGITS 20

static char *put_number(char *at, int64_t number) {
    char digits[MOST_DIGITS];
    int count = 0;
    uint64_t rest = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    do {
        digits[count++] = (char)('0' + rest % 10);
        rest /= 10;
    } while (rest);
    if (number < 0) *at++ = '-';
    while (count) *at++ = digits[--count];
    return at;
}

PyObject *join_columns(const Column *columns, int64_t count, int64_t rows) {
    int64_t most = 0;
    for (int64_t c = 0; c < count; c++) {
        const Column *column = &columns[c];
        if (column->numbers) most += rows * MOST_DIGITS;
        else if (column->starts) most += column->starts[rows] - column->starts[0];
        else most += rows * column->size;
    }
    PyObject *joined = PyBytes_FromStringAndSize(NULL, most);
    if (joined == NULL) return NULL;
    char *begin = PyBytes_AS_STRING(joined), *at = begin;
    Py_BEGIN_ALLOW_THREADS
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t c = 0; c < count; c++) {
            const Column *column = &columns[c];
            if (column->numbers) {
                at = put_number(at, column->numbers[row]);
                continue;
            }
            const char *text = column->texts;
            int64_t size = column->size;
            if (column->starts) {
                text += column->starts[row];
                size = column->starts[row + 1] - column->starts[row];
            }
            memcpy(at, text, (size_t)size);
            at += size;
        }
    }
    Py_END_ALLOW_THREADS
    _PyBytes_Resize(&joined, at - begin);
    return joined;
}
