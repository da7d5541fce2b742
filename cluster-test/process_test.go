package clustertest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/barque/barque/internal/child"
)

// startLike runs a process that has the arguments of a program, another name, and nothing else of
// it, until it is killed.
func startLike(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	dir := t.TempDir()
	// The shell takes the first argument for its script.
	if err := os.WriteFile(filepath.Join(dir, args[0]), []byte("echo runs\nread line\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/sh")
	cmd.Dir, cmd.Args = dir, append([]string{"otherwise-named"}, args...)
	in, said := child.Start(t, cmd, cmd.Start)
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait() // it was killed, or has read the end
	})
	if line := <-said; line != "runs\n" {
		t.Fatalf("it says %q", line)
	}
	return cmd
}

// TestSignalsHit: the processes of a node are found whatever the program is called, no others are,
// and a fault that hits no process is an error.
func TestSignalsHit(t *testing.T) {
	c := &Cluster{ID: "x", Dir: t.TempDir()}
	mine := startLike(t, "server", "--name", "s1", "--data-dir", c.DataDir("s1"))
	containerd := startLike(t, "containerd", "--config", c.DataDir("s1")+"/containerd/config.toml")
	others := startLike(t, "server", "--data-dir", t.TempDir())
	if !c.Alive("s1") || c.Alive("s2") {
		t.Errorf("alive: s1 %v, s2 %v", c.Alive("s1"), c.Alive("s2"))
	}
	if err := c.Signal(syscall.SIGCONT, "s1"); err != nil {
		t.Error(err)
	}
	if err := c.Signal(syscall.SIGCONT, "s1", "s2"); err == nil || !strings.Contains(err.Error(), "s2") {
		t.Errorf("a signal to a node that does not run: %v", err)
	}
	if pid, err := c.KillContainerd("s1"); err != nil || pid != containerd.Process.Pid {
		t.Errorf("process %d was killed, %v", pid, err)
	}
	if state := ended(t, containerd); state != syscall.SIGKILL {
		t.Errorf("the containerd: %v", state)
	}
	if _, err := c.KillContainerd("s1"); err == nil {
		t.Error("a containerd that is dead was killed")
	}
	if err := c.KillNodes(context.Background(), "s1"); err != nil {
		t.Error(err)
	}
	if state := ended(t, mine); state != syscall.SIGKILL || c.Alive("s1") {
		t.Errorf("the node: %v", state)
	}
	if err := c.KillNodes(context.Background(), "s1"); err == nil || !strings.Contains(err.Error(), "s1") {
		t.Errorf("a node that is dead was killed: %v", err)
	}
	if err := others.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("a process of another cluster: %v", err)
	}
}

// ended waits for a process, and returns the signal that ended it.
func ended(t *testing.T, cmd *exec.Cmd) syscall.Signal {
	t.Helper()
	state, err := cmd.Process.Wait()
	if err != nil {
		t.Fatal(err)
	}
	return state.Sys().(syscall.WaitStatus).Signal()
}
