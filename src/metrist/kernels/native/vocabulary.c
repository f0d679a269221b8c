/* Words by number: an open-addressed table that holds the beginning of each word, so that most look-ups end there. */
#include "vocabulary.h"
#include <string.h>

static inline uint64_t head_of(const char *word, uint32_t length) {
    uint64_t head = 0;
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    memcpy(&head, word, 8);
    return length < 8 ? head & (((uint64_t)1 << 8 * length) - 1) : head;
#else
    memcpy(&head, word, length < 8 ? length : 8);
    return head;
#endif
}

static inline uint64_t mix(uint64_t hash) {
    hash *= 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 32;
}

static inline uint64_t hash_of(const char *word, uint32_t length, uint64_t head) {
    uint64_t hash = mix(head ^ length);
    for (uint32_t i = 8; i < length; i += 8) hash = mix(hash ^ head_of(word + i, length - i));
    return hash * 0x9E3779B97F4A7C15u;
}

static int64_t start_of(const Vocabulary *v, int64_t id) { return id ? v->ends[id - 1] : 0; }

static int spread(Vocabulary *v, uint64_t size) {
    Entry *entries = room((int64_t)size, sizeof(Entry));
    if (entries == NULL) return -1;
    free(v->entries);
    v->entries = entries;
    v->size = size;
    v->shift = 64 - __builtin_ctzll(size);
    for (uint64_t i = 0; i < size; i++) entries[i].id = -1;
    for (int64_t id = 0; id < v->words; id++) {
        int64_t start = start_of(v, id);
        uint32_t length = (uint32_t)(v->ends[id] - start);
        uint64_t head = head_of(v->letters + start, length);
        uint64_t at = hash_of(v->letters + start, length, head) >> v->shift;
        while (entries[at].id >= 0) at = (at + 1) & (size - 1);
        entries[at] = (Entry){head, length, (int32_t)id};
    }
    return 0;
}

int open_vocabulary(Vocabulary *v) {
    memset(v, 0, sizeof *v);
    return spread(v, 4096);
}

void close_vocabulary(Vocabulary *v) {
    free(v->entries);
    free(v->letters);
    free(v->ends);
}

static int32_t add(Vocabulary *v, const char *word, uint32_t length) {
    if (v->words == INT32_MAX) return -1;
    /* Eight bytes more than used, for head_of. */
    if (make_room((void **)&v->letters, &v->letters_room, v->letters_used + length + 8, 1) < 0) return -1;
    if (make_room((void **)&v->ends, &v->ends_room, v->words + 1, sizeof(int64_t)) < 0) return -1;
    memcpy(v->letters + v->letters_used, word, length);
    v->letters_used += length;
    v->ends[v->words] = v->letters_used;
    return (int32_t)v->words++;
}

int32_t number_of(Vocabulary *v, const char *word, uint32_t length) {
    uint64_t head = head_of(word, length);
    uint64_t at = hash_of(word, length, head) >> v->shift;
    for (; v->entries[at].id >= 0; at = (at + 1) & (v->size - 1)) {
        const Entry *entry = &v->entries[at];
        if (entry->head != head || entry->length != length) continue;
        if (length <= 8 || memcmp(v->letters + start_of(v, entry->id) + 8, word + 8, length - 8) == 0) return entry->id;
    }
    int32_t id = add(v, word, length);
    if (id < 0) return -1;
    v->entries[at] = (Entry){head, length, id};
    if ((uint64_t)v->words * 2 > v->size && spread(v, v->size * 2) < 0) return -1;
    return id;
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
