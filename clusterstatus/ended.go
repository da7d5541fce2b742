package clusterstatus

import (
	"fmt"
	"time"

	"github.com/barque/barque/internal/exitcode"
	"github.com/barque/barque/raftstore"
)

// JoinAgain tells, in the store's messages, how a server joins again as a new one.
const JoinAgain = "let it join again as a new one: start it with --wipe --join https://SERVER:6443 --token TOKEN"

// RemovedError ends a server that is a member no more.
type RemovedError struct {
	Name    string
	Removal raftstore.Removal
}

func (e *RemovedError) Error() string {
	return fmt.Sprintf("this server, %s, was taken out of its cluster at %s (%s). It serves nothing and stops. To let the machine join again, as a new server: "+
		"start it with --wipe --join https://SERVER:6443 --token TOKEN, or with an empty data directory; its pods are left as they are",
		e.Name, e.Removal.At.Format(time.RFC3339), e.Removal.Why)
}

// ExitCode is the code with which the process should end.
func (e *RemovedError) ExitCode() int { return exitcode.Removed }

// SupersededError ends a server in place of whose cluster another one goes on: what its store has
// is not the cluster's any more.
type SupersededError struct {
	Name, DataDir string
	raftstore.Succession
}

func (e *SupersededError) Error() string {
	return fmt.Sprintf("this server, %s, is of cluster %s, and since %s cluster %s goes on in its place, without this server. It serves nothing and stops, so that there are not two. "+
		"To let the machine join that one, as a new server: %s; its pods are left as they are. "+
		"Only if cluster %s is given up for good: stop all of its servers, and recover this one: barque cluster recover --data-dir %s",
		e.Name, e.Cluster, e.At.Format(time.RFC3339), e.Successor, JoinAnew, e.Successor, e.DataDir)
}

// ExitCode is the code with which the process should end: starting it again is no use.
func (e *SupersededError) ExitCode() int { return exitcode.Removed }

// Err is the error with which a command ends that has told of the health: an exit code without a
// text, or nil.
func (h ClusterHealth) Err() error {
	switch h {
	case NoQuorum:
		return &exitcode.Error{Code: exitcode.NoQuorum}
	case Degraded:
		return &exitcode.Error{Code: exitcode.Degraded}
	}
	return nil
}
