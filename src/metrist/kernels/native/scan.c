/* Texts into tokens.
 *
 * Scanning runs without the GIL: strings are immutable, and the tuple of texts keeps them alive. The GIL is taken back
 * (`hold`) only to call Python: to classify characters of a page that is new, to lower-case or clean a text by Python's
 * rules, to raise an error.
 *
 * A text is copied to a scratch buffer as UTF-8, with the class of each byte beside it (all bytes of a character have
 * its class). The classes are packed into bit masks, in which words are runs of ones: finding them takes no branch per
 * character. */
#include "words_13a.h"
#include "vocabulary.h"

enum { UNKNOWN, SEPARATOR, WORD, SINGLE, CHANGES };

typedef struct Scanner Scanner;
typedef int (*Taker)(Scanner *scanner, const char *word, uint32_t length);

struct Scanner {
    PyThreadState *thread; /* while the GIL is released; NULL while it is held */
    PyObject *classes;
    Py_buffer *table; /* by code point */
    int lower; /* whether letters are lower-cased on the way */
    PyObject *cleaned; /* for 13a: what to call for texts with markup or line breaks */
    Taker take;        /* what becomes of a run of WORD characters */
    Vocabulary vocabulary;
    PyObject *numbers; /* a bytearray, larger than needed */
    int32_t *ids;      /* what it holds */
    int64_t ids_used;
    char *letters;
    uint8_t *kinds;
    uint64_t *words, *singles; /* bit masks over letters */
    int64_t letters_room, kinds_room, words_room, singles_room;
    char *spaced; /* for 13a: a word with spaces put in */
    int64_t spaced_room;
};

static void release(Scanner *s) { s->thread = PyEval_SaveThread(); }

static void hold(Scanner *s) {
    if (s->thread != NULL) PyEval_RestoreThread(s->thread);
    s->thread = NULL;
}

/* ---- Tokens found ---- */

/* There is room for it: a text has no more tokens than characters, for which scan_prepared has seen to. */
static int take_token(Scanner *s, const char *word, uint32_t length) {
    int32_t id = number_of(&s->vocabulary, word, length);
    if (id < 0) return -1;
    s->ids[s->ids_used++] = id;
    return 0;
}

static int is_mark(char c) {
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
}

/* chrF++ takes one punctuation mark off a word, from its end rather than from its beginning. */
static int take_without_mark(Scanner *s, const char *word, uint32_t length) {
    if (length > 1 && is_mark(word[length - 1])) {
        return take_token(s, word, length - 1) < 0 ? -1 : take_token(s, word + length - 1, 1);
    }
    if (length > 1 && is_mark(word[0])) {
        return take_token(s, word, 1) < 0 ? -1 : take_token(s, word + 1, length - 1);
    }
    return take_token(s, word, length);
}

static int take_parts(Scanner *s, const char *parts, int64_t length) {
    for (int64_t start = 0, i = 0; i <= length; i++) {
        if (i < length && parts[i] != ' ') continue;
        if (i > start && take_token(s, parts + start, (uint32_t)(i - start)) < 0) return -1;
        start = i + 1;
    }
    return 0;
}

static int take_13a(Scanner *s, const char *word, uint32_t length) {
    int plain = 1;
    for (uint32_t i = 0; i < length; i++) plain &= word[i] != '.' && word[i] != ',' && word[i] != '-';
    if (plain || length == 1) return take_token(s, word, length);
    if (make_room((void **)&s->spaced, &s->spaced_room, room_for_13a(length), 1) < 0) return -1;
    int64_t used = space_out_13a(word, length, s->spaced);
    return take_parts(s, s->spaced, used);
}

/* ---- A text as letters and classes ---- */

static int reserve(Scanner *s, int64_t bytes) {
    int64_t masks = bytes / 64 + 2;
    if (make_room((void **)&s->letters, &s->letters_room, bytes + 64, 1) < 0) return -1;
    if (make_room((void **)&s->kinds, &s->kinds_room, bytes + 64, 1) < 0) return -1;
    if (make_room((void **)&s->words, &s->words_room, masks, sizeof(uint64_t)) < 0) return -1;
    return make_room((void **)&s->singles, &s->singles_room, masks, sizeof(uint64_t));
}

