/* metrist.kernels._native: checks what Python hands over, and runs the kernels without the GIL. */
#include "kernels.h"
#include "windows.h"
#include "outputs.h"
#include "encoder.h"

/* ---- Arrays from Python ---- */

typedef struct {
    Py_buffer view;
    int64_t count;
} Array;

static int open_array(PyObject *object, Array *array, Py_ssize_t size, int flags) {
    if (PyObject_GetBuffer(object, &array->view, PyBUF_C_CONTIGUOUS | flags) < 0) {
        array->view.obj = NULL;
        return -1;
    }
    if (array->view.len % size) {
        PyErr_SetString(PyExc_ValueError, "an array holds items of another size than wanted");
        return -1;
    }
    array->count = array->view.len / size;
    return 0;
}

static void close_arrays(Array *arrays, int count) {
    for (int i = 0; i < count; i++) {
        if (arrays[i].view.obj != NULL) PyBuffer_Release(&arrays[i].view);
    }
}

static int refuse(const char *why) {
    PyErr_SetString(PyExc_ValueError, why);
    return -1;
}

static int check_starts(const int64_t *starts, int64_t count, int64_t end) {
    if (count < 1 || starts[0] < 0 || starts[count - 1] > end) return refuse("starts must lie within what they cut");
    for (int64_t i = 1; i < count; i++) {
        if (starts[i] < starts[i - 1]) return refuse("starts must not go down");
    }
    return 0;
}

static int check_numbers(const int32_t *numbers, int64_t count, int64_t texts) {
    for (int64_t i = 0; i < count; i++) {
        if (numbers[i] < 0 || numbers[i] >= texts) return refuse("a pair names a text that is not there");
    }
    return 0;
}

static int fill_texts(Texts *texts, const Array *ids, const Array *starts) {
    *texts = (Texts){ids->view.buf, starts->view.buf, starts->count - 1, ids->count, 0};
    if (check_starts(texts->starts, starts->count, ids->count) < 0) return -1;
    int32_t greatest = -1;
    uint32_t any_sign = 0;
    for (int64_t i = 0; i < ids->count; i++) {
        any_sign |= (uint32_t)texts->ids[i];
        if (texts->ids[i] > greatest) greatest = texts->ids[i];
    }
    if (any_sign >> 31 || greatest == INT32_MAX) return refuse("ids must not be negative, nor the greatest number");
    texts->distinct = greatest + 1;
    return 0;
}

