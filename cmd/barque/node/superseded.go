package node

import (
	"fmt"
	"time"

	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/membership/enroll"
	"github.com/barque/barque/raftstore"
)

// supersededError ends a server in place of whose cluster another one goes on: what its store has
// is not the cluster's any more.
type supersededError struct {
	name, dataDir string
	raftstore.Succession
}

func (e *supersededError) Error() string {
	return fmt.Sprintf("this server, %s, is of cluster %s, and since %s cluster %s goes on in its place, without this server. It serves nothing and stops, so that there are not two. "+
		"To let the machine join that one, as a new server: %s; its pods are left as they are. "+
		"Only if cluster %s is given up for good: stop all of its servers, and recover this one: barque cluster recover --data-dir %s",
		e.name, e.Cluster, e.At.Format(time.RFC3339), e.Successor, clusterstatus.JoinAnew, e.Successor, e.dataDir)
}

// ExitCode is the code with which the process should end: starting it again is no use.
func (e *supersededError) ExitCode() int { return ExitRemoved }

// superseded makes the server stop: see supersededError. It does not block.
func (s *server) superseded(o raftstore.Succession) {
	s.fail(&supersededError{s.options.Name, s.options.DataDir, o})
}

// SupersededBy tells which cluster goes on in place of that of a data directory; nil when its
// server has not learned of one, or nothing can be read.
func SupersededBy(dataDir string) *raftstore.Succession {
	s, err := raftstore.Superseded(enroll.StoreDir(dataDir))
	if err != nil {
		return nil
	}
	return s
}
