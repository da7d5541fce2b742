package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/barque/barque/internal/osthread"
)

// A room is where upstream's programs run: a network namespace of the dev cluster, and a mount
// namespace of its own. kubelet writes to /var/lib/kubelet and /var/log/containers, whatever its
// flags say, and sets parameters of the kernel, one of which makes a machine restart. In a room it
// finds these parameters as it wants them, and writes to copies of these directories.
//
// A child of this program, started anew, holds the room. It ends, with all programs in it, when
// its standard input does, however this program ends.

// serveRoom is the first argument of the child; the second is a file with a room.
const serveRoom = "room"

var errNotAsked = errors.New("this is no child")

// room is the child's order.
type room struct {
	Dir      string // of its files and logs
	Copied   []string
	Settings map[string]string // of the kernel, by their files below /proc/sys
	Programs []program
}

// program is one to run. With a socket, the next one starts when something listens there. One that
// is held starts when the input has a line.
type program struct {
	Name    string
	Command []string
	Socket  string `json:",omitempty"`
	Held    bool   `json:",omitempty"`
}

func (r room) log(name string) string { return filepath.Join(r.Dir, name+".log") }

func serveIfAsked(args []string) error {
	if len(args) != 2 || args[0] != serveRoom {
		return errNotAsked
	}
	data, err := os.ReadFile(args[1])
	if err != nil {
		return err
	}
	var r room
	if err := json.Unmarshal(data, &r); err != nil {
		return fmt.Errorf("%s: %w", args[1], err)
	}
	return r.serve(os.Stdin, os.Stdout)
}

// serve runs the programs until the input ends, or one of them. Their names and processes go to the
// output.
func (r room) serve(in io.Reader, out io.Writer) (err error) {
	runtime.LockOSThread() // the programs are killed when the thread ends that has started them
	if err := r.furnish(); err != nil {
		return err
	}
	ended := make(chan string, len(r.Programs))
	var running []*exec.Cmd
	var gone []chan struct{}
	defer func() {
		for i, cmd := range slices.Backward(running) {
			_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
			select {
			case <-gone[i]:
			case <-time.After(20 * time.Second):
				_ = cmd.Process.Kill()
				<-gone[i]
			}
		}
	}()
	lines := make(chan struct{}, len(r.Programs))
	go func() { // ends with the input, or with the process
		for scanner := bufio.NewScanner(in); scanner.Scan(); {
			lines <- struct{}{}
		}
		close(lines)
	}()
	for _, p := range r.Programs {
		if p.Held {
			select {
			case _, ok := <-lines:
				if !ok {
					return nil
				}
			case name := <-ended:
				return r.without(name)
			}
		}
		cmd, err := r.start(p)
		if err != nil {
			return err
		}
		done := make(chan struct{})
		running, gone = append(running, cmd), append(gone, done)
		go func() { // ends with the program
			_ = cmd.Wait() // its message is in its log
			close(done)
			ended <- p.Name
		}()
		if over, err := p.await(done, lines); over || err != nil {
			return err
		}
		fmt.Fprintln(out, p.Name, cmd.Process.Pid)
	}
	for {
		select {
		case _, ok := <-lines:
			if !ok {
				return nil
			}
		case name := <-ended:
			return r.without(name)
		}
	}
}

// without is the error that ends a room in which a program has ended.
func (r room) without(program string) error {
	return fmt.Errorf("%s has ended; see %s", program, r.log(program))
}

