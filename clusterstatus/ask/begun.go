// Package ask asks the servers of a cluster for its status, from outside, even if some do not
// answer. It also reads this machine's records: an unfinished procedure in a data directory, and
// the access to the nodes of a dev cluster. Package clusterstatus interprets the answers.
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

// Begun returns the unfinished procedure in a data directory, with its next step: a recovery or a
// join. It also reports a superseded server. Other servers do not know of either. It is nil without
// one, for an unreadable directory, and while a process that continues it uses the directory.
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

// planned reads the plans of a data directory, regardless of running processes.
func planned(dataDir string) *clusterstatus.Warning {
	w := &clusterstatus.Warning{Severity: clusterstatus.Attention, Mend: "barque server --data-dir " + dataDir}
	if plan, err := backups.LoadRecovery(dataDir); err == nil && plan != nil {
		w.Node, _ = enroll.ServerName(dataDir) // the record may be gone; the plan decides
		w.Text = fmt.Sprintf(
			"on this machine, in %s, the recovery of cluster %s as cluster %s was begun and is not finished", dataDir,
			plan.Was, plan.ClusterID)
		return w
	}
	r, err := enroll.Load(dataDir)
	if err != nil {
		return nil
	}
	if o := supersededBy(dataDir); o != nil && r != nil && r.Phase == enroll.PhaseMember {
		w.Node, w.Severity, w.Mend = r.Name, clusterstatus.Critical, clusterstatus.JoinAnew
		w.Text = fmt.Sprintf(
			"on this machine, in %s, the server %s is superseded: it is of cluster %s, and since %s cluster %s goes on in its place", dataDir, r.Name, o.Cluster, o.At.Format(time.RFC3339), o.Successor)
		return w
	}
	_, err = os.Stat(enroll.RejoinPath(dataDir))
	granted := err == nil
	what := ""
	if r != nil {
		what = map[string]string{enroll.PhaseBootstrap: "begin a cluster", enroll.PhaseAsking: "join a cluster",
			enroll.PhaseJoining: "join cluster " + r.Cluster.ID,
			enroll.PhaseWiping:  "join cluster " + r.Cluster.ID + " again"}[r.Phase]
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
	w.Text = fmt.Sprintf("on this machine, in %s, %s was about to %s, and is not done with it", dataDir,
		cmp.Or(w.Node, "a node"), what)
	w.Mend += ", with the arguments that it was started with"
	return w
}

// supersededBy returns the successor of a data directory's cluster. It is nil if the server has
// learned of none, or the directory is unreadable.
func supersededBy(dataDir string) *raftstore.Succession {
	s, err := raftstore.Superseded(enroll.StoreDir(dataDir))
	if err != nil {
		return nil
	}
	return s
}
