package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	clustertest "github.com/barque/barque/cluster-test"
)

func memberFaults() []fault {
	return []fault{
		{name: "transfer", spares: true, run: transfer},
		{name: "demote and promote", spares: true, run: demote},
		{name: "leave and join", run: departed(byItself)},
		{name: "remove and join", run: departed(byAnother)},
		{name: "kill in a removal", run: killInRemoval},
		{name: "replace a server", run: replaceServer},
		{name: "backup", spares: true, run: backedUp(verifyBackup)},
		{name: "restore", alone: true, spares: true, run: backedUp(restore)},
	}
}

// barque runs a command of the operators', which must succeed.
func (t *trial) barque(ctx context.Context, args ...string) (string, error) {
	r := t.Cluster.BarqueResult(ctx, args...)
	return r.Out, r.Error
}

// insist runs a command again until it is not refused any more: servers that stay may not have
// found each other yet.
func (t *trial) insist(ctx context.Context, args ...string) error {
	return clustertest.Poll(ctx, time.Minute, func(ctx context.Context) error {
		_, err := t.barque(ctx, args...)
		return err
	})
}

// transfer makes a follower the leader. That it is refused is no fault, while it is behind.
func transfer(ctx context.Context, t *trial) error {
	t.say("%s to %s", t.leader, t.others[0])
	t.hit = []string{t.leader}
	if err := t.insist(ctx, "cluster", "transfer-leader", t.others[0]); err != nil {
		return err
	}
	status, err := t.awaitLeader(ctx)
	if err == nil && status.Leader != t.others[0] {
		err = fmt.Errorf("the command was done, and %s leads", status.Leader)
	}
	return err
}

func demote(ctx context.Context, t *trial) error {
	node := t.any()
	t.hit = []string{node}
	t.say("%s", node)
	if err := t.insist(ctx, "cluster", "demote", node, "--yes"); err != nil {
		return err
	}
	if err := t.awaitNoVote(ctx, node); err != nil {
		return err
	}
	t.hold(ctx, 0, 2*time.Second)
	return t.insist(ctx, "cluster", "promote", node)
}

// awaitNoVote waits until a server is one that does not vote.
func (t *trial) awaitNoVote(ctx context.Context, node string) error {
	return clustertest.Poll(ctx, time.Minute, func(ctx context.Context) error {
		status, err := t.status(ctx)
		if err != nil {
			return err
		}
		for _, m := range status.Members {
			if m.Name == node && m.Store != nil && m.Store.State == "nonvoter" {
				return nil
			}
		}
		return fmt.Errorf("%s was demoted, and is not said to be without a vote", node)
	})
}

// replaceable returns a server that another one of its name may take the place of: any.
func (t *trial) replaceable() string { return t.any() }

// departed takes a server that lives out, which may lead, and lets it join as a new one. Its pods
// stay.
func departed(command func(t *trial, node string) []string) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		node := t.replaceable()
		t.meet(node)
		if err := t.insist(ctx, command(t, node)...); err != nil {
			return err
		}
		return t.rejoin(ctx, node)
	}
}

// byItself is the command at the leaving server, and byAnother the one elsewhere.
func byItself(t *trial, node string) []string {
	// Without a kubeconfig the server at 127.0.0.1 is asked, which is not this one here.
	return []string{"cluster", "leave", "--data-dir", t.Cluster.DataDir(node), "--kubeconfig", t.Cluster.Kubeconfig(),
		"--yes"}
}
func byAnother(_ *trial, node string) []string { return []string{"cluster", "remove", node, "--yes"} }

// rejoin lets a server that was taken out join as a new one, after it has ended by itself.
func (t *trial) rejoin(ctx context.Context, node string) error {
	err := clustertest.Poll(ctx, time.Minute, func(context.Context) error {
		if t.Cluster.Alive(node) {
			return fmt.Errorf("%s was taken out and runs on", node)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return t.join(ctx, node)
}

// killInRemoval kills the leader while another server is being taken out, which goes on: by the
// next leader, or when the command is given again.
func killInRemoval(ctx context.Context, t *trial) error {
	node := t.others[0]
	t.meet(t.leader, node)
	removed := make(chan error, 1)
	go func() { removed <- t.insist(ctx, byAnother(t, node)...) }() // ends with the command, which has a time
	t.hold(ctx, 0, 700*time.Millisecond)
	killed := t.Cluster.KillNodes(ctx, t.leader)
	t.say("%s was killed while %s was taken out", t.leader, node)
	t.hold(ctx, 0, 2*time.Second)
	err := errors.Join(killed, t.Cluster.StartNode(ctx, t.leader))
	if err := errors.Join(err, <-removed); err != nil {
		return err
	}
	return t.rejoin(ctx, node)
}

// replaceServer takes a machine away for ever, and gives the cluster an empty one of its name.
func replaceServer(ctx context.Context, t *trial) error {
	node := t.replaceable()
	t.meet(node)
	if err := t.Cluster.KillMachine(ctx, node); err != nil {
		return err
	}
	entries, err := os.ReadDir(t.Cluster.DataDir(node))
	if err != nil {
		return err
	}
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(t.Cluster.DataDir(node), e.Name())))
	}
	if err != nil {
		return err
	}
	return t.renew(ctx, node)
}

