/* Ledger: every open charge of a process, and the rows they are counted in. */
#include "types.h"

#include <structmember.h>
#include <time.h>

/* What a row of `settled` says: (seat, slot or None, request, prompt_token, kv_token, moved). */
typedef struct {
    Seat *seat;
    int32_t slot;
    count_prices prices;
    int moved; /* the id belongs to another address than before */
} settlement;

/* Versions are never used twice in a process: a seat of another ledger is a seat that is not settled. */
static uint64_t next_version(void) {
    static uint64_t last = 0;
    return __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
}

static int ledger_traverse(PyObject *self, visitproc visit, void *arg) {
    Ledger *ledger = (Ledger *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(ledger->clock);
    Py_VISIT(ledger->is_failure);
    Py_VISIT(ledger->was_refused);
    Py_VISIT((PyObject *)ledger->seat_type);
    Py_VISIT((PyObject *)ledger->guard_type);
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
        ledger_free_chain(ledger->unguarded.next == &ledger->unguarded ? NULL : ledger->unguarded.next);
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
    ledger->version = next_version(); /* a new seat has version 0: not settled */
    ledger->epoch = ledger->lock_epoch = fork_epoch;
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
    } else {
        struct timespec step = {.tv_nsec = 10000000};
        clock_getres(CLOCK_MONOTONIC_COARSE, &step);
        ledger->clock_error = 2 * ((uint64_t)step.tv_sec * 1000000000 + (uint64_t)step.tv_nsec);
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
    if (!PyUnicode_Check(key) || (host != Py_None && !PyUnicode_Check(host)) ||
        (port != Py_None && !PyLong_Check(port))) {
        PyErr_SetString(PyExc_TypeError, "seat takes an id, a host or None, and a port or None");
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

/* The rows of `settled` in new memory (PyMem_Free). Runs no code of Python; the references to the seats are borrowed
 * from *holder, which the caller drops when it is done with them. */
static settlement *settlements_of(const Ledger *ledger, PyObject *list, PyObject **holder, Py_ssize_t *count) {
    PyObject *all = *holder = PyList_Check(list) ? PyList_AsTuple(list) : NULL;
    if (all == NULL) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "settled must be a list");
        }
        return NULL;
    }
    *count = PyTuple_Size(all);
    settlement *rows = PyMem_Malloc((size_t)(*count + 1) * sizeof *rows);
    if (rows == NULL) {
        PyErr_NoMemory();
    }
    for (Py_ssize_t index = 0; index < *count && rows != NULL; index++) {
        PyObject *row = PyTuple_GetItem(all, index), *part[6];
        int right = PyTuple_CheckExact(row) && PyTuple_Size(row) == 6;
        for (int which = 0; which < 6 && right; which++) {
            part[which] = PyTuple_GetItem(row, which);
            right = which == 0   ? Py_TYPE(part[0]) == ledger->seat_type
                    : which == 1 ? part[1] == Py_None || PyLong_CheckExact(part[1])
                    : which == 5 ? PyBool_Check(part[5])
                                 : PyFloat_CheckExact(part[which]);
        }
        if (!right || slot_argument(part[1], &rows[index].slot) < 0) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_TypeError, "settled must hold tuples of a seat, a slot or None, three floats and a bool");
            }
            PyMem_Free(rows);
            rows = NULL;
            break;
        }
        rows[index].seat = (Seat *)part[0];
        rows[index].moved = part[5] == Py_True;
        rows[index].prices =
            (count_prices){PyFloat_AsDouble(part[2]), PyFloat_AsDouble(part[3]), PyFloat_AsDouble(part[4])};
    }
    if (rows == NULL) {
        Py_DECREF(all);
        *holder = NULL;
    }
    return rows;
}

static void settle_all(Ledger *ledger, const settlement *rows, Py_ssize_t count) {
    ledger->version = next_version();
    for (Py_ssize_t index = 0; index < count; index++) {
        rows[index].seat->slot = rows[index].slot;
        rows[index].seat->incarnation += (uint32_t)rows[index].moved;
        rows[index].seat->prices = rows[index].prices;
        rows[index].seat->version = ledger->version;
    }
}

