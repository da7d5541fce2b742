package machines

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/barque/barque/internal/mountspace"
)

// initVariable in the environment makes the program the process 1 of a machine; its value is the
// setup.
const initVariable = "BARQUE_MACHINES_INIT"

// Home is the directory of a machine in which commands run.
const Home = "/home/operator"

// DataDir is where a machine's disk is mounted.
const DataDir = "/var/lib/barque"

// setup has the parts of process 1's namespaces.
type setup struct {
	Name   string `json:"name"`
	Disk   string `json:"disk"`   // directory, or image of a file system
	Image  bool   `json:"image"`  // which of both
	Home   string `json:"home"`   // directory
	Binary string `json:"binary"` // becomes /usr/local/bin/barque
}

// InitIfAsked is called first in the program that makes machines: in the process 1 of one it does
// that one's work and does not return.
func InitIfAsked() {
	text, ok := os.LookupEnv(initVariable)
	if !ok {
		return
	}
	if err := beInit(text); err != nil {
		fmt.Fprintln(os.Stderr, "process 1 of a machine:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func beInit(text string) error {
	var s setup
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return err
	}
	if err := s.make(); err != nil {
		return err
	}
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	if _, err := fmt.Println("ready"); err != nil {
		return err
	}
	off := make(chan struct{})
	go func() { // ends with the process
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(off)
	}()
	for {
		select {
		case <-off:
			return nil // and the kernel kills all others
		case <-children:
			for {
				if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); pid <= 0 && !errors.Is(err, unix.EINTR) {
					break
				}
			}
		}
	}
}

// make mounts the machine's own directories.
func (s *setup) make() error {
	// Nothing of this is seen outside, and no mounts of others are held here for as long as the
	// machine is on.
	if err := mountspace.Own(s.Binary, s.Home, s.Disk); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(s.Name)); err != nil {
		return err
	}
	if err := mount("proc", "/proc", "proc", 0, ""); err != nil {
		return err
	}
	// The mounts that follow may cover these paths.
	var opened []*os.File
	for _, path := range []string{s.Binary, s.Home, s.Disk} {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		opened = append(opened, f)
	}
	binary, home, disk := opened[0], opened[1], opened[2]
	for _, dir := range []string{"/run", "/var/lib", "/var/log", "/mnt", "/home", filepath.Dir(command)} {
		if err := mount("tmpfs", dir, "tmpfs", 0, "mode=0755"); err != nil {
			return err
		}
	}
	const upper, work = "/run/etc/upper", "/run/etc/work"
	for _, dir := range []string{upper, work, DataDir, Home} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(command, nil, 0o755); err != nil {
		return err
	}
	err := errors.Join(
		mount("overlay", "/etc", "overlay", 0, "lowerdir=/etc,upperdir="+upper+",workdir="+work),
		bind(binary, command),
		bind(home, Home),
		s.mountDisk(disk),
		os.MkdirAll("/etc/barque", 0o755),
	)
	if err != nil {
		return err
	}
	// Mounts for pods must be seen by containerd and by the pods.
	return mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "")
}

// command is the binary under test in a machine.
const command = "/usr/local/bin/barque"

func (s *setup) mountDisk(disk *os.File) error {
	if !s.Image {
		return bind(disk, DataDir)
	}
	// The loop device goes with the mount.
	cmd := exec.Command("mount", "-o", "loop", "/proc/self/fd/3", DataDir)
	cmd.ExtraFiles = []*os.File{disk}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("mount %s: %w: %s", s.Disk, err, out)
	}
	return nil
}

func bind(what *os.File, target string) error {
	return mount(fmt.Sprintf("/proc/self/fd/%d", what.Fd()), target, "", unix.MS_BIND, "")
}

func mount(source, target, kind string, flags uintptr, data string) error {
	if err := unix.Mount(source, target, kind, flags, data); err != nil {
		return fmt.Errorf("mount %s at %s: %w", source, target, err)
	}
	return nil
}

// namespaces are those that a machine has of its own.
const namespaces = syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET |
	syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC
