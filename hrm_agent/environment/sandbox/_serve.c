/* The compiled body of a slot's loop, for the calls of which there are many: those that end soon and leave nothing.

   What a slot does is written in slot.py, and all of it works without this file. But an interpreter that runs writes to
   the pages that it shares with the child it has just cloned, if only to count references, and the kernel copies each of
   them: that costs more than the clone. This loop touches no Python object, so the slot's pages stay shared.

   A slot that has nothing to do clones the child of its next call ahead, and lets it rehearse: what every snippet
   writes to is copied while nobody waits for it. Where calls wait in line that costs more than it saves, and the slot
   waits longer before it does so. The child looks at the request that comes, tells the slot, and goes on; the slot then
   takes the request from the socket: so a child that dies first takes no request with it.

   A stateless call that exits before the first look at it is due, and whose working folder is as it was, is answered
   here. So is the first call of a session, if its process is to the filter as quiet as that, and so is the session's
   end, if no second call came before: its process was stopped meanwhile, if it stood idle for long. Everything else is
   handed to slot.py, before anything was done that it could not do itself: a session's second call, a call that still
   runs, a word from the host or the filter meanwhile, a thread that the session has left, a folder to be swept; in a
   cgroup, every session, and a call with another limit of memory than the last. Only for slots with a process-id
   namespace: there the death of the child is the death of all that it started.

   No code and no output passes through the slot: the child reads its code itself, after it has shed what is the
   slot's, and goes on in Python with a function that does not come back. */

#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE
#include <Python.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
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
#ifndef CLONE_INTO_CGROUP
#define CLONE_INTO_CGROUP 0x200000000ULL
#endif
#ifndef SYS_clone3
#define SYS_clone3 435
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif

/* As in slot.py; the last two in a session's process, see child.py. */
enum { VALUE = 3, CODE = 4, HOST = 5, PROC = 6, ANSWERS = 5, REQUESTS = 6 };
/* Without a request for so long, a child is cloned ahead: not at once, for whoever was told of the last call's end waits
   for this core; later, where the last request said that others wait for one, too. */
enum { IDLE_MILLISECONDS = 2, CROWDED_MILLISECONDS = 10 };
static const double TICK_SECONDS = 0.05;
/* Of an idle session, as in slot.py: until it is stopped, and between two looks whether it still is. */
enum { PARK_MILLISECONDS = 200, FIRST_LOOK_MILLISECONDS = 10, LAST_LOOK_MILLISECONDS = 5000 };

/* As in protocol.py, REQUEST and REPLY; numbers of Operation and Ended. */
enum { RUN = 1, END_SESSION = 3 };
enum { EXITED = 1, KILLED = 3, ANSWERED = 4, OUT_OF_MEMORY = 5 };

struct __attribute__((packed)) request {
    uint8_t operation;
    uint64_t call;
    uint8_t session, fresh;
    double wall_seconds, cpu_seconds;
    int64_t memory_bytes, file_bytes, value_bytes;
    uint64_t seed;
    uint8_t crowded;
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
    PyObject *run, *run_session, *rehearse;
    char files[CODE][64]; /* stdout, stderr, value and code, from /proc */
    int told[2];          /* a pipe: struct word */
    /* Pipes for the next session, from its process and to it, which no process of a session has yet; -1 if there are
       none. */
    int answers[2], requests[2];
    int listener; /* seccomp listener; -1 without one */
    /* The cgroup of its calls, -1 if they have none, and its files: see cgroup.SlotGroup. */
    int group, cpu, peak, events;
    long long memory_limit;
    struct sock_fprog without_spawning;
};

/* How a session's process is handed over: its call still runs, it stands idle, it has to be stopped, it is stopped. */
enum state { AT_WORK, IDLE, RESTLESS, STOPPED };

struct call {
    pid_t pid;
    int pidfd;
    int answers, requests; /* the slot's ends of a session's pipes; -1 outside sessions */
    enum state state;
    double started; /* on the monotonic clock */
    double used;    /* CPU time that the child had used before */
    double spent;   /* CPU time of all that was in the cgroup before the child */
};

