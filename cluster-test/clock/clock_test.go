//go:build linux && amd64

package clock

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/internal/needs"
)

// asChild in the environment makes the test's program print its clock.
const asChild = "BARQUE_TEST_CLOCK"

func TestMain(m *testing.M) {
	if os.Getenv(asChild) != "" {
		tellTime()
		return
	}
	os.Exit(m.Run())
}

// tellTime answers each line with the wall clock and the time since the start by the monotonic one,
// in nanoseconds, while other threads read the clock all the time and end the process when the
// monotonic one goes back.
func tellTime() {
	start := time.Now()
	for range 3 {
		go func() { // ends with the process
			for last := time.Duration(0); ; {
				now := time.Since(start)
				if now < last {
					panic(fmt.Sprintf("the monotonic clock went from %v to %v", last, now))
				}
				last = now
			}
		}()
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		now := time.Now()
		fmt.Println(now.UnixNano(), int64(now.Sub(start)))
	}
}

// child is a process that prints its clock.
type child struct {
	t       *testing.T
	command *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
	errors  strings.Builder
}

func startChild(t *testing.T) *child {
	t.Helper()
	needs.NoError(t, Possible(), "processes whose clocks are moved")
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := &child{t: t, command: exec.Command(path)}
	c.command.Env = append(os.Environ(), asChild+"=1", "GOMAXPROCS=4")
	c.command.Stderr = &c.errors
	if c.in, err = c.command.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := c.command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.out = bufio.NewReader(out)
	if err := c.command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.end() })
	return c
}

// end lets the process end, and returns how it did.
func (c *child) end() error {
	c.in.Close()
	return c.command.Wait()
}

// answer has the clocks of a process at some moment between asked and told by this process's clock.
type answer struct {
	asked, told time.Time
	wall        time.Time
	monotonic   time.Duration // since its start
}

// ask asks the process for its clocks.
func (c *child) ask() (a answer) {
	c.t.Helper()
	a.asked = time.Now()
	if _, err := fmt.Fprintln(c.in); err != nil {
		c.t.Fatal(err)
	}
	var wall, mono int64
	if _, err := fmt.Fscan(c.out, &wall, &mono); err != nil {
		c.t.Fatalf("the process does not answer: %v\n%s", err, c.errors.String())
	}
	a.told, a.wall, a.monotonic = time.Now(), time.Unix(0, wall), time.Duration(mono)
	return a
}

// near is how much two readings of one clock may differ otherwise: that of the machine may be
// adjusted a little.
const near = time.Second

// off says by how much the wall clock is at least wrong, if it should be off by so much: 0 when it
// may be right.
func (a answer) off(by time.Duration) time.Duration {
	early, late := a.asked.Add(by).Round(0).Sub(a.wall), a.wall.Sub(a.told.Add(by).Round(0))
	return max(early-near, late-near, 0)
}

// went reports whether the monotonic clock went on since an earlier answer as that of this
// process did.
func (a answer) went(since answer) bool {
	passed := a.monotonic - since.monotonic
	return passed >= 0 && passed >= a.asked.Sub(since.told)-near && passed <= a.told.Sub(since.asked)+near
}

func TestMove(t *testing.T) {
	c, other := startChild(t), startChild(t)
	last := c.ask()
	for _, by := range []time.Duration{time.Hour, -time.Hour, 30 * time.Second, -30 * time.Second} {
		moved, err := Move(c.command.Process.Pid, by)
		if err != nil {
			t.Fatal(err)
		}
		now := c.ask()
		if now.off(by) > 0 || !now.went(last) {
			t.Errorf("moved by %v: %+v, before %+v", by, now, last)
		}
		if _, err := Move(c.command.Process.Pid, by); err == nil {
			t.Error("a clock was moved twice")
		}
		if of := other.ask(); of.off(0) > 0 {
			t.Errorf("the clock of another process is %v off: %+v", of.off(0), of)
		}
		if err := moved.Back(); err != nil {
			t.Fatal(err)
		}
		if last = c.ask(); last.off(0) > 0 || !last.went(now) {
			t.Errorf("put right, it is %v off: %+v, before %+v", last.off(0), last, now)
		}
	}
}

// A process whose threads only read the clock survives that it is moved again and again.
func TestMoveOften(t *testing.T) {
	c := startChild(t)
	for i := range 60 {
		moved, err := Move(c.command.Process.Pid, time.Duration(i+1)*time.Minute)
		if err != nil {
			t.Fatal(err, c.errors.String())
		}
		if err := moved.Back(); err != nil {
			t.Fatal(err, c.errors.String())
		}
	}
	if a := c.ask(); a.off(0) > 0 {
		t.Errorf("the clock is %v off: %+v", a.off(0), a)
	}
	if err := c.end(); err != nil {
		t.Errorf("%v: %s", err, c.errors.String())
	}
}

// Processes that end while their clocks are moved, and such that there are not.
func TestEnded(t *testing.T) {
	c := startChild(t)
	moved, err := Move(c.command.Process.Pid, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.end(); err != nil {
		t.Fatal(err, c.errors.String())
	}
	if err := moved.Back(); err != nil {
		t.Errorf("put right the clock of a process that has ended: %v", err)
	}
	if _, err := Move(c.command.Process.Pid, time.Hour); err == nil {
		t.Error("the clock of a process that has ended was moved")
	}
	if _, err := Move(os.Getpid(), time.Millisecond); err == nil {
		t.Error("a clock was moved by a part of a second")
	}
}