/* attach(rows, core, membership, holders, max_heartbeat_age, settled) -> version */
static PyObject *ledger_attach(PyObject *self, PyObject *args) {
    Ledger *ledger = (Ledger *)self;
    PyObject *rows, *core, *list, *holder;
    unsigned long long membership, max_age;
    unsigned int holders;
    Py_ssize_t count;
    module_state *state = state_of(Py_TYPE(self));
    if (state == NULL || !PyArg_ParseTuple(args, "O!O!KIKO", state->rows_type, &rows, state->core_type, &core,
                                           &membership, &holders, &max_age, &list)) {
        return NULL;
    }
    if (((Core *)core)->table.slots != ((Rows *)rows)->rows.slots) {
        PyErr_SetString(PyExc_ValueError, "rows and core belong to different tables");
        return NULL;
    }
    settlement *settled = settlements_of(ledger, list, &holder, &count);
    if (settled == NULL) {
        return NULL;
    }
    ledger_lock(ledger);
    if (core_word((Core *)core, MEMBERSHIP_OFFSET) != membership) {
        /* Outdated by now: it may name slots that have other holders. */
        UNLOCK(&ledger->lock);
        PyMem_Free(settled);
        Py_DECREF(holder);
        return PyLong_FromLong(0);
    }
    Py_INCREF(rows);
    Py_INCREF(core);
    PyObject *former_rows = (PyObject *)ledger->rows, *former_core = (PyObject *)ledger->core;
    ledger->rows = (Rows *)rows;
    ledger->core = (Core *)core;
    ledger->epoch = fork_epoch;
    ledger->membership = membership;
    ledger->holders = holders;
    ledger->max_heartbeat_age = max_age;
    settle_all(ledger, settled, count);
    ledger_recount(ledger);
    unsigned long long version = ledger->version;
    UNLOCK(&ledger->lock);
    Py_XDECREF(former_rows);
    Py_XDECREF(former_core);
    PyMem_Free(settled);
    Py_DECREF(holder);
    return PyLong_FromUnsignedLongLong(version);
}

/* settle(membership, holders, settled) -> version */
static PyObject *ledger_settle(PyObject *self, PyObject *args) {
    Ledger *ledger = (Ledger *)self;
    PyObject *list, *holder;
    unsigned long long membership;
    unsigned int holders;
    Py_ssize_t count;
    if (!PyArg_ParseTuple(args, "KIO", &membership, &holders, &list)) {
        return NULL;
    }
    settlement *settled = settlements_of(ledger, list, &holder, &count);
    if (settled == NULL) {
        return NULL;
    }
    unsigned long long version = 0;
    ledger_lock(ledger);
    if (ledger->core != NULL && core_word(ledger->core, MEMBERSHIP_OFFSET) == membership) {
        ledger->membership = membership;
        ledger->holders = holders;
        settle_all(ledger, settled, count);
        if (ledger_rows(ledger) != NULL && ledger_rows(ledger)->token == 0) {
            /* The monitor cannot see that a slot is still in use here, and may give it to another. */
            count_clear(ledger_rows(ledger));
            ledger_recount(ledger);
        } else {
            ledger_match_again(ledger);
        }
        version = ledger->version;
    } /* else outdated by now: it may name slots that have other holders */
    UNLOCK(&ledger->lock);
    PyMem_Free(settled);
    Py_DECREF(holder);
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
        /* Threads of the parent may have held them; they are not in this process. */
        ledger->lock = (step_lock){0};
        ledger->lock_epoch = fork_epoch;
        picker_reset_locks(ledger->pickers);
    }
    count_charge *done = NULL;
    ledger_lock(ledger);
    PyObject *former_rows = (PyObject *)ledger->rows, *former_core = (PyObject *)ledger->core;
    ledger->rows = NULL; /* so that closing a charge touches no row */
    ledger->core = NULL;
    ledger->version = next_version();
    while (ledger->guarded.next != &ledger->guarded) {
        ledger_close(ledger, ledger->guarded.next, &ledger->guarded_count);
    }
    while (ledger->unguarded.next != &ledger->unguarded) {
        count_charge *charge = ledger->unguarded.next;
        ledger_close(ledger, charge, &ledger->unguarded_count);
        charge->next = done;
        done = charge;
    }
    UNLOCK(&ledger->lock);
    ledger_free_chain(done);
    Py_XDECREF(former_rows);
    Py_XDECREF(former_core);
    Py_RETURN_NONE;
}

