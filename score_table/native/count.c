#include "count.h"

#include <math.h>

#define LOAD(word) __atomic_load_n(&(word), __ATOMIC_RELAXED)
#define STORE(word, value) __atomic_store_n(&(word), (value), __ATOMIC_RELAXED)

/* Words that somebody else wrote nonsense into wrap; that is never undefined. */
static int64_t wrapped(int64_t word, int64_t by) {
    return (int64_t)((uint64_t)word + (uint64_t)by);
}

int count_is_mine(const count_rows *rows) {
    return rows->token == 0 || LOAD(rows->block[TOKEN_WORD]) == rows->token;
}

void count_bump(const count_rows *rows, int word) {
    STORE(rows->block[word], LOAD(rows->block[word]) + 1);
}

static void raise_natural(const count_rows *rows, int kind, int32_t slot, int64_t by) {
    STORE(rows->naturals[kind][slot], wrapped(LOAD(rows->naturals[kind][slot]), by));
}

static void lower_natural(const count_rows *rows, int kind, int32_t slot, int64_t by) {
    int64_t left = wrapped(LOAD(rows->naturals[kind][slot]), -by);
    if (left < 0) {
        count_bump(rows, COUNT_ERRORS_WORD);
        left = 0;
    }
    STORE(rows->naturals[kind][slot], left);
}

static void lower_cell(const count_rows *rows, int32_t slot, int32_t units) {
    int64_t left = (int64_t)LOAD(rows->cells[slot]) - units;
    if (left < 0) {
        count_bump(rows, COUNT_ERRORS_WORD);
        left = 0;
    }
    STORE(rows->cells[slot], (int32_t)left);
}

/* Rounded half to even, as Python rounds; 0 for what is no price. */
static int64_t units_of(double price, int32_t tokens) {
    double units = price * tokens;
    return units >= 0 && units < INT32_MAX ? (int64_t)rint(units) : 0;
}

static int32_t within(int64_t units, int64_t room) {
    return (int32_t)(units < room ? units : room);
}

static void price_parts(count_charge *charge, const count_prices *prices, int64_t room) {
    charge->added_request = within(units_of(prices->request, 1), room);
    room -= charge->added_request;
    charge->added_prefill =
        charge->phase == CHARGE_PREFILL ? within(units_of(prices->prompt_token, charge->prompt_tokens), room) : 0;
    room -= charge->added_prefill;
    charge->added_kv = within(units_of(prices->kv_token, charge->prompt_tokens), room);
}

static int32_t added(const count_charge *charge) {
    return charge->added_request + charge->added_prefill + charge->added_kv;
}

void count_add(const count_rows *rows, count_charge *charge, const count_prices *prices) {
    int32_t slot = charge->slot, cell = LOAD(rows->cells[slot]);
    int64_t room = (int64_t)rows->cell_limit - cell;
    price_parts(charge, prices, room < 0 ? 0 : within(DISPATCH_LIMIT, room));
    if (added(charge) >= room) {
        count_bump(rows, SATURATIONS_WORD);
    }
    STORE(rows->cells[slot], cell + added(charge));
    raise_natural(rows, OUTSTANDING, slot, 1);
    raise_natural(rows, KV_TOKENS, slot, charge->prompt_tokens);
    if (charge->guessed) {
        raise_natural(rows, GUESSED, slot, charge->prompt_tokens);
    }
    if (charge->phase == CHARGE_PREFILL) {
        raise_natural(rows, PROMPT_TOKENS, slot, charge->prompt_tokens);
    }
    if (charge->held) {
        raise_natural(rows, HELD, slot, 1);
    }
    if (!charge->dispatched) {
        charge->dispatched = 1;
        raise_natural(rows, DISPATCHED, slot, 1);
        if (charge->reason != 0) {
            raise_natural(rows, BY_OUTSTANDING + charge->reason - 1, slot, 1);
        }
    }
    charge->home = rows;
}

void count_clear(const count_rows *rows) {
    for (uint32_t slot = 0; slot < rows->slots; slot++) {
        STORE(rows->cells[slot], 0);
        for (int kind = 0; kind < NATURAL_LEVELS; kind++) {
            STORE(rows->naturals[kind][slot], 0);
        }
    }
}

int64_t count_price(count_charge *charge, const count_prices *prices) {
    charge->home = NULL;
    price_parts(charge, prices, DISPATCH_LIMIT);
    return added(charge);
}

void count_end_prefill(const count_rows *rows, count_charge *charge) {
    if (rows != NULL) {
        lower_cell(rows, charge->slot, charge->added_prefill);
        lower_natural(rows, PROMPT_TOKENS, charge->slot, charge->prompt_tokens);
    }
    charge->added_prefill = 0;
    charge->phase = CHARGE_DECODE;
}

void count_hold(const count_rows *rows, const count_charge *charge, int suspect) {
    raise_natural(rows, HELD, charge->slot, 1);
    if (suspect) {
        raise_natural(rows, SUSPECTS, charge->slot, 1);
    }
}

void count_take_back(const count_rows *rows, const count_charge *charge) {
    int32_t slot = charge->slot;
    lower_cell(rows, slot, added(charge));
    lower_natural(rows, OUTSTANDING, slot, 1);
    if (charge->guessed) {
        lower_natural(rows, GUESSED, slot, charge->prompt_tokens);
    }
    lower_natural(rows, KV_TOKENS, slot, charge->prompt_tokens);
    if (charge->phase == CHARGE_PREFILL) {
        lower_natural(rows, PROMPT_TOKENS, slot, charge->prompt_tokens);
    }
    if (charge->held) {
        lower_natural(rows, HELD, slot, 1);
    }
    raise_natural(rows, ENDED, slot, 1);
}

void count_expect(const count_rows *rows, const count_charge *list, int32_t *cells, int64_t *levels) {
    for (const count_charge *charge = list->next; charge != list; charge = charge->next) {
        if (charge->home != rows) {
            continue;
        }
        int64_t *level = levels + (size_t)charge->slot;
        cells[charge->slot] += added(charge);
        level[OUTSTANDING * (size_t)rows->slots] += 1;
        level[KV_TOKENS * (size_t)rows->slots] += charge->prompt_tokens;
        if (charge->guessed) {
            level[GUESSED * (size_t)rows->slots] += charge->prompt_tokens;
        }
        if (charge->phase == CHARGE_PREFILL) {
            level[PROMPT_TOKENS * (size_t)rows->slots] += charge->prompt_tokens;
        }
        level[HELD * (size_t)rows->slots] += charge->held;
    }
}

int count_repair(const count_rows *rows, const int32_t *cells, const int64_t *levels) {
    int wrong = 0;
    for (uint32_t slot = 0; slot < rows->slots; slot++) {
        if (LOAD(rows->cells[slot]) != cells[slot]) {
            wrong = 1;
            STORE(rows->cells[slot], cells[slot]);
        }
    }
    for (int kind = 0; kind < NATURAL_LEVELS; kind++) {
        for (uint32_t slot = 0; slot < rows->slots; slot++) {
            int64_t right = levels[(size_t)kind * rows->slots + slot];
            if (LOAD(rows->naturals[kind][slot]) != right) {
                wrong = 1;
                STORE(rows->naturals[kind][slot], right);
            }
        }
    }
    if (wrong) {
        count_bump(rows, COUNT_ERRORS_WORD);
    }
    return wrong;
}
