package clustertest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
)

// onTerminal runs a command with a terminal of 40 rows and 100 columns, types the input, and
// returns the terminal's output. The command must end with 0, or with one of the codes.
func onTerminal(t testing.TB, env []string, input string, codes []int, command ...string) string {
	t.Helper()
	master, slave, err := Terminal()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	slave.Close()
	var shown bytes.Buffer
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Reading ends with EIO when the last process has closed the terminal.
		_, _ = io.Copy(&shown, master)
	}()
	if _, err := io.WriteString(master, input); err != nil {
		t.Fatal(err)
	}
	err = cmd.Wait()
	<-done
	if err != nil && !slices.Contains(codes, cmd.ProcessState.ExitCode()) {
		t.Fatalf("%v: %v\n%s", command, errors.Join(err, context.Cause(ctx)), shown.String())
	}
	return shown.String()
}
