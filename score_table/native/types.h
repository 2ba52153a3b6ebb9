/* The Python types of the module, as they see each other.
 *
 * Written against the limited API of CPython 3.10, so that one build serves all later versions. There the GIL
 * makes each call whole: nothing in a locked section runs Python code, so no other thread, signal handler or
 * finalizer comes in between. Free-threaded builds take the locks below instead; what could run Python code
 * (a last reference dropped) waits until after them.
 */
#ifndef LOADBOARD_TYPES_H
#define LOADBOARD_TYPES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "count.h"
#include "pick.h"

/* Grows in every forked child, before any code of Python or of another library runs there. */
extern uint64_t fork_epoch;

#ifdef Py_GIL_DISABLED
typedef PyMutex step_lock;
#define LOCK(lock) PyMutex_Lock(lock)
#define UNLOCK(lock) PyMutex_Unlock(lock)
#else
typedef char step_lock;
#define LOCK(lock) ((void)(lock))
#define UNLOCK(lock) ((void)(lock))
#endif

/* A table mapped to pick from. */
typedef struct {
    PyObject_HEAD
    pick_table table;
    void *mapping;
    size_t size;
    PyTypeObject *candidates_type;
} Core;

/* The rows of one lane, mapped to count in. */
typedef struct {
    PyObject_HEAD
    count_rows rows;
    void *mapping;
    size_t size;
} Rows;

/* An instance as this process counts at it. Written under the lock of its ledger. */
typedef struct {
    PyObject_HEAD
    PyObject *key, *host, *port;
    PyObject *weak_references;
    uint64_t version; /* of the ledger that slot and prices are for; another one: the seat has to be settled */
    int32_t slot;     /* -1: the instance is not in the table */
    uint32_t incarnation; /* grows when the id is given to another address */
    count_prices prices;
    int64_t hold_ns; /* how long a pick that nobody ends keeps its price on average */
    uint32_t turn;   /* of these picks: see HOLD_STEP in ledger/rules.py */
    int64_t units;   /* outstanding here while it has no slot */
    int64_t open;    /* open charges, wherever they count */
    double prompt_tokens; /* taken for a request that does not tell its length; 0: unknown */
    char guessed;    /* counted such a request since somebody last cleared this */
} Seat;

struct Picker;

/* All open charges of a process, and the rows they are counted in. */
typedef struct {
    PyObject_HEAD
    step_lock lock;
    PyObject *weak_references;
    PyObject *clock; /* NULL: CLOCK_MONOTONIC */
    PyObject *is_failure, *was_refused;
    PyTypeObject *seat_type, *guard_type;
    Rows *rows; /* NULL: nowhere to count */
    Core *core; /* of the same table */
    uint64_t epoch; /* the fork epoch in which the rows are this process's */
    uint64_t lock_epoch;
    uint64_t membership, version;
    struct Picker *pickers; /* those of this ledger */
    uint64_t max_heartbeat_age;
    uint64_t clock_error; /* ns that the coarse clock is behind at most */
    uint32_t holders; /* instances in the table */
    count_prices nominal;
    int64_t hold_ns;
    double mean_prompt_tokens;
    count_charge guarded, unguarded; /* heads of the lists: charges inside of guards, and those on their own */
    uint32_t guarded_count, unguarded_count;
} Ledger;

typedef struct {
    PyObject_HEAD
    PyObject *weak_references;
    PyObject *instance;
    Ledger *ledger;
    count_charge charge;
} Guard;

typedef struct {
    PyTypeObject *core_type, *candidates_type, *rows_type, *seat_type, *ledger_type, *guard_type, *ready_type,
        *picker_type;
} module_state;

extern PyType_Spec core_spec, candidates_spec, rows_spec, seat_spec, ledger_spec, guard_spec, ready_spec, picker_spec;

/* The state of the module that defined `type`; NULL with an exception set. */
module_state *state_of(PyTypeObject *type);

/* End of a dealloc: free the memory, and the reference to the heap type. */
void free_object(PyObject *self);