static void lay_out_ascii(Scanner *s, const uint8_t *restrict text, int64_t length, int lower) {
    const uint8_t *restrict classes = s->table->buf;
    uint8_t *restrict letters = (uint8_t *)s->letters, *restrict kinds = s->kinds;
    memcpy(letters, text, (size_t)length);
    if (lower) {
        for (int64_t i = 0; i < length; i++) letters[i] |= (uint8_t)(((uint8_t)(text[i] - 'A') < 26) << 5);
    }
    for (int64_t i = 0; i < length; i++) kinds[i] = classes[letters[i]];
}

static int put_utf8(char *out, Py_UCS4 c) {
    if (c < 0x80) return out[0] = (char)c, 1;
    if (c < 0x800) return out[0] = (char)(0xC0 | c >> 6), out[1] = (char)(0x80 | (c & 63)), 2;
    if (c < 0x10000) {
        return out[0] = (char)(0xE0 | c >> 12), out[1] = (char)(0x80 | (c >> 6 & 63)), out[2] = (char)(0x80 | (c & 63)), 3;
    }
    out[0] = (char)(0xF0 | c >> 18), out[1] = (char)(0x80 | (c >> 12 & 63));
    out[2] = (char)(0x80 | (c >> 6 & 63)), out[3] = (char)(0x80 | (c & 63));
    return 4;
}

static int class_of(Scanner *s, Py_UCS4 c) {
    const uint8_t *classes = s->table->buf;
    if (classes[c] == UNKNOWN) {
        hold(s);
        PyObject *filled = PyObject_CallMethod(s->classes, "fill", "I", (unsigned)c);
        if (filled == NULL) return -1;
        Py_DECREF(filled);
        release(s);
    }
    return classes[c];
}

#define MUST_BE_LOWERED (-2)

/* Any text. A single character is marked by its first byte, the rest of it is skipped as if it were a separator. A text
 * with a letter beyond A to Z that has a lower case is left to Python, which knows the rules. */
static int64_t lay_out(Scanner *s, PyObject *text, int lower) {
    int64_t used = 0, length = PyUnicode_GET_LENGTH(text);
    int kind = PyUnicode_KIND(text);
    const void *data = PyUnicode_DATA(text);
    char *letters = s->letters;
    uint8_t *kinds = s->kinds;
    for (int64_t i = 0; i < length; i++) {
        Py_UCS4 c = PyUnicode_READ(kind, data, i);
        if (lower && c - 'A' < 26) c += 32;
        int class = class_of(s, c);
        if (class < 0) return -1;
        if (c < 0x80) {
            letters[used] = (char)c;
            kinds[used++] = (uint8_t)class;
            continue;
        }
        if (class & CHANGES && lower) return MUST_BE_LOWERED;
        class &= ~CHANGES;
        int width = put_utf8(letters + used, c);
        memset(kinds + used, class == SINGLE ? SEPARATOR : class, (size_t)width);
        if (class == SINGLE) kinds[used] = SINGLE;
        used += width;
    }
    return used;
}

/* ---- From masks to tokens ---- */

#define ONES 0x0101010101010101u

static inline uint64_t eight(const uint8_t *bytes) {
    uint64_t all;
    memcpy(&all, bytes, 8);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    all = __builtin_bswap64(all);
#endif
    return all;
}

/* Eight bytes, each 0 or 1, as eight bits. */
static inline uint64_t packed(uint64_t bytes) { return bytes * 0x0102040810204080u >> 56; }

/* SEPARATOR is 01, WORD is 10 and SINGLE is 11: two bits of each class say all. */
static void make_masks(Scanner *s, int64_t length) {
    uint8_t *restrict all = s->kinds;
    memset(all + length, SEPARATOR, 64);
    for (int64_t at = 0; at <= length; at += 64) {
        uint64_t words = 0, singles = 0;
        for (int k = 0; k < 64; k += 8) {
            uint64_t kinds = eight(all + at + k), token = kinds >> 1 & ONES;
            words |= packed(token & ~kinds) << k;
            singles |= packed(token & kinds) << k;
        }
        s->words[at >> 6] = words;
        s->singles[at >> 6] = singles;
    }
}

static int64_t end_of_word(const uint64_t *words, int64_t at) {
    uint64_t gap = ~words[at >> 6] >> (at & 63);
    if (gap) return at + __builtin_ctzll(gap);
    int64_t block = (at >> 6) + 1;
    while (words[block] == ~(uint64_t)0) block++;
    return (block << 6) + __builtin_ctzll(~words[block]);
}

static uint32_t bytes_of_character(uint8_t first) { return first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4; }