/* Written to the pipe by a child that has peeked at a request; fields as in struct call. */
struct word {
    double started, used, spent;
    int begins; /* 0: slot.py has to handle the request */
};

static double reading(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static double now(void)
{
    return reading(CLOCK_MONOTONIC);
}

static double seconds_of(struct timeval time)
{
    return (double)time.tv_sec + (double)time.tv_usec * 1e-6;
}

static double smaller(double one, double other)
{
    return one < other ? one : other;
}

/* memory.figure: the number on the line that begins with a name. Elsewhere in a line anything may stand that a snippet
   chose. 0 if there is no such line. */
static long long figure_in(const char *text, const char *name)
{
    size_t size = strlen(name);
    while (text != NULL && strncmp(text, name, size) != 0) {
        text = strchr(text, '\n');
        text += text != NULL;
    }
    return text == NULL ? 0 : strtoll(text + size, NULL, 10);
}

static long long figure(int file, const char *name)
{
    char text[4096];
    ssize_t size = pread(file, text, sizeof text - 1, 0);
    text[size < 0 ? 0 : size] = 0;
    return figure_in(text, name);
}

static double spent_in(const struct slot *slot)
{
    return slot->group < 0 ? 0.0 : (double)figure(slot->cpu, "usage_usec ") * 1e-6;
}

/* The descriptor is -1 where the kernel cannot reset it (cgroup.SlotGroup). */
static void reset_peak(const struct slot *slot)
{
    if (slot->peak >= 0)
        (void)!pwrite(slot->peak, "0", 1, 0);
}

/* See kernel.clone: not the libc's fork, which runs hooks, but with the thread id where the libc looks for it. */
static pid_t clone_child(const struct slot *slot, int *pidfd)
{
    unsigned long flags = SIGCHLD | CLONE_PIDFD | CLONE_NEWPID;
    int *tid = NULL;
    if (prctl(PR_GET_TID_ADDRESS, &tid, 0, 0, 0) == 0 && tid != NULL)
        flags |= CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID;
    else
        tid = NULL;
    if (slot->group >= 0) {
        uint64_t given[11] = {flags - SIGCHLD + CLONE_INTO_CGROUP, (uintptr_t)pidfd, (uintptr_t)tid, 0, SIGCHLD};
        given[10] = (uint64_t)slot->group;
        return (pid_t)syscall(SYS_clone3, given, sizeof given);
    }
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

static int reopen(int descriptor, int folder, const char *path, int flags)
{
    int own = openat(folder, path, flags);
    if (own < 0 || dup2(own, descriptor) < 0)
        return -1;
    return close(own);
}

/* kernel.own_descriptors, through /proc/<slot>, which the kernel has in its cache; /proc/<child> would have to be made
   first. A session's process keeps the code's. */
static int own_descriptors(const struct slot *slot, int last)
{
    for (int descriptor = 1; descriptor <= last; descriptor++)
        if (reopen(descriptor, PROC, slot->files[descriptor - 1], O_RDWR))
            return -1;
    return reopen(0, AT_FDCWD, "/dev/null", O_RDONLY);
}

/* Give up what is the slot's, and accept the limits of the call: kernel.drop_capabilities, limit_child and
   seccomp.give_up_spawning. Before the code is read, so that a child that fails here never looks as if its snippet had
   begun. */
static int shed(const struct slot *slot, const struct request *request)
{
    struct __user_cap_header_struct version = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct nothing[2];
    memset(nothing, 0, sizeof nothing);
    return own_descriptors(slot, request->session ? CODE : VALUE) || syscall(SYS_capset, &version, nothing)
           || setsid() < 0 || limit(RLIMIT_AS, slot->base_bytes + request->memory_bytes)
           || limit(RLIMIT_FSIZE, request->file_bytes)
           || (!request->session && limit(RLIMIT_CPU, (int64_t)request->cpu_seconds + 1))
           || (slot->group >= 0 && syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &slot->without_spawning));
}

/* snippet.rehearse, which prints, and writes a value; own_descriptors comes after it. */
static int rehearse(const struct slot *slot)
{
    for (int descriptor = 1; descriptor <= VALUE; descriptor++)
        if (reopen(descriptor, AT_FDCWD, "/dev/null", O_WRONLY))
            return -1;
    PyObject *done = PyObject_CallNoArgs(slot->rehearse);
    Py_XDECREF(done);
    return done == NULL;
}

/* Whether it is begun here. A session only where the filter tells of the processes that it makes: until then it is one
   process, that has to be looked at for its threads alone. */
static int is_plain(const struct slot *slot, const struct request *request, ssize_t size)
{
    if (size != sizeof *request || request->operation != RUN)
        return 0;
    if (request->session)
        return request->fresh && slot->group < 0 && slot->listener >= 0 && slot->answers[0] >= 0;
    return slot->group < 0 || request->memory_bytes == slot->memory_limit;
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

/* Wait for a request, peek at it, and tell the slot. */
static int await(const struct slot *slot, struct request *request)
{
    ssize_t size;
    while ((size = recv(HOST, request, sizeof *request, MSG_PEEK)) < 0 && errno == EINTR)
        ;
    if (size <= 0) /* the host is gone */
        return -1;
    double used = reading(CLOCK_PROCESS_CPUTIME_ID);
    reset_peak(slot);
    struct word word = {now(), used, spent_in(slot) - used, is_plain(slot, request, size)};
    return write(slot->told[1], &word, sizeof word) != sizeof word || !word.begins;
}

/* Never returns: the slot's frames are not to be run twice. Without a request it waits for one. */
static _Noreturn void become_child(const struct slot *slot, const struct request *given)
{
    struct request request;
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (given != NULL)
        request = *given;
    else if (rehearse(slot) || await(slot, &request))
        _exit(1);
    if (shed(slot, &request))
        _exit(1);
    PyObject *code = read_code(), *run = request.session ? slot->run_session : slot->run;
    if (code == NULL)
        _exit(1);
    if (request.session && (dup2(slot->answers[1], ANSWERS) < 0 || dup2(slot->requests[0], REQUESTS) < 0))
        _exit(1);
    if (syscall(SYS_close_range, request.session ? REQUESTS + 1 : CODE, ~0U, 0))
        _exit(1);
    PyObject_CallFunction(run, "OKL", code, (unsigned long long)request.seed, (long long)request.value_bytes);
    _exit(1);
}

/* The slot ------------------------------------------------------------------------------------------------------ */

/* Pipes for a session that comes next; the slot does not wait at its ends. */
static void open_pipes(struct slot *slot)
{
    if (slot->answers[0] >= 0 || slot->group >= 0 || slot->listener < 0 || pipe(slot->answers))
        return;
    if (pipe(slot->requests)) {
        close(slot->answers[0]);
        close(slot->answers[1]);
        slot->answers[0] = -1;
        return;
    }
    fcntl(slot->answers[0], F_SETFL, O_RDONLY | O_NONBLOCK);
    fcntl(slot->requests[1], F_SETFL, O_WRONLY | O_NONBLOCK);
}

/* A session has begun, and the pipes are its own. */
static void take_pipes(struct slot *slot, struct call *call)
{
    call->answers = slot->answers[0];
    call->requests = slot->requests[1];
    close(slot->answers[1]);
    close(slot->requests[0]);
    slot->answers[0] = -1;
}

/* Whether the child is dead when the first look at it is due, or has answered if it is a session's, and neither the host
   nor the filter has said anything. */
static int ends_soon(const struct slot *slot, const struct request *request, const struct call *call)
{
    double look = call->started + smaller(TICK_SECONDS, smaller(request->wall_seconds, request->cpu_seconds));
    struct pollfd watched[4] = {
        {call->pidfd, POLLIN, 0}, {call->answers, POLLIN, 0}, {HOST, POLLIN, 0}, {slot->listener, POLLIN, 0}};
    for (;;) {
        double left = look - now();
        struct timespec timeout = {0, left > 0 ? (long)(left * 1e9) : 0};
        int ready = ppoll(watched, 4, &timeout, NULL);
        if (ready < 0 && errno == EINTR)
            continue;
        if (request->session)
            return ready == 1 && watched[1].revents == POLLIN;
        return ready > 0 && watched[0].revents;
    }
}

/* Whether the working folder is empty and as accessible as it was; then its times are made those of now. */
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
    clean = clean && size == 0 && futimens(descriptor, NULL) == 0;
    close(descriptor);
    return clean;
}

static void answer(const struct slot *slot, const struct request *request, const struct call *call, double ended)
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
        .cpu_seconds = seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime) - call->used,
        .peak_bytes = (int64_t)usage.ru_maxrss * 1024,
    };
    if (slot->group >= 0)
        reply.cpu_seconds = spent_in(slot) - call->spent - call->used;
    if (slot->events >= 0 && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && figure(slot->events, "oom_kill ") > 0)
        reply.ended = OUT_OF_MEMORY;
    if (slot->peak >= 0) {
        int64_t peak = figure(slot->peak, "");
        reply.peak_bytes = peak > reply.peak_bytes ? peak : reply.peak_bytes;
    }
    /* A host that is gone is found by the next recv. */
    while (send(HOST, &reply, sizeof reply, MSG_NOSIGNAL) < 0 && errno == EINTR)
        ;
}

