package child

import (
	"errors"
	"os/exec"
	"testing"
)

// A child prints its line, and ends with its input.
func TestStart(t *testing.T) {
	cmd := exec.Command("sh", "-c", "echo here; read nothing; exit 3")
	stdin, said := Start(t, cmd, cmd.Start)
	if line := <-said; line != "here\n" {
		t.Errorf("it says %q", line)
	}
	if err := stdin.Close(); err != nil {
		t.Fatal(err)
	}
	var ended *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &ended) || ended.ExitCode() != 3 {
		t.Errorf("it ends with %v", err)
	}
}

// A process that the test does not end is killed after the test.
func TestEnd(t *testing.T) {
	cmd := exec.Command("sh", "-c", "echo here; read nothing")
	if !t.Run("test", func(t *testing.T) {
		_, said := Start(t, cmd, cmd.Start)
		<-said
	}) {
		return
	}
	if err := cmd.Wait(); err == nil || cmd.ProcessState.Exited() {
		t.Errorf("it ends with %v", err)
	}
}