static int take_all(Scanner *s, int64_t length) {
    make_masks(s, length);
    int64_t at = 0, blocks = (length >> 6) + 1;
    for (int64_t block = 0; block < blocks; block++) {
        uint64_t left = s->words[block] | s->singles[block];
        if (at > block << 6) left &= at >= (block + 1) << 6 ? 0 : ~(uint64_t)0 << (at & 63);
        while (left) {
            int64_t start = (block << 6) + __builtin_ctzll(left);
            if (s->singles[block] >> (start & 63) & 1) {
                at = start + bytes_of_character((uint8_t)s->letters[start]);
                if (take_token(s, s->letters + start, (uint32_t)(at - start)) < 0) return -1;
            } else {
                at = end_of_word(s->words, start);
                if (s->take(s, s->letters + start, (uint32_t)(at - start)) < 0) return -1;
            }
            left = at >= (block + 1) << 6 ? 0 : left & ~(uint64_t)0 << (at & 63);
        }
    }
    return 0;
}

/* ---- Whole texts ---- */

static int needs_cleaning(const char *letters, int64_t length) {
    return memchr(letters, '&', (size_t)length) || memchr(letters, '<', (size_t)length) ||
           memchr(letters, '\n', (size_t)length);
}

/* Returns the text's bytes in scratch, or -1 with a Python error set and the GIL held. */
static int64_t lay_out_any(Scanner *s, PyObject *text, int lower) {
    int64_t length = PyUnicode_GET_LENGTH(text);
    int ascii = PyUnicode_IS_ASCII(text);
    if (length > INT32_MAX / 4) {
        hold(s);
        PyErr_SetString(PyExc_OverflowError, "a text is longer than half a gigabyte");
        return -1;
    }
    if (reserve(s, length * (ascii ? 1 : 4)) < 0) {
        hold(s);
        PyErr_NoMemory();
        return -1;
    }
    if (!ascii) return lay_out(s, text, lower);
    lay_out_ascii(s, PyUnicode_DATA(text), length, lower);
    return length;
}

/* The GIL is held before and after: `changed` is a new reference. */
static int64_t lay_out_changed(Scanner *s, PyObject *changed) {
    if (changed == NULL) return -1;
    release(s);
    int64_t length = lay_out_any(s, changed, 0);
    hold(s);
    Py_DECREF(changed);
    return length;
}

static int make_room_for_ids(Scanner *s, int64_t more) {
    int64_t bytes = (s->ids_used + more) * (int64_t)sizeof(int32_t);
    if (bytes > PyByteArray_GET_SIZE(s->numbers)) {
        hold(s);
        if (PyByteArray_Resize(s->numbers, bytes + bytes / 2) < 0) return -1;
        release(s);
    }
    s->ids = (int32_t *)PyByteArray_AS_STRING(s->numbers);
    return 0;
}

/* The GIL is released before; afterwards too, unless -1 is returned with an error set. */
static int scan_one(Scanner *s, PyObject *text) {
    int64_t length = lay_out_any(s, text, s->lower);
    int lowers = length == MUST_BE_LOWERED;
    if (lowers || (length >= 0 && s->cleaned != NULL && needs_cleaning(s->letters, length))) {
        hold(s);
        PyObject *changed = lowers ? PyObject_CallMethod(text, "lower", NULL) : PyObject_CallOneArg(s->cleaned, text);
        length = lay_out_changed(s, changed);
        if (length >= 0) release(s);
    }
    if (length < 0 || make_room_for_ids(s, length) < 0) return -1;
    if (take_all(s, length) == 0) return 0;
    hold(s);
    PyErr_NoMemory();
    return -1;
}

static int is_text(PyObject *text) {
    if (!PyUnicode_Check(text)) {
        PyErr_Format(PyExc_TypeError, "texts must be str, got %.80s", Py_TYPE(text)->tp_name);
        return 0;
    }
#if PY_VERSION_HEX < 0x030C0000
    return PyUnicode_READY(text) == 0;
#else
    return 1;
#endif
}

static PyObject *result(PyObject *ids, const int64_t *starts, int64_t texts, PyObject *words) {
    PyObject *places = PyByteArray_FromStringAndSize((const char *)starts, (texts + 1) * (int64_t)sizeof(int64_t));
    PyObject *all = places == NULL || words == NULL ? NULL : PyTuple_Pack(3, ids, places, words);
    Py_XDECREF(places);
    Py_XDECREF(words);
    return all;
}

