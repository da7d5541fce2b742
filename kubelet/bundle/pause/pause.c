/*
 * pause holds a pod's namespaces open. As PID 1 of a pod that shares its
 * process namespace it also reaps the orphans that nobody else waits for.
 * It ends at once on SIGTERM or SIGINT, so that stopping a sandbox never
 * waits for a grace period.
 */
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	sigset_t set;

	(void)argc;
	(void)argv;

	/* Signals are taken from sigwait one by one: no handler, no races. */
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGCHLD);
	if (sigprocmask(SIG_BLOCK, &set, NULL) != 0)
		return 1;

	for (;;) {
		int sig = 0;

		if (sigwait(&set, &sig) != 0)
			return 2;
		if (sig != SIGCHLD)
			return 0;
		/* One SIGCHLD may stand for many children. */
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
	}
}
