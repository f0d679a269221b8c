/* Words by number: an open-addressed table that holds both ends of each word, so that most look-ups end there. */
#include "vocabulary.h"

static int spread(Vocabulary *v, uint64_t size) {
    Entry *entries = room((int64_t)size, sizeof(Entry));
    if (entries == NULL) return -1;
    free(v->entries);
    v->entries = entries;
    v->size = size;
    v->shift = 64 - __builtin_ctzll(size);
    for (uint64_t i = 0; i < size; i++) entries[i].id = -1;
    for (int64_t id = 0; id < v->words; id++) {
        const char *word = v->letters + start_of(v, id);
        Entry entry = entry_of(word, (uint32_t)(v->ends[id] - start_of(v, id)));
        uint64_t at = hash_of(word, entry) >> v->shift;
        while (entries[at].id >= 0) at = (at + 1) & (size - 1);
        entry.id = (int32_t)id;
        entries[at] = entry;
    }
    return 0;
}

int open_vocabulary(Vocabulary *v) {
    memset(v, 0, sizeof *v);
    return spread(v, 4096);
}

void close_vocabulary(Vocabulary *v) { free(v->entries), free(v->letters), free(v->ends); }

int32_t enter(Vocabulary *v, const char *word, Entry entry, uint64_t at) {
    if (v->words == INT32_MAX) return -1;
    /* Eight bytes more than used, for eight_of. */
    if (make_room((void **)&v->letters, &v->letters_room, v->letters_used + entry.length + 8, 1) < 0) return -1;
    if (make_room((void **)&v->ends, &v->ends_room, v->words + 1, sizeof(int64_t)) < 0) return -1;
    memcpy(v->letters + v->letters_used, word, entry.length);
    v->letters_used += entry.length;
    entry.id = (int32_t)v->words;
    v->ends[v->words++] = v->letters_used;
    v->entries[at] = entry;
    if ((uint64_t)v->words * 2 > v->size && spread(v, v->size * 2) < 0) return -1;
    return entry.id;
}

PyObject *list_words(const Vocabulary *v) {
    PyObject *words = PyList_New(v->words);
    for (int64_t id = 0; words != NULL && id < v->words; id++) {
        int64_t start = start_of(v, id);
        PyObject *word = PyUnicode_DecodeUTF8(v->letters + start, v->ends[id] - start, "surrogatepass");
        if (word == NULL) Py_CLEAR(words);
        else PyList_SET_ITEM(words, id, word);
    }
    return words;
}