static PyObject *done(int failed) {
    if (failed) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

/* ---- Kernels over pairs ---- */

enum { IDS, STARTS, OUTPUTS, REFERENCES, RESULT, EXTRA, ARRAYS };

static const Py_ssize_t ITEM[ARRAYS] = {4, 8, 4, 4, 8, 8};

/* Opens and checks ids, starts, outputs, references, result and, where `objects` has it, one more array of starts. */
static int open_pairs(PyObject *const *objects, Py_ssize_t count, Array *arrays, Texts *texts) {
    for (int i = 0; i < count; i++) {
        if (open_array(objects[i], &arrays[i], ITEM[i], i == RESULT ? PyBUF_WRITABLE : 0) < 0) return -1;
    }
    if (arrays[OUTPUTS].count != arrays[REFERENCES].count) return refuse("each pair needs an output and a reference");
    return fill_texts(texts, &arrays[IDS], &arrays[STARTS]);
}

static int check_pairs(const Array *arrays, int64_t texts) {
    if (check_numbers(arrays[OUTPUTS].view.buf, arrays[OUTPUTS].count, texts) < 0) return -1;
    return check_numbers(arrays[REFERENCES].view.buf, arrays[REFERENCES].count, texts);
}

static int wants(Py_ssize_t given, Py_ssize_t wanted) {
    if (given == wanted) return 1;
    PyErr_Format(PyExc_TypeError, "expected %zd arguments, got %zd", wanted, given);
    return 0;
}

static PyObject *py_clipped_matches(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (!wants(count, 7)) return NULL;
    Array arrays[ARRAYS] = {0};
    Texts texts;
    long max_order = PyLong_AsLong(args[6]);
    PyObject *answer = NULL;
    if (PyErr_Occurred() || open_pairs(args, ARRAYS, arrays, &texts) < 0 || check_pairs(arrays, texts.texts) < 0) goto end;
    const int64_t *starts = arrays[EXTRA].view.buf;
    int64_t groups = arrays[EXTRA].count - 1;
    if (check_starts(starts, groups + 1, arrays[OUTPUTS].count) < 0) goto end;
    if (max_order < 1 || max_order > 1000 || arrays[RESULT].count / max_order != groups || texts.size >= INT32_MAX) {
        refuse("the result must have a row per group and a column per order");
        goto end;
    }
    Groups all = {arrays[OUTPUTS].view.buf, arrays[REFERENCES].view.buf, starts, groups};
    int failed;
    Py_BEGIN_ALLOW_THREADS
    failed = count_matches(&texts, &all, (int)max_order, arrays[RESULT].view.buf);
    Py_END_ALLOW_THREADS
    answer = done(failed);
end:
    close_arrays(arrays, ARRAYS);
    return answer;
}

typedef int (*PairKernel)(const Texts *, const int32_t *, const int32_t *, int64_t, int64_t *);

static PyObject *run_pairs(PyObject *const *args, Py_ssize_t count, PairKernel kernel) {
    if (!wants(count, 5)) return NULL;
    Array arrays[ARRAYS] = {0};
    Texts texts;
    PyObject *answer = NULL;
    if (open_pairs(args, 5, arrays, &texts) < 0 || check_pairs(arrays, texts.texts) < 0) goto end;
    if (arrays[RESULT].count != arrays[OUTPUTS].count) {
        refuse("the result must have one place per pair");
        goto end;
    }
    int failed;
    Py_BEGIN_ALLOW_THREADS
    failed = kernel(&texts, arrays[OUTPUTS].view.buf, arrays[REFERENCES].view.buf, arrays[OUTPUTS].count,
                    arrays[RESULT].view.buf);
    Py_END_ALLOW_THREADS
    answer = done(failed);
end:
    close_arrays(arrays, ARRAYS);
    return answer;
}

static PyObject *py_lcs_lengths(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    return run_pairs(args, count, measure_lcs);
}

static PyObject *py_ter_edits(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    return run_pairs(args, count, count_ter_edits);
}

static PyObject *py_union_lcs_hits(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (!wants(count, 6)) return NULL;
    Array arrays[ARRAYS] = {0};
    Texts lines;
    PyObject *answer = NULL;
    if (open_pairs(args, ARRAYS, arrays, &lines) < 0) goto end;
    const int64_t *line_starts = arrays[EXTRA].view.buf;
    if (check_starts(line_starts, arrays[EXTRA].count, lines.texts) < 0) goto end;
    if (check_pairs(arrays, arrays[EXTRA].count - 1) < 0) goto end;
    if (arrays[RESULT].count != arrays[OUTPUTS].count) {
        refuse("the result must have one place per pair");
        goto end;
    }
    int failed;
    Py_BEGIN_ALLOW_THREADS
    failed = count_union_hits(&lines, line_starts, arrays[OUTPUTS].view.buf, arrays[REFERENCES].view.buf,
                              arrays[OUTPUTS].count, arrays[RESULT].view.buf);
    Py_END_ALLOW_THREADS
    answer = done(failed);
end:
    close_arrays(arrays, ARRAYS);
    return answer;
}

/* ---- Scanning ---- */

/* The table of a CharClasses. Its first page must be filled, which the caller in Python sees to. */
static int open_table(PyObject *classes, Py_buffer *table) {
    PyObject *bytes = PyObject_GetAttrString(classes, "table");
    if (bytes == NULL) return -1;
    int failed = PyObject_GetBuffer(bytes, table, PyBUF_SIMPLE);
    Py_DECREF(bytes);
    if (failed) return -1;
    if (table->len == 0x110000 && ((const char *)table->buf)[0]) return 0;
    PyBuffer_Release(table);
    return refuse("the table of classes must have a byte per code point, the first page filled");
}

static PyObject *py_scan(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *texts, *classes;
    int lower;
    Py_buffer table;
    if (!PyArg_ParseTuple(args, "O!Op", &PyTuple_Type, &texts, &classes, &lower)) return NULL;
    if (open_table(classes, &table) < 0) return NULL;
    PyObject *found = scan_texts(texts, classes, &table, lower);
    PyBuffer_Release(&table);
    return found;
}

static PyObject *py_scan_13a(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *texts, *classes, *cleaned;
    Py_buffer table;
    if (!PyArg_ParseTuple(args, "O!OO", &PyTuple_Type, &texts, &classes, &cleaned)) return NULL;
    if (open_table(classes, &table) < 0) return NULL;
    PyObject *found = scan_texts_13a(texts, cleaned, classes, &table);
    PyBuffer_Release(&table);
    return found;
}

static PyObject *py_scan_chrf_words(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *texts, *classes;
    Py_buffer table;
    if (!PyArg_ParseTuple(args, "O!O", &PyTuple_Type, &texts, &classes)) return NULL;
    if (open_table(classes, &table) < 0) return NULL;
    PyObject *found = scan_texts_chrf(texts, classes, &table);
    PyBuffer_Release(&table);
    return found;
}

static PyObject *py_characters(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *texts;
    if (!PyArg_ParseTuple(args, "O!", &PyTuple_Type, &texts)) return NULL;
    return read_characters(texts);
}

static PyObject *py_json_arrays(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *columns, *object, *answer = NULL;
    Array starts = {0};
    if (!PyArg_ParseTuple(args, "O!O", &PyTuple_Type, &columns, &object)) return NULL;
    if (open_array(object, &starts, sizeof(int64_t), PyBUF_WRITABLE) == 0) {
        if (starts.count) answer = json_arrays(columns, starts.view.buf, starts.count - 1);
        else refuse("there must be a start more than rows");
    }
    close_arrays(&starts, 1);
    return answer;
}

/* Opens texts and their starts, or numbers and whether they are short, and checks that there are as many as rows. */
static int open_column(PyObject *object, Array *arrays, Column *column, int64_t rows) {
    if (!PyTuple_Check(object) || PyTuple_GET_SIZE(object) != 2) return refuse("a column must be bytes or a pair");
    PyObject *first = PyTuple_GET_ITEM(object, 0), *second = PyTuple_GET_ITEM(object, 1);
    if (PyBool_Check(second)) {
        if (open_array(first, &arrays[0], sizeof(double), 0) < 0) return -1;
        column->numbers = arrays[0].view.buf;
        column->is_short = second == Py_True;
        return arrays[0].count == rows ? 0 : refuse("there must be a number for each row");
    }
    if (open_array(first, &arrays[0], 1, 0) < 0) return -1;
    if (open_array(second, &arrays[1], sizeof(int32_t), 0) < 0) return -1;
    column->texts = arrays[0].view.buf;
    column->size = arrays[0].count;
    column->starts = arrays[1].view.buf;
    if (arrays[1].count != rows + 1) return refuse("there must be a start more than rows");
    if (column->starts[0] < 0 || column->starts[rows] > column->size) {
        return refuse("starts must lie within what they cut");
    }
    for (int64_t row = 0; row < rows; row++) {
        int64_t size = (int64_t)column->starts[row + 1] - column->starts[row];
        if (size < 0) return refuse("starts must not go down");
        if (size > column->longest) column->longest = size;
    }
    return 0;
}

/* Opens all columns; a constant becomes part of the one behind it. Returns how many there are then, or -1. */
static int64_t open_columns(PyObject *objects, Array *arrays, Column *columns, int64_t rows, char *constants) {
    int64_t opened = 0;
    for (Py_ssize_t c = 0; c < PyTuple_GET_SIZE(objects); c++) {
        PyObject *object = PyTuple_GET_ITEM(objects, c);
        Column *column = &columns[opened];
        if (column->before == NULL) column->before = constants;
        if (PyBytes_Check(object)) {
            int64_t size = PyBytes_GET_SIZE(object);
            memcpy(constants, PyBytes_AS_STRING(object), (size_t)size);
            column->before_size += size;
            constants += size;
            continue;
        }
        if (open_column(object, &arrays[2 * opened++], column, rows) < 0) return -1;
    }
    if (columns[opened].before_size) opened++;
    return opened;
}

static PyObject *py_join_columns(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *objects, *write, *answer = NULL;
    Py_ssize_t rows;
    Py_buffer powers;
    if (!PyArg_ParseTuple(args, "O!ny*O", &PyTuple_Type, &objects, &rows, &powers, &write)) return NULL;
    int64_t count = PyTuple_GET_SIZE(objects), size = COPIED_AT_ONCE;
    for (int64_t c = 0; c < count; c++) {
        if (PyBytes_Check(PyTuple_GET_ITEM(objects, c))) size += PyBytes_GET_SIZE(PyTuple_GET_ITEM(objects, c));
    }
    Array *arrays = zeroed_room(2 * count + 1, sizeof(Array));
    Column *columns = zeroed_room(count + 1, sizeof(Column));
    char *constants = zeroed_room(size, 1);
    if (rows < 0) refuse("there cannot be fewer rows than none");
    else if (powers.len != 2 * POWERS_OF_TEN * sizeof(uint64_t)) refuse("there must be all powers of ten");
    else if (arrays == NULL || columns == NULL || constants == NULL) PyErr_NoMemory();
    else {
        int64_t opened = open_columns(objects, arrays, columns, rows, constants);
        if (opened >= 0 && join_columns(columns, opened, rows, powers.buf, write) == 0) answer = Py_NewRef(Py_None);
    }
    if (arrays != NULL) close_arrays(arrays, (int)(2 * count));
    free(arrays), free(columns), free(constants);
    PyBuffer_Release(&powers);
    return answer;
}

/* ---- The module ---- */

#define FAST(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef methods[] = {
    {"scan", py_scan, METH_VARARGS, NULL},
    {"scan_13a", py_scan_13a, METH_VARARGS, NULL},
    {"scan_chrf_words", py_scan_chrf_words, METH_VARARGS, NULL},
    {"characters", py_characters, METH_VARARGS, NULL},
    {"json_arrays", py_json_arrays, METH_VARARGS, NULL},
    {"join_columns", py_join_columns, METH_VARARGS, NULL},
    {"clipped_matches", FAST(py_clipped_matches), METH_FASTCALL, NULL},
    {"lcs_lengths", FAST(py_lcs_lengths), METH_FASTCALL, NULL},
    {"union_lcs_hits", FAST(py_union_lcs_hits), METH_FASTCALL, NULL},
    {"pair_counts", py_pair_counts, METH_VARARGS, NULL},
    {"rank_comoments", py_rank_comoments, METH_VARARGS, NULL},
    {"ter_edits", FAST(py_ter_edits), METH_FASTCALL, NULL},
    {"beyond_counts", py_beyond_counts, METH_VARARGS, NULL},
    {"gap_histogram", py_gap_histogram, METH_VARARGS, NULL},
    {"gaps_kept", py_gaps_kept, METH_VARARGS, NULL},
    {"best_prefixes", py_best_prefixes, METH_VARARGS, NULL},
    {"encoder_level", py_encoder_level, METH_NOARGS, NULL},
    {"limit_encoder", py_limit_encoder, METH_O, NULL},
    {"apply_linear", py_apply_linear, METH_VARARGS, NULL},
    {"attend", py_attend, METH_VARARGS, NULL},
    {"attend_finely", py_attend_finely, METH_VARARGS, NULL},
    {"add_and_normalize", py_add_and_normalize, METH_VARARGS, NULL},
    {"gate_rows", py_gate_rows, METH_VARARGS, NULL},
    {"gate_by_gelu", py_gate_by_gelu, METH_VARARGS, NULL},
    {"exponentiate_rows", py_exponentiate_rows, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", "The compiled kernels: use metrist.kernels.", 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
