package clustertest

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The procedures of docs/operations.md that change members. Each test puts the cluster right again.

func TestLeave(t *testing.T) {
	s := newSpace(t)
	recoverCluster(t, s.Cluster, "s3")
	// after an election it is another one
	Eventually(t, deadline, "what the removal of a leader would do", func(ctx context.Context) error {
		if r := s.BarqueResult(ctx, "cluster", "transfer-leader", "s3"); r.Error != nil {
			return r.Error
		}
		if r := s.BarqueResult(ctx, "cluster", "remove", "s3"); r.Code != 4 ||
			!contains(r.Err, "s3 hands leadership over", "2 servers vote instead of 3", "nothing was changed") {
			return fmt.Errorf("nobody confirmed: code %d, %s", r.Code, r.Err)
		}
		return nil
	})
	s.Dev(t, "stop", "s3")
	if r := s.DevResult(t.Context(), "start", "--wipe", "s3"); r.Error == nil || !contains(r.Err, "s3 has ended") {
		t.Errorf("a member drops its store: %v\n%s", r.Error, r.Err)
	}
	if out := s.Barque(t, "token", "ls"); strings.Contains(out, "start --wipe") {
		t.Errorf("the token of a server that was not let in is left:\n%s", out)
	}
	s.Dev(t, "start", "s3")
	s.insist(t, "cluster", "demote", "s2", "--yes")
	s.insist(t, "cluster", "promote", "s2")
	if out := s.Barque(t, "cluster", "leave", "--server", s.address(t, "s3"), "--yes"); !contains(out,
		"s3 was taken out") {
		t.Errorf("leave says %q", out)
	}
	Eventually(t, deadline, "s3 stops by itself", func(ctx context.Context) error {
		if state := s.nodeState(ctx, "s3"); state != "dead" {
			return fmt.Errorf("it is %s", state)
		}
		return nil
	})
	if r := s.DevResult(t.Context(), "start", "s3"); r.Error == nil ||
		!contains(r.Err, "was taken out of its cluster", "--wipe") {
		t.Errorf("a server that has left starts: %v\n%s", r.Error, r.Err)
	}
	if r := s.BarqueResult(t.Context(), "cluster", "remove", "nobody", "--yes"); r.Code != 2 ||
		!contains(r.Err, "no member", "the members are s1, s2") {
		t.Errorf("removing nobody: code %d, %s", r.Code, r.Err)
	}
	Eventually(t, deadline, "the status tells of a server that was taken out, and has its Node",
		func(ctx context.Context) error {
			r := s.BarqueResult(ctx, "cluster", "status")
			if r.Code != codeDegraded ||
				!contains(r.Out, "server s3 is no member of the store any more", "an operator removed it",
					"barque kubectl delete node s3", "two servers vote", "no member") {
				return fmt.Errorf("code %d\n%s%s", r.Code, r.Out, r.Err)
			}
			return nil
		})
	s.Dev(t, "start", "--wipe", "s3")
	Eventually(t, deadline, "a whole cluster", s.Healthy)
	Eventually(t, deadline, "one that is well", s.well)
}

// oldServersStop starts servers of a cluster that was recovered as they were, all at once: they are
// a majority of it, and serve nothing all the same, but stop, and do not start again.
func (s *Space) oldServersStop(t *testing.T, cluster string, names ...string) {
	t.Helper()
	var starting sync.WaitGroup
	for _, n := range names {
		starting.Go(func() {
			if r := s.DevResult(t.Context(), "start", n); r.Error == nil || !contains(r.Err, "dev start --wipe "+n) {
				t.Errorf("%s, which was left behind, starts: %v\n%s", n, r.Error, r.Err)
			}
		})
	}
	starting.Wait()
	for _, n := range names {
		Eventually(t, deadline, n+" stops by itself", func(ctx context.Context) error {
			if state := s.nodeState(ctx, n); state != "dead" {
				return fmt.Errorf("it is %s", state)
			}
			return nil
		})
		if r := s.BarqueResult(t.Context(), "cluster", "status", "--data-dir", s.DataDir(n)); !contains(r.Out,
			"CRITICAL", "on this machine", n+" is superseded: it is of cluster "+cluster,
			"barque server --wipe --join") {
			t.Errorf("the status on %s: code %d\n%s%s", n, r.Code, r.Out, r.Err)
		}
	}
	last := names[len(names)-1]
	if r := s.DevResult(t.Context(), "start", last); r.Error == nil ||
		!contains(r.Err, last+" has ended", "dev start --wipe "+last) {
		t.Errorf("an old server that has learned of the recovery starts again: %v\n%s", r.Error, r.Err)
	}
}

