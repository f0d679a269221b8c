/* Words by number: each distinct word, kept once as UTF-8 (lone surrogates included), gets the next number. */
#ifndef METRIST_VOCABULARY_H
#define METRIST_VOCABULARY_H

#include "kernels.h"

typedef struct {
    uint64_t head; /* the first eight bytes */
    uint32_t length;
    int32_t id;    /* -1: free */
} Entry;

typedef struct {
    Entry *entries;
    uint64_t size; /* a power of two, at least twice the words */
    int shift;
    char *letters;
    int64_t letters_used, letters_room;
    int64_t *ends; /* of each word, in letters */
    int64_t words, ends_room;
} Vocabulary;

int open_vocabulary(Vocabulary *v);
void close_vocabulary(Vocabulary *v);
/* The number of a word, new or known; -1 when memory is short. Eight bytes from `word` on must be readable. */
int32_t number_of(Vocabulary *v, const char *word, uint32_t length);
PyObject *list_words(const Vocabulary *v);

#endif
