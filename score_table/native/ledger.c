/* Seats and the ledger: every open charge of a process, and the steps of its life. */
#include "types.h"

#include <structmember.h>
#include <time.h>

/* Charges that nobody holds are ended by time; beyond this many the oldest ends early. */
#define UNGUARDED_LIMIT 65536
#define PREFILL_RATE 7500 /* prompt tokens per second, where nobody sees the first token */
#define MEAN_WEIGHT (1.0 / 64)

/* -- Seat ----------------------------------------------------------------------------------------------------- */

static void seat_dealloc(PyObject *self) {
    Seat *seat = (Seat *)self;
    if (seat->weak_references != NULL) {
        PyObject_ClearWeakRefs(self);
    }
    Py_XDECREF(seat->key);
    Py_XDECREF(seat->host);
    Py_XDECREF(seat->port);
    free_object(self);
}

/* What a row of `settled` says: (seat, slot or None, request, prompt_token, kv_token). */
typedef struct {
    Seat *seat;
    int32_t slot;
    count_prices prices;
} settlement;

static int slot_argument(PyObject *argument, int32_t *slot) {
    long value = argument == Py_None ? -1 : PyLong_AsLong(argument);
    if (value == -1 && PyErr_Occurred()) {
        return -1;
    }
    if (argument != Py_None && (value < 0 || value > 65535)) {
        PyErr_Format(PyExc_ValueError, "slot is %ld: it must be from 0 to 65535, or None", value);
        return -1;
    }
    *slot = (int32_t)value;
    return 0;
}

/* settle(version, slot, request, prompt_token, kv_token): for a seat that no one else has yet. */
static PyObject *seat_settle(PyObject *self, PyObject *args) {
    Seat *seat = (Seat *)self;
    unsigned long long version;
    PyObject *slot_object;
    count_prices prices;
    int32_t slot;
    if (!PyArg_ParseTuple(args, "KOddd", &version, &slot_object, &prices.request, &prices.prompt_token,
                          &prices.kv_token) ||
        slot_argument(slot_object, &slot) < 0) {
        return NULL;
    }
    seat->slot = slot;
    seat->prices = prices;
    seat->version = version;
    Py_RETURN_NONE;
}

static PyObject *seat_get_slot(PyObject *self, void *unused) {
    (void)unused;
    int32_t slot = ((Seat *)self)->slot;
    if (slot < 0) {
        Py_RETURN_NONE;
    }
    return PyLong_FromLong(slot);
}

