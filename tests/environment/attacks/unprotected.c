/* Ends by the signal that it is told, also where it is the first process of its namespace, which the kernel protects.

   A thread that blocks SIGSEGV faults: the kernel forces the signal on it, and takes the handler, the mask and the
   protection (SIGNAL_UNKILLABLE) away for that. Where another thread sets the handler again before the signal is
   delivered, the process lives on without them. Else it dies by the fault; how often depends on idle cores. */

#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SETTERS = 8 };

static volatile int done;
static __thread sigjmp_buf back;

static void caught(int number)
{
    (void)number;
    siglongjmp(back, 1);
}

static void *set_handlers(void *unused)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = caught;
    action.sa_flags = SA_NODEFER;
    while (!done)
        sigaction(SIGSEGV, &action, NULL);
    return unused;
}

static void *fault(void *unused)
{
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGSEGV);
    pthread_sigmask(SIG_BLOCK, &blocked, NULL);
    if (sigsetjmp(back, 0) == 0)
        *(volatile int *)8 = 1;
    return unused;
}

int main(int count, char **words)
{
    pthread_t setters[SETTERS], faulter;
    int number = count > 1 ? atoi(words[1]) : SIGKILL;
    for (int i = 0; i < SETTERS; i++)
        pthread_create(&setters[i], NULL, set_handlers, NULL);
    usleep(2000);
    pthread_create(&faulter, NULL, fault, NULL);
    pthread_join(faulter, NULL);
    done = 1;
    for (int i = 0; i < SETTERS; i++)
        pthread_join(setters[i], NULL);
    signal(number, SIG_DFL);
    syscall(SYS_kill, getpid(), number);
    usleep(100000);
    return 3;
}
