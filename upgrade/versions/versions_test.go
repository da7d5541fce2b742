package versions

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/internal/sdnotify"
	"github.com/barque/barque/upgrade/release"
)

// The programs of these tests are this test's binary again. Their behaviour is in a file of the
// data directory, by their version.

// nodeEnv holds the data directory of such a program.
const nodeEnv = "BARQUE_TEST_NODE"

const (
	old  = "v0.1.0"
	next = "v0.2.0"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(nodeEnv); dir != "" {
		os.Exit(runNode(dir))
	}
	own = old
	os.Exit(m.Run())
}

// runNode is a node that prints its steps. SIGUSR1 confirms it, SIGUSR2 takes it back, and SIGHUP
// puts the next version on trial.
func runNode(dataDir string) int {
	d := In(dataDir)
	path, err := executable()
	if err != nil {
		return 90
	}
	if own = old; strings.HasPrefix(path, string(d)) {
		own = filepath.Base(filepath.Dir(path))
	}
	l, err := Launch(dataDir, os.Args, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err != nil {
		fmt.Println("error", err)
		return 91
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGHUP)
	fmt.Println("runs", own, os.Getpid(), l.watched)
	behaviour, _ := os.ReadFile(filepath.Join(dataDir, own)) // none is good
	switch string(behaviour) {
	case "crashes":
		return 7
	case "wedges":
		signal.Reset()
		select {}
	}
	state := sdnotify.Take(slog.New(slog.DiscardHandler))
	state.Ready("serves")
	fmt.Println("ready", own)
	for s := range signals {
		switch s {
		case syscall.SIGTERM:
			return 0
		case syscall.SIGUSR1:
			fmt.Println("confirmed", d.Confirm(own))
		case syscall.SIGUSR2:
			fmt.Println("back", d.TakeBack(own, "a gate has failed"))
			fmt.Println(l.Again(os.Args, state.Environ()))
		case syscall.SIGHUP:
			fmt.Println("try", d.Try(next, time.Minute, time.Minute))
			fmt.Println(l.Again(os.Args, state.Environ()))
		}
	}
	return 0
}

// put adds this binary as a version.
func put(t *testing.T, d Dir, version string) {
	t.Helper()
	self, err := executable()
	if err != nil {
		t.Fatal(err)
	}
	in, err := os.Open(self)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	var archive bytes.Buffer
	if err := release.Pack(&archive, version, "amd64", in); err != nil {
		t.Fatal(err)
	}
	if err := d.Put(version, "digest of "+version, &archive, func(string) error { return nil }); err != nil {
		t.Fatal(err)
	}
}

// node is a process of a test.
type node struct {
	*testing.T
	cmd   *exec.Cmd
	lines chan string
	ended chan struct{}
}

func start(t *testing.T, dataDir, program string, env ...string) *node {
	t.Helper()
	n := &node{T: t, cmd: exec.Command(program, "server"), lines: make(chan string, 100), ended: make(chan struct{})}
	n.cmd.Env = append(append(without(os.Environ(), notifySocket), nodeEnv+"="+dataDir), env...)
	n.cmd.Stderr = t.Output()
	out, err := n.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { // ends with the process
		defer close(n.ended)
		for s := bufio.NewScanner(out); s.Scan(); {
			n.lines <- s.Text()
		}
		_ = n.cmd.Wait()
	}()
	t.Cleanup(func() { _ = n.cmd.Process.Kill(); <-n.ended })
	return n
}

// want waits for a line that begins so, and returns it.
func (n *node) want(begin string) string {
	n.Helper()
	line := await.Value(n.T, begin, n.lines)
	if !strings.HasPrefix(line, begin) {
		n.Fatalf("the line %q, want %q", line, begin)
	}
	return line
}

func (n *node) signal(s syscall.Signal) {
	n.Helper()
	if err := n.cmd.Process.Signal(s); err != nil {
		n.Fatal(err)
	}
}

func (n *node) end() int {
	n.Helper()
	await.Value(n.T, "the end of the process", n.ended)
	return n.cmd.ProcessState.ExitCode()
}

func self(t *testing.T) string {
	t.Helper()
	path, err := executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func prepared(t *testing.T, behaviour string) (dataDir string, d Dir) {
	t.Helper()
	dataDir = t.TempDir()
	d = In(dataDir)
	put(t, d, next)
	if behaviour != "" {
		if err := os.WriteFile(filepath.Join(dataDir, next), []byte(behaviour), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dataDir, d
}

// TestConfirmedTrial: a good program is watched, passes its reports on, and counts at later starts.
func TestConfirmedTrial(t *testing.T) {
	dataDir, _ := prepared(t, "")
	socket := filepath.Join(t.TempDir(), "notify")
	systemd, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer systemd.Close()
	n := start(t, dataDir, self(t), notifySocket+"="+socket)
	pid := n.cmd.Process.Pid
	n.want(fmt.Sprintf("runs %s %d false", old, pid))
	n.want("ready " + old)
	n.signal(syscall.SIGHUP)
	n.want("try <nil>")
	n.want("runs " + next)
	n.want("ready " + next)
	buffer := make([]byte, 1000)
	if err := systemd.SetReadDeadline(time.Now().Add(await.Hang)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if size, err := systemd.Read(buffer); err != nil || !strings.HasPrefix(string(buffer[:size]), "READY=1") {
			t.Fatalf("systemd gets %q: %v", buffer[:size], err)
		}
	}
	n.signal(syscall.SIGUSR1)
	n.want("confirmed <nil>")
	n.signal(syscall.SIGTERM)
	if code := n.end(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	n = start(t, dataDir, self(t))
	n.want(fmt.Sprintf("runs %s %d false", next, n.cmd.Process.Pid))
	n.want("ready " + next)
}

// TestTakenBack: a program that is broken in any way is taken back by the machine alone, in the
// process that the unit knows.
func TestTakenBack(t *testing.T) {
	for _, c := range []struct {
		name, behaviour, why string
		ready, confirm       time.Duration
		orders               []syscall.Signal
	}{
		{"ends at its start", "crashes", "exit status 7", time.Minute, time.Minute, nil},
		{"is never ready", "wedges", "not ready in time", time.Second, time.Minute, nil},
		{"is not confirmed", "", "not confirmed in time", time.Minute, time.Second, nil},
		{"by order", "", "a gate has failed", time.Minute, time.Minute, []syscall.Signal{syscall.SIGUSR2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dataDir, d := prepared(t, c.behaviour)
			if err := d.Try(next, c.ready, c.confirm); err != nil {
				t.Fatal(err)
			}
			n := start(t, dataDir, self(t))
			n.want("runs " + next)
			if c.behaviour == "" {
				n.want("ready " + next)
			}
			for _, s := range c.orders {
				n.signal(s)
				n.want("back <nil>")
			}
			n.want(fmt.Sprintf("runs %s %d false", old, n.cmd.Process.Pid))
			n.want("ready " + old)
			r, err := d.Read()
			if err != nil || r.Trial != nil || r.Failed == nil || !strings.Contains(r.Failed.Why, c.why) {
				t.Errorf("the record is %+v: %v", r, err)
			}
			if err := d.Confirm(next); !errors.Is(err, ErrNotOnTrial) {
				t.Errorf("a program that was taken back is confirmed: %v", err)
			}
		})
	}
}

// TestPowerLoss: a trial that was cut short is begun once more, and not for ever. The program ends
// with the process that watches it.
func TestPowerLoss(t *testing.T) {
	dataDir, d := prepared(t, "")
	if err := d.Try(next, time.Minute, time.Minute); err != nil {
		t.Fatal(err)
	}
	for range mostStarts {
		n := start(t, dataDir, self(t))
		n.want("runs " + next)
		n.want("ready " + next)
		n.signal(syscall.SIGKILL)
		n.end() // the pipe is closed once the program has ended, too
	}
	n := start(t, dataDir, self(t))
	n.want("runs " + old)
	n.want("ready " + old)
}

// TestDamagedProgram: a program that is not the one that was put there is not started.
func TestDamagedProgram(t *testing.T) {
	dataDir, d := prepared(t, "")
	if err := d.Try(next, time.Minute, time.Minute); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.Program(next), []byte("other"), 0o755); err != nil {
		t.Fatal(err)
	}
	start(t, dataDir, self(t)).want("runs " + old)
	if r, err := d.Read(); err != nil || r.Failed == nil || !strings.Contains(r.Failed.Why, "damaged") {
		t.Errorf("the record is %+v: %v", r, err)
	}
	if d.Has(next, "digest of "+next) {
		t.Error("a damaged program is there")
	}
	if put(t, d, next); !d.Has(next, "digest of "+next) {
		t.Error("it cannot be fetched again")
	}
}

// TestDataDirectoryBehindALink: the path of a running program has no symbolic links.
func TestDataDirectoryBehindALink(t *testing.T) {
	dataDir, d := prepared(t, "")
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dataDir, link); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{d.Program(next): false, self(t): true} {
		if is, err := In(link).selfOf(path, nil); err != nil || is.Installed != want {
			t.Errorf("%s: an installed program: %v, want %v (%v)", path, is.Installed, want, err)
		}
	}
}

// TestInstalledProgramChanged: another installed program, as of a package, is the last word.
func TestInstalledProgramChanged(t *testing.T) {
	dataDir, d := prepared(t, "")
	if err := errors.Join(d.Try(next, time.Minute, time.Minute), d.Confirm(next)); err != nil {
		t.Fatal(err)
	}
	start(t, dataDir, self(t)).want("runs " + next)
	data, err := os.ReadFile(self(t))
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "barque")
	if err := os.WriteFile(other, append(data, 0), 0o755); err != nil {
		t.Fatal(err)
	}
	start(t, dataDir, other).want("runs " + old)
	start(t, dataDir, self(t)).want("runs " + old) // the record is void from then on
}

// TestPut: the program that counts is never overwritten, and those of before go.
func TestPut(t *testing.T) {
	_, d := prepared(t, "")
	if !d.Has(next, "digest of "+next) || d.Has(next, "another") {
		t.Error("the program is there for another archive")
	}
	if err := errors.Join(d.Try(next, time.Minute, time.Minute), d.Confirm(next)); err != nil {
		t.Fatal(err)
	}
	if err := d.Put(next, "another", strings.NewReader(""), nil); err == nil {
		t.Error("the program that counts is replaced")
	}
	for _, v := range []string{"v0.3.0", "v0.4.0"} {
		put(t, d, v)
		if err := errors.Join(d.Try(v, time.Minute, time.Minute), d.Confirm(v)); err != nil {
			t.Fatal(err)
		}
	}
	if d.Has(next, "digest of "+next) || !d.Has("v0.3.0", "digest of v0.3.0") {
		t.Error("the program before the last one is kept, or the last one is not")
	}
	put(t, d, "v0.5.0")
	failing := errors.New("it does not run")
	if err := d.Put("v0.6.0", "x", archiveOf(t), func(string) error { return failing }); !errors.Is(err, failing) ||
		d.Has("v0.6.0", "x") {
		t.Errorf("a program that does not run is there: %v", err)
	}
}

func archiveOf(t *testing.T) *bytes.Reader {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, []byte("x"), 0o755); err != nil {
		t.Fatal(err)
	}
	in, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	var out bytes.Buffer
	if err := release.Pack(&out, "v0.6.0", "amd64", in); err != nil {
		t.Fatal(err)
	}
	return bytes.NewReader(out.Bytes())
}