func (r room) start(p program) (*exec.Cmd, error) {
	log, err := os.Create(r.log(p.Name))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(p.Command[0], p.Command[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", p.Name, err)
	}
	return cmd, nil
}

// await waits until the program listens. over: the input has ended meanwhile.
func (p program) await(ended, lines <-chan struct{}) (over bool, err error) {
	if p.Socket == "" {
		return false, nil
	}
	for deadline := time.Now().Add(patience); ; {
		conn, err := net.Dial("unix", p.Socket)
		if err == nil {
			return false, conn.Close()
		}
		if time.Now().After(deadline) {
			return false, fmt.Errorf("%s does not listen: %w", p.Name, err)
		}
		select {
		case <-ended:
			return false, fmt.Errorf("%s has ended before it listened", p.Name)
		case <-lines: // nothing is released before all others run
			return true, nil
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// furnish lays the copies over the directories, and the wanted values over the kernel's parameters.
// The process has a mount namespace of its own, whose mounts end with the last program in it.
func (r room) furnish() error {
	for i, dir := range r.Copied {
		upper, work := filepath.Join(r.Dir, fmt.Sprintf("upper-%d", i)), filepath.Join(r.Dir, fmt.Sprintf("work-%d", i))
		if err := errors.Join(os.MkdirAll(upper, 0o755), os.MkdirAll(work, 0o755)); err != nil {
			return err
		}
		if err := unix.Mount("overlay", dir, "overlay", 0,
			fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", dir, upper, work)); err != nil {
			return fmt.Errorf("lay a copy over %s: %w", dir, err)
		}
	}
	for name, value := range r.Settings {
		path := filepath.Join("/proc/sys", name)
		now, err := os.ReadFile(path)
		if err == nil && strings.TrimSpace(string(now)) == value {
			continue
		}
		own := filepath.Join(r.Dir, strings.ReplaceAll(name, "/", "."))
		if err := errors.Join(err, os.WriteFile(own, []byte(value+"\n"), 0o644)); err != nil {
			return err
		}
		if err := unix.Mount(own, path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("lay %s over %s: %w", value, path, err)
		}
	}
	return nil
}

// tenant is the child that holds a room.
type tenant struct {
	room  room
	input io.WriteCloser
	lines chan string // of its output
	ended chan struct{}
	pids  map[string]int // by the names of the programs
}

// enter starts the programs of a room in a network namespace, but for those that are held, and
// waits until they run. The room ends with the context.
func enter(ctx context.Context, namespace string, r room) (*tenant, error) {
	own, err := os.Executable()
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(r.Dir, "room.json")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		return nil, err
	}
	log, err := os.Create(r.log(serveRoom))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(own, serveRoom, file)
	cmd.Stderr = log
	// A session of its own: Ctrl-C ends it in order, by the end of its input.
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Setsid: true}
	t := &tenant{room: r, lines: make(chan string, len(r.Programs)), ended: make(chan struct{}), pids: map[string]int{}}
	if t.input, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := osthread.InNetwork(namespace, cmd.Start); err != nil {
		return nil, err
	}
	forget := context.AfterFunc(ctx, func() { _ = t.input.Close() }) // closed already, if the child has ended
	go func() {                                                      // ends with the child
		defer forget()
		for scanner := bufio.NewScanner(output); scanner.Scan(); {
			t.lines <- scanner.Text()
		}
		close(t.lines)
		_ = cmd.Wait() // its message is in its log
		close(t.ended)
	}()
	for _, p := range r.Programs {
		if p.Held {
			continue
		}
		if err := t.hear(); err != nil {
			t.leave()
			return nil, errors.Join(err, t.said())
		}
	}
	return t, nil
}

// release starts the next program that is held.
func (t *tenant) release() error {
	if _, err := fmt.Fprintln(t.input); err != nil {
		return err
	}
	return t.hear()
}

// hear waits until one more program runs.
func (t *tenant) hear() (err error) {
	line, ok := <-t.lines
	if !ok {
		return errors.New("upstream's programs do not run")
	}
	name, pid, _ := strings.Cut(line, " ")
	t.pids[name], err = strconv.Atoi(pid)
	return err
}

// leave ends the programs and waits until they have ended.
func (t *tenant) leave() {
	_ = t.input.Close() // closed already, if Wait was faster
	<-t.ended
}

// said is an error with the ends of all logs.
func (t *tenant) said() error {
	var out []error
	for _, name := range append([]string{serveRoom}, programNames(t.room)...) {
		if log, err := os.ReadFile(t.room.log(name)); err == nil && len(log) > 0 {
			out = append(out, fmt.Errorf("%s: %s", name, log[max(0, len(log)-2000):]))
		}
	}
	return errors.Join(out...)
}

func programNames(r room) (names []string) {
	for _, p := range r.Programs {
		names = append(names, p.Name)
	}
	return names
}