static PyMethodDef seat_methods[] = {
    {"settle", seat_settle, METH_VARARGS, "settle(version, slot, request, prompt_token, kv_token)"},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef seat_properties[] = {
    {"slot", seat_get_slot, NULL, "slot of the instance, None where it has none", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef seat_members[] = {
    {"key", T_OBJECT_EX, offsetof(Seat, key), READONLY, NULL},
    {"host", T_OBJECT_EX, offsetof(Seat, host), READONLY, NULL},
    {"port", T_OBJECT_EX, offsetof(Seat, port), READONLY, NULL},
    {"version", T_ULONGLONG, offsetof(Seat, version), READONLY, NULL},
    {"units", T_LONGLONG, offsetof(Seat, units), READONLY, NULL},
    {"hold_ns", T_LONGLONG, offsetof(Seat, hold_ns), 0, NULL},
    {"selected", T_BOOL, offsetof(Seat, selected), 0, NULL},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Seat, weak_references), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot seat_type_slots[] = {
    {Py_tp_dealloc, seat_dealloc},
    {Py_tp_methods, seat_methods},
    {Py_tp_getset, seat_properties},
    {Py_tp_members, seat_members},
    {Py_tp_doc, "An instance as this process counts at it; made by Ledger.seat."},
    {0, NULL},
};

PyType_Spec seat_spec = {
    .name = "score_table._native.Seat",
    .basicsize = sizeof(Seat),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = seat_type_slots,
};

/* -- steps; the ledger is locked ------------------------------------------------------------------------------ */

static int is_open(const count_charge *charge) {
    return charge->phase == CHARGE_PREFILL || charge->phase == CHARGE_DECODE;
}

static void link_last(count_charge *head, count_charge *charge) {
    charge->next = head;
    charge->previous = head->previous;
    head->previous->next = charge;
    head->previous = charge;
}

static void unlink_charge(count_charge *charge) {
    charge->previous->next = charge->next;
    charge->next->previous = charge->previous;
    charge->next = charge->previous = NULL;
}

/* The rows that hold the charge, if they are still this process's. */
static const count_rows *rows_of(const Ledger *ledger, const count_charge *charge) {
    if (ledger->rows == NULL || charge->home != &ledger->rows->rows || !count_is_mine(charge->home)) {
        return NULL;
    }
    return charge->home;
}

/* Count the charge where its seat says now. */
static void count_at_seat(Ledger *ledger, count_charge *charge) {
    Seat *seat = charge->seat;
    charge->slot = ledger->rows != NULL && seat->version == ledger->version ? seat->slot : -1;
    charge->home = NULL;
    if (charge->slot < 0) {
        seat->units += count_price(charge, &ledger->nominal);
    } else if (count_is_mine(&ledger->rows->rows)) {
        count_add(&ledger->rows->rows, charge, &seat->prices);
    } /* else the lane is lost; housekeeping claims anew and counts every open charge there */
}

static void end_prefill(Ledger *ledger, count_charge *charge) {
    if (charge->phase != CHARGE_PREFILL || charge->held) {
        return;
    }
    if (charge->slot < 0) {
        ((Seat *)charge->seat)->units -= charge->added_prefill;
    }
    count_end_prefill(rows_of(ledger, charge), charge);
}

/* The charge is over; it leaves its list. */
static void close_charge(Ledger *ledger, count_charge *charge, uint32_t *count) {
    const count_rows *rows = rows_of(ledger, charge);
    if (charge->slot < 0) {
        ((Seat *)charge->seat)->units -= charge->added_request + charge->added_prefill + charge->added_kv;
    } else if (rows != NULL) {
        count_take_back(rows, charge);
    }
    charge->phase = CHARGE_CLOSED;
    unlink_charge(charge);
    *count -= 1;
}

static void begin(Ledger *ledger, count_charge *charge, Seat *seat, int32_t prompt_tokens, int first_token_visible,
                  int64_t now) {
    if (prompt_tokens < 0) {
        prompt_tokens = (int32_t)ledger->mean_prompt_tokens;
    } else {
        ledger->mean_prompt_tokens += (prompt_tokens - ledger->mean_prompt_tokens) * MEAN_WEIGHT;
    }
    Py_INCREF(seat);
    charge->seat = seat;
    charge->prompt_tokens = prompt_tokens;
    charge->phase = CHARGE_PREFILL;
    charge->prefill_ends = first_token_visible ? 0 : now + (int64_t)prompt_tokens * 1000000000 / PREFILL_RATE;
    count_at_seat(ledger, charge);
}

void ledger_open(Ledger *ledger, Guard *guard, PyObject *instance, Seat *seat, int32_t prompt_tokens,
                 int first_token_visible, int64_t now) {
    Py_INCREF(instance);
    guard->instance = instance;
    begin(ledger, &guard->charge, seat, prompt_tokens, first_token_visible, now);
    link_last(&ledger->guarded, &guard->charge);
    ledger->guarded_count += 1;
}

static count_charge *add_unguarded(Ledger *ledger, count_charge *charge) {
    count_charge *oldest = NULL;
    if (ledger->unguarded_count >= UNGUARDED_LIMIT) {
        oldest = ledger->unguarded.next;
        close_charge(ledger, oldest, &ledger->unguarded_count);
    }
    link_last(&ledger->unguarded, charge);
    ledger->unguarded_count += 1;
    return oldest;
}

count_charge *ledger_hold(Ledger *ledger, count_charge *charge, Seat *seat, int64_t now) {
    *charge = (count_charge){.ends_at = now + seat->hold_ns};
    seat->selected = 1;
    begin(ledger, charge, seat, -1, 0, now);
    return add_unguarded(ledger, charge);
}

void ledger_free_charge(count_charge *charge) {
    if (charge != NULL) {
        Py_DECREF((PyObject *)charge->seat);
        PyMem_Free(charge);
    }
}

static void free_chain(count_charge *chain) {
    while (chain != NULL) {
        count_charge *next = chain->next;
        ledger_free_charge(chain);
        chain = next;
    }
}

static void recount(Ledger *ledger) {
    count_charge *heads[] = {&ledger->guarded, &ledger->unguarded};
    for (int index = 0; index < 2; index++) {
        for (count_charge *charge = heads[index]->next; charge != heads[index]; charge = charge->next) {
            ((Seat *)charge->seat)->units = 0;
        }
    }
    for (int index = 0; index < 2; index++) {
        for (count_charge *charge = heads[index]->next; charge != heads[index]; charge = charge->next) {
            count_at_seat(ledger, charge);
        }
    }
}

/* Give charges without a slot one, where their instance has joined the table since. */
static void match_again(Ledger *ledger) {
    count_charge *heads[] = {&ledger->guarded, &ledger->unguarded};
    for (int index = 0; index < 2; index++) {
        for (count_charge *charge = heads[index]->next; charge != heads[index]; charge = charge->next) {
            Seat *seat = charge->seat;
            if (charge->slot < 0 && ledger->rows != NULL && seat->version == ledger->version && seat->slot >= 0) {
                seat->units -= charge->added_request + charge->added_prefill + charge->added_kv;
                count_at_seat(ledger, charge);
            }
        }
    }
}

/* -- Ledger --------------------------------------------------------------------------------------------------- */

int64_t ledger_now(Ledger *ledger, int coarse) {
    if (ledger->clock == NULL) {
        struct timespec now;
        clock_gettime(coarse ? CLOCK_MONOTONIC_COARSE : CLOCK_MONOTONIC, &now);
        return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    }
    PyObject *answer = PyObject_CallNoArgs(ledger->clock);
    if (answer == NULL) {
        return -1;
    }
    long long now = PyLong_AsLongLong(answer);
    Py_DECREF(answer);
    if (now < 0 && !PyErr_Occurred()) {
        PyErr_Format(PyExc_ValueError, "the clock says %lld ns: it must not be negative", now);
    }
    return now < 0 ? -1 : now;
}

int32_t prompt_tokens_of(PyObject *argument) {
    if (argument == Py_None) {
        return -1;
    }
    PyObject *number = PyLong_CheckExact(argument) ? (Py_INCREF(argument), argument) : PyNumber_Long(argument);
    int overflow = 0;
    long long tokens = number == NULL ? -1 : PyLong_AsLongLongAndOverflow(number, &overflow);
    Py_XDECREF(number);
    if (number == NULL || (tokens == -1 && PyErr_Occurred())) {
        if (!PyErr_ExceptionMatches(PyExc_Exception)) {
            return -2;
        }
        PyErr_Clear(); /* no number: as good as not told */
        return -1;
    }
    if (overflow != 0) {
        return overflow < 0 ? 0 : PROMPT_TOKENS_LIMIT;
    }
    return (int32_t)(tokens < 0 ? 0 : tokens > PROMPT_TOKENS_LIMIT ? PROMPT_TOKENS_LIMIT : tokens);
}

static int ledger_traverse(PyObject *self, visitproc visit, void *arg) {
    Ledger *ledger = (Ledger *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(ledger->clock);
    Py_VISIT(ledger->is_failure);
    Py_VISIT(ledger->was_refused);
    return 0;
}

static int ledger_clear(PyObject *self) {
    Ledger *ledger = (Ledger *)self;
    Py_CLEAR(ledger->clock);
    Py_CLEAR(ledger->is_failure);
    Py_CLEAR(ledger->was_refused);
    return 0;
}

static void ledger_dealloc(PyObject *self) {
    Ledger *ledger = (Ledger *)self;
    PyObject_GC_UnTrack(self);
    if (ledger->weak_references != NULL) {
        PyObject_ClearWeakRefs(self);
    }
    /* Guards hold a reference, so only charges on their own are left. */
    if (ledger->unguarded.next != NULL) {
        ledger->unguarded.previous->next = NULL;
        free_chain(ledger->unguarded.next == &ledger->unguarded ? NULL : ledger->unguarded.next);
    }
    ledger_clear(self);
    Py_XDECREF((PyObject *)ledger->rows);
    Py_XDECREF((PyObject *)ledger->core);
    Py_XDECREF((PyObject *)ledger->seat_type);
    Py_XDECREF((PyObject *)ledger->guard_type);
    free_object(self);
}

/* Ledger(clock, hold_ns, is_failure, was_refused, mean_prompt_tokens, request, prompt_token, kv_token) */
static PyObject *ledger_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *clock, *is_failure, *was_refused;
    long long hold_ns;
    double mean;
    count_prices nominal;
    if (kwargs != NULL && PyDict_Size(kwargs) != 0) {
        PyErr_SetString(PyExc_TypeError, "Ledger takes positional arguments only");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "OLOOdddd", &clock, &hold_ns, &is_failure, &was_refused, &mean, &nominal.request,
                          &nominal.prompt_token, &nominal.kv_token)) {
        return NULL;
    }
    module_state *state = state_of(type);
    Ledger *ledger = state == NULL ? NULL : (Ledger *)PyType_GenericAlloc(type, 0);
    if (ledger == NULL) {
        return NULL;
    }
    ledger->guarded.next = ledger->guarded.previous = &ledger->guarded;
    ledger->unguarded.next = ledger->unguarded.previous = &ledger->unguarded;
    ledger->nominal = nominal;
    ledger->hold_ns = hold_ns;
    ledger->mean_prompt_tokens = mean;
    ledger->version = 1; /* a new seat has version 0: not settled */
    Py_INCREF(state->seat_type);
    ledger->seat_type = state->seat_type;
    Py_INCREF(state->guard_type);
    ledger->guard_type = state->guard_type;
    Py_INCREF(is_failure);
    ledger->is_failure = is_failure;
    Py_INCREF(was_refused);
    ledger->was_refused = was_refused;
    if (clock != Py_None) {
        Py_INCREF(clock);
        ledger->clock = clock;
    }
    return (PyObject *)ledger;
}

/* seat(key, host, port) */
static PyObject *ledger_seat(PyObject *self, PyObject *args) {
    Ledger *ledger = (Ledger *)self;
    PyObject *key, *host, *port;
    if (!PyArg_ParseTuple(args, "OOO", &key, &host, &port)) {
        return NULL;
    }
    Seat *seat = (Seat *)PyType_GenericAlloc(ledger->seat_type, 0);
    if (seat == NULL) {
        return NULL;
    }
    Py_INCREF(key);
    seat->key = key;
    Py_INCREF(host);
    seat->host = host;
    Py_INCREF(port);
    seat->port = port;
    seat->slot = -1;
    seat->hold_ns = ledger->hold_ns;
    return (PyObject *)seat;
}

/* The rows of `settled` in new memory (PyMem_Free); the references to the seats are borrowed from `list`. */
static settlement *settlements_of(const Ledger *ledger, PyObject *list, uint32_t slots, Py_ssize_t *count) {
    if (!PyList_Check(list)) {
        PyErr_SetString(PyExc_TypeError, "settled must be a list");
        return NULL;
    }
    *count = PyList_Size(list);
    settlement *rows = PyMem_Malloc((size_t)(*count + 1) * sizeof *rows);
    if (rows == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t index = 0; index < *count; index++) {
        PyObject *item = PyList_GetItem(list, index), *slot;
        settlement *row = rows + index;
        if (item == NULL || !PyTuple_Check(item) ||
            !PyArg_ParseTuple(item, "O!Oddd", ledger->seat_type, &row->seat, &slot, &row->prices.request,
                              &row->prices.prompt_token, &row->prices.kv_token) ||
            slot_argument(slot, &row->slot) < 0) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_TypeError, "settled must hold tuples");
            }
            PyMem_Free(rows);
            return NULL;
        }
        if (row->slot >= (int32_t)slots) {
            PyErr_Format(PyExc_ValueError, "slot %d lies outside of the table's %u slots", (int)row->slot, slots);
            PyMem_Free(rows);
            return NULL;
        }
    }
    return rows;
}

