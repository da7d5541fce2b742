package node

import (
	"fmt"
	"time"

	"github.com/barque/barque/raftstore"
)

// outlivedError ends a server whose cluster was recovered without it: what its store has is not the cluster's any more.
type outlivedError struct {
	name, dataDir string
	raftstore.Succession
}

func (e *outlivedError) Error() string {
	return fmt.Sprintf("this server, %s, is of cluster %s, which was recovered without it at %s, and goes on as cluster %s. It serves nothing and stops, so that there are not two. "+
		"To let the machine join that one, as a new server: start it with --wipe --join https://SERVER:6443 --token TOKEN; its pods are left as they are. "+
		"Only if cluster %s is given up for good: stop all of its servers, and recover this one: barque cluster recover --data-dir %s",
		e.name, e.Cluster, e.At.Format(time.RFC3339), e.Heir, e.Heir, e.dataDir)
}

// ExitCode is the code with which the process should end: starting it again is no use.
func (e *outlivedError) ExitCode() int { return ExitRemoved }

// outlived makes the server stop: see outlivedError. It does not block.
func (s *server) outlived(o raftstore.Succession) {
	s.fail(&outlivedError{s.options.Name, s.options.DataDir, o})
}

// LeftBehind tells how the cluster of the server of a data directory was recovered without it, and goes on; nil when the
// server has not learned of such a thing, or nothing can be read.
func LeftBehind(dataDir string) *raftstore.Succession {
	s, err := raftstore.Outlived(storeDir(dataDir))
	if err != nil {
		return nil
	}
	return s
}
