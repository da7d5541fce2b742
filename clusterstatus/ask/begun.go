// Package ask asks the servers of a cluster how it does, from outside; none of them must answer. It
// also tells what this machine knows: what the node of a data directory was in the middle of, and
// how the nodes of a dev cluster are got at. What the answers mean is clusterstatus's.
package ask

import (
	"cmp"
	"fmt"
	"os"
	"time"

	"github.com/barque/barque/backups"
	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/internal/filelock"
	"github.com/barque/barque/membership/enroll"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/raftstore"
)

// Begun tells what the node of a data directory was in the middle of, as the plans there say, and
// what goes on with it: a recovery, or a joining; or that its server is superseded. Other servers
// do not know of either. It is nil when there is nothing, or nothing can be read, and while a
// process runs with the directory: that is about it.
func Begun(dataDir string) *clusterstatus.Warning {
	w := planned(dataDir)
	if w == nil {
		return nil
	}
	if held, err := filelock.Held(enroll.LockFile(dataDir)); err == nil && held {
		return nil
	}
	return w
}

// planned is what the plans of a data directory say, whether anybody is about it or not.
func planned(dataDir string) *clusterstatus.Warning {
	w := &clusterstatus.Warning{Severity: clusterstatus.Attention, Mend: "barque server --data-dir " + dataDir}
	if plan, err := backups.LoadRecovery(dataDir); err == nil && plan != nil {
		w.Node, _ = enroll.ServerName(dataDir) // it may be gone, and the plan is what counts
		w.Text = fmt.Sprintf("on this machine, in %s, the recovery of cluster %s as cluster %s was begun and is not finished", dataDir, plan.Was, plan.ClusterID)
		return w
	}
	r, err := enroll.Load(dataDir)
	if err != nil {
		return nil
	}
	if o := supersededBy(dataDir); o != nil && r != nil && r.Phase == enroll.PhaseMember {
		w.Node, w.Severity, w.Mend = r.Name, clusterstatus.Critical, clusterstatus.JoinAnew
		w.Text = fmt.Sprintf("on this machine, in %s, the server %s is superseded: it is of cluster %s, and since %s cluster %s goes on in its place", dataDir, r.Name, o.Cluster, o.At.Format(time.RFC3339), o.Successor)
		return w
	}
	_, err = os.Stat(enroll.RejoinPath(dataDir))
	granted := err == nil
	what := ""
	if r != nil {
		what = map[string]string{enroll.PhaseBootstrap: "begin a cluster", enroll.PhaseAsking: "join a cluster", enroll.PhaseJoining: "join cluster " + r.Cluster.ID, enroll.PhaseWiping: "join cluster " + r.Cluster.ID + " again"}[r.Phase]
		w.Node = r.Name
		if r.Role == pki.RoleAgent {
			w.Mend = "barque agent --data-dir " + dataDir
		}
	}
	if granted {
		what = cmp.Or(what, "join again")
	}
	if what == "" {
		return nil
	}
	w.Text = fmt.Sprintf("on this machine, in %s, %s was about to %s, and is not done with it", dataDir, cmp.Or(w.Node, "a node"), what)
	w.Mend += ", with the arguments that it was started with"
	return w
}

// supersededBy tells which cluster goes on in place of that of a data directory; nil when its
// server has not learned of one, or nothing can be read.
func supersededBy(dataDir string) *raftstore.Succession {
	s, err := raftstore.Superseded(enroll.StoreDir(dataDir))
	if err != nil {
		return nil
	}
	return s
}