static void settle_all(Ledger *ledger, const settlement *rows, Py_ssize_t count) {
    ledger->version += 1;
    for (Py_ssize_t index = 0; index < count; index++) {
        rows[index].seat->slot = rows[index].slot;
        rows[index].seat->prices = rows[index].prices;
        rows[index].seat->version = ledger->version;
    }
}

/* attach(rows, core, membership, holders, max_heartbeat_age, settled) -> version */
static PyObject *ledger_attach(PyObject *self, PyObject *args) {
    Ledger *ledger = (Ledger *)self;
    PyObject *rows, *core, *list;
    unsigned long long membership, max_age;
    unsigned int holders;
    Py_ssize_t count;
    module_state *state = state_of(Py_TYPE(self));
    if (state == NULL || !PyArg_ParseTuple(args, "O!O!KIKO", state->rows_type, &rows, state->core_type, &core,
                                           &membership, &holders, &max_age, &list)) {
        return NULL;
    }
    uint32_t slots = ((Rows *)rows)->rows.slots;
    if (((Core *)core)->table.slots != slots) {
        PyErr_SetString(PyExc_ValueError, "rows and core belong to different tables");
        return NULL;
    }
    settlement *settled = settlements_of(ledger, list, slots, &count);
    if (settled == NULL) {
        return NULL;
    }
    Py_INCREF(rows);
    Py_INCREF(core);
    LOCK(&ledger->lock);
    PyObject *former_rows = (PyObject *)ledger->rows, *former_core = (PyObject *)ledger->core;
    ledger->rows = (Rows *)rows;
    ledger->core = (Core *)core;
    ledger->membership = membership;
    ledger->holders = holders;
    ledger->max_heartbeat_age = max_age;
    settle_all(ledger, settled, count);
    recount(ledger);
    unsigned long long version = ledger->version;
    UNLOCK(&ledger->lock);
    Py_XDECREF(former_rows);
    Py_XDECREF(former_core);
    PyMem_Free(settled);
    return PyLong_FromUnsignedLongLong(version);
}

