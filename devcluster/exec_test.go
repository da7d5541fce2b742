package devcluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"syscall"
	"testing"

	"github.com/barque/barque/internal/exitcode"
)

// TestInterruptedCommand: the result of an interrupted command is its own exit code. A command that
// exits with 0 has succeeded, such as an agent that has joined.
func TestInterruptedCommand(t *testing.T) {
	for _, code := range []int{0, 3} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		cmd := exec.CommandContext(ctx, "sh", "-c",
			fmt.Sprintf("trap 'exit %d' TERM; echo; while :; do sleep 0.1; done", code))
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(out, make([]byte, 1)); err != nil { // the trap is set
			t.Fatal(err)
		}
		cancel()
		var failed *exec.ExitError
		switch err := ended(cmd); {
		case code == 0 && err != nil:
			t.Errorf("it ended well: %v", err)
		case code != 0 && (!errors.As(err, &failed) || failed.ExitCode() != code):
			t.Errorf("it ended with %d: %v", code, err)
		}
	}
}

// TestSignalledCommand: a command that a signal has ended has the code that shells have for that,
// and 130 when it was interrupted. Its own code stays.
func TestSignalledCommand(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		ctx    context.Context
		script string
		want   int
	}{
		"interrupted":             {over, "kill -TERM $$", exitcode.Interrupted},
		"killed":                  {t.Context(), "kill -KILL $$", 137},
		"its own, of a trap":      {over, "trap 'exit 3' TERM; kill -TERM $$; sleep 1", 3},
		"its own, uninterrupted ": {t.Context(), "exit 4", 4},
	} {
		cmd := exec.Command("sh", "-c", c.script)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		err := signalled(c.ctx, ended(cmd))
		var coded interface{ ExitCode() int }
		if !errors.As(err, &coded) || coded.ExitCode() != c.want {
			t.Errorf("%s: %v, want the code %d", name, err, c.want)
		}
	}
	if err := signalled(over, nil); err != nil {
		t.Errorf("it ended well: %v", err)
	}
}
