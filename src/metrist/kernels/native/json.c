/* Rows of texts as JSON arrays, spelled as Python's encoder spells them without ASCII escapes, in UTF-8. Lone surrogates
 * are encoded like other characters, as Python's `surrogatepass` does. */
#include "kernels.h"
#include <string.h>

typedef struct {
    char *bytes;
    int64_t used, have;
} Writer;

static int reserve(Writer *w, int64_t more) { return make_room((void **)&w->bytes, &w->have, w->used + more, 1); }

static int put(Writer *w, const char *bytes, int64_t count) {
    if (reserve(w, count) < 0) return -1;
    memcpy(w->bytes + w->used, bytes, (size_t)count);
    w->used += count;
    return 0;
}

/* The letter after the backslash of a short escape; 0 if the character has none. */
static inline char short_escape(Py_UCS4 c) {
    switch (c) {
    case '"': return '"';
    case '\\': return '\\';
    case '\n': return 'n';
    case '\r': return 'r';
    case '\t': return 't';
    case '\f': return 'f';
    case '\b': return 'b';
    default: return 0;
    }
}

static inline int64_t spelled_size(Py_UCS4 c) {
    if (c < 0x80) return c >= 0x20 && c != '"' && c != '\\' ? 1 : short_escape(c) ? 2 : 6;
    return c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
}

static char *spell(char *at, Py_UCS4 c) {
    if (c >= 0x80) {
        if (c < 0x800) {
            *at++ = (char)(0xc0 | c >> 6);
        } else {
            if (c < 0x10000) {
                *at++ = (char)(0xe0 | c >> 12);
            } else {
                *at++ = (char)(0xf0 | c >> 18);
                *at++ = (char)(0x80 | (c >> 12 & 0x3f));
            }
            *at++ = (char)(0x80 | (c >> 6 & 0x3f));
        }
        *at++ = (char)(0x80 | (c & 0x3f));
    } else if (c >= 0x20 && c != '"' && c != '\\') {
        *at++ = (char)c;
    } else if (short_escape(c)) {
        *at++ = '\\';
        *at++ = short_escape(c);
    } else {
        memcpy(at, c < 0x10 ? "\\u000" : "\\u001", 5);
        at[5] = "0123456789abcdef"[c & 0xf];
        at += 6;
    }
    return at;
}

static int put_text(Writer *w, PyObject *text) {
    int64_t length = PyUnicode_GET_LENGTH(text), size = 0;
    int kind = PyUnicode_KIND(text);
    const void *data = PyUnicode_DATA(text);
    for (int64_t i = 0; i < length; i++) size += spelled_size(PyUnicode_READ(kind, data, i));
    if (reserve(w, size + 2) < 0) return -1;
    char *at = w->bytes + w->used;
    *at++ = '"';
    if (size == length) { /* all of it ASCII */
        memcpy(at, data, (size_t)length);
        at += length;
    } else {
        for (int64_t i = 0; i < length; i++) at = spell(at, PyUnicode_READ(kind, data, i));
    }
    *at++ = '"';
    w->used = at - w->bytes;
    return 0;
}

/* 0, or -1 when memory is short, or -2 for a value of another type. */
static int put_value(Writer *w, PyObject *value) {
    if (PyUnicode_Check(value)) return put_text(w, value);
    if (value == Py_None) return put(w, "null", 4);
    if (!PyTuple_Check(value)) return -2;
    if (put(w, "[", 1) < 0) return -1;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); i++) {
        PyObject *text = PyTuple_GET_ITEM(value, i);
        if (!PyUnicode_Check(text)) return -2;
        if ((i && put(w, ",", 1) < 0) || put_text(w, text) < 0) return -1;
    }
    return put(w, "]", 1);
}

PyObject *json_arrays(PyObject *columns, int64_t *starts, int64_t rows) {
    Writer w = {0};
    int failed = 0;
    Py_ssize_t width = PyTuple_GET_SIZE(columns);
    for (Py_ssize_t c = 0; c < width; c++) {
        PyObject *column = PyTuple_GET_ITEM(columns, c);
        if (!PyList_Check(column) || PyList_GET_SIZE(column) != rows) {
            return PyErr_Format(PyExc_ValueError, "columns must be lists of one length");
        }
    }
    starts[0] = 0;
    for (int64_t row = 0; row < rows && !failed; row++) {
        for (Py_ssize_t c = 0; c < width && !failed; c++) {
            failed = put(&w, c ? "," : "[", 1);
            if (!failed) failed = put_value(&w, PyList_GET_ITEM(PyTuple_GET_ITEM(columns, c), row));
        }
        if (!failed) failed = put(&w, "]", 1);
        starts[row + 1] = w.used;
    }
    PyObject *bytes = failed ? NULL : PyBytes_FromStringAndSize(w.bytes, w.used);
    free(w.bytes);
    if (failed == -1) return PyErr_NoMemory();
    if (failed == -2) PyErr_SetString(PyExc_TypeError, "a value must be a text, a tuple of texts or None");
    return bytes;
}
