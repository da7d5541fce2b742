package procstat

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/internal/child"
	"github.com/barque/barque/internal/needs"
)

// line is the kernel's line about a process.
func line(state, threads, started string) string {
	return "7 (a (b) c) " + state + strings.Repeat(" 5", 16) + " " + threads + " 5 " + started +
		strings.Repeat(" 5", 30) + "\n"
}

func TestStat(t *testing.T) {
	for text, want := range map[string]struct {
		stat          Stat
		runs, stopped bool
	}{
		line("S", "3", "42"): {Stat{'S', 3, 42, 5, 0}, true, false},
		line("T", "1", "42"): {Stat{'T', 1, 42, 5, 0}, true, true},
		line("Z", "1", "42"): {Stat{'Z', 1, 42, 5, 0}, false, false},
		line("X", "1", "42"): {Stat{'X', 1, 42, 5, 0}, false, false},
		line("Z", "2", "42"): {Stat{'Z', 2, 42, 5, 0}, true, false},
		line("X", "2", "42"): {Stat{'X', 2, 42, 5, 0}, true, false},
	} {
		s, err := parse([]byte(text))
		if err != nil || s != want.stat || s.Runs() != want.runs || s.Stopped() != want.stopped {
			t.Errorf("%q: %+v, %v: runs %t, stopped %t", text, s, err, s.Runs(), s.Stopped())
		}
	}
	words := strings.Fields(line("S", "3", "42"))
	words[49], words[50] = "9", "10" // the command has three words
	if s, err := parse([]byte(strings.Join(words, " "))); err != nil || s.argsAt != 9 {
		t.Errorf("%+v, %v: its arguments are not laid", s, err)
	}
	for _, text := range []string{"", "7", "7 (a) S 5", line("S", "x", "42"), line("S", "1", "-1"),
		strings.ReplaceAll(line("S", "1", "1"), " 5", " x")} {
		if s, err := parse([]byte(text)); err == nil {
			t.Errorf("%q is taken for %+v", text, s)
		}
	}
}

// A read that began just before the first thread of a process was replaced is repeated.
func TestRead(t *testing.T) {
	const gone, died = "no such file", "no such process"
	for _, c := range []struct {
		looks []string
		want  Stat
		err   error
		made  int
	}{
		{[]string{line("S", "3", "42")}, Stat{'S', 3, 42, 5, 0}, nil, 1},
		{[]string{line("X", "0", "42"), line("R", "1", "42")}, Stat{'R', 1, 42, 5, 0}, nil, 2},
		{[]string{line("Z", "0", "42"), line("Z", "2", "42")}, Stat{'Z', 2, 42, 5, 0}, nil, 2},
		{[]string{gone, line("R", "1", "42")}, Stat{'R', 1, 42, 5, 0}, nil, 2},
		{[]string{died, line("X", "0", "42"), line("S", "2", "42")}, Stat{'S', 2, 42, 5, 0}, nil, 3},
		{[]string{line("Z", "1", "42")}, Stat{'Z', 1, 42, 5, 0}, nil, 1},
		{[]string{line("Z", "0", "42"), gone, gone}, Stat{}, fs.ErrNotExist, 3},
		{[]string{gone, gone, gone}, Stat{}, fs.ErrNotExist, 3},
		{[]string{died, died, died}, Stat{}, fs.ErrNotExist, 3},
		{[]string{line("Z", "0", "42"), line("Z", "0", "42"), line("X", "0", "42")}, Stat{'X', 0, 42, 5, 0}, nil, 3},
		{[]string{"forbidden"}, Stat{}, fs.ErrPermission, 1},
	} {
		made := 0
		s, err := read(7, func(path string) ([]byte, error) {
			if path != "/proc/7/stat" || made == len(c.looks) {
				return nil, fmt.Errorf("look %d is at %s", made+1, path)
			}
			made++
			switch text := c.looks[made-1]; text {
			case gone:
				return nil, &fs.PathError{Op: "open", Path: path, Err: syscall.ENOENT}
			case died:
				return nil, &fs.PathError{Op: "read", Path: path, Err: syscall.ESRCH}
			case "forbidden":
				return nil, &fs.PathError{Op: "open", Path: path, Err: syscall.EACCES}
			default:
				return []byte(text), nil
			}
		})
		if !errors.Is(err, c.err) || err == nil && s != c.want || err != nil && c.err == nil || made != c.made ||
			s.Runs() != c.want.Runs() && err == nil {
			t.Errorf("%q: %+v, %v after %d looks, want %+v, %v after %d", c.looks, s, err, made, c.want, c.err, c.made)
		}
	}
}