/* The reason of a pick as an optional argument gives it. -1 with an exception set. */
static int reason_argument(PyObject *const *args, Py_ssize_t nargs, Py_ssize_t at) {
    long reason = nargs <= at ? 0 : PyLong_AsLong(args[at]);
    if (reason >= 0 && reason < REASONS) {
        return (int)reason;
    }
    if (!PyErr_Occurred()) {
        PyErr_Format(PyExc_ValueError, "reason %ld is not from 0 to %d", reason, REASONS - 1);
    }
    return -1;
}

/* dispatch(instance, seat, prompt_tokens, first_token_visible, reason=0) -> Guard */
static PyObject *ledger_dispatch(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    Ledger *ledger = (Ledger *)self;
    if (nargs < 4 || nargs > 5 || Py_TYPE(args[1]) != ledger->seat_type) {
        PyErr_SetString(PyExc_TypeError,
                        "dispatch takes an instance, its seat, prompt_tokens, first_token_visible and a reason");
        return NULL;
    }
    int reason = reason_argument(args, nargs, 4);
    int visible = reason < 0 ? -1 : PyObject_IsTrue(args[3]);
    int32_t tokens = visible < 0 ? -2 : prompt_tokens_of(args[2]);
    int64_t now = tokens < -1 ? -1 : ledger_now(ledger, 1);
    Guard *guard = now < 0 ? NULL : ledger_new_guard(ledger);
    if (guard == NULL) {
        return NULL;
    }
    ledger_lock(ledger);
    ledger_open(ledger, guard, args[0], (Seat *)args[1], tokens, visible, (unsigned char)reason, now);
    UNLOCK(&ledger->lock);
    return (PyObject *)guard;
}

/* hold(seat, reason=0): a request that nobody will end. */
static PyObject *ledger_hold_method(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    Ledger *ledger = (Ledger *)self;
    if (nargs < 1 || nargs > 2 || Py_TYPE(args[0]) != ledger->seat_type) {
        PyErr_SetString(PyExc_TypeError, "hold takes a seat and a reason");
        return NULL;
    }
    int reason = reason_argument(args, nargs, 1);
    int64_t now = reason < 0 ? -1 : ledger_now(ledger, 1);
    count_charge *charge = now < 0 ? NULL : PyMem_Malloc(sizeof *charge);
    if (charge == NULL) {
        return now < 0 ? NULL : PyErr_NoMemory();
    }
    ledger_lock(ledger);
    count_charge *oldest = ledger_hold(ledger, charge, (Seat *)args[0], (unsigned char)reason, now);
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
    ledger_lock(ledger);
    for (int index = 0; index < 2; index++) {
        for (count_charge *charge = heads[index]->next, *next; charge != heads[index]; charge = next) {
            next = charge->next;
            if (heads[index] == &ledger->unguarded && charge->ends_at <= now) {
                ledger_close(ledger, charge, &ledger->unguarded_count);
                charge->next = done;
                done = charge;
            } else if (charge->prefill_ends != 0 && charge->prefill_ends <= now) {
                ledger_end_prefill(ledger, charge);
            }
        }
    }
    UNLOCK(&ledger->lock);
    ledger_free_chain(done);
    Py_RETURN_NONE;
}

/* audit() -> whether the rows did not say what is open, and do now */
static PyObject *ledger_audit(PyObject *self, PyObject *unused) {
    (void)unused;
    Ledger *ledger = (Ledger *)self;
    int wrong = 0;
    ledger_lock(ledger);
    const count_rows *rows = ledger_rows(ledger);
    size_t slots = rows == NULL ? 0 : rows->slots;
    UNLOCK(&ledger->lock);
    int32_t *cells = PyMem_Calloc(slots + 1, sizeof *cells);
    int64_t *levels = PyMem_Calloc(NATURAL_LEVELS * slots + 1, sizeof *levels);
    if (cells == NULL || levels == NULL) {
        PyMem_Free(cells);
        PyMem_Free(levels);
        return PyErr_NoMemory();
    }
    ledger_lock(ledger);
    rows = ledger_rows(ledger); /* if others have come meanwhile, it is the next audit's turn */
    if (rows != NULL && rows->slots == slots && count_is_mine(rows)) {
        count_expect(rows, &ledger->guarded, cells, levels);
        count_expect(rows, &ledger->unguarded, cells, levels);
        wrong = count_repair(rows, cells, levels);
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
     "dispatch(instance, seat, prompt_tokens, first_token_visible, reason=0) -> Guard"},
    {"hold", (PyCFunction)(void (*)(void))ledger_hold_method, METH_FASTCALL, "hold(seat, reason=0)"},
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
