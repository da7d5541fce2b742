// Package exitcode has the exit codes of commands beyond a plain failure (1), and the error that
// carries one.
package exitcode

const (
	Usage      = 2 // the command line is wrong
	Removed    = 3 // (server) it was taken out of its cluster: starting it again is no use
	Refused    = 4 // it would do harm, and nothing was changed
	Unfinished = 5 // it was begun, and its end is not known
	Degraded   = 6 // (status, doctor) the cluster serves, and something is wrong with it
	NoQuorum   = 7 // the cluster has no leader, so nothing can be written, and nothing was
	NoAnswer   = 8 // no server answers

	Interrupted = 130 // by Ctrl-C, before anything was begun; as shells have it
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