// renew has a server that does not run join as a new one.
func (t *trial) renew(ctx context.Context, node string) error {
	if err := t.insist(ctx, "cluster", "remove", node, "--yes"); err != nil {
		return err
	}
	// A machine that may live keeps its name.
	err := clustertest.Poll(ctx, time.Minute, func(ctx context.Context) error {
		status, err := t.status(ctx)
		if err != nil {
			return err
		}
		for _, m := range status.Members {
			if m.Name == node && m.Gossip != "dead" {
				return fmt.Errorf("gossip says that %s is %s", node, m.Gossip)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return t.join(ctx, node)
}

// join starts a server as a new one, in the documented way of a dev cluster.
func (t *trial) join(ctx context.Context, node string) error {
	return joined(ctx, patience, joining{
		start: func(ctx context.Context) error { return t.Cluster.DevResult(ctx, "start", "--wipe", node).Error },
		runs:  func() bool { return t.Cluster.Alive(node) },
		ready: func(ctx context.Context) error { return t.ready(ctx, node) },
	})
}

// ready is nil when a server says that it is.
func (t *trial) ready(ctx context.Context, node string) error {
	for _, s := range t.servers {
		if s.Name == node {
			ctx, cancel := clustertest.TryOnce(ctx)
			defer cancel()
			return s.Client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
		}
	}
	return fmt.Errorf("there is no server %s", node)
}

// joining is how one server joins.
type joining struct {
	start func(context.Context) error // starts its process, and waits for a while until it is ready
	runs  func() bool
	ready func(context.Context) error
}

// joined lets a server that does not run join. Another one may not be ready to let it in: then it
// is started again. One that runs, and was only given up, is waited for. The error has the first
// try's, too, which may be the cause of the later ones.
func joined(ctx context.Context, limit time.Duration, server joining) error {
	var first, last error
	err := clustertest.Poll(ctx, limit, func(ctx context.Context) error {
		if first != nil && server.runs() {
			last = server.ready(ctx)
		} else {
			last = server.start(ctx)
		}
		if first == nil {
			first = last
		}
		return last
	})
	if err == nil || errors.Is(err, first) {
		return err
	}
	return fmt.Errorf("%w; the first try: %w", err, first)
}

// backedUp is a fault with a backup of the cluster, in a file that is removed afterwards.
func backedUp(f func(ctx context.Context, t *trial, file string) error) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		dir, err := os.MkdirTemp("", "barque-chaos-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		var file string
		tries := 0
		// the server that is asked may have no leader yet
		err = clustertest.Poll(ctx, time.Minute, func(ctx context.Context) error {
			tries++
			file = filepath.Join(dir, fmt.Sprintf("%d.backup", tries)) // a try that was cut off may have made its file
			_, err := t.barque(ctx, "snapshot", "save", "--unsealed", file)
			return err
		})
		if err != nil {
			return err
		}
		return f(ctx, t, file)
	}
}

// verifyBackup reads all of a backup.
func verifyBackup(ctx context.Context, t *trial, file string) error {
	t.say("saved and verified")
	_, err := t.barque(ctx, "snapshot", "inspect", file)
	return err
}

// restore brings the cluster back to the state of a backup, while no client writes but the cluster
// itself: its objects are those of the backup, and the revision went on.
func restore(ctx context.Context, t *trial, file string) error {
	before, err := t.status(ctx)
	if err != nil {
		return err
	}
	if r := t.Cluster.KubectlResult(ctx, "", "create", "configmap", "after-the-backup", "-n",
		namespace); r.Error != nil {
		return r.Error
	}
	if _, err := t.barque(ctx, "snapshot", "restore", file, "--yes"); err != nil {
		return err
	}
	after, err := t.awaitLeader(ctx)
	if err != nil {
		return err
	}
	t.say("revision %d went on to %d", before.Revision, after.Revision)
	if after.Revision <= before.Revision {
		return errors.New("the revision did not go on")
	}
	r := t.Cluster.KubectlResult(ctx, "", "get", "configmap", "-n", namespace, "-o", "json")
	if r.Error != nil {
		return r.Error
	}
	var list struct {
		Items []struct{ Metadata struct{ Name string } }
	}
	if err := json.Unmarshal([]byte(r.Out), &list); err != nil {
		return err
	}
	for _, m := range list.Items {
		if m.Metadata.Name == "after-the-backup" {
			return errors.New("what was written after the backup is still there")
		}
	}
	return nil
}