/* How many characters the texts have, or -1 where one is no text. */
static int64_t characters_of(PyObject *texts) {
    int64_t total = 0;
    for (int64_t t = 0; t < PyTuple_GET_SIZE(texts); t++) {
        if (!is_text(PyTuple_GET_ITEM(texts, t))) return -1;
        total += PyUnicode_GET_LENGTH(PyTuple_GET_ITEM(texts, t));
    }
    return total;
}

static PyObject *scan_all(Scanner *s, PyObject *texts, int64_t *starts) {
    int64_t count = PyTuple_GET_SIZE(texts);
    starts[0] = 0;
    release(s);
    for (int64_t t = 0; t < count; t++) {
        if (scan_one(s, PyTuple_GET_ITEM(texts, t)) < 0) return NULL;
        starts[t + 1] = s->ids_used;
    }
    hold(s);
    if (PyByteArray_Resize(s->numbers, s->ids_used * (int64_t)sizeof(int32_t)) < 0) return NULL;
    return result(s->numbers, starts, count, list_words(&s->vocabulary));
}

static PyObject *scan_sequence(Scanner *s, PyObject *texts) {
    int64_t characters = characters_of(texts);
    if (characters < 0) return NULL;
    int64_t *starts = room(PyTuple_GET_SIZE(texts) + 1, sizeof(int64_t));
    PyObject *found = NULL;
    /* More than enough, unless lower-casing makes texts longer; pages that are not written to cost nothing. */
    s->numbers = PyByteArray_FromStringAndSize(NULL, characters * (int64_t)sizeof(int32_t));
    if (s->numbers == NULL || starts == NULL || open_vocabulary(&s->vocabulary) < 0) PyErr_NoMemory();
    else found = scan_all(s, texts, starts);
    Py_XDECREF(s->numbers);
    close_vocabulary(&s->vocabulary);
    free(starts), free(s->letters), free(s->kinds), free(s->words), free(s->singles), free(s->spaced);
    return found;
}

PyObject *scan_texts(PyObject *texts, PyObject *classes, Py_buffer *table, int lower) {
    Scanner s = {.classes = classes, .table = table, .lower = lower, .take = take_token};
    return scan_sequence(&s, texts);
}

PyObject *scan_texts_13a(PyObject *texts, PyObject *cleaned, PyObject *classes, Py_buffer *table) {
    Scanner s = {.classes = classes, .table = table, .cleaned = cleaned, .take = take_13a};
    return scan_sequence(&s, texts);
}

PyObject *scan_texts_chrf(PyObject *texts, PyObject *classes, Py_buffer *table) {
    Scanner s = {.classes = classes, .table = table, .take = take_without_mark};
    return scan_sequence(&s, texts);
}

/* ---- Characters ---- */

static int64_t read_text(PyObject *text, int32_t *out) {
    int64_t used = 0, length = PyUnicode_GET_LENGTH(text);
    int kind = PyUnicode_KIND(text);
    const void *data = PyUnicode_DATA(text);
    for (int64_t i = 0; i < length; i++) {
        Py_UCS4 c = PyUnicode_READ(kind, data, i);
        out[used] = (int32_t)c;
        used += !Py_UNICODE_ISSPACE(c);
    }
    return used;
}

PyObject *read_characters(PyObject *texts) {
    int64_t count = PyTuple_GET_SIZE(texts), total = characters_of(texts), used = 0;
    if (total < 0) return NULL;
    PyObject *numbers = PyByteArray_FromStringAndSize(NULL, total * (int64_t)sizeof(int32_t)), *found = NULL;
    int64_t *starts = room(count + 1, sizeof(int64_t));
    if (numbers == NULL || starts == NULL) {
        PyErr_NoMemory();
    } else {
        int32_t *ids = (int32_t *)PyByteArray_AS_STRING(numbers);
        starts[0] = 0;
        Py_BEGIN_ALLOW_THREADS
        for (int64_t t = 0; t < count; t++) {
            used += read_text(PyTuple_GET_ITEM(texts, t), ids + used);
            starts[t + 1] = used;
        }
        Py_END_ALLOW_THREADS
        if (PyByteArray_Resize(numbers, used * (int64_t)sizeof(int32_t)) == 0) {
            found = result(numbers, starts, count, PyList_New(0));
        }
    }
    Py_XDECREF(numbers);
    free(starts);
    return found;
}
