package devcluster

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"github.com/vishvananda/netns"

	"github.com/barque/barque/internal/child"
	"github.com/barque/barque/internal/needs"
	"github.com/barque/barque/internal/netname"
	"github.com/barque/barque/internal/osthread"
)

// visitVariable in the environment makes the test's program enter that network namespace with its
// first thread, until its input ends.
const visitVariable = "BARQUE_TEST_VISIT"

func init() {
	name := os.Getenv(visitVariable)
	if name == "" {
		return
	}
	runtime.LockOSThread() // the first
	target, err := netns.GetFromName(name)
	if err == nil {
		err = netns.Set(target)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("there")
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// The removal of a node ends the processes that live in its namespace, and its server wherever its
// threads are. A process that only calls from there goes on.
func TestRemovedNodesTakeNoVisitorsAlong(t *testing.T) {
	needs.Root(t, "what ends when a node of a dev cluster is removed")
	p, err := newPlan(Options{Name: ownName("bv"), Dir: t.TempDir(), Servers: 1})
	if err != nil {
		t.Fatal(err)
	}
	n := &p.Nodes[0]
	if err := netname.Make(p.netns(n)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.removeNamespace(n); err != nil {
			t.Error(err)
		}
	})
	visitor, server := exec.Command(os.Args[0]), exec.Command(os.Args[0], Server, "--data-dir", p.DataDir(n))
	inhabitant := exec.Command("sh", "-c", "echo there; read nothing")
	leave := make(map[*exec.Cmd]io.Closer)
	for _, cmd := range []*exec.Cmd{visitor, server, inhabitant} {
		start := cmd.Start
		if cmd == inhabitant {
			start = func() error { return osthread.InNetwork(p.netns(n), cmd.Start) }
		} else {
			cmd.Env = append(os.Environ(), visitVariable+"="+p.netns(n))
		}
		var said <-chan string
		leave[cmd], said = child.Start(t, cmd, start)
		if line := <-said; line != "there\n" {
			t.Fatalf("%q says %q", cmd.Args, line)
		}
	}
	if err := p.adopt(); err != nil || n.Process == nil || n.Process.PID != server.Process.Pid {
		t.Errorf("the node's process is %+v, %v; want that of the server, %d", n.Process, err, server.Process.Pid)
	}
	n.Process = nil // as when the plan is lost
	if err := p.removeNode(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	for cmd, live := range map[*exec.Cmd]bool{visitor: true, server: false, inhabitant: false} {
		leave[cmd].Close()
		var ended *exec.ExitError
		switch err := cmd.Wait(); {
		case live && err != nil:
			t.Errorf("%q, who only visits, ends with %v", cmd.Args, err)
		case !live && (!errors.As(err, &ended) || ended.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL):
			t.Errorf("%q ends with %v", cmd.Args, err)
		}
	}
}
