/* Mapped tables: Core to pick from, with prepared candidate sets, and Rows to count in. */
#include "types.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>

/* -- Candidates: different slots in rising order -------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    uint32_t count;
    uint32_t capacity; /* slots of the table they were checked against */
    int32_t *slots;
} Candidates;

static void candidates_dealloc(PyObject *self) {
    PyMem_Free(((Candidates *)self)->slots);
    free_object(self);
}

static PyType_Slot candidates_type_slots[] = {
    {Py_tp_dealloc, candidates_dealloc},
    {Py_tp_doc, "Slots to choose from, made by Core.prepare."},
    {0, NULL},
};

PyType_Spec candidates_spec = {
    .name = "score_table._native.Candidates",
    .basicsize = sizeof(Candidates),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = candidates_type_slots,
};

/* -- Core ----------------------------------------------------------------------------------------------------- */

static void core_dealloc(PyObject *self) {
    Core *core = (Core *)self;
    if (core->mapping != NULL) {
        munmap(core->mapping, core->size);
    }
    Py_XDECREF(core->candidates_type);
    free_object(self);
}

/* Core(fd, size, matrix_offset, matrix_stride, n_offset, lanes_offset, slots, lanes, tie_window, mark_floor,
 *      mark_band, unused_band) */
static PyObject *core_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    int fd;
    Py_ssize_t size, matrix_offset, matrix_stride, n_offset, lanes_offset, slots, lanes;
    int tie_window, mark_floor, mark_band, unused_band;
    if (kwargs != NULL && PyDict_Size(kwargs) != 0) {
        PyErr_SetString(PyExc_TypeError, "Core takes positional arguments only");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "innnnnnniiii", &fd, &size, &matrix_offset, &matrix_stride, &n_offset, &lanes_offset,
                          &slots, &lanes, &tie_window, &mark_floor, &mark_band, &unused_band)) {
        return NULL;
    }
    /* What is wrong here is a fault of the caller, who has checked the header; still nothing outside of the
     * mapping may ever be read. */
    struct stat facts;
    if (fstat(fd, &facts) != 0) {
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    if (slots < 1 || slots > 65536 || lanes < 1 || lanes > 1024 || matrix_stride < 4 * slots || matrix_stride % 64 != 0 ||
        matrix_stride > (1 << 20) || matrix_offset < 64 || matrix_offset % 64 != 0 || n_offset < 0 || n_offset % 4 != 0 ||
        n_offset > matrix_offset - 4 || lanes_offset < 0 || lanes_offset % 4 != 0 || lanes_offset > matrix_offset - 4 ||
        size < matrix_offset || (size - matrix_offset) / matrix_stride < 2 + lanes || facts.st_size < size ||
        mark_band < 1 || tie_window < 0) {
        PyErr_SetString(PyExc_ValueError, "the rows do not lie inside of the segment");
        return NULL;
    }
    module_state *state = state_of(type);
    if (state == NULL) {
        return NULL;
    }
    void *mapping = mmap(NULL, (size_t)size, PROT_READ, MAP_SHARED, fd, 0);
    if (mapping == MAP_FAILED) {
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Core *core = (Core *)allocate(type, 0);
    if (core == NULL) {
        munmap(mapping, (size_t)size);
        return NULL;
    }
    core->mapping = mapping;
    core->size = (size_t)size;
    Py_INCREF(state->candidates_type);
    core->candidates_type = state->candidates_type;
    core->table = (pick_table){
        .start = mapping,
        .matrix_offset = (size_t)matrix_offset,
        .matrix_stride = (size_t)matrix_stride,
        .n_offset = (size_t)n_offset,
        .lanes_offset = (size_t)lanes_offset,
        .slots = (uint32_t)slots,
        .lanes = (uint32_t)lanes,
        .tie_window = tie_window,
        .mark_floor = mark_floor,
        .mark_band = mark_band,
        .unused_band = unused_band,
    };
    return (PyObject *)core;
}

static int by_value(const void *left, const void *right) {
    int32_t a = *(const int32_t *)left, b = *(const int32_t *)right;
    return (a > b) - (a < b);
}

/* The slots of a sequence in a new array (PyMem_Free), each checked against the capacity. */
static int32_t *slots_of(const Core *core, PyObject *sequence, Py_ssize_t *count) {
    PyObject *list = PySequence_List(sequence);
    if (list == NULL) {
        return NULL;
    }
    *count = PyList_Size(list);
    int32_t *slots = PyMem_Malloc((size_t)(*count + 1) * sizeof *slots);
    if (slots == NULL) {
        Py_DECREF(list);
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t index = 0; index < *count; index++) {
        Py_ssize_t slot = PyNumber_AsSsize_t(PyList_GetItem(list, index), PyExc_OverflowError);
        if (slot < 0 || slot >= (Py_ssize_t)core->table.slots) {
            if (!PyErr_Occurred()) {
                PyErr_Format(PyExc_IndexError, "slot %zd is outside of the table's %u slots", slot, core->table.slots);
            }
            PyMem_Free(slots);
            Py_DECREF(list);
            return NULL;
        }
        slots[index] = (int32_t)slot;
    }
    Py_DECREF(list);
    return slots;
}

static PyObject *core_prepare(PyObject *self, PyObject *sequence) {
    Core *core = (Core *)self;
    Py_ssize_t count;
    int32_t *slots = slots_of(core, sequence, &count);
    if (slots == NULL) {
        return NULL;
    }
    qsort(slots, (size_t)count, sizeof *slots, by_value);
    uint32_t kept = 0;
    for (Py_ssize_t index = 0; index < count; index++) {
        if (kept == 0 || slots[kept - 1] != slots[index]) {
            slots[kept++] = slots[index];
        }
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(core->candidates_type, Py_tp_alloc);
    Candidates *candidates = (Candidates *)allocate(core->candidates_type, 0);
    if (candidates == NULL) {
        PyMem_Free(slots);
        return NULL;
    }
    candidates->slots = slots;
    candidates->count = kept;
    candidates->capacity = core->table.slots;
    return (PyObject *)candidates;
}

/* One row of the table's width from None, bytes or any buffer. *holder owns it; NULL on None. -1 on error. */
static int extra_row(const Core *core, PyObject *extra, PyObject **holder, const int32_t **cells) {
    *holder = NULL;
    *cells = NULL;
    if (extra == Py_None) {
        return 0;
    }
    /* The limited API of 3.10 has no buffer protocol; this path is that of a process without a lane. */
    *holder = PyBytes_FromObject(extra);
    if (*holder == NULL) {
        return -1;
    }
    if (PyBytes_Size(*holder) < (Py_ssize_t)(core->table.slots * sizeof(int32_t))) {
        PyErr_SetString(PyExc_ValueError, "the extra row is shorter than the table's rows");
        Py_DECREF(*holder);
        return -1;
    }
    *cells = (const int32_t *)(const void *)PyBytes_AsString(*holder);
    return 0;
}

/* fade as given by Mode: -1, or 0..31. */
static int fade_argument(PyObject *argument, int *fade) {
    long value = PyLong_AsLong(argument);
    if (value == -1 && PyErr_Occurred()) {
        return -1;
    }
    if (value > 31) {
        PyErr_Format(PyExc_ValueError, "fade is %ld: it must be at most 31", value);
        return -1;
    }
    *fade = value < 0 ? -1 : (int)value;
    return 0;
}

static PyObject *core_choose_method(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    Core *core = (Core *)self;
    if (nargs != 4) {
        PyErr_SetString(PyExc_TypeError, "choose takes candidates, cursor, fade and extra");
        return NULL;
    }
    const int32_t *slots = NULL, *cells;
    uint32_t count = 0;
    if (args[0] != Py_None) {
        if (Py_TYPE(args[0]) != core->candidates_type) {
            PyErr_SetString(PyExc_TypeError, "candidates must come from prepare, or be None");
            return NULL;
        }
        Candidates *candidates = (Candidates *)args[0];
        if (candidates->capacity > core->table.slots) {
            PyErr_SetString(PyExc_ValueError, "candidates were prepared for a larger table");
            return NULL;
        }
        slots = candidates->slots;
        count = candidates->count;
    }
    long long cursor = PyLong_AsLongLong(args[1]);
    if (cursor == -1 && PyErr_Occurred()) {
        return NULL;
    }
    int fade;
    PyObject *holder;
    if (fade_argument(args[2], &fade) < 0 || extra_row(core, args[3], &holder, &cells) < 0) {
        return NULL;
    }
    int32_t answer = args[0] != Py_None && count == 0 ? PICK_NO_SLOT
                                                      : pick_choose(&core->table, slots, count, cursor, fade, cells);
    Py_XDECREF(holder);
    if (answer == PICK_NO_MEMORY) {
        return PyErr_NoMemory();
    }
    return PyLong_FromLong(answer);
}

static PyObject *core_live_method(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    Core *core = (Core *)self;
    if (nargs != 3) {
        PyErr_SetString(PyExc_TypeError, "live takes slots, fade and extra");
        return NULL;
    }
    int fade;
    PyObject *holder, *result = NULL;
    const int32_t *cells;
    Py_ssize_t count;
    if (fade_argument(args[1], &fade) < 0 || extra_row(core, args[2], &holder, &cells) < 0) {
        return NULL;
    }
    int32_t *slots = slots_of(core, args[0], &count);
    int32_t *live = slots == NULL ? NULL : PyMem_Malloc((size_t)(count + 1) * sizeof *live);
    if (live != NULL && (result = PyList_New(count)) != NULL) {
        pick_live(&core->table, slots, (uint32_t)count, fade, cells, live);
        for (Py_ssize_t index = 0; index < count; index++) {
            PyObject *value = PyLong_FromLong(live[index]);
            if (value == NULL || PyList_SetItem(result, index, value) < 0) {
                Py_DECREF(result);
                result = NULL;
                break;
            }
        }
    } else if (slots != NULL && live == NULL) {
        PyErr_NoMemory();
    }
    PyMem_Free(live);
    PyMem_Free(slots);
    Py_XDECREF(holder);
    return result;
}

static PyMethodDef core_methods[] = {
    {"prepare", core_prepare, METH_O, "prepare(slots) -> Candidates"},
    {"choose", (PyCFunction)(void (*)(void))core_choose_method, METH_FASTCALL,
     "choose(candidates, cursor, fade, extra) -> int"},
    {"live", (PyCFunction)(void (*)(void))core_live_method, METH_FASTCALL, "live(slots, fade, extra) -> list[int]"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot core_type_slots[] = {
    {Py_tp_new, core_new},
    {Py_tp_dealloc, core_dealloc},
    {Py_tp_methods, core_methods},
    {Py_tp_doc, "A mapped table to pick from. The arguments are checked against the size of the file."},
    {0, NULL},
};

PyType_Spec core_spec = {
    .name = "score_table._native.Core",
    .basicsize = sizeof(Core),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = core_type_slots,
};

/* -- Rows ----------------------------------------------------------------------------------------------------- */

static void rows_dealloc(PyObject *self) {
    Rows *rows = (Rows *)self;
    if (rows->mapping != NULL) {
        munmap(rows->mapping, rows->size);
    }
    free_object(self);
}

/* Rows(fd, size, cells_offset, naturals_offset, naturals_stride, block_offset, slots, cell_limit, token) */
static PyObject *rows_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    int fd, cell_limit;
    Py_ssize_t size, cells_offset, naturals_offset, naturals_stride, block_offset, slots;
    unsigned long long token;
    if (kwargs != NULL && PyDict_Size(kwargs) != 0) {
        PyErr_SetString(PyExc_TypeError, "Rows takes positional arguments only");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "innnnnniK", &fd, &size, &cells_offset, &naturals_offset, &naturals_stride,
                          &block_offset, &slots, &cell_limit, &token)) {
        return NULL;
    }
    struct stat facts;
    if (fstat(fd, &facts) != 0) {
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    if (slots < 1 || slots > 65536 || size < 256 || facts.st_size < size || cells_offset < 0 ||
        cells_offset % 4 != 0 || cells_offset > size - 4 * slots || naturals_stride < 8 * slots ||
        naturals_stride > (1 << 20) || naturals_stride % 8 != 0 || naturals_offset < 0 || naturals_offset % 8 != 0 ||
        naturals_offset > size - NATURALS * naturals_stride || block_offset < 0 || block_offset % 8 != 0 ||
        block_offset > size - 256 || cell_limit < 1) {
        PyErr_SetString(PyExc_ValueError, "the rows do not lie inside of the segment");
        return NULL;
    }
    void *mapping = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapping == MAP_FAILED) {
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    Rows *rows = (Rows *)PyType_GenericAlloc(type, 0);
    if (rows == NULL) {
        munmap(mapping, (size_t)size);
        return NULL;
    }
    unsigned char *start = mapping;
    rows->mapping = mapping;
    rows->size = (size_t)size;
    rows->rows.cells = (int32_t *)(start + cells_offset);
    for (int kind = 0; kind < NATURALS; kind++) {
        rows->rows.naturals[kind] = (int64_t *)(start + naturals_offset + kind * naturals_stride);
    }
    rows->rows.block = (uint64_t *)(start + block_offset);
    rows->rows.slots = (uint32_t)slots;
    rows->rows.cell_limit = cell_limit;
    rows->rows.token = token;
    return (PyObject *)rows;
}

static PyType_Slot rows_type_slots[] = {
    {Py_tp_new, rows_new},
    {Py_tp_dealloc, rows_dealloc},
    {Py_tp_doc, "The rows of one lane, mapped to count in. The arguments are checked against the size of the file."},
    {0, NULL},
};

PyType_Spec rows_spec = {
    .name = "score_table._native.Rows",
    .basicsize = sizeof(Rows),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = rows_type_slots,
};
