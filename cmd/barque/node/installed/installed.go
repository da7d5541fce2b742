// Package installed answers the questions of install and uninstall about the node of this machine:
// its part in its cluster, the things that it leaves, and whether it could run, runs and serves.
// The node is another process, or none.
package installed

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/barque/barque/cmd/barque/node/options"
	"github.com/barque/barque/cmd/barque/node/preflight"
	"github.com/barque/barque/cmd/barque/node/worker"
	"github.com/barque/barque/internal/check"
	"github.com/barque/barque/machine"
	"github.com/barque/barque/membership/enroll"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/raftstore"
)

// Membership returns the part that the node with a data directory has in its cluster, whether it
// runs or not.
func Membership(dataDir string) (machine.Membership, error) {
	r, err := enroll.Load(dataDir)
	if err != nil || r == nil {
		return machine.Membership{}, err
	}
	m := machine.Membership{Role: r.Role, Name: r.Name, Cluster: r.ClusterID()}
	if r.Role != pki.RoleServer {
		return m, nil
	}
	switch r.Phase {
	case enroll.PhaseJoining, enroll.PhaseMember, enroll.PhaseWiping:
	default:
		return m, nil // a cluster whose first server has never run has no acknowledged writes
	}
	for _, s := range r.Servers() {
		if s.Name != r.Name {
			m.Servers = append(m.Servers, s.Name)
		}
	}
	slices.Sort(m.Servers)
	ended, err := raftstore.Ended(enroll.StoreDir(dataDir))
	m.Member = !ended
	return m, err
}

// Remains are the things that a node leaves on this machine: see worker.Remains.
func Remains(dataDir, name string) (worker.Left, error) { return worker.Remains(dataDir, name) }

// Unused returns an error while a process uses a data directory. One that is about to end may take
// a moment.
func Unused(ctx context.Context, dataDir string) error {
	if _, err := os.Stat(dataDir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	lock, err := enroll.Lock(ctx, dataDir)
	if err != nil {
		return err
	}
	return lock.Close()
}

// IsOfNode fails for a directory that has files and is no node's data directory: with a wrong name,
// a removal of the data would delete something else.
func IsOfNode(dataDir string) error {
	entries, err := os.ReadDir(dataDir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() == "node.json" || e.Name() == worker.PlacesFile {
			return nil
		}
	}
	return fmt.Errorf("%s is no node's data directory, for it has neither node.json nor %s: give the right one with --data-dir, "+
		"or delete it by hand", dataDir, worker.PlacesFile)
}

// BeforeInstall checks whether this machine could run a node, which does not run yet. A node that
// is to join is checked as `barque cluster join` does. It completes o.
func BeforeInstall(
	ctx context.Context, o *options.Options, role string, now func() time.Time,
) ([]check.Finding, error) {
	joined, err := enroll.Load(o.DataDir)
	if err != nil {
		return nil, err
	}
	if o.Join != "" && joined == nil {
		return preflight.Join(ctx, o, role, now)
	}
	_, statErr := os.Stat(o.DataDir)
	if err := o.Complete(); err != nil {
		return nil, err
	}
	if errors.Is(statErr, os.ErrNotExist) {
		defer os.Remove(o.DataDir) // created for the check only
	}
	return append(preflight.Check(o.DataDir, o.KubeletRootDir), enroll.CheckOwn(o.Enrolling(), role)...), nil
}

// Serves reports whether the node of this machine serves, for an init system that does not hear of
// it: a server answers that it is ready, an agent has registered its node.
func Serves(ctx context.Context, o *options.Options, role string) (bool, error) {
	r, err := enroll.Load(o.DataDir)
	if err != nil || r == nil || r.Phase != enroll.PhaseMember {
		return false, err
	}
	if role != pki.RoleServer {
		return !r.Fresh, nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(o.DataDir, "admin.kubeconfig"))
	if err != nil {
		return false, nil // it is not written yet
	}
	config.Timeout = 2 * time.Second
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return false, err
	}
	_, err = client.RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
	return err == nil, nil
}