/* Sessions ------------------------------------------------------------------------------------------------------ */

/* What /proc says of a process, as a string. */
static void read_proc(pid_t pid, const char *name, char *text, size_t size)
{
    char path[32];
    ssize_t have = -1;
    snprintf(path, sizeof path, "%d/%s", (int)pid, name);
    int file = openat(PROC, path, O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        have = read(file, text, size - 1);
        close(file);
    }
    text[have < 0 ? 0 : have] = 0;
}

/* memory.Tree.peak_bytes, of one process. */
static int64_t peak_bytes(pid_t pid)
{
    char text[4096];
    read_proc(pid, "status", text, sizeof text);
    return figure_in(text, "VmHWM:") * 1024;
}

/* Whether a process has one thread; with `stopped`, one that does not run. memory.Tree.is_still. */
static int is_single(pid_t pid, int stopped)
{
    char text[1024], state;
    int threads;
    read_proc(pid, "stat", text, sizeof text);
    const char *rest = strrchr(text, ')');
    if (rest == NULL
        || sscanf(rest + 1, " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %d", &state, &threads)
               != 2)
        return 0;
    return threads == 1 && (!stopped || strchr("tTZXD", state) != NULL);
}

/* A session's first call has ended: take its word, and say so. False if there is more than one, which is slot.py's to
   look at. */
