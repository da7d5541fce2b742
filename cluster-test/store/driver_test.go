package store

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// driverVariable in the environment, with a directory, makes the test binary the driver of a group.
const driverVariable = "BARQUE_STORE_DRIVER"

// driveIfAsked starts a group in the directory, prints its members, and waits until it is killed.
func driveIfAsked() {
	parent := os.Getenv(driverVariable)
	if parent == "" {
		return
	}
	cfg := Config{Size: 2, Dir: parent, Links: true}
	if DisksPossible() == nil {
		cfg.DiskMegabytes = 32
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	g, err := NewGroup(ctx, cfg)
	if err == nil {
		err = g.Members()[1].Pause()
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	for _, m := range g.Members() {
		fmt.Println("member", m.process().cmd.Process.Pid)
	}
	fmt.Println("ready")
	select {}
}

// runDriver runs a driver, kills it when its group is there, and returns the processes
// of the members.
func runDriver(t *testing.T, parent string) (pids []int) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), driverVariable+"="+parent)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	defer cmd.Wait()
	defer cmd.Process.Kill()
	var said strings.Builder
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var pid int
		if _, err := fmt.Sscanf(lines.Text(), "member %d", &pid); err == nil {
			pids = append(pids, pid)
		}
		if lines.Text() == "ready" {
			return pids
		}
		said.WriteString(lines.Text() + "\n")
	}
	t.Fatalf("the driver ended:\n%s", said.String())
	return nil
}
