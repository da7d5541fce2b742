package program

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/cluster-test/netspace"
	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/internal/needs"
	"github.com/barque/barque/internal/procstat"
)

// A program that has ended is not waited for, and its last words are reported.
func TestProgramEnds(t *testing.T) {
	needs.Root(t, "programs in network namespaces")
	s, err := netspace.New()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	p, err := Start(s.Do, t.TempDir(), "shell", exec.Command("sh", "-c", "echo some reason; exit 3"))
	if err != nil {
		t.Fatal(err)
	}
	err = p.Await(await.Context(t), func() error { return errors.New("not yet") })
	if err == nil || !strings.Contains(err.Error(), "some reason") || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
	if _, err := Start(s.Do, t.TempDir(), "none", exec.Command("/no/such/program")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a program that is not there: %v", err)
	}
}

// The use of a program is that of its children, too, while they live.
func TestUseOfChildren(t *testing.T) {
	here := func(f func() error) error { return f() }
	// The child of the shell is busy, and the shell waits for it.
	p, err := Start(here, t.TempDir(), "shell", exec.Command("sh", "-c", "(while :; do :; done) & wait"))
	if err != nil {
		t.Fatal(err)
	}
	child := 0
	defer func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
		await.True(t, "the end of the child", func() bool {
			stat, err := procstat.Read(child)
			return err != nil || !stat.Runs()
		})
	}()
	err = p.Await(await.Context(t), func() error {
		u, err := p.Use()
		if err == nil && u.CPU < 20*time.Millisecond {
			err = errors.New("the child has no CPU time yet")
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if all := p.family(); len(all) != 2 {
		t.Errorf("%d processes", len(all))
	} else {
		child = all[1]
	}
}
