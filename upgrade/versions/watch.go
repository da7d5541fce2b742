package versions

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// takenBack is returned when the program on trial has ended, and does not count any more.
type takenBack struct{ why string }

func (t *takenBack) Error() string { return t.why }

// Variables of sd_notify(3).
const notifySocket = "NOTIFY_SOCKET"

const (
	// look is how often the parent looks whether the trial is over.
	look = time.Second
	// stopPatience is the time in which a program that is taken back may stop by itself.
	stopPatience = 20 * time.Second
)

// watch starts the program on trial as a child, and ends with it. It returns a *takenBack when the
// program before it counts again. The child gets all signals, and its reports to systemd are passed
// on, because systemd knows this process alone.
func (d Dir) watch(version string, args []string, logger *slog.Logger) error {
	back := func(why string) error {
		logger.Error("the version on trial is taken back", "version", version, "reason", why)
		if err := d.TakeBack(version, why); err != nil && !errors.Is(err, ErrNotOnTrial) {
			return err
		}
		return &takenBack{why}
	}
	if err := d.checkProgram(version); err != nil {
		return back(err.Error())
	}
	// The kernel ends the child with the thread that has started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	reports, err := listen()
	if err != nil {
		return err
	}
	defer reports.close()
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1,
		syscall.SIGUSR2)
	defer signal.Stop(signals)
	child := exec.Command(d.Program(version), args[1:]...)
	child.Args[0] = args[0]
	child.Stdin, child.Stdout, child.Stderr = os.Stdin, os.Stdout, os.Stderr
	child.Env = append(without(os.Environ(), notifySocket), notifySocket+"="+reports.path, Marker+"="+watched)
	child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := child.Start(); err != nil {
		return back(err.Error())
	}
	ended := make(chan struct{})
	go func() { _ = child.Wait(); close(ended) }() // ends with the child; its state says how
	w := &watching{dir: d, version: version, child: child, ended: ended, reports: reports, signals: signals,
		logger: logger, now: time.Now, limit: time.After(d.limit(version, false))}
	why := w.run()
	if why == "" {
		return w.leave(args)
	}
	return back(why)
}

// watching is the watch over one child.
type watching struct {
	dir     Dir
	version string
	child   *exec.Cmd
	ended   <-chan struct{}
	reports *reports
	signals <-chan os.Signal
	logger  *slog.Logger
	now     func() time.Time
	limit   <-chan time.Time

	ready, stopping bool
}

// run watches until the child has ended. It returns why the program is taken back; empty if this
// process ends as the child has.
func (w *watching) run() string {
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	for {
		select {
		case <-w.ended:
			state := w.child.ProcessState
			if !w.stopping && state.ExitCode() != ExitAgain && w.onTrial() {
				return fmt.Sprintf("it ended before it was confirmed: %v", state)
			}
			return ""
		case s := <-w.signals:
			w.stopping = w.stopping || s == syscall.SIGTERM || s == syscall.SIGINT
			if w.stopping {
				w.limit = nil
			}
			_ = w.child.Process.Signal(s) // it may have ended
		case lines := <-w.reports.lines:
			if !w.ready && slices.Contains(strings.Split(lines, "\n"), "READY=1") {
				w.ready = true
				w.limit = time.After(w.dir.limit(w.version, true))
			}
			w.reports.pass(lines)
		case <-ticker.C:
			if w.limit != nil && !w.onTrial() {
				w.limit = nil // it is confirmed, or taken back by itself
			}
		case <-w.limit:
			if !w.onTrial() {
				w.limit = nil
				continue
			}
			w.end()
			if w.ready {
				return "it was ready, and was not confirmed in time"
			}
			return "it was not ready in time"
		}
	}
}

// limit is the time that a program on trial has, until it is ready or confirmed.
func (d Dir) limit(version string, ready bool) time.Duration {
	r, err := d.Read()
	if err != nil || r == nil || r.Trial == nil || r.Trial.Version != version {
		return time.Hour // which ends in another look
	}
	if ready {
		return time.Duration(r.Trial.ConfirmSeconds) * time.Second
	}
	return time.Duration(r.Trial.ReadySeconds) * time.Second
}

// onTrial reports whether the version is still on trial. An unreadable record counts as yes.
func (w *watching) onTrial() bool {
	r, err := w.dir.Read()
	return err != nil || r != nil && r.Trial != nil && r.Trial.Version == w.version
}

// end ends the child, first by asking it to stop.
func (w *watching) end() {
	_ = w.child.Process.Signal(syscall.SIGTERM) // it may have ended
	late := time.After(stopPatience)
	for {
		select {
		case <-w.ended:
			return
		case <-w.reports.lines: // systemd sees no stop
		case <-late:
			w.logger.Warn("the version on trial does not stop, and is killed", "version", w.version)
			_ = w.child.Process.Kill()
			late = nil
		}
	}
}

// leave ends this process as the child has ended, or starts again if the child wants that.
func (w *watching) leave(args []string) error {
	state := w.child.ProcessState
	if state.ExitCode() == ExitAgain && !w.stopping {
		path, err := executable()
		if err == nil {
			if _, gone := os.Stat(path); gone != nil {
				path = "/proc/self/exe"
			}
			err = syscall.Exec(path, args, os.Environ())
		}
		return fmt.Errorf("start again: %w", err)
	}
	w.reports.close()
	code := state.ExitCode()
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		code = 128 + int(status.Signal()) // as shells have it
	}
	os.Exit(code)
	return nil
}

// reports is the socket at which the child reports its state, in place of systemd's.
type reports struct {
	path, to string
	conn     *net.UnixConn
	lines    chan string
}

// listen makes the socket, in a folder that no other user can enter.
func listen() (*reports, error) {
	parent := ""
	if info, err := os.Stat("/run"); err == nil && info.IsDir() && os.Geteuid() == 0 {
		parent = "/run"
	}
	dir, err := os.MkdirTemp(parent, "barque-trial-")
	if err != nil {
		return nil, fmt.Errorf("make a folder for the reports of the version on trial: %w", err)
	}
	path := filepath.Join(dir, "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("take the reports of the version on trial: %w", err), os.RemoveAll(dir))
	}
	r := &reports{path: path, to: os.Getenv(notifySocket), conn: conn, lines: make(chan string, 64)}
	go func() { // ends when conn is closed
		for buffer := make([]byte, 8192); ; {
			n, err := conn.Read(buffer)
			if err != nil {
				return
			}
			r.lines <- string(buffer[:n])
		}
	}()
	return r, nil
}

func (r *reports) close() {
	r.conn.Close()
	os.RemoveAll(filepath.Dir(r.path)) // an empty folder of /run goes with the next boot anyway
}

// pass gives systemd a report. A lost one is the same as one that systemd does not get.
func (r *reports) pass(lines string) {
	if r.to == "" {
		return
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: r.to, Net: "unixgram"})
	if err != nil {
		return
	}
	_, _ = conn.Write([]byte(lines))
	conn.Close()
}

// without returns an environment without a variable.
func without(env []string, name string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(e string) bool {
		key, _, _ := strings.Cut(e, "=")
		return cmp.Compare(key, name) == 0
	})
}
