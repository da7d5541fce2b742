package clusterstatus

import (
	"fmt"
	"time"

	"github.com/barque/barque/internal/exitcode"
	"github.com/barque/barque/raftstore"
)

// JoinAgain is the command, in the store's messages, by which a server joins again as a new one.
const JoinAgain = "let it join again as a new one: start it with --wipe --join https://SERVER:6443 --token TOKEN"

// RemovedError ends a server that is a member no more.
type RemovedError struct {
	Name    string
	Removal raftstore.Removal
}

func (e *RemovedError) Error() string {
	return fmt.Sprintf(
		"this server, %s, was taken out of its cluster at %s (%s). It serves nothing and stops. To let the machine join again, as a new server: "+
			"start it with --wipe --join https://SERVER:6443 --token TOKEN, or with an empty data directory; its pods stay",
		e.Name, e.Removal.At.Format(time.RFC3339), e.Removal.Why)
}

// ExitCode is the code with which the process should end.
func (e *RemovedError) ExitCode() int { return exitcode.Removed }

// SupersededError ends a server whose cluster has a successor. The data in its store are no longer
// the cluster's.
type SupersededError struct {
	Name, DataDir string
	raftstore.Succession
}

func (e *SupersededError) Error() string {
	return fmt.Sprintf(
		"this server, %s, is of cluster %s, and since %s cluster %s goes on in its place, without this server. It stops and serves nothing, so that there is only one cluster. "+
			"To let the machine join that one, as a new server: %s; its pods are left as they are. "+
			"Only if cluster %s is abandoned for good: stop all of its servers, and recover this one: barque cluster recover --data-dir %s",
		e.Name, e.Cluster, e.At.Format(time.RFC3339), e.Successor, JoinAnew, e.Successor, e.DataDir)
}

// ExitCode is the exit code of the process. A restart would fail again.
func (e *SupersededError) ExitCode() int { return exitcode.Removed }

// Err returns the error of a command that has printed the health: an exit code without a text, or
// nil.
func (h ClusterHealth) Err() error {
	switch h {
	case NoQuorum:
		return &exitcode.Error{Code: exitcode.NoQuorum}
	case Degraded:
		return &exitcode.Error{Code: exitcode.Degraded}
	}
	return nil
}