static int answer_session(const struct request *request, struct call *call)
{
    double ended = now();
    clockid_t clock = (clockid_t)(((unsigned)~call->pid << 3) | 2); /* of the process, as in child.py */
    unsigned char code = 1;
    int words = 0;
    if (ioctl(call->answers, FIONREAD, &words) || words != 1 || read(call->answers, &code, 1) != 1)
        return 0;
    struct reply reply = {
        .call = request->call,
        .ended = ANSWERED,
        .status = code << 8,
        .duration_seconds = ended - call->started,
        .cpu_seconds = reading(clock) - call->used,
        .peak_bytes = peak_bytes(call->pid),
    };
    while (send(HOST, &reply, sizeof reply, MSG_NOSIGNAL) < 0 && errno == EINTR)
        ;
    return 1;
}

/* Whether the host wants the session to end, and nobody else has said anything. The request is then taken. */
static int is_to_end(struct request *request)
{
    if (recv(HOST, request, sizeof *request, MSG_PEEK | MSG_DONTWAIT) != sizeof *request)
        return 0;
    return request->operation == END_SESSION && recv(HOST, request, sizeof *request, 0) == sizeof *request;
}

/* Whether an idle session is ended by the host. It is stopped when it has been idle for long; what else it does, or is to
   do, is for slot.py. */
