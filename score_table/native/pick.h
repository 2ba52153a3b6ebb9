/* The pick on the raw words of a mapped table: no Python here.
 *
 * The rule is that of score_table/pick/rules.py, followed to the bit. Cells are loaded as plain aligned
 * 32-bit words: other processes store them one by one, and such a word is never torn.
 */
#ifndef LOADBOARD_PICK_H
#define LOADBOARD_PICK_H

#include <stddef.h>
#include <stdint.h>

/* What pick_choose answers where no candidate holds a slot in use. */
#define PICK_NO_SLOT INT32_MIN
/* pick_choose has no room for its sums; cannot happen for tables of up to PICK_STACK_SLOTS slots. */
#define PICK_NO_MEMORY (INT32_MIN + 1)

/* Sums of this many slots lie on the stack; a larger table costs an allocation per pick. */
#define PICK_STACK_SLOTS 4096

typedef struct {
    const unsigned char *start; /* of the mapping */
    size_t matrix_offset;
    size_t matrix_stride; /* bytes from row to row, a multiple of 64 */
    size_t n_offset;      /* of the header word n */
    size_t lanes_offset;  /* of the header word lanes_hi */
    uint32_t slots;       /* capacity; n beyond it is cut to it */
    uint32_t lanes;
    int32_t tie_window;
    int32_t mark_floor;
    int32_t mark_band;
    int32_t unused_band; /* the band that is never taken, counted from 1 */
} pick_table;

/* Slots in use, as the header says now. */
uint32_t pick_n(const pick_table *table);

/* The slot to take: >= 0 unmarked, ~slot marked, else PICK_NO_SLOT.
 *
 * candidates: `count` different slots in rising order, each below table->slots; NULL for all slots in use.
 * fade < 0 reads row 0, otherwise row 1 shifted right by fade (0..31). extra: one more row of table->slots
 * cells, or NULL.
 */
int32_t pick_choose(const pick_table *table, const int32_t *candidates, uint32_t count, int64_t cursor, int fade,
                    const int32_t *extra);

/* The index, among `count` slots in any order (each below table->slots; at most PICK_STACK_SLOTS), of the one to
 * take by row 0: -1 where only marked ones are there. */
int32_t pick_among(const pick_table *table, const int32_t *slots, uint32_t count, int64_t cursor, const int32_t *extra);

/* live[i] of slots[i], for `count` slots below table->slots. */
void pick_live(const pick_table *table, const int32_t *slots, uint32_t count, int fade, const int32_t *extra,
               int32_t *live);

#endif
