package devcluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"syscall"
	"testing"
)

// TestInterruptedCommand: the result of an interrupted command is its own exit code. A command that
// exits with 0 has succeeded, such as an agent that has joined.
func TestInterruptedCommand(t *testing.T) {
	for _, code := range []int{0, 3} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		cmd := exec.CommandContext(ctx, "sh", "-c", fmt.Sprintf("trap 'exit %d' TERM; echo; while :; do sleep 0.1; done", code))
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