static int rests(const struct slot *slot, struct request *request, struct call *call)
{
    struct pollfd watched[4] = {
        {HOST, POLLIN, 0}, {call->pidfd, POLLIN, 0}, {call->answers, POLLIN, 0}, {slot->listener, POLLIN, 0}};
    struct request next;
    int wait = PARK_MILLISECONDS, look = FIRST_LOOK_MILLISECONDS;
    for (call->state = IDLE;;) {
        int ready = poll(watched, 4, wait);
        if (ready < 0 && errno == EINTR)
            continue;
        if (ready == 0) {
            if (call->state == IDLE) {
                kill(call->pid, SIGSTOP);
                watched[3].fd = -1; /* nobody answers the filter: so it makes no process that would not be stopped */
            } else
                look = 2 * look < LAST_LOOK_MILLISECONDS ? 2 * look : LAST_LOOK_MILLISECONDS;
            if (!is_single(call->pid, call->state == STOPPED)) {
                call->state = RESTLESS;
                return 0;
            }
            call->state = STOPPED;
            wait = look;
            continue;
        }
        if (ready != 1 || !watched[0].revents || !is_to_end(&next))
            return 0;
        next.crowded = request->crowded;
        *request = next;
        return 1;
    }
}

/* End a session's process; true if it has left nothing, and that was said. */
static int end_session(const struct slot *slot, const struct request *request, struct call *call)
{
    kill(call->pid, SIGKILL);
    while (waitpid(call->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    close(call->pidfd);
    close(call->answers);
    close(call->requests);
    call->pid = 0;
    if (!is_clean(slot))
        return 0;
    struct reply reply = {.call = request->call, .ended = KILLED};
    while (send(HOST, &reply, sizeof reply, MSG_NOSIGNAL) < 0 && errno == EINTR)
        ;
    return 1;
}

/* A session's first call and its end. False if the rest is slot.py's. */
static int serve_session(struct slot *slot, struct request *request, struct call *call)
{
    take_pipes(slot, call);
    if (!ends_soon(slot, request, call) || !answer_session(request, call))
        return 0;
    request->seed = 0;
    return rests(slot, request, call) && end_session(slot, request, call);
}

/* Calls --------------------------------------------------------------------------------------------------------- */

static PyObject *hand_over(const struct request *request, ssize_t size, const struct call *call)
{
    return Py_BuildValue("(y#iidddiii)", (const char *)request, (Py_ssize_t)size, (int)call->pid, call->pidfd,
                         call->started, call->used, call->spent, call->answers, call->requests, (int)call->state);
}

/* Clone a child ahead, and wait until it has a request. One that dies, or makes a call that the filter reports, is
   killed: the request is then begun by a new one.

   What it tells is looked at last: it comes before all else that the child can be the cause of, and so is not missed. */
static void clone_ahead(const struct slot *slot, struct call *call)
{
    struct word word = {0};
    call->pid = clone_child(slot, &call->pidfd);
    if (call->pid == 0)
        become_child(slot, NULL);
    if (call->pid > 0) {
        struct pollfd watched[3] = {{call->pidfd, POLLIN, 0}, {slot->listener, POLLIN, 0}, {slot->told[0], POLLIN, 0}};
        while (poll(watched, 3, -1) < 0 && errno == EINTR)
            ;
        if (watched[2].revents && read(slot->told[0], &word, sizeof word) == sizeof word && word.begins) {
            call->started = word.started;
            call->used = word.used;
            call->spent = word.spent;
            return;
        }
        kill(call->pid, SIGKILL);
        while (waitpid(call->pid, NULL, 0) < 0 && errno == EINTR)
            ;
        close(call->pidfd);
    }
    call->pid = 0;
}

/* Returns the size of the request, 0 if the host has closed the socket. */
static ssize_t take_request(struct request *request)
{
    ssize_t size;
    while ((size = recv(HOST, request, sizeof *request, 0)) < 0 && errno == EINTR)
        ;
    return size == sizeof *request ? size : 0;
}

/* Until there is a request for slot.py, of which the size is returned; call.pid is 0 if it was not begun. */
static ssize_t answer_calls(struct slot *slot, struct request *request, struct call *call)
{
    for (int patience = IDLE_MILLISECONDS;; patience = request->crowded ? CROWDED_MILLISECONDS : IDLE_MILLISECONDS) {
        struct pollfd host = {HOST, POLLIN, 0};
        call->pid = 0;
        call->state = AT_WORK;
        call->answers = call->requests = -1;
        call->used = 0.0;
        open_pipes(slot);
        if (poll(&host, 1, patience) == 0)
            clone_ahead(slot, call);
        ssize_t size = take_request(request);
        if (!is_plain(slot, request, size))
            return size;
        if (call->pid == 0) {
            reset_peak(slot);
            call->spent = spent_in(slot);
            call->started = now();
            call->pid = clone_child(slot, &call->pidfd);
            if (call->pid == 0)
                become_child(slot, request);
            if (call->pid < 0)
                call->pid = 0;
        }
        if (call->pid != 0 && request->session) {
            if (!serve_session(slot, request, call))
                return size;
            continue;
        }
        if (call->pid == 0 || !ends_soon(slot, request, call) || !is_clean(slot))
            return size;
        answer(slot, request, call, now());
        request->seed = 0; /* not for the next call to find */
    }
}

static PyObject *serve(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    struct slot slot;
    unsigned int mode;
    long long base;
    const char *program;
    Py_ssize_t program_size;
    if (!PyArg_ParseTuple(arguments, "sILOOOiiiiiLy#", &slot.folder, &mode, &base, &slot.run, &slot.run_session,
                          &slot.rehearse, &slot.listener, &slot.group, &slot.cpu, &slot.peak, &slot.events,
                          &slot.memory_limit, &program, &program_size))
        return NULL;
    slot.without_spawning.len = (unsigned short)((size_t)program_size / sizeof(struct sock_filter));
    slot.without_spawning.filter = (struct sock_filter *)program;
    slot.folder_mode = (mode_t)mode;
    slot.base_bytes = base;
    char place[32] = "";
    if (readlinkat(PROC, "self", place, sizeof place - 1) < 0 || pipe(slot.told))
        return PyErr_SetFromErrno(PyExc_OSError);
    slot.answers[0] = -1;
    for (int descriptor = 1; descriptor <= CODE; descriptor++)
        snprintf(slot.files[descriptor - 1], sizeof slot.files[0], "%s/fd/%d", place, descriptor);
    struct call call = {.pidfd = -1, .answers = -1, .requests = -1, .spent = spent_in(&slot)};
    struct request request;
    ssize_t size = answer_calls(&slot, &request, &call);
    close(slot.told[0]);
    close(slot.told[1]);
    if (slot.answers[0] >= 0)
        for (int end = 0; end < 2; end++) {
            close(slot.answers[end]);
            close(slot.requests[end]);
        }
    PyObject *result = hand_over(&request, size, &call);
    explicit_bzero(&request, sizeof request);
    return result;
}

/* The host uses what was built from the file that it finds beside it, and nothing older. */
static int name_source(PyObject *module)
{
    return PyModule_AddStringConstant(module, "SOURCE", SOURCE);
}

static PyModuleDef_Slot steps[] = {{Py_mod_exec, name_source}, {0, NULL}};

static PyMethodDef functions[] = {
    {"serve", serve, METH_VARARGS,
     "serve(folder, mode, base_bytes, run, run_session, rehearse, listener, group, cpu, peak, events,\n"
     "      memory_limit, without_spawning)\n"
     "  -> (request, pid, pidfd, started, before, spent, answers, requests, state)\n\n"
     "Answers calls until there is one for slot.py, or no host: then it is empty. pid is 0 if it was not begun. Of a\n"
     "session answers and requests are the slot's ends of its pipes, and state is a protocol.Handed.\n"
     "In a call's process run(code, seed, value_bytes) is called, and is to end it; in a session's, run_session."},
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