func TestProcess(t *testing.T) {
	if s, err := Read(os.Getpid()); err != nil || !s.Runs() || s.Stopped() || s.Threads < 1 || s.Started == 0 {
		t.Errorf("this process: %+v, %v", s, err)
	}
	if all, err := All(); err != nil || !slices.Contains(all, os.Getpid()) || !slices.Contains(all, 1) {
		t.Errorf("all processes: %v, %v", all, err)
	}
	likeThis(t, os.Getpid(), os.Args)
	inCgroupsLikeThis(t, os.Getpid())
	if s, err := Read(math.MaxInt32); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a process that is not: %+v, %v", s, err)
	}
	nowhere(t, math.MaxInt32)
}

// likeThis checks that a process is in the same places as this one, with these arguments.
func likeThis(t *testing.T, pid int, args []string) {
	t.Helper()
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	another, err := os.Stat("/proc/self/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := Args(pid); err != nil || !slices.Equal(got, args) {
		t.Fatalf("arguments %q, %v, want %q", got, err, args)
	}
	if dir, err := WorkDir(pid); err != nil || dir != here {
		t.Fatalf("working directory %q, %v, want %q", dir, err, here)
	}
	if there, err := InNetwork(pid, namespaceOf(t, os.Getpid())); err != nil || there != Whole {
		t.Fatalf("in this network namespace: %v, %v", there, err)
	}
	if there, err := InNetwork(pid, another); err != nil || there != Absent {
		t.Fatalf("in another one: %v, %v", there, err)
	}
}

// inCgroupsLikeThis checks that a process is in the same cgroups as this one.
func inCgroupsLikeThis(t *testing.T, pid int) {
	t.Helper()
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	if lines, err := Cgroups(pid); err != nil || lines != string(own) {
		t.Errorf("cgroups %q, %v, want %q", lines, err, own)
	}
}

// atOnce fails when f waits for arguments that never come. It runs in virtual time, independent of
// the machine's speed.
func atOnce(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		before := time.Now()
		f(t)
		if waited := time.Since(before); waited >= execPatience {
			t.Errorf("the arguments were waited for, %s", waited)
		}
	})
}

// nowhere checks the answers about a process that has ended or never existed.
func nowhere(t *testing.T, pid int) {
	t.Helper()
	atOnce(t, func(t *testing.T) {
		if args, err := Args(pid); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("arguments %q, %v", args, err)
		}
	})
	if dir, err := WorkDir(pid); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("working directory %q, %v", dir, err)
	}
	if there, err := InNetwork(pid, namespaceOf(t, os.Getpid())); err != nil || there != Absent {
		t.Errorf("in this network namespace: %v, %v", there, err)
	}
	if _, err := Read(pid); err == nil {
		return // it is a zombie
	}
	if lines, err := Cgroups(pid); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("cgroups %q, %v", lines, err)
	}
}