/* settle(membership, holders, settled) -> version */
static PyObject *ledger_settle(PyObject *self, PyObject *args) {
    Ledger *ledger = (Ledger *)self;
    PyObject *list;
    unsigned long long membership;
    unsigned int holders;
    Py_ssize_t count;
    if (!PyArg_ParseTuple(args, "KIO", &membership, &holders, &list)) {
        return NULL;
    }
    settlement *settled =
        settlements_of(ledger, list, ledger->rows == NULL ? 65536 : ledger->rows->rows.slots, &count);
    if (settled == NULL) {
        return NULL;
    }
    LOCK(&ledger->lock);
    ledger->membership = membership;
    ledger->holders = holders;
    settle_all(ledger, settled, count);
    match_again(ledger);
    unsigned long long version = ledger->version;
    UNLOCK(&ledger->lock);
    PyMem_Free(settled);
    return PyLong_FromUnsignedLongLong(version);
}

/* void(forked): every open charge is void, and there is nowhere to count. */
static PyObject *ledger_void(PyObject *self, PyObject *forked) {
    Ledger *ledger = (Ledger *)self;
    int is_forked = PyObject_IsTrue(forked);
    if (is_forked < 0) {
        return NULL;
    }
    if (is_forked) {
        /* Another thread of the parent may have held it; that thread is not in this process. */
        ledger->lock = (step_lock){0};
    }
    count_charge *done = NULL;
    LOCK(&ledger->lock);
    PyObject *former_rows = (PyObject *)ledger->rows, *former_core = (PyObject *)ledger->core;
    ledger->rows = NULL; /* so that closing a charge touches no row */
    ledger->core = NULL;
    ledger->version += 1;
    while (ledger->guarded.next != &ledger->guarded) {
        close_charge(ledger, ledger->guarded.next, &ledger->guarded_count);
    }
    while (ledger->unguarded.next != &ledger->unguarded) {
        count_charge *charge = ledger->unguarded.next;
        close_charge(ledger, charge, &ledger->unguarded_count);
        charge->next = done;
        done = charge;
    }
    UNLOCK(&ledger->lock);
    free_chain(done);
    Py_XDECREF(former_rows);
    Py_XDECREF(former_core);
    Py_RETURN_NONE;
}

