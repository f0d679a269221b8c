/* metrist.kernels._native: checks what Python hands over, and runs the kernels without the GIL. */
#include "kernels.h"
#include "windows.h"
#include "pairs.h"
#include "ranks.h"

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

/* ---- Pairs of outputs ---- */

enum { ORDER, LEVELS, LOWS, GROUPS, WEIGHTS, COUNTS, PAIR_ARRAYS };

static const Py_ssize_t PAIR_ITEM[PAIR_ARRAYS] = {8, 4, 8, 8, 8, 8};

/* Every place in the order names an output, a level is less than its group is large, windows begin in their group. */
static int check_arranged(const PairWork *work) {
    for (int64_t group = 0; group < work->groups; group++) {
        int64_t start = work->starts[group], end = work->starts[group + 1];
        for (int64_t i = start; i < end; i++) {
            if (work->order[i] < 0 || work->order[i] >= work->outputs) return refuse("the order names an output that is not there");
            if (work->levels[i] < 0 || work->levels[i] >= end - start) return refuse("a level must be less than its group is large");
            if (work->lows[i] < start || work->lows[i] > i) return refuse("a window must begin in its group, not after its output");
        }
    }
    return 0;
}

static int fill_pairs(PairWork *work, Array *arrays, PyObject *draws) {
    int64_t outputs = arrays[ORDER].count;
    *work = (PairWork){arrays[ORDER].view.buf,  arrays[LEVELS].view.buf,   arrays[LOWS].view.buf,
                       arrays[GROUPS].view.buf, arrays[GROUPS].count - 1,  outputs,
                       arrays[WEIGHTS].view.buf, PyLong_AsLongLong(draws), arrays[COUNTS].view.buf};
    if (PyErr_Occurred() || check_starts(work->starts, arrays[GROUPS].count, outputs) < 0) return -1;
    if (arrays[LEVELS].count != outputs || arrays[LOWS].count != outputs || work->draws < 0) {
        return refuse("each output needs a level and a window");
    }
    if ((outputs ? arrays[WEIGHTS].count / outputs : work->draws) != work->draws) return refuse("a weight per draw and output");
    if (arrays[COUNTS].count != work->draws * work->groups * 5) return refuse("five counts per draw and group");
    return check_arranged(work);
}

static PyObject *py_pair_counts(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (!wants(count, PAIR_ARRAYS + 1)) return NULL;
    Array arrays[PAIR_ARRAYS] = {0};
    PairWork work;
    PyObject *answer = NULL;
    for (int i = 0; i < PAIR_ARRAYS; i++) {
        if (open_array(args[i], &arrays[i], PAIR_ITEM[i], i == COUNTS ? PyBUF_WRITABLE : 0) < 0) goto end;
    }
    if (fill_pairs(&work, arrays, args[PAIR_ARRAYS]) < 0) goto end;
    int failed;
    Py_BEGIN_ALLOW_THREADS
    failed = count_pairs(&work);
    Py_END_ALLOW_THREADS
    if (failed == -2) {
        refuse("weights must be whole numbers, none negative, that add up to less than 2**31 in each draw");
        goto end;
    }
    answer = done(failed);
end:
    close_arrays(arrays, PAIR_ARRAYS);
    return answer;
}

enum { HUMAN, METRIC, RANK_GROUPS, RANK_WEIGHTS, RANKS, RANK_ARRAYS };

static const Py_ssize_t RANK_ITEM[RANK_ARRAYS] = {4, 4, 8, 8, 8};

static int check_levels(const RankWork *work) {
    for (int64_t group = 0; group < work->groups; group++) {
        int32_t size = (int32_t)(work->starts[group + 1] - work->starts[group]);
        for (int64_t i = work->starts[group]; i < work->starts[group + 1]; i++) {
            int32_t human = work->levels[HUMAN][i], metric = work->levels[METRIC][i];
            if (human < 0 || metric < 0 || human >= size || metric >= size) {
                return refuse("a level must be less than its group is large");
            }
        }
    }
    return 0;
}

static int fill_ranks(RankWork *work, Array *arrays, PyObject *draws) {
    int64_t outputs = arrays[HUMAN].count;
    *work = (RankWork){{arrays[HUMAN].view.buf, arrays[METRIC].view.buf}, arrays[RANK_GROUPS].view.buf,
                       arrays[RANK_GROUPS].count - 1, outputs, arrays[RANK_WEIGHTS].view.buf,
                       PyLong_AsLongLong(draws), arrays[RANKS].view.buf};
    if (PyErr_Occurred() || check_starts(work->starts, arrays[RANK_GROUPS].count, outputs) < 0) return -1;
    if (arrays[METRIC].count != outputs || outputs > INT32_MAX || work->draws < 0) {
        return refuse("each output needs a human and a metric level");
    }
    if ((outputs ? arrays[RANK_WEIGHTS].count / outputs : work->draws) != work->draws) return refuse("a weight per draw and output");
    if (arrays[RANKS].count != work->draws * work->groups * 5) return refuse("five numbers per draw and group");
    return check_levels(work);
}

static PyObject *py_rank_comoments(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (!wants(count, RANK_ARRAYS + 1)) return NULL;
    Array arrays[RANK_ARRAYS] = {0};
    RankWork work;
    PyObject *answer = NULL;
    for (int i = 0; i < RANK_ARRAYS; i++) {
        if (open_array(args[i], &arrays[i], RANK_ITEM[i], i == RANKS ? PyBUF_WRITABLE : 0) < 0) goto end;
    }
    if (fill_ranks(&work, arrays, args[RANK_ARRAYS]) < 0) goto end;
    int failed;
    Py_BEGIN_ALLOW_THREADS
    failed = multiply_all_ranks(&work);
    Py_END_ALLOW_THREADS
    answer = done(failed);
end:
    close_arrays(arrays, RANK_ARRAYS);
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

/* ---- The module ---- */

#define FAST(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef methods[] = {
    {"scan", py_scan, METH_VARARGS, NULL},
    {"scan_13a", py_scan_13a, METH_VARARGS, NULL},
    {"scan_chrf_words", py_scan_chrf_words, METH_VARARGS, NULL},
    {"characters", py_characters, METH_VARARGS, NULL},
    {"clipped_matches", FAST(py_clipped_matches), METH_FASTCALL, NULL},
    {"lcs_lengths", FAST(py_lcs_lengths), METH_FASTCALL, NULL},
    {"union_lcs_hits", FAST(py_union_lcs_hits), METH_FASTCALL, NULL},
    {"pair_counts", FAST(py_pair_counts), METH_FASTCALL, NULL},
    {"rank_comoments", FAST(py_rank_comoments), METH_FASTCALL, NULL},
    {"ter_edits", FAST(py_ter_edits), METH_FASTCALL, NULL},
    {"beyond_counts", py_beyond_counts, METH_VARARGS, NULL},
    {"gap_histogram", py_gap_histogram, METH_VARARGS, NULL},
    {"gaps_kept", py_gaps_kept, METH_VARARGS, NULL},
    {"best_prefixes", py_best_prefixes, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", "The compiled kernels: use metrist.kernels.", 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
