// Package child starts the processes that tests observe: each prints a line, and runs until its
// input ends.
package child

import (
	"bufio"
	"io"
	"os/exec"
	"testing"
)

// Start calls start, which starts the command. It returns the command's input, and the channel of
// its first line. The process is killed at the end of the test at the latest; the caller waits for
// it.
func Start(t testing.TB, cmd *exec.Cmd, start func() error) (stdin io.Closer, said <-chan string) {
	t.Helper()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	lines := make(chan string, 1)
	go func() { // ends with the process
		line, _ := bufio.NewReader(stdout).ReadString('\n')
		lines <- line
	}()
	return stdin, lines
}