/* dispatch(instance, seat, prompt_tokens, first_token_visible) -> Guard */
static PyObject *ledger_dispatch(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    Ledger *ledger = (Ledger *)self;
    if (nargs != 4 || Py_TYPE(args[1]) != ledger->seat_type) {
        PyErr_SetString(PyExc_TypeError, "dispatch takes an instance, its seat, prompt_tokens and first_token_visible");
        return NULL;
    }
    int visible = PyObject_IsTrue(args[3]);
    int32_t tokens = prompt_tokens_of(args[2]);
    int64_t now = visible < 0 || tokens < -1 ? -1 : ledger_now(ledger, 1);
    Guard *guard = now < 0 ? NULL : ledger_new_guard(ledger);
    if (guard == NULL) {
        return NULL;
    }
    LOCK(&ledger->lock);
    ledger_open(ledger, guard, args[0], (Seat *)args[1], tokens, visible, now);
    UNLOCK(&ledger->lock);
    return (PyObject *)guard;
}

/* hold(seat): a request that nobody will end. */
static PyObject *ledger_hold_method(PyObject *self, PyObject *seat) {
    Ledger *ledger = (Ledger *)self;
    if (Py_TYPE(seat) != ledger->seat_type) {
        PyErr_SetString(PyExc_TypeError, "hold takes a seat");
        return NULL;
    }
    int64_t now = ledger_now(ledger, 1);
    count_charge *charge = now < 0 ? NULL : PyMem_Malloc(sizeof *charge);
    if (charge == NULL) {
        return now < 0 ? NULL : PyErr_NoMemory();
    }
    LOCK(&ledger->lock);
    count_charge *oldest = ledger_hold(ledger, charge, (Seat *)seat, now);
    UNLOCK(&ledger->lock);
    ledger_free_charge(oldest);
    Py_RETURN_NONE;
}

