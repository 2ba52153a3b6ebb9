/* The steps of a charge's life on the rows of a lane: no Python here.
 *
 * One process writes these rows, one step at a time; other processes read them. So every word is stored whole
 * and relaxed, and no step needs an atomic read-modify-write. Cells go first, natural units second.
 */
#ifndef LOADBOARD_COUNT_H
#define LOADBOARD_COUNT_H

#include <stddef.h>
#include <stdint.h>

#include "layout.h"

typedef struct {
    int32_t *cells;               /* one per slot */
    int64_t *naturals[NATURALS];  /* one word per slot and kind */
    uint64_t *block;              /* the lane block */
    uint32_t slots;
    int32_t cell_limit;           /* where a cell stops */
    uint64_t token;               /* 0: rows outside of a table, always this process's */
} count_rows;

/* Units per request, per prompt token until the first token, per prompt token until the end. */
typedef struct {
    double request, prompt_token, kv_token;
} count_prices;

typedef enum { CHARGE_NEW, CHARGE_PREFILL, CHARGE_DECODE, CHARGE_CLOSED } charge_phase;

typedef struct count_charge {
    struct count_charge *next, *previous; /* in the list of its ledger */
    void *seat;                           /* of the instance; belongs to the ledger */
    const count_rows *home;               /* rows that hold the count; NULL: none */
    int64_t prefill_ends;                 /* ns at which the prefill part goes; 0: with the first token */
    int64_t ends_at;                      /* ns at which it ends by itself, where no guard ends it */
    uint32_t incarnation;                 /* of the seat when the request was sent there */
    int32_t slot;                         /* -1: the instance has none */
    int32_t prompt_tokens;
    int32_t added_request, added_prefill, added_kv; /* what was really added */
    unsigned char phase, held, dispatched;
    unsigned char guessed; /* the request did not tell the length of its prompt */
    unsigned char reason; /* by what it was decided to send it there, below REASONS */
} count_charge;

/* Whether the rows are still this process's. */
int count_is_mine(const count_rows *rows);

/* Count the charge at its slot, all of what its phase asks for. */
void count_add(const count_rows *rows, count_charge *charge, const count_prices *prices);

/* Price the charge where there are no rows to count it in; returns the units. */
int64_t count_price(count_charge *charge, const count_prices *prices);

/* Take back the prefill part; in the rows, where the charge is counted in some. */
void count_end_prefill(const count_rows *rows, count_charge *charge);

/* Nothing is outstanding in rows outside of a table. */
void count_clear(const count_rows *rows);

/* Mark the request as held; `suspect` asks the monitor to look at the instance at once. */
void count_hold(const count_rows *rows, const count_charge *charge, int suspect);

/* Undo exactly what the charge still has. */
void count_take_back(const count_rows *rows, const count_charge *charge);

/* Add one to a word of the lane block. */
void count_bump(const count_rows *rows, int word);

/* What cells and levels should say: add up the charges of one list that are counted in `rows`. `cells` has one
 * word per slot, `levels` NATURAL_LEVELS rows of them; both start as zeros. */
void count_expect(const count_rows *rows, const count_charge *list, int32_t *cells, int64_t *levels);

/* Make cells and levels say that, for all slots; returns whether anything was wrong. */
int count_repair(const count_rows *rows, const int32_t *cells, const int64_t *levels);

#endif
