/* A word with spaces put where mteval-v13a parts it. */
#ifndef METRIST_WORDS_13A_H
#define METRIST_WORDS_13A_H

#include <stdint.h>

/* How many bytes space_out_13a needs to write to, for a word of so many. */
int64_t room_for_13a(int64_t length);
/* Writes the word with spaces to `out`, and returns how long it has become. */
int64_t space_out_13a(const char *word, int64_t length, char *out);

#endif