/* housekeep(now): end prefills and holds whose time has come. */
static PyObject *ledger_housekeep(PyObject *self, PyObject *argument) {
    Ledger *ledger = (Ledger *)self;
    long long now = PyLong_AsLongLong(argument);
    if (now == -1 && PyErr_Occurred()) {
        return NULL;
    }
    count_charge *done = NULL, *heads[] = {&ledger->guarded, &ledger->unguarded};
    LOCK(&ledger->lock);
    for (int index = 0; index < 2; index++) {
        for (count_charge *charge = heads[index]->next, *next; charge != heads[index]; charge = next) {
            next = charge->next;
            if (charge->ends_at != 0 && charge->ends_at <= now) {
                close_charge(ledger, charge, &ledger->unguarded_count);
                charge->next = done;
                done = charge;
            } else if (charge->prefill_ends != 0 && charge->prefill_ends <= now) {
                end_prefill(ledger, charge);
            }
        }
    }
    UNLOCK(&ledger->lock);
    free_chain(done);
    Py_RETURN_NONE;
}

/* audit() -> whether the rows did not say what is open, and do now */
static PyObject *ledger_audit(PyObject *self, PyObject *unused) {
    (void)unused;
    Ledger *ledger = (Ledger *)self;
    int wrong = 0;
    /* The rows may be replaced while memory is being found for them; then it is the next audit's turn. */
    size_t slots = ledger->rows == NULL ? 0 : ledger->rows->rows.slots;
    int32_t *cells = PyMem_Calloc(slots + 1, sizeof *cells);
    int64_t *levels = PyMem_Calloc(NATURAL_LEVELS * slots + 1, sizeof *levels);
    if (cells == NULL || levels == NULL) {
        PyMem_Free(cells);
        PyMem_Free(levels);
        return PyErr_NoMemory();
    }
    LOCK(&ledger->lock);
    if (ledger->rows != NULL && ledger->rows->rows.slots == slots && count_is_mine(&ledger->rows->rows)) {
        count_expect(&ledger->rows->rows, &ledger->guarded, cells, levels);
        count_expect(&ledger->rows->rows, &ledger->unguarded, cells, levels);
        wrong = count_repair(&ledger->rows->rows, cells, levels);
    }
    UNLOCK(&ledger->lock);
    PyMem_Free(cells);
    PyMem_Free(levels);
    return PyBool_FromLong(wrong);
}

static PyObject *ledger_outstanding(PyObject *self, PyObject *unused) {
    (void)unused;
    Ledger *ledger = (Ledger *)self;
    return PyLong_FromUnsignedLong((unsigned long)ledger->guarded_count + ledger->unguarded_count);
}

