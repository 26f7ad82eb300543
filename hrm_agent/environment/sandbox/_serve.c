/* The compiled body of a slot's loop, for the calls of which there are many: those that end soon and leave nothing.

   What a slot does is written in slot.py, and all of it works without this file. But an interpreter that runs writes to
   the pages that it shares with the child it has just cloned, if only to count references, and the kernel copies each of
   them: that costs more than the clone. This loop touches no Python object, so the slot's pages stay shared.

   A stateless call that exits before the first look at it is due, and whose working folder is as it was, is answered
   here. Everything else is handed to slot.py, before anything was done that it could not do itself: a session, an end,
   a call that still runs, a word from the host meanwhile, a folder to be swept. Only for slots with a process-id
   namespace: there the death of the child is the death of all that it started.

   No code and no output passes through the slot: the child reads its code itself, after it has shed what is the
   slot's, and goes on in Python with a function that does not come back. */

#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE
#include <Python.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef SOURCE
#define SOURCE ""
#endif
#ifndef CLONE_PIDFD
#define CLONE_PIDFD 0x00001000
#endif
#ifndef PR_GET_TID_ADDRESS
#define PR_GET_TID_ADDRESS 40
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif

/* As in slot.py and kernel.py. */
enum { CODE = 4, HOST = 5, MAX_DESCRIPTORS = 256 };
static const double TICK_SECONDS = 0.05;

/* As in protocol.py, REQUEST and REPLY; the numbers of Operation.RUN and Ended.EXITED. */
enum { RUN = 1, EXITED = 1 };

struct __attribute__((packed)) request {
    uint8_t operation;
    uint64_t call;
    uint8_t session, fresh;
    double wall_seconds, cpu_seconds;
    int64_t memory_bytes, file_bytes, value_bytes;
    uint64_t seed;
};

struct __attribute__((packed)) reply {
    uint64_t call;
    uint8_t ended;
    int32_t status;
    double duration_seconds, cpu_seconds;
    int64_t peak_bytes;
    uint8_t last;
};

struct slot {
    const char *folder;
    mode_t folder_mode;
    int64_t base_bytes;
    PyObject *run;
};

struct call {
    pid_t pid;
    int pidfd;
    double started;
};

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static double seconds_of(struct timeval time)
{
    return (double)time.tv_sec + (double)time.tv_usec * 1e-6;
}

static double smaller(double one, double other)
{
    return one < other ? one : other;
}

/* See kernel.clone: not the libc's fork, which runs hooks, but with the thread id where the libc looks for it. */
static pid_t clone_child(int *pidfd)
{
    unsigned long flags = SIGCHLD | CLONE_PIDFD | CLONE_NEWPID;
    int *tid = NULL;
    if (prctl(PR_GET_TID_ADDRESS, &tid, 0, 0, 0) == 0 && tid != NULL)
        flags |= CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID;
    else
        tid = NULL;
#ifdef __aarch64__
    return (pid_t)syscall(SYS_clone, flags, NULL, pidfd, NULL, tid);
#else
    return (pid_t)syscall(SYS_clone, flags, NULL, pidfd, tid, NULL);
#endif
}

/* The child ----------------------------------------------------------------------------------------------------- */

static int limit(int kind, int64_t value)
{
    struct rlimit limits;
    if (getrlimit(kind, &limits))
        return -1;
    if (limits.rlim_max == RLIM_INFINITY || limits.rlim_max > (rlim_t)value)
        limits.rlim_max = (rlim_t)value;
    limits.rlim_cur = limits.rlim_max;
    return setrlimit(kind, &limits);
}

/* Give up what is the slot's and accept the limits of the call: kernel.die_with_parent, drop_capabilities, limit_child.
   Before the code is read, so that a child that fails here never looks as if its snippet had begun. */
static int shed(const struct slot *slot, const struct request *request)
{
    struct __user_cap_header_struct version = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct nothing[2];
    memset(nothing, 0, sizeof nothing);
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    return syscall(SYS_capset, &version, nothing) || setsid() < 0
           || limit(RLIMIT_AS, slot->base_bytes + request->memory_bytes) || limit(RLIMIT_FSIZE, request->file_bytes)
           || limit(RLIMIT_CPU, (int64_t)request->cpu_seconds + 1);
}

/* All of the code, as text: by the file's offset the host sees that the snippet was reached. NULL if that fails. */
static PyObject *read_code(void)
{
    struct stat file;
    if (fstat(CODE, &file))
        return NULL;
    char *bytes = PyMem_Malloc((size_t)file.st_size + 1);
    for (off_t have = 0; bytes != NULL && have < file.st_size;) {
        ssize_t more = read(CODE, bytes + have, (size_t)(file.st_size - have));
        if (more > 0)
            have += more;
        else if (more == 0 || errno != EINTR)
            return NULL;
    }
    PyObject *code = bytes == NULL ? NULL : PyUnicode_DecodeUTF8(bytes, file.st_size, NULL);
    PyMem_Free(bytes);
    return code;
}