// Two of three servers are lost for good: the third becomes a new cluster, and the others join it.
func TestRecoverFromLostQuorum(t *testing.T) {
	s := newSpace(t)
	recoverCluster(t, s.Cluster, s.Nodes()...)
	before, err := s.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string) {
		t.Helper()
		Eventually(t, deadline, "a write", func(ctx context.Context) error {
			_, err := s.Client.CoreV1().ConfigMaps(s.Namespace).Create(ctx,
				&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
			return exceptExists(err)
		})
	}
	dirs := func(nodes ...string) (args []string) {
		for _, n := range nodes {
			args = append(args, "--data-dir", s.DataDir(n))
		}
		return args
	}
	write("known-to-all")
	s.Dev(t, "stop", "s2")
	write("known-to-two")
	if r := s.BarqueResult(t.Context(),
		append([]string{"cluster", "recover", "--yes"}, dirs("s2")...)...); r.Code != 4 ||
		!contains(r.Err, "has a leader", "start s2 instead", "nothing was changed") {
		t.Errorf("a server of a cluster that is well is recovered: code %d, %s", r.Code, r.Err)
	}
	s.Dev(t, "stop", "s3")
	s.Dev(t, "kill", "s1")
	var known []struct {
		Name     string
		Revision uint64
		Members  []struct{ Name string }
	}
	out := s.Barque(t, append([]string{"cluster", "recover", "--inspect", "-o", "json"}, dirs("s1", "s2", "s3")...)...)
	if err := json.Unmarshal([]byte(out), &known); err != nil || len(known) != 3 ||
		known[0].Revision <= known[1].Revision || len(known[1].Members) != 3 {
		t.Fatalf("%v: %s", err, out)
	}
	if r := s.BarqueResult(t.Context(),
		append([]string{"cluster", "recover", "--yes"}, dirs("s2", "s1")...)...); r.Code != 4 ||
		!contains(r.Err, "has more than") {
		t.Errorf("an older one is recovered: code %d, %s", r.Code, r.Err)
	}
	if r := s.BarqueResult(t.Context(), append([]string{"cluster", "recover"}, dirs("s1")...)...); r.Code != 4 ||
		!contains(r.Err, "Writes that only the others had (s2, s3) are lost", "nothing was changed") {
		t.Errorf("nobody confirmed: code %d, %s", r.Code, r.Err)
	}
	s.Barque(t, append([]string{"cluster", "recover", "--yes"}, dirs("s1", "s2")...)...)
	if out := s.Dev(t, "start", "s1"); strings.Contains(out, "more than half") {
		t.Errorf("s1, which is all of the cluster, waits for others: %s", out)
	}
	for _, name := range []string{"known-to-all", "known-to-two"} {
		Eventually(t, deadline, name+" is there", func(ctx context.Context) error {
			_, err := s.Client.CoreV1().ConfigMaps(s.Namespace).Get(ctx, name, metav1.GetOptions{})
			return err
		})
	}
	write("after")
	Eventually(t, deadline, "the status tells that one server is left", func(ctx context.Context) error {
		r := s.BarqueResult(ctx, "cluster", "status")
		if r.Code != codeDegraded ||
			!contains(r.Out, "1 of 1 voter answers", "only server s1 votes, so it may not fail",
				"server s2 is no member of the store any more", "recovered") {
			return fmt.Errorf("code %d\n%s%s", r.Code, r.Out, r.Err)
		}
		return nil
	})
	s.oldServersStop(t, before.ID, "s2", "s3")
	if r := s.DevResult(t.Context(), "start", "--wipe", "s1"); r.Error == nil || !contains(r.Err, "s1 runs") {
		t.Errorf("a server that runs drops its store: %v\n%s", r.Error, r.Err)
	}
	write("beside-old-servers")
	for _, n := range []string{"s2", "s3"} {
		s.Dev(t, "start", "--wipe", n)
	}
	Eventually(t, deadline, "a whole cluster", s.Healthy)
	after, err := s.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if after.ID == before.ID || after.Revision < before.Revision+1<<30 {
		t.Errorf("before: cluster %s at revision %d; after: %s at %d", before.ID, before.Revision, after.ID,
			after.Revision)
	}
}
