package dev

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// execsVariable in the environment makes the test's program one that starts again in its own process so many times, as a server
// does that has healed, and then waits until its input ends.
const execsVariable = "BARQUE_TEST_EXECS"

func init() {
	left, err := strconv.Atoi(os.Getenv(execsVariable))
	if err != nil {
		return
	}
	if left == 0 {
		fmt.Println("done")
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	// The first thread waits, with many others, for one that is not the first to begin anew.
	for range 50 {
		go func() {
			runtime.LockOSThread()
			select {}
		}()
	}
	runtime.LockOSThread() // the first
	go func() {
		runtime.LockOSThread()
		if err := os.Setenv(execsVariable, strconv.Itoa(left-1)); err == nil {
			err = syscall.Exec("/proc/self/exe", os.Args, os.Environ())
			fmt.Println(err)
		}
		os.Exit(1)
	}()
	select {}
}

// TestAliveInAnExec: a process that starts again in its own process lives all the time, though its first thread is dead for a
// moment while another one takes its place.
func TestAliveInAnExec(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), execsVariable+"=30")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := make(chan string, 1)
	go func() { // ends with the process
		line, _ := bufio.NewReader(stdout).ReadString('\n')
		said <- line
	}()
	started, running := startTime(cmd.Process.Pid)
	p := &Process{PID: cmd.Process.Pid, Started: started}
	looks, dead := 0, 0
	for line := ""; line == ""; looks++ {
		if running && !p.Alive() {
			dead++
		}
		select {
		case line = <-said:
			if line != "done\n" {
				t.Errorf("the process says %q", line)
			}
		default:
		}
	}
	if dead > 0 || !running {
		t.Errorf("at %d of %d looks the process was taken for dead", dead, looks)
	}
	stdin.Close()
	for end := time.Now().Add(time.Minute); p.Alive() && time.Now().Before(end); { // nobody has waited for it yet
		<-time.After(time.Millisecond)
	}
	if p.Alive() {
		t.Error("a process that has ended is taken for one that lives")
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
