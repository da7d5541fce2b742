package devcluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/barque/barque/internal/child"
	"github.com/barque/barque/internal/needs"
	"github.com/barque/barque/internal/netname"
	"github.com/barque/barque/internal/osthread"
)

// ownName is a name for a cluster that no other run of these tests has: the machine's network
// namespaces are shared.
func ownName(prefix string) string { return fmt.Sprint(prefix, os.Getpid()) }

// A server started by `dev exec` counts as running: the status shows it, Start does not start it
// again, and Stop stops it.
func TestANodeThatWasStartedByHandRuns(t *testing.T) {
	needs.Root(t, "that a server which was started by dev exec is seen to run")
	p, err := newPlan(Options{Name: ownName("bh"), Dir: t.TempDir(), Servers: 2})
	if err != nil {
		t.Fatal(err)
	}
	p.Complete = true
	if err := p.save(); err != nil {
		t.Fatal(err)
	}
	n := &p.Nodes[1]
	if err := netname.Make(p.netns(n)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.removeNamespace(n); err != nil {
			t.Error(err)
		}
	})
	// A shell that runs the script "server", which waits for its input, has the arguments of a
	// server.
	if err := os.WriteFile(filepath.Join(p.Dir, "server"), []byte("read nothing\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "server", "--data-dir", "./s2", "--name", "s2")
	cmd.Dir = p.Dir
	stdin, _ := child.Start(t, cmd, func() error { return osthread.InNetwork(p.netns(n), cmd.Start) })
	defer stdin.Close()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	states := func() (out []string) {
		s, err := Inspect(p.Dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range s.Nodes {
			out = append(out, n.Name+" "+n.State)
		}
		return out
	}
	if got := strings.Join(states(), ", "); got != "s1 dead, s2 running" {
		t.Errorf("%s", got)
	}
	if err := Start(t.Context(), p.Dir, "s2", nil, nil); err == nil || !strings.Contains(err.Error(), "runs already") {
		t.Errorf("it was started again: %v", err)
	}
	if err := Stop(p.Dir, "s2"); err != nil {
		t.Fatal(err)
	}
	<-ended
	if got := strings.Join(states(), ", "); got != "s1 dead, s2 dead" {
		t.Errorf("afterwards: %s", got)
	}
}