static PyMethodDef ledger_methods[] = {
    {"seat", ledger_seat, METH_VARARGS, "seat(key, host, port) -> Seat"},
    {"attach", ledger_attach, METH_VARARGS,
     "attach(rows, core, membership, holders, max_heartbeat_age, settled) -> version"},
    {"settle", ledger_settle, METH_VARARGS, "settle(membership, holders, settled) -> version"},
    {"void", ledger_void, METH_O, "void(forked)"},
    {"dispatch", (PyCFunction)(void (*)(void))ledger_dispatch, METH_FASTCALL,
     "dispatch(instance, seat, prompt_tokens, first_token_visible) -> Guard"},
    {"hold", ledger_hold_method, METH_O, "hold(seat)"},
    {"housekeep", ledger_housekeep, METH_O, "housekeep(now)"},
    {"audit", ledger_audit, METH_NOARGS, "audit() -> bool"},
    {"outstanding", ledger_outstanding, METH_NOARGS, "outstanding() -> int"},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef ledger_members[] = {
    {"version", T_ULONGLONG, offsetof(Ledger, version), READONLY, NULL},
    {"mean_prompt_tokens", T_DOUBLE, offsetof(Ledger, mean_prompt_tokens), READONLY, NULL},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Ledger, weak_references), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot ledger_type_slots[] = {
    {Py_tp_new, ledger_new},
    {Py_tp_dealloc, ledger_dealloc},
    {Py_tp_traverse, ledger_traverse},
    {Py_tp_clear, ledger_clear},
    {Py_tp_methods, ledger_methods},
    {Py_tp_members, ledger_members},
    {Py_tp_doc, "See score_table.ledger.rules.Ledger."},
    {0, NULL},
};

PyType_Spec ledger_spec = {
    .name = "score_table._native.Ledger",
    .basicsize = sizeof(Ledger),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = ledger_type_slots,
};

/* -- Guard ---------------------------------------------------------------------------------------------------- */

Guard *ledger_new_guard(Ledger *ledger) {
    Guard *guard = (Guard *)PyType_GenericAlloc(ledger->guard_type, 0);
    if (guard != NULL) {
        Py_INCREF((PyObject *)ledger);
        guard->ledger = ledger;
    }
    return guard;
}

static int guard_traverse(PyObject *self, visitproc visit, void *arg) {
    Guard *guard = (Guard *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(guard->instance);
    Py_VISIT((PyObject *)guard->ledger);
    return 0;
}

static int guard_clear(PyObject *self) {
    Py_CLEAR(((Guard *)self)->instance); /* the ledger is needed until the end */
    return 0;
}

static void release(Guard *guard) {
    Ledger *ledger = guard->ledger;
    LOCK(&ledger->lock);
    if (is_open(&guard->charge)) {
        close_charge(ledger, &guard->charge, &ledger->guarded_count);
    }
    UNLOCK(&ledger->lock);
}

static void guard_dealloc(PyObject *self) {
    Guard *guard = (Guard *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (guard->weak_references != NULL) {
        PyObject_ClearWeakRefs(self);
    }
    /* In any thread, inside of any other call; a step is whole, so there is none to come in between. */
    release(guard);
    Py_XDECREF((PyObject *)guard->charge.seat);
    Py_XDECREF(guard->instance);
    Py_DECREF((PyObject *)guard->ledger);
    PyObject_GC_Del(self);
    Py_DECREF((PyObject *)type);
}

/* The request failed: its charge leaves the guard and stays for the hold time. */
static int fail(Guard *guard, int suspect) {
    Ledger *ledger = guard->ledger;
    int64_t now = ledger_now(ledger, 1);
    count_charge *held = now < 0 ? NULL : PyMem_Malloc(sizeof *held), *spare = held;
    if (now < 0) {
        return -1;
    }
    LOCK(&ledger->lock);
    if (is_open(&guard->charge)) {
        if (held == NULL) {
            close_charge(ledger, &guard->charge, &ledger->guarded_count);
        } else {
            unlink_charge(&guard->charge);
            ledger->guarded_count -= 1;
            *held = guard->charge;
            guard->charge.seat = NULL; /* its reference has moved */
            guard->charge.phase = CHARGE_CLOSED;
            held->held = 1;
            held->ends_at = now + ledger->hold_ns;
            const count_rows *rows = rows_of(ledger, held);
            if (rows != NULL) {
                count_hold(rows, held, suspect);
            }
            spare = add_unguarded(ledger, held);
            UNLOCK(&ledger->lock);
            ledger_free_charge(spare);
            return 0;
        }
    }
    UNLOCK(&ledger->lock);
    PyMem_Free(spare);
    return 0;
}

/* Whether `judge` says yes of `error`. A judge that fails knows nothing. -1 with an exception set. */
static int judged(PyObject *judge, PyObject *error) {
    PyObject *answer = judge == NULL ? NULL : PyObject_CallFunctionObjArgs(judge, error, NULL);
    int yes = answer == NULL ? 0 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    if (PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_Exception)) {
            return -1;
        }
        PyErr_Clear();
        yes = 0;
    }
    return yes;
}

static PyObject *guard_fail(PyObject *self, PyObject *args, PyObject *kwargs) {
    Guard *guard = (Guard *)self;
    static char *names[] = {"error", NULL};
    PyObject *error = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:fail", names, &error)) {
        return NULL;
    }
    int suspect = error == Py_None || !is_open(&guard->charge) ? 0 : judged(guard->ledger->was_refused, error);
    if (suspect < 0 || fail(guard, suspect) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *guard_release(PyObject *self, PyObject *unused) {
    (void)unused;
    release((Guard *)self);
    Py_RETURN_NONE;
}

static PyObject *guard_first_token(PyObject *self, PyObject *unused) {
    (void)unused;
    Guard *guard = (Guard *)self;
    LOCK(&guard->ledger->lock);
    if (is_open(&guard->charge)) {
        end_prefill(guard->ledger, &guard->charge);
    }
    UNLOCK(&guard->ledger->lock);
    Py_RETURN_NONE;
}

static PyObject *guard_enter(PyObject *self, PyObject *unused) {
    (void)unused;
    Py_INCREF(self);
    return self;
}

static int leave(Guard *guard, PyObject *const *args, Py_ssize_t nargs) {
    if (nargs != 3) {
        PyErr_SetString(PyExc_TypeError, "a guard's exit takes type, exception and traceback");
        return -1;
    }
    if (args[1] != Py_None && is_open(&guard->charge)) {
        int failure = judged(guard->ledger->is_failure, args[1]);
        int suspect = failure > 0 ? judged(guard->ledger->was_refused, args[1]) : 0;
        if (failure < 0 || suspect < 0) {
            return -1;
        }
        if (failure > 0) {
            return fail(guard, suspect);
        }
    }
    release(guard);
    return 0;
}

static PyObject *guard_exit(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    if (leave((Guard *)self, args, nargs) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* -- Ready: an awaitable that has its value already ----------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *value;
} Ready;

static PyObject *ready(Guard *guard, PyObject *value) {
    module_state *state = state_of(guard->ledger->guard_type);
    Ready *result = state == NULL ? NULL : (Ready *)PyType_GenericAlloc(state->ready_type, 0);
    if (result != NULL) {
        Py_INCREF(value);
        result->value = value;
    }
    return (PyObject *)result;
}

static void ready_dealloc(PyObject *self) {
    Py_XDECREF(((Ready *)self)->value);
    free_object(self);
}

static PyObject *ready_itself(PyObject *self) {
    Py_INCREF(self);
    return self;
}

static PyObject *ready_next(PyObject *self) {
    PyErr_SetObject(PyExc_StopIteration, ((Ready *)self)->value);
    return NULL;
}

static PyType_Slot ready_type_slots[] = {
    {Py_tp_dealloc, ready_dealloc},
    {Py_am_await, ready_itself},
    {Py_tp_iter, ready_itself},
    {Py_tp_iternext, ready_next},
    {Py_tp_doc, "What entering and leaving a guard with `async with` awaits; never waits."},
    {0, NULL},
};

PyType_Spec ready_spec = {
    .name = "score_table._native.Ready",
    .basicsize = sizeof(Ready),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = ready_type_slots,
};

static PyObject *guard_aenter(PyObject *self, PyObject *unused) {
    (void)unused;
    return ready((Guard *)self, self);
}

static PyObject *guard_aexit(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    return leave((Guard *)self, args, nargs) < 0 ? NULL : ready((Guard *)self, Py_None);
}

static PyMethodDef guard_methods[] = {
    {"first_token", guard_first_token, METH_NOARGS,
     "The first token came back: the prefill part of the price is taken back. Later calls do nothing."},
    {"fail", (PyCFunction)(void (*)(void))guard_fail, METH_VARARGS | METH_KEYWORDS,
     "fail(error=None): the instance failed the request; its price is kept for the hold time."},
    {"release", guard_release, METH_NOARGS, "The request is over."},
    {"__enter__", guard_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))guard_exit, METH_FASTCALL, NULL},
    {"__aenter__", guard_aenter, METH_NOARGS, NULL},
    {"__aexit__", (PyCFunction)(void (*)(void))guard_aexit, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef guard_members[] = {
    {"instance", T_OBJECT_EX, offsetof(Guard, instance), READONLY, "the instance that was picked"},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Guard, weak_references), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot guard_type_slots[] = {
    {Py_tp_dealloc, guard_dealloc},
    {Py_tp_traverse, guard_traverse},
    {Py_tp_clear, guard_clear},
    {Py_tp_methods, guard_methods},
    {Py_tp_members, guard_members},
    {Py_tp_doc, "The guard of one dispatched request: counted until the end, taken back exactly once."},
    {0, NULL},
};

PyType_Spec guard_spec = {
    .name = "score_table._native.Guard",
    .basicsize = sizeof(Guard),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = guard_type_slots,
};