// An ending thread has no data any more, and its arguments are not awaited.
func TestAlive(t *testing.T) {
	for flags, want := range map[string]error{"4194304": nil, "4194308": fs.ErrNotExist} {
		dir := t.TempDir()
		text := strings.Replace(line("S", "3", "42"), strings.Repeat(" 5", 6), strings.Repeat(" 5", 5)+" "+flags, 1)
		if err := os.WriteFile(filepath.Join(dir, "stat"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if s, err := alive(dir); !errors.Is(err, want) || want == nil && err != nil {
			t.Errorf("flags %s: %+v, %v, want %v", flags, s, err, want)
		}
	}
}

// A kernel thread has no arguments, and they are not awaited.
func TestArgsOfKernelThreads(t *testing.T) {
	s, err := Read(2)
	if err != nil || s.flags&flagKernelThread == 0 {
		t.Skipf(
			"SKIPPED: process 2 is no kernel thread here (%+v, %v): nothing shows that the arguments of one are not waited for", s, err)
	}
	atOnce(t, func(t *testing.T) {
		if args, err := Args(2); err != nil || len(args) > 0 {
			t.Errorf("%q, %v", args, err)
		}
	})
}

// roleVariable in the environment makes the test's program another one.
const roleVariable = "BARQUE_TEST_ROLE"

func init() {
	role := os.Getenv(roleVariable)
	if role == "" {
		return
	}
	if execs, err := strconv.Atoi(role); err == nil {
		startAnew(execs)
	}
	if role == "headless" {
		runtime.LockOSThread() // the first, which Go itself would keep
		go waitForInput()
		_, _, _ = syscall.Syscall(syscall.SYS_EXIT, 0, 0, 0)
	}
	if role == "visitor" {
		runtime.LockOSThread() // the first; Go has others
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	if role == "bare" {
		if err := dropArgs(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	waitForInput()
}

// dropArgs closes the part of this process's memory in which its arguments begin. Nothing may look
// at os.Args from then on.
func dropArgs() error {
	data, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return err
	}
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	from, err := strconv.ParseUint(fields[45], 10, 64)
	if err != nil {
		return err
	}
	const page = 4096
	if _, _, errno := syscall.Syscall(syscall.SYS_MPROTECT, uintptr(from)&^(page-1), page,
		syscall.PROT_NONE); errno != 0 {
		return errno
	}
	return nil
}

func waitForInput() {
	fmt.Println("done")
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// startAnew executes the program again in its own process a number of times, as a server that has
// healed does. It does so on a thread that is not the first, beside many others.
func startAnew(times int) {
	next := strconv.Itoa(times - 1)
	if times == 1 {
		next = "wait"
	}
	for range 20 {
		go func() {
			runtime.LockOSThread()
			select {}
		}()
	}
	runtime.LockOSThread() // the first
	go func() {
		runtime.LockOSThread()
		err := os.Setenv(roleVariable, next)
		if err == nil {
			err = syscall.Exec("/proc/self/exe", os.Args, os.Environ())
		}
		fmt.Println(err)
		os.Exit(1)
	}()
	select {}
}

// play starts the test's program in a role. said receives its first line. end ends it and checks
// the answers about it then.
func play(t *testing.T, role string) (cmd *exec.Cmd, said <-chan string, end func()) {
	// More than a page of arguments: the kernel returns them in the parts that a reader asks for.
	cmd = exec.Command(os.Args[0], slices.Repeat([]string{"an argument of some length"}, 600)...)
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	stdin, said := child.Start(t, cmd, cmd.Start)
	return cmd, said, func() {
		stdin.Close()
		pid := cmd.Process.Pid
		await.True(t, "the process ends", func() bool { // it is a zombie
			s, err := Read(pid)
			return err == nil && !s.Runs()
		})
		nowhere(t, pid)
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
}

// TestExec: a process that executes itself again runs all the time, and has its arguments.
func TestExec(t *testing.T) {
	execs := 200
	if testing.Short() {
		execs = 50
	}
	cmd, said, end := play(t, strconv.Itoa(execs))
	defer end()
	first, err := Read(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	looks := 0
	for line := ""; line == ""; looks++ {
		if s, err := Read(cmd.Process.Pid); err != nil || !s.Runs() || s.Started != first.Started {
			t.Fatalf("look %d: %+v, %v; it was %+v", looks, s, err, first)
		}
		likeThis(t, cmd.Process.Pid, cmd.Args)
		select {
		case line = <-said:
			if line != "done\n" {
				t.Errorf("the process says %q", line)
			}
		default:
		}
	}
	t.Logf("%d looks at %d execs", looks, execs)
}

// A process that has removed its arguments has none, and they are not awaited.
func TestRemovedArgs(t *testing.T) {
	cmd, said, end := play(t, "bare")
	defer end()
	if line := <-said; line != "done\n" {
		t.Fatalf("the process says %q", line)
	}
	atOnce(t, func(t *testing.T) {
		if args, err := Args(cmd.Process.Pid); err != nil || len(args) > 0 {
			t.Errorf("%q, %v", args, err)
		}
	})
}

// A process with one thread in another network namespace is partly in both, whichever thread it is.
func TestPartial(t *testing.T) {
	needs.Root(t, "that a process visits a network namespace")
	cmd, said, end := play(t, "visitor")
	defer end()
	if line := <-said; line != "done\n" {
		t.Fatalf("the process says %q", line)
	}
	pid := cmd.Process.Pid
	first := namespaceOf(t, pid)
	if os.SameFile(first, namespaceOf(t, os.Getpid())) {
		t.Fatal("its first thread is here")
	}
	for _, namespace := range []fs.FileInfo{first, namespaceOf(t, os.Getpid())} {
		if there, err := InNetwork(pid, namespace); err != nil || there != Partial {
			t.Errorf("in network namespace %d: %v, %v", namespace.Sys().(*syscall.Stat_t).Ino, there, err)
		}
	}
	if there, err := InNetwork(os.Getpid(), first); err != nil || there != Absent {
		t.Errorf("this process is there, too: %v, %v", there, err)
	}
}

// namespaceOf is the network namespace of a process's first thread.
func namespaceOf(t *testing.T, pid int) fs.FileInfo {
	t.Helper()
	namespace, err := os.Stat(filepath.Join(directory(pid), "ns/net"))
	if err != nil {
		t.Fatal(err)
	}
	return namespace
}

// TestHeadless: a process whose first thread has ended for good runs, and has its arguments.
func TestHeadless(t *testing.T) {
	cmd, said, end := play(t, "headless")
	defer end()
	if line := <-said; line != "done\n" {
		t.Fatalf("the process says %q", line)
	}
	pid := cmd.Process.Pid
	await.True(t, "its first thread ends", func() bool {
		s, err := Read(pid)
		if err != nil || !s.Runs() {
			t.Fatalf("%+v, %v", s, err)
		}
		return s.State == 'Z'
	})
	atOnce(t, func(t *testing.T) { likeThis(t, pid, cmd.Args) })
	inCgroupsLikeThis(t, pid)
}
