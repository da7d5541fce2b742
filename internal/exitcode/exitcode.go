// Package exitcode has the exit codes of commands beyond a plain failure (1), and the error that
// carries one.
package exitcode

const (
	Usage      = 2 // the command line is wrong
	Removed    = 3 // (server) it was removed from its cluster: a restart is useless
	Refused    = 4 // it would do harm; nothing was changed
	Unfinished = 5 // it was begun, and its outcome is unknown
	Degraded   = 6 // (status, doctor) the cluster serves, with a fault
	NoQuorum   = 7 // the cluster has no leader; nothing was changed
	NoAnswer   = 8 // no server answers
	Lossy      = 9 // (ingress convert) it is printed, but for parts without an equivalent

	Interrupted = 130 // by Ctrl-C, before the start; as in shells
)

// Error is an error with an exit code.
type Error struct {
	Code int
	Err  error // nil when all is said
}

func (e *Error) Error() string {
	if e.Err == nil {
		return ""
	}
	return e.Err.Error()
}
func (e *Error) Unwrap() error { return e.Err }

// ExitCode is the code with which the process should end.
func (e *Error) ExitCode() int { return e.Code }