/* Lock the ledger. What a thread of the process that forked this one held is void. */
static inline void ledger_lock(Ledger *ledger) {
    if (ledger->lock_epoch != fork_epoch) {
        ledger->lock = (step_lock){0};
        ledger->lock_epoch = fork_epoch;
    }
    LOCK(&ledger->lock);
}

/* In a forked child: the locks of the ledger's pickers are void as well. */
void picker_reset_locks(struct Picker *first);

/* The ledger's time, ns: `coarse` is a few ms behind and cheaper. -1 with an exception set. */
int64_t ledger_now(Ledger *ledger, int coarse);

/* A slot as an argument gives it, None as -1. -1 with an exception set, else 0. */
int slot_argument(PyObject *argument, int32_t *slot);

/* Prompt tokens as an argument gives them, -1 for unknown; never an exception, unless it is no Exception (-2). */
int32_t prompt_tokens_of(PyObject *argument);

/* A guard that counts nothing yet. Its instance is set by ledger_open. */
Guard *ledger_new_guard(Ledger *ledger);

/* The steps below are called with the ledger locked. */

/* The rows to count in; NULL: there are none, or they are those of the process that forked this one. */
static inline const count_rows *ledger_rows(const Ledger *ledger) {
    return ledger->rows != NULL && ledger->epoch == fork_epoch ? &ledger->rows->rows : NULL;
}

/* A 64-bit header word of the table. */
static inline uint64_t core_word(const Core *core, size_t offset) {
    return __atomic_load_n((const uint64_t *)(core->table.start + offset), __ATOMIC_RELAXED);
}

/* Where the seat's instance sits in the table in use; -1: nowhere. */
static inline int32_t ledger_slot_of(const Ledger *ledger, const Seat *seat) {
    const count_rows *rows = ledger_rows(ledger);
    return rows != NULL && seat->version == ledger->version && seat->slot < (int32_t)rows->slots ? seat->slot : -1;
}

/* Where an open charge is to be counted: nowhere, where its id belongs to another address by now. */
static inline int32_t ledger_slot_for(const Ledger *ledger, const count_charge *charge) {
    const Seat *seat = charge->seat;
    return charge->incarnation == seat->incarnation ? ledger_slot_of(ledger, seat) : -1;
}

/* now + by, not beyond what fits. */
static inline int64_t later(int64_t now, int64_t by) {
    return by > 0 && now > INT64_MAX - by ? INT64_MAX : now + by;
}

/* Count the request of `guard` at `seat`, chosen for `reason`, from `now` on. Takes its own references. */
void ledger_open(Ledger *ledger, Guard *guard, PyObject *instance, Seat *seat, int32_t prompt_tokens,
                 int first_token_visible, unsigned char reason, int64_t now);

/* Count a request that nobody will end. `charge` is fresh memory of PyMem_Malloc. Returns a charge that had to
 * make room for it, to be freed with ledger_free_charge after unlocking; NULL if none had to. */
count_charge *ledger_hold(Ledger *ledger, count_charge *charge, Seat *seat, unsigned char reason, int64_t now);

int charge_is_open(const count_charge *charge);
void charge_unlink(count_charge *charge);

/* The rows that hold the charge, if they are still this process's; else NULL. */
const count_rows *ledger_rows_of(const Ledger *ledger, const count_charge *charge);

/* Take back the prefill part, once. */
void ledger_end_prefill(Ledger *ledger, count_charge *charge);

/* The charge is over; it leaves its list, whose length is *count. */
void ledger_close(Ledger *ledger, count_charge *charge, uint32_t *count);

/* Put the charge, linked nowhere, on its own. Returns as ledger_hold. */
count_charge *ledger_add_unguarded(Ledger *ledger, count_charge *charge);

/* Count every open charge anew, in the rows there are now. */
void ledger_recount(Ledger *ledger);

/* Give charges without a slot one, where their instance has joined the table since. */
void ledger_match_again(Ledger *ledger);

/* Not under the lock: free closed charges (a chain by `next`, in the second) and drop their seats. */
void ledger_free_charge(count_charge *charge);
void ledger_free_chain(count_charge *chain);

#endif
