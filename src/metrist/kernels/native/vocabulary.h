/* Words by number: each distinct word, kept once as UTF-8 (lone surrogates included), gets the next number. */
#ifndef METRIST_VOCABULARY_H
#define METRIST_VOCABULARY_H

#include <string.h>
#include "kernels.h"

typedef struct {
    uint64_t head, tail; /* the first and the last eight bytes: the same eight, zeros added, of a shorter word */
    uint32_t length;
    int32_t id; /* -1: free */
} Entry;

typedef struct {
    Entry *entries;
    uint64_t size; /* a power of two, more than twice the words */
    int shift;
    char *letters;
    int64_t letters_used, letters_room;
    int64_t *ends; /* of each word, in letters */
    int64_t words, ends_room;
} Vocabulary;

int open_vocabulary(Vocabulary *v);
void close_vocabulary(Vocabulary *v);
PyObject *list_words(const Vocabulary *v);
/* Enters a word that is not there at entry `at`. Returns its number, or -1 when memory is short. */
int32_t enter(Vocabulary *v, const char *word, Entry entry, uint64_t at);

/* Eight bytes, those behind the word cleared. */
static inline uint64_t eight_of(const char *word, uint32_t length) {
    uint64_t bytes = 0;
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    memcpy(&bytes, word, 8);
    return length < 8 ? bytes & (((uint64_t)1 << 8 * length) - 1) : bytes;
#else
    memcpy(&bytes, word, length < 8 ? length : 8);
    return bytes;
#endif
}

static inline Entry entry_of(const char *word, uint32_t length) {
    uint64_t head = eight_of(word, length);
    return (Entry){head, length > 8 ? eight_of(word + length - 8, 8) : head, length, -1};
}

static inline uint64_t mixed(uint64_t hash) {
    hash *= 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 32;
}

static inline uint64_t hash_of(const char *word, Entry entry) {
    uint64_t hash = mixed(entry.head ^ entry.length) ^ entry.tail;
    for (uint32_t i = 8; i + 8 < entry.length; i += 8) hash = mixed(hash) ^ eight_of(word + i, 8);
    return mixed(hash) * 0x9E3779B97F4A7C15u;
}

static inline int64_t start_of(const Vocabulary *v, int64_t id) { return id ? v->ends[id - 1] : 0; }

static inline int is_word(const Vocabulary *v, const Entry *entry, Entry sought, const char *word) {
    if (entry->head != sought.head || entry->tail != sought.tail || entry->length != sought.length) return 0;
    return sought.length <= 16 || memcmp(v->letters + start_of(v, entry->id), word, sought.length) == 0;
}

/* The number of a word, new or known; -1 when memory is short. Eight bytes from `word` on must be readable. */
static inline int32_t number_of(Vocabulary *v, const char *word, uint32_t length) {
    Entry sought = entry_of(word, length);
    uint64_t at = hash_of(word, sought) >> v->shift;
    for (; v->entries[at].id >= 0; at = (at + 1) & (v->size - 1)) {
        if (is_word(v, &v->entries[at], sought, word)) return v->entries[at].id;
    }
    return enter(v, word, sought, at);
}

#endif