/* Never returns: the slot's frames are not to be run twice. */
static _Noreturn void become_child(const struct slot *slot, const struct request *request)
{
    if (shed(slot, request))
        _exit(1);
    PyObject *code = read_code();
    if (code == NULL)
        _exit(1);
    if (syscall(SYS_close_range, CODE, ~0U, 0))
        for (int descriptor = CODE; descriptor < MAX_DESCRIPTORS; descriptor++)
            close(descriptor);
    PyObject_CallFunction(slot->run, "OKL", code, (unsigned long long)request->seed, (long long)request->value_bytes);
    _exit(1);
}

/* The slot ------------------------------------------------------------------------------------------------------ */

/* Whether the child is dead when the first look at it is due, and the host has said nothing. */
static int ends_soon(const struct request *request, const struct call *call)
{
    double look = call->started + smaller(TICK_SECONDS, smaller(request->wall_seconds, request->cpu_seconds));
    struct pollfd watched[2] = {{call->pidfd, POLLIN, 0}, {HOST, POLLIN, 0}};
    for (;;) {
        double left = look - now();
        struct timespec timeout = {0, left > 0 ? (long)(left * 1e9) : 0};
        int ready = ppoll(watched, 2, &timeout, NULL);
        if (ready >= 0 || errno != EINTR)
            return ready > 0 && watched[0].revents;
    }
}

/* Whether the working folder is empty and as accessible as it was. */
static int is_clean(const struct slot *slot)
{
    struct entry {
        uint64_t inode, offset;
        uint16_t size;
        uint8_t kind;
        char name[];
    };
    _Alignas(struct entry) char buffer[512];
    struct stat folder;
    int descriptor = open(slot->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0)
        return 0;
    int clean = fstat(descriptor, &folder) == 0 && (folder.st_mode & 07777) == slot->folder_mode;
    long size = 1;
    while (clean && (size = syscall(SYS_getdents64, descriptor, buffer, sizeof buffer)) > 0)
        for (long at = 0; clean && at < size; at += ((struct entry *)(buffer + at))->size) {
            const char *name = ((struct entry *)(buffer + at))->name;
            clean = strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
        }
    close(descriptor);
    return clean && size == 0;
}

static void answer(const struct request *request, const struct call *call, double ended)
{
    int status = 0;
    struct rusage usage;
    memset(&usage, 0, sizeof usage);
    while (wait4(call->pid, &status, 0, &usage) < 0 && errno == EINTR)
        ;
    close(call->pidfd);
    struct reply reply = {
        .call = request->call,
        .ended = EXITED,
        .status = status,
        .duration_seconds = ended - call->started,
        .cpu_seconds = seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime),
        .peak_bytes = (int64_t)usage.ru_maxrss * 1024,
    };
    /* A host that is gone is found by the next recv. */
    while (send(HOST, &reply, sizeof reply, MSG_NOSIGNAL) < 0 && errno == EINTR)
        ;
}

static PyObject *hand_over(const struct request *request, ssize_t size, const struct call *call)
{
    return Py_BuildValue("(y#iid)", (const char *)request, (Py_ssize_t)size, (int)call->pid, call->pidfd, call->started);
}

static PyObject *serve(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    struct slot slot;
    unsigned int mode;
    long long base;
    if (!PyArg_ParseTuple(arguments, "sILO", &slot.folder, &mode, &base, &slot.run))
        return NULL;
    slot.folder_mode = (mode_t)mode;
    slot.base_bytes = base;
    for (;;) {
        struct request request;
        struct call call = {0, -1, 0.0};
        ssize_t size;
        while ((size = recv(HOST, &request, sizeof request, 0)) < 0 && errno == EINTR)
            ;
        if (size != sizeof request)
            return hand_over(&request, 0, &call);
        int plain = request.operation == RUN && !request.session;
        if (plain) {
            call.started = now();
            call.pid = clone_child(&call.pidfd);
            if (call.pid == 0)
                become_child(&slot, &request);
        }
        if (!plain || call.pid < 0 || !ends_soon(&request, &call) || !is_clean(&slot)) {
            if (call.pid < 0)
                call.pid = 0;
            PyObject *result = hand_over(&request, size, &call);
            explicit_bzero(&request, sizeof request);
            return result;
        }
        answer(&request, &call, now());
        explicit_bzero(&request, sizeof request);
    }
}

/* The host uses what was built from the file that it finds beside it, and nothing older. */
static int name_source(PyObject *module)
{
    return PyModule_AddStringConstant(module, "SOURCE", SOURCE);
}

static PyModuleDef_Slot steps[] = {{Py_mod_exec, name_source}, {0, NULL}};

static PyMethodDef functions[] = {
    {"serve", serve, METH_VARARGS,
     "serve(folder, mode, base_bytes, run) -> (request, pid, pidfd, started)\n\n"
     "Answers stateless calls until there is one for slot.py, or no host: then it is empty. pid is 0 if it was not\n"
     "begun. In a call's process run(code, seed, value_bytes) is called, and is to end it."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_serve", .m_doc = "See slot.py.", .m_size = 0, .m_methods = functions,
    .m_slots = steps,
};

PyMODINIT_FUNC PyInit__serve(void)
{
    return PyModuleDef_Init(&definition);
}
